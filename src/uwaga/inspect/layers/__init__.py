"""The attention layers of a model that `uwaga.watch` records.

attention_layers    by kind and number; token embeddings
builtin             layers of this package
huggingface         layers of transformers, and its speculative decoding
"""
