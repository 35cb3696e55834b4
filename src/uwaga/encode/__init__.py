"""Texts to vectors and scores.

encoder           TextEncoder
reranker          Reranker: a score for a query and a document
sentence_config   the sentence-transformers configuration of a model directory; colbert: that of vectors of tokens
sentence_head     the modules after pooling
chat_template     the texts and pairs that a model's template makes messages of; templates renders them by template_program
preprocessing     groups of texts, their tokens, windows of long texts, the tokens of parts of a text
inference         batches, the model's forward passes, and pooling
report, progress  the part of a text that each row was computed from; progress of a run
batches           BatchEncoder: columns in, columns out, for a pool of processes, for Ray Data and for Spark
shards            a file of documents to a file of vectors, in shards that any process may encode
vector_files      vectors of a corpus in a parquet file, resumable
processes         batches by the processes of this machine or by the actors of a Ray cluster

The public name, which is imported when first used.
"""

from typing import TYPE_CHECKING

from uwaga._base.lazy import names

if TYPE_CHECKING:
    from uwaga.encode.batches import BatchEncoder as BatchEncoder
else:
    __all__, __getattr__, __dir__ = names(__name__)
