"""Greedy search, sampling and beam search over ragged prompts, with a key-value cache.

`uwaga.models.generate` is the public function.
"""
