"""Greedy search, sampling and beam search over ragged prompts, with a key-value cache.

`uwaga.models.generate` is the public function. It takes any model that has what `Generator` in decoding.py lists.
"""
