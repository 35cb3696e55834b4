"""Maps that nobody thinks of.

Letters: B sequences, H query heads, Q queries, K keys.
"""

import itertools

import map_oracle
import oracle
import pytest
import torch
from calls import dense_calls
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from map_oracle import Dense
from torch import Tensor

from uwaga import AttentionMap

SETTINGS = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    # The engine and its level stay as they are while examples are drawn.
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.mark.slow
@SETTINGS
@given(call=dense_calls())
def test_any_map_is_exact(map_engine: str, call: tuple[dict[str, Tensor], dict]) -> None:
    operands, options = call
    options = {name: x for name, x in options.items() if name != "dropout"}
    made = {name: operands[name] for name in ("query", "key")}
    exact = Dense.of(map_oracle.lowered(**oracle.to_float64(made), **options))
    plains = map_oracle.denses({**made, **options})
    m = AttentionMap(**made, **options, impl=map_engine)
    for name, statistic in map_oracle.STATISTICS.items():
        map_oracle.assert_as_exact(name, statistic.of_map(m), exact, plains, factor=20.0)


@SETTINGS
@given(call=dense_calls())
def test_any_map_has_its_largest_weights_where_it_says(map_engine: str, call: tuple[dict[str, Tensor], dict]) -> None:
    operands, options = call
    options = {name: x for name, x in options.items() if name != "dropout"}
    m = AttentionMap(operands["query"], operands["key"], **options, impl=map_engine)
    seen = Dense.of(map_oracle.lowered(operands["query"], operands["key"], **options)).seen
    weights, positions = m.topk(4)
    assert torch.equal((positions >= 0).sum(-1), seen.sum(-1).clamp(max=4))
    assert torch.equal(weights[positions < 0], torch.zeros(int((positions < 0).sum())))
    if seen.shape[-1]:
        assert seen.gather(-1, positions.clamp(min=0))[positions >= 0].all()
        at = m.to_dense().gather(-1, positions.clamp(min=0))
        torch.testing.assert_close(at[positions >= 0], weights[positions >= 0])


@SETTINGS
@given(call=dense_calls(), is_warm=st.booleans())
def test_any_part_of_a_map_is_that_part(map_engine: str, call: tuple[dict[str, Tensor], dict], is_warm: bool) -> None:
    operands, options = call
    options = {name: x for name, x in options.items() if name != "dropout"}
    m = AttentionMap(operands["query"], operands["key"], **options, impl=map_engine)
    dense, diagonal = m.to_dense(), m.diagonal(-1)
    if not is_warm:
        m = AttentionMap(operands["query"], operands["key"], **options, impl=map_engine)
    # The reference multiplies matrices of the part's own size, and PyTorch's products round by it.
    same = torch.equal if map_engine == "cpu" else torch.allclose
    for b, h in itertools.product(range(dense.shape[0]), (0, -1)):
        assert same(m.select(b).to_dense(), dense[b])
        assert same(m.select(b, h).to_dense(), dense[b, h])
        assert same(m.select(b, h).diagonal(-1), diagonal[b, h])
