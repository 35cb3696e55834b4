"""Floor 2: the attention weights as a virtual array. Start with spec.py, which says what every statistic means."""
