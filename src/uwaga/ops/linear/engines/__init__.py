"""Implementations of the product residual + f(a b^T + bias); choose.py specifies their functions."""
