"""Texts, read once: documents of files for encoding, a store and training, their passages, and tokenizers that are trained on them.

documents    documents from .txt, .md, .jsonl, .csv and .parquet files
splits       which documents are for validation, and pairs of a source and a target
passages     paragraphs, sentences and lines of a text
tokenizers   tokenizers that are trained on texts: special tokens by role, parts of long texts, their files
"""
