"""Unusual shapes, layouts and options: empty batches, no keys, one token, odd widths, huge and zero strides.

Letters: B sequences, H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width.
"""

import math
from collections.abc import Callable

import oracle
import pytest
import torch
from calls import DTYPES, dense_calls
from engines import needs_native
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from uwaga import AlibiBias, Causal, Documents, KeyLengths, Ragged, RelativeBias, Window, attention, explain

SETTINGS = settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
FEW = settings(SETTINGS, max_examples=20)  # of an engine that takes 50 ms a call


def _check(impl: str, operands: dict[str, Tensor], options: dict, pack=lambda x: x) -> None:
    def build(x: dict[str, Tensor]) -> dict:
        return {**pack(x), **options}

    exact = oracle.measure(oracle.run_engine("reference"), oracle.to_float64(operands), build)
    result = oracle.measure(oracle.run_engine(impl), operands, build)
    plains, derive = [oracle.usual(operands, build)], lambda seed: [oracle.derived(operands, build, seed)]
    oracle.assert_as_exact([result], [exact], plains, derive, factor=20.0)


@needs_native
@SETTINGS
@given(dense_calls())
def test_any_dense_call_is_exact(call: tuple[dict[str, Tensor], dict]) -> None:
    _check("cpu", *call)


@pytest.mark.stress
@pytest.mark.slow
@SETTINGS
@given(dense_calls())
def test_any_dense_call_without_softmax_is_exact(call: tuple[dict[str, Tensor], dict]) -> None:
    operands, options = call
    options = {key: x for key, x in options.items() if key in ("mask", "scale")} | {"normalize": None}
    for engine in ("linear", "cpu"):
        if engine not in explain(*operands.values(), **options).refused:
            _check(engine, operands, options)


@pytest.mark.stress
@SETTINGS
@given(dense_calls())
def test_any_call_that_torch_serves_has_its_shape_and_its_zeros(call: tuple[dict[str, Tensor], dict]) -> None:
    operands, options = call
    options = {key: x for key, x in options.items() if key in ("mask", "bias", "scale")}
    output = attention(*operands.values(), impl="torch", **options)
    exact = attention(*oracle.to_float64(operands).values(), impl="reference", **options)
    # SDPA takes biases in the query's type: a bias that is off by d multiplies its weight by up to exp(2 d).
    query, key, value = operands.values()
    off = torch.finfo(query.dtype).eps / 2 * _largest_bias(options["bias"], query.shape[2] + key.shape[2])
    largest = float(value.abs().max()) if value.numel() else 0.0
    torch.testing.assert_close(output.double(), exact, rtol=0.05, atol=0.05 + math.expm1(2 * off) * largest)


def _largest_bias(bias: AlibiBias | RelativeBias | None, distances: int) -> float:
    return 0.0 if bias is None else float(bias.vector(torch.arange(-distances, distances)).abs().max())


@pytest.mark.stress
@pytest.mark.slow
@FEW
@given(dense_calls())
def test_any_dense_call_by_flex_attention_is_exact(call: tuple[dict[str, Tensor], dict]) -> None:
    _check("flex", *call)


@needs_native
@SETTINGS
@given(st.data())
def test_any_ragged_call_is_exact(data: st.DataObject) -> None:
    _check("cpu", *_ragged_call(data))


@pytest.mark.stress
@pytest.mark.slow
@FEW
@given(st.data())
def test_any_ragged_call_by_flex_attention_is_exact(data: st.DataObject) -> None:
    _check("flex", *_ragged_call(data))


def _ragged_call(data: st.DataObject) -> tuple[dict[str, Tensor], dict, Callable[[dict[str, Tensor]], dict]]:
    rows, groups = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 2))
    heads, width, value_width = groups * data.draw(st.integers(1, 2)), *data.draw(st.tuples(*[st.integers(1, 40)] * 2))
    dtype, generator = data.draw(DTYPES), torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    keys = data.draw(st.lists(st.integers(0, 40), min_size=rows, max_size=rows))
    queries = data.draw(st.one_of(st.just(keys), st.lists(st.integers(0, 40), min_size=rows, max_size=rows)))
    shapes = {
        "query": (sum(queries), heads, width),
        "key": (sum(keys), groups, width),
        "value": (sum(keys), groups, value_width),
    }
    operands = {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}
    offsets = [torch.tensor([0, *torch.tensor(x, dtype=torch.int64).cumsum(0).tolist()]) for x in (queries, keys)]
    ids, query_ids = (torch.randint(0, 3, (sum(x),), generator=generator) for x in (keys, queries))
    masks = [None, Causal(), Causal(start=0), Window(3, 2), Documents(ids, query_ids=query_ids)]
    masks.append(KeyLengths(torch.tensor([x // 2 for x in keys], dtype=torch.int64)) & Causal())
    biases = [None, AlibiBias(torch.rand(heads, generator=generator)), torch.randn(max([*keys, 0]))]
    options = {"mask": data.draw(st.sampled_from(masks)), "bias": data.draw(st.sampled_from(biases))}

    def pack(x: dict[str, Tensor]) -> dict:
        return {name: Ragged(values, offsets[name != "query"]) for name, values in x.items()}

    return operands, options, pack
