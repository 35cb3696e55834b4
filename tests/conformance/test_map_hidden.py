"""What a masked key holds cannot be found in any weight or statistic; what a visible one holds is not repaired.

Letters: B sequences, H query heads, Q queries, K keys.
"""

from itertools import pairwise

import map_oracle
import pytest
import test_hidden
import torch
from test_hidden import BAD, K, Q
from torch import Tensor

from uwaga import Causal, KeyLengths
from uwaga.maps.map import AttentionMap

MASKS = test_hidden.MASKS | {"everything": (torch.zeros(Q, K, dtype=torch.bool), 3)}
DTYPES = [torch.float32, torch.bfloat16, torch.float64]
_OF_QUERIES = (
    "lse",
    "entropy",
    "entropy, normalized",
    "distance",
    "top 5",
    "first key",
    "mass",
)


def _operands(dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in ((2, 4, Q, 16), (2, 2, K, 16))]


def _maps(name: str, bad: str, dtype: torch.dtype, engine: str) -> tuple[AttentionMap, AttentionMap, Tensor]:
    """The map, the map with a spoilt key, and (Q,) which queries see that key in any sequence."""
    mask, at = MASKS[name]
    query, key = _operands(dtype)
    spoilt = key.index_fill(2, torch.tensor(at), BAD[bad])
    sees = map_oracle.Dense.of(map_oracle.lowered(query.float(), key.float(), mask=mask)).seen[..., at]
    engine = "reference" if dtype == torch.float64 else engine
    clean, dirty = (AttentionMap(query, x, mask=mask, impl=engine) for x in (key, spoilt))
    return clean, dirty, sees.flatten(0, 1).any(0)


@pytest.mark.gate(
    only=lambda map_engine, bad, dtype: (
        map_engine.startswith("cpu") and dtype == (torch.float32 if bad == "nan" else torch.bfloat16)
    )
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", MASKS)
def test_hidden_numbers_never_leak(map_engine: str, name: str, bad: str, dtype: torch.dtype) -> None:
    clean, dirty, sees = _maps(name, bad, dtype, map_engine)
    torch.testing.assert_close(dirty[:, :, ~sees], clean[:, :, ~sees])
    for statistic in _OF_QUERIES:
        of = map_oracle.STATISTICS[statistic].of_map
        torch.testing.assert_close(of(dirty)[:, :, ~sees], of(clean)[:, :, ~sees], msg=statistic)
    # Of rows that see it everything is nan by right; taken out of a sum over rows they are not felt by the others.
    weights = (~sees).to(clean.dtype)
    torch.testing.assert_close(dirty.received(weights=weights), clean.received(weights=weights))
    for pooling in ("sum", "max"):
        edges = [0, 1, 20, 35, 36, 60, Q]
        blind = [not sees[a:b].any() for a, b in pairwise(edges)]
        pools = [m.pool(edges, 7, pooling=pooling).weights[:, :, blind] for m in (dirty, clean)]
        torch.testing.assert_close(*pools, msg=pooling)


def test_a_visible_nan_is_nan(map_engine: str) -> None:
    query, key = _operands(torch.float32)
    key[:, :, 30] = torch.nan
    m = AttentionMap(query, key, mask=Causal(), impl=map_engine)
    for x in (
        m.lse,
        m.entropy(),
        m.effective_count(),
        m.distance(),
        m.peak().weight,
        m.sink().first_key,
        m.row(50)[..., :30],
    ):
        assert x[..., 30:].isnan().all() if x.shape[-1] == Q else x.isnan().all()
    assert m.received()[..., :31].isnan().all()
    for pooling in ("sum", "max"):
        cells = m.pool([0, 30, 31, Q], [0, 20, 31], pooling=pooling).weights
        assert cells[:, :, 0].isfinite().all()
        assert cells[:, :, 1:].isnan().all()


def test_a_visible_infinity_is_nan(map_engine: str) -> None:
    query, key = _operands(torch.float32)
    key[:, :, 30] = torch.inf
    m = AttentionMap(query.abs(), key, mask=Causal(), impl=map_engine)
    assert m.entropy()[..., 30:].isnan().all()
    assert m.row(50)[..., 30].isnan().all()
    assert m.entropy()[..., :30].isfinite().all()


def test_a_bias_of_minus_infinity_hides(map_engine: str) -> None:
    query, key = _operands(torch.float32)
    bias = torch.zeros(Q, K)
    bias[:, 7] = -torch.inf
    spoilt = key.index_fill(2, torch.tensor(7), torch.nan)
    dirty, clean = (AttentionMap(query, x, bias=bias, impl=map_engine) for x in (spoilt, key))
    assert not dirty.column(7).any()
    for name, statistic in map_oracle.STATISTICS.items():
        torch.testing.assert_close(statistic.of_map(dirty), statistic.of_map(clean), msg=name)


def test_a_row_that_sees_nothing_is_zeros(map_engine: str) -> None:
    query, key = _operands(torch.float32)
    query[0], key[0] = torch.nan, torch.nan
    m = AttentionMap(query, key, mask=KeyLengths(torch.tensor([0, K])), impl=map_engine)
    assert torch.equal(m.lse[0], torch.full((4, Q), -torch.inf))
    assert torch.equal(m.peak().position[0], torch.full((4, Q), -1))
    for name, statistic in map_oracle.STATISTICS.items():
        if name == "max logit":
            assert torch.equal(statistic.of_map(m)[0], torch.full((4,), -torch.inf))
        elif name != "lse":
            result = statistic.of_map(m)
            assert torch.equal(result[0], torch.zeros_like(result[0])), name
            assert result[1].isfinite().all(), name
