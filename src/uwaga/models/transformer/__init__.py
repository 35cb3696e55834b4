"""The original Transformer, with encoder and decoder or only one of them, and Marian, its best-known checkpoints."""
