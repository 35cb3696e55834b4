"""Texts to vectors, and files of texts.

encoder           TextEncoder
sentence_config   the sentence-transformers configuration of a model directory
preprocessing     groups of texts, their tokens, windows of long texts, batches
passages, spans   paragraphs, sentences and lines of a text; the tokens of such spans
inference         the model's forward passes, and pooling
report, progress  the part of a text that each row was computed from; progress of a run
vector_files      vectors of a corpus in a parquet file, resumable; as a NumPy array
corpus            documents from .txt, .jsonl, .csv and .parquet files, for encoding and for training
"""
