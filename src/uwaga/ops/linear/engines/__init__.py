"""Ways to compute a linear map, side by side; they never import each other."""
