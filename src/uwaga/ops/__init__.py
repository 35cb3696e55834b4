"""Floor 1: the operation. Start with attention/reference.py, which says what attention means."""
