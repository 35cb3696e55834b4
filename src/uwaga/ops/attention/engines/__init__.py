"""Ways to compute one Call, side by side; they never import each other. spec.py says what each of them offers."""
