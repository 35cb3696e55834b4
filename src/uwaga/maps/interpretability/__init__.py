"""Scores of heads from the interpretability literature, each with its paper."""
