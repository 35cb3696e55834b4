"""Every statistic of a map, by every engine, is that of the dense matrix, as exactly as oracle.py asks.

Letters: B sequences, H query heads, G key/value heads, Q queries, K keys, D query/key width.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import map_oracle
import oracle
import pytest
import torch
from map_oracle import Dense
from torch import Tensor

from uwaga import AlibiBias, Causal, Documents, KeyLengths, RelativeBias, Window
from uwaga.maps.map import AttentionMap


@dataclass(frozen=True, kw_only=True)
class Case:
    """Sizes, and the options of a map; an option may be made from extra operands."""

    B: int = 2
    H: int = 2
    G: int = 2
    Q: int = 67
    K: int = 67
    D: int = 16
    options: dict = field(default_factory=dict)
    extras: dict[str, tuple[int, ...]] = field(default_factory=dict)
    build: Callable[[dict[str, Tensor]], dict] = lambda x: {}


_IDS = torch.tensor([[0] * 20 + [1] * 30 + [2] * 17, [3] * 67])
_BITS = torch.rand(2, 1, 67, 67, generator=torch.Generator().manual_seed(0)) < 0.3
_HIDING = torch.zeros(67, 67).masked_fill(_BITS[0, 0], -torch.inf)

CASES = {
    "plain": Case(),
    "cross": Case(Q=33, K=70),
    "more queries than keys": Case(Q=70, K=33),
    "more queries than keys, causal": Case(Q=70, K=33, options={"mask": Causal()}),
    "causal": Case(options={"mask": Causal()}),
    "causal lower right": Case(Q=33, K=70, options={"mask": Causal()}),
    "causal upper left": Case(Q=33, K=70, options={"mask": Causal(start=0)}),
    "causal, one start per row": Case(Q=5, K=70, options={"mask": Causal(start=torch.tensor([3, 60]))}),
    "strictly past": Case(options={"mask": Causal(include_self=False)}),
    "window": Case(options={"mask": Window(7, 3)}),
    "lengths with an empty row": Case(options={"mask": KeyLengths(torch.tensor([0, 50]))}),
    "documents": Case(options={"mask": Documents(_IDS)}),
    "documents of queries": Case(Q=3, options={"mask": Documents(_IDS, query_ids=torch.tensor([0, 3, 2]))}),
    "dense mask": Case(options={"mask": _BITS}),
    "and": Case(options={"mask": Causal() & KeyLengths(torch.tensor([30, 67])) & Documents(_IDS)}),
    "or": Case(options={"mask": Window(2, 2) | _BITS}),
    "grouped": Case(H=6, G=2, options={"mask": Causal()}),
    "multi-query": Case(H=4, G=1),
    "width 1": Case(D=1),
    "width 5": Case(D=5, options={"mask": Causal()}),
    "width 128": Case(H=1, G=1, D=128),
    "one query": Case(Q=1, K=700, H=4),
    "two keys": Case(Q=9, K=2),
    "several blocks": Case(B=1, H=1, G=1, Q=300, K=520, D=32, options={"mask": Causal()}),
    "softcap": Case(options={"softcap": 3.0}),
    "unscaled": Case(D=8, options={"scale": 1.0}),
    "sinks": Case(extras={"sinks": (2,)}, build=lambda x: {"sinks": x["sinks"]}),
    "sinks, some rows empty": Case(
        options={"mask": Causal(include_self=False)}, extras={"sinks": (2,)}, build=lambda x: {"sinks": x["sinks"]}
    ),
    "alibi": Case(
        options={"mask": Causal()}, extras={"slopes": (2,)}, build=lambda x: {"bias": AlibiBias(x["slopes"])}
    ),
    "relative": Case(extras={"table": (32, 2)}, build=lambda x: {"bias": RelativeBias(x["table"])}),
    "dense bias": Case(extras={"bias": (1, 2, 67, 67)}, build=lambda x: {"bias": x["bias"]}),
    "bias that hides": Case(extras={"bias": (67,)}, build=lambda x: {"bias": x["bias"] + _HIDING.to(x["bias"].dtype)}),
    "everything": Case(
        H=4,
        options={"mask": Causal() & KeyLengths(torch.tensor([60, 67])), "softcap": 5.0, "scale": 0.3},
        extras={"sinks": (4,), "slopes": (4,)},
        build=lambda x: {"sinks": x["sinks"], "bias": AlibiBias(x["slopes"])},
    ),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def _random(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator)


def _peaked(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Rows of very different size: weights from one-hot to uniform."""
    x = torch.randn(shape, generator=generator)
    return x * 10.0 ** torch.randint(-2, 2, (*shape[:-1], 1), generator=generator)


INPUTS = {"random": _random, "peaked": _peaked}


@cache
def _operands(name: str, inputs: str, dtype: str) -> dict[str, Tensor]:
    case, generator = CASES[name], torch.Generator().manual_seed(0)
    shapes = {"query": (case.B, case.H, case.Q, case.D), "key": (case.B, case.G, case.K, case.D)}
    made = {key: INPUTS[inputs](shape, generator) for key, shape in shapes.items()}
    made |= {key: torch.randn(shape, generator=generator) for key, shape in case.extras.items()}
    return {key: x.to(DTYPES[dtype]) for key, x in made.items()}


def _options(name: str, operands: dict[str, Tensor]) -> dict:
    case = CASES[name]
    return {"query": operands["query"], "key": operands["key"], **case.options, **case.build(operands)}


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
