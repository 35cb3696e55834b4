"""Texts to token ids.

loading          a model's tokenizer.json, checked against its config.json
text_tokenizer   the tokenizer of a training: special tokens by role, parts of long texts, its files
training         vocabularies of characters, words and byte pairs
"""
