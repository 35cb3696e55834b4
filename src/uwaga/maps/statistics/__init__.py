"""Statistics of a map: arguments of the methods, pooling, what is cached of the rows, gradients."""
