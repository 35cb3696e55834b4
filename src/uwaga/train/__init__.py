"""Floor of training: from text to a Transformer."""
