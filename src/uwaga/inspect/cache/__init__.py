"""Policies of KV-cache eviction and sparse attention, and their losses. Public names are imported when first used.

layer      the input of a policy: exact weights and scores of one layer over one text
kept       the result of a policy: the keys that each query reads
policies   the policies, one function each, and simulated caches that drop a key at a time
study      cache_study: the losses of every head, policy and budget
running    cache_edit: a model whose layers forget
"""

from typing import TYPE_CHECKING

from uwaga._base.lazy import names

if TYPE_CHECKING:
    from uwaga.inspect.cache.kept import Chosen as Chosen
    from uwaga.inspect.cache.kept import Evicted as Evicted
    from uwaga.inspect.cache.kept import Kept as Kept
    from uwaga.inspect.cache.kept import KeptKeys as KeptKeys
    from uwaga.inspect.cache.kept import Lines as Lines
    from uwaga.inspect.cache.layer import CacheLayer as CacheLayer
    from uwaga.inspect.cache.policies import POLICIES as POLICIES
    from uwaga.inspect.cache.policies import h2o as h2o
    from uwaga.inspect.cache.policies import oracle as oracle
    from uwaga.inspect.cache.policies import pyramid_kv as pyramid_kv
    from uwaga.inspect.cache.policies import quest as quest
    from uwaga.inspect.cache.policies import snap_kv as snap_kv
    from uwaga.inspect.cache.policies import streaming_llm as streaming_llm
    from uwaga.inspect.cache.policies import tova as tova
    from uwaga.inspect.cache.policies import vertical_slash as vertical_slash
    from uwaga.inspect.cache.policies import window as window
else:
    __all__, __getattr__, __dir__ = names(__name__)
