"""Corpora encoded by many processes: one callable, columns in, columns out, for a pool of processes, for Ray Data and for Spark.

batches     BatchEncoder: the callable
shards      documents in shards that any process may encode
processes   batches by the processes of this machine
ray_data    documents by the actors of a Ray cluster

The public name, which is imported when first used.
"""

from typing import TYPE_CHECKING

from uwaga._base.lazy import names

if TYPE_CHECKING:
    from uwaga.corpora.batches import BatchEncoder as BatchEncoder
else:
    __all__, __getattr__, __dir__ = names(__name__)
