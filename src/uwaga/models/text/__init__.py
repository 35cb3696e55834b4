"""Texts to vectors, and files of texts.

encoder           TextEncoder
sentence_config   the sentence-transformers configuration of a model directory
tokenizer         tokenizer.json
preprocessing     groups of texts, tokens, windows of long texts, batches
inference         the model's forward passes, and pooling
report, progress  which part of a text each row is of; progress of a run
corpus            documents from .txt, .jsonl and .parquet files, for encoding and for training
"""
