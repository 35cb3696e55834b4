"""Texts in, vectors out: tokenising, packing, pooling, and what happens to documents longer than the model."""
