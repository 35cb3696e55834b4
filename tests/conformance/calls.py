"""Calls that nobody thinks of, for Hypothesis to draw: empty batches, no keys, one token, odd widths, strange strides.

Letters: B sequences, H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width.
"""

import torch
from hypothesis import strategies as st
from torch import Tensor

from uwaga import AlibiBias, Causal, Documents, KeyLengths, RelativeBias, Window

DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])


def _plain(x: Tensor) -> Tensor:
    return x


def _heads_inside(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _far_apart(x: Tensor) -> Tensor:
    """Huge strides: one row of a wide table each, with nan between."""
    table = torch.full((*x.shape[:-1], 1000 + x.shape[-1]), torch.nan, dtype=x.dtype)
    table[..., : x.shape[-1]] = x
    return table[..., : x.shape[-1]]


def _columns_first(x: Tensor) -> Tensor:
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


def _one_sequence(x: Tensor) -> Tensor:
    """Zero strides: every sequence is the first."""
    return x[:1].expand_as(x) if x.shape[0] else x


def _overlapping(x: Tensor) -> Tensor:
    """Row t + 1 starts one element after row t."""
    batch, heads, tokens, width = x.shape
    line = torch.randn(batch, heads, tokens + width, generator=torch.Generator().manual_seed(5)).to(x.dtype)
    return line.as_strided(x.shape, (*line.stride()[:2], 1, 1))


LAYOUTS = st.sampled_from([_plain, _heads_inside, _far_apart, _columns_first, _one_sequence, _overlapping])


@st.composite
def dense_calls(draw) -> tuple[dict[str, Tensor], dict]:
    """Operands and options of a dense call."""
    batch, groups = draw(st.integers(0, 3)), draw(st.integers(1, 3))
    heads = groups * draw(st.integers(1, 3))
    queries, keys = draw(st.integers(0, 40)), draw(st.integers(0, 40))
    width, value_width = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    dtype, generator = draw(DTYPES), torch.Generator().manual_seed(draw(st.integers(0, 99)))
    shapes = {
        "query": (batch, heads, queries, width),
        "key": (batch, groups, keys, width),
        "value": (batch, groups, keys, value_width),
    }
    operands = {
        name: draw(LAYOUTS)(torch.randn(shape, generator=generator).to(dtype)) for name, shape in shapes.items()
    }
    return operands, draw(_options(batch, heads, queries, keys, generator))


def _options(batch: int, heads: int, queries: int, keys: int, generator: torch.Generator):
    ids = torch.randint(0, 3, (batch, keys), generator=generator)
    query_ids = torch.randint(0, 3, (batch, queries), generator=generator)
    lengths = torch.randint(0, keys + 1, (batch,), generator=generator)
    starts = torch.randint(-5, 45, (batch,), generator=generator)
    bits = torch.rand(1, heads, queries, keys, generator=generator) < 0.5
    atom = st.sampled_from(
        [
            Causal(),
            Causal(include_self=False, start=3),
            Causal(start=starts),
            Window(2, 5),
            Window(None, 1, start=-2),
            KeyLengths(lengths),
            Documents(ids, query_ids=query_ids),
            bits,
        ]
    )
    structured = st.sampled_from([Causal(), Window(3, None), KeyLengths(lengths)])
    joined = st.builds(lambda a, b, both: a & b if both else a | b, structured, atom, st.booleans())
    slopes, table = torch.rand(heads, generator=generator), torch.randn(8, heads, generator=generator)
    biases = [None, AlibiBias(slopes), RelativeBias(table, max_distance=16, start=1)]
    return st.fixed_dictionaries(
        {"mask": st.one_of(st.none(), atom, joined), "bias": st.sampled_from(biases)},
        optional={
            "softcap": st.just(2.0),
            "scale": st.sampled_from([1.0, 0.1]),
            "sinks": st.just(torch.randn(heads, generator=generator)),
            "dropout": st.just(0.25),
        },
    )
