"""The original Transformer, its two halves alone, and Marian's models, which are its best-known checkpoints."""
