"""Every statistic of a map, by every engine, is that of the dense matrix, as exactly as oracle.py asks.

Letters: B sequences, H query heads, G key/value heads, Q queries, K keys, D query/key width.
"""

from dataclasses import replace
from functools import cache

import map_oracle
import oracle
import pytest
import test_exactness as exactness
import torch
from map_oracle import Dense
from test_exactness import DTYPES, Case
from torch import Tensor

from uwaga import Causal
from uwaga.maps.map import AttentionMap

# What only values, dropout and the missing softmax change is not of a map.
_NOT_OF_A_MAP = {
    "more queries than keys", "window to the right", "lengths", "documents, last queries", "narrow values", "wide values", "width 64",
    "width 80", "width 256", "a few queries", "relative, one direction", "broadcast bias", "dropout",
}  # fmt: skip
CASES = {
    **{
        name: replace(case, D=min(case.D, 128 if name == "width 128" else 16))
        for name, case in exactness.CASES.items()
        if name not in _NOT_OF_A_MAP and not name.startswith("no softmax")
    },
    "more queries than keys": Case(Q=70, K=33, D=16),
    "more queries than keys, causal": Case(Q=70, K=33, D=16, options={"mask": Causal()}),
    "several blocks": Case(B=1, H=1, G=1, Q=300, K=520, options={"mask": Causal()}),
}


def _peaked(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Rows of very different size: weights from one-hot to uniform."""
    x = torch.randn(shape, generator=generator)
    return x * 10.0 ** torch.randint(-2, 2, (*shape[:-1], 1), generator=generator)


INPUTS = {"random": exactness.INPUTS["random"], "peaked": _peaked}


@cache
def _operands(name: str, inputs: str, dtype: str) -> dict[str, Tensor]:
    case, generator = CASES[name], torch.Generator().manual_seed(0)
    shapes = {"query": (case.B, case.H, case.Q, case.D), "key": (case.B, case.G, case.K, case.D)}
    made = {key: INPUTS[inputs](shape, generator) for key, shape in shapes.items()}
    made |= {key: torch.randn(shape, generator=generator) for key, shape in case.extras.items()}
    return {key: x.to(DTYPES[dtype]) for key, x in made.items()}


def _options(name: str, operands: dict[str, Tensor]) -> dict:
    case = CASES[name]
    options = {key: x for key, x in case.options.items() if key != "dropout"}
    return {"query": operands["query"], "key": operands["key"], **options, **case.build(operands)}


@cache
def _case(name: str, inputs: str, dtype: str) -> map_oracle.Case:
    operands = _operands(name, inputs, dtype)
    return map_oracle.Case.of(_options(name, operands), _options(name, oracle.to_float64(operands)))


@pytest.mark.gate(
    only=lambda map_engine, inputs, dtype: (
        map_engine.startswith("cpu") and (inputs == "random" or (inputs, dtype) == ("peaked", "bfloat16"))
    )
)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("name", CASES)
def test_statistics_are_as_exact_as_twice_the_usual(map_engine: str, name: str, inputs: str, dtype: str) -> None:
    m = AttentionMap(**oracle.on_device(_options(name, _operands(name, inputs, dtype))), impl=map_engine)
    case = _case(name, inputs, dtype)
    for statistic in map_oracle.STATISTICS:
        map_oracle.assert_as_exact(statistic, map_oracle.STATISTICS[statistic].of_map(m), case)


@pytest.mark.parametrize("name", CASES)
def test_in_float64_they_are_those_of_the_matrix(name: str) -> None:
    options = _options(name, oracle.to_float64(_operands(name, "random", "float32")))
    m, dense = AttentionMap(**options), Dense.of(map_oracle.lowered(**options))
    for statistic, how in map_oracle.STATISTICS.items():
        torch.testing.assert_close(how.of_map(m), how.of_dense(dense), msg=lambda text, s=statistic: f"{s}: {text}")
