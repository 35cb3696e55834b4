"""What a cache of keys and values may forget: policies of eviction and of sparse attention, and what they lose.

layer      what a policy sees: exact weights and scores of one layer over one text
kept       what a policy keeps: which keys each query may read
policies   the policies, one function each
eviction   caches that drop a key at a time, simulated
losses     mass, error and overlap of a block of queries
study      cache_study: all of it, for every head, policy and budget
running    cache_edit: a model whose layers forget

The public names; each is imported when first used.
"""

from typing import TYPE_CHECKING

from uwaga._base.lazy import names

if TYPE_CHECKING:
    from uwaga.inspect.cache.kept import Chosen, Evicted, Kept, KeptKeys, Lines
    from uwaga.inspect.cache.layer import CacheLayer
    from uwaga.inspect.cache.policies import (
        POLICIES,
        h2o,
        oracle,
        pyramid_kv,
        quest,
        snap_kv,
        streaming_llm,
        tova,
        vertical_slash,
        window,
    )

__all__ = [
    "POLICIES",
    "CacheLayer",
    "Chosen",
    "Evicted",
    "Kept",
    "KeptKeys",
    "Lines",
    "h2o",
    "oracle",
    "pyramid_kv",
    "quest",
    "snap_kv",
    "streaming_llm",
    "tova",
    "vertical_slash",
    "window",
]

_HOME = {
    **dict.fromkeys(("Chosen", "Evicted", "Kept", "KeptKeys", "Lines"), "uwaga.inspect.cache.kept"),
    "CacheLayer": "uwaga.inspect.cache.layer",
    **dict.fromkeys(
        (
            "POLICIES",
            "h2o",
            "oracle",
            "pyramid_kv",
            "quest",
            "snap_kv",
            "streaming_llm",
            "tova",
            "vertical_slash",
            "window",
        ),
        "uwaga.inspect.cache.policies",
    ),
}

__getattr__, __dir__ = names(__name__, _HOME)
