"""Texts to token ids.

tokenizer        a tokenizer and its file tokenizer.json, with limits of what it may do to a text
auto_tokenizer   what transformers makes of the files of a directory
loading          the tokenizer of a model, checked against its config.json
"""
