"""The statistics of maps that are divided over processes: read from a map by the processes, and by the test from that of the whole.

`part`: where this process's queries are in the whole, or its tokens.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import uwaga

Statistics = dict[str, list[Tensor]]
# Calls of `attend`: dense ones, and ("ragged", name).
ATTENDED = (
    "many blocks", "three key heads", "a start per sequence", "cross", "no tokens", ("ragged", "starts"), ("ragged", "dropout"),
    ("ragged", "no rows"),
)  # fmt: skip
GATE_OF_ATTENDED = {"three key heads", "cross", ("ragged", "starts"), ("ragged", "dropout")}


def of_queries(m: Any, keys: int) -> Statistics:
    """Of each query; those of `AttentionMap` and of `SequenceMap`."""
    some_keys = torch.arange(keys) % 3 > 0
    columns = [m.column(-1), m.column(0)] if keys else []
    return _of_queries(m, uwaga.Causal(start=2) & some_keys, 1) | {"column": columns}


def _of_queries(m: Any, mask: Any, start: Any) -> dict[str, list[Any]]:
    return {
        "lse": [m.lse],
        "entropy": [m.entropy(), m.entropy(normalize=True)],
        "effective_count": [m.effective_count()],
        "distance": [m.distance(), m.distance(3)],
        "mass": [m.mass(uwaga.Window(9, 4)), m.mass(mask)],
        "sink": [*m.sink()],
        "diagonal": [m.diagonal(-1), m.diagonal(2, start=start)],
        "peak": [*m.peak()],
    }


def of_keys(m: Any, queries: int, part: slice) -> Statistics:
    weights = torch.where(torch.arange(queries) % 3 > 0, torch.arange(queries) % 7 - 2.0, 0.0)
    return {
        "received": [m.received(), m.received(last=5), m.received(last=10**6)],
        "received by weights": [m.received(weights=weights[part]), m.received(40, weights[part])],
    }


def of_all(m: Any, queries: int, keys: int) -> Statistics:
    """What is the same in every process."""
    some_rows, some_keys = [queries // 3, queries // 2, queries], [0, keys // 7, keys // 7, keys - keys // 5]
    pooled = m.pool(5, 3, "max")
    return {
        "diagonal_sums": [m.diagonal_sums()],
        "pool": [m.pool(7, 4).weights, m.pool(some_rows, some_keys).weights],
        "largest": [*pooled, *m.pool(some_rows, some_keys, "max")],
        "row": [m.row(0), m.row(-1)] if queries else [],
        "entries": [m[..., [0, queries // 2, queries - 1], 1 : keys // 2 : 3]] if queries and keys else [],
    }


def of_tokens(m: Any, keys: int) -> Statistics:
    """Of the queries of a Ragged map; starts and masks that are the same for all rows."""
    result = of_queries_of_ragged(m, keys)
    return {name: [x.values for x in statistics] for name, statistics in result.items()}


def of_queries_of_ragged(m: Any, keys: int) -> dict[str, list[Any]]:
    """`keys`: of the longest row."""
    rows = m.shape[0]
    starts = torch.arange(rows) * 3 - 2
    causal_or_first = uwaga.Causal(start=starts) | uwaga.KeyLengths(starts.clamp(0, keys))
    distances = [m.distance(), m.distance(3), m.distance(starts)]
    return _of_queries(m, causal_or_first, starts) | {"distance": distances, "topk": [*m.topk(5)]}


def of_key_tokens(m: Any, weights: Any) -> list[Tensor]:
    return [x.values for x in (m.received(), m.received(last=3), m.received(weights=weights), m.received(30, weights))]


def of_attended(query: Any, key: Any, value: Any, options: dict[str, Any]) -> list[Any]:
    """Output, lse, and statistics of the map: in one pass, and with gradients in two."""
    results = []
    for records in (False, True):
        torch.manual_seed(1)
        if isinstance(query, uwaga.Ragged):
            leaf = query.with_values(query.values.clone().requires_grad_(records))
        else:
            leaf = query.clone().requires_grad_(records)
        with torch.set_grad_enabled(records):
            output, lse, m = uwaga.attend(leaf, key, value, **options, entropy=True, topk=3)
        results += [output, lse, m.lse, m.entropy(), *m.topk(3), m.mass(uwaga.Window(9, 4)), m.received()]
    return [x.with_values(x.values.detach()) if isinstance(x, uwaga.Ragged) else x.detach() for x in results]


FUNCTIONS: dict[str, Callable[[Any], object]] = {
    "rows": lambda m: m.topk(8),
    "mass": lambda m: m.mass(uwaga.Window(99, 0)),
    "received": lambda m: m.received(last=30_000),
    "diagonals": lambda m: m.diagonal_sums(),
    "cells": lambda m: m.pool(64, 64),
    "largest": lambda m: m.pool(64, 64, "max"),
    "row": lambda m: m.row(7),
}
