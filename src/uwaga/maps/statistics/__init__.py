"""Statistics of a map: arguments of the methods, pooling, cached statistics of rows, gradients."""
