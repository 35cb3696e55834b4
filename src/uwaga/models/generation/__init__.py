"""Text that goes on: greedy search, sampling and beam search over ragged prompts, with a key-value cache.

`uwaga.models.generate` is the door. A model takes part by offering what decoding.py's `Generator` lists.
"""
