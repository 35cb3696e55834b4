"""Statistics where learned sinks take nearly everything, or nothing.

Letters: B batch, H query heads, Q queries, K keys.
"""

import pytest
import torch
from engines import NATIVE
from torch import Tensor

from uwaga import AttentionMap, Causal, KeyLengths
from uwaga.maps.engines import reference

ENGINES = [
    "reference",
    NATIVE,
]


def _map(sink: float, impl: str, dtype: torch.dtype = torch.float32) -> AttentionMap:
    query, key = torch.ones(1, 1, 2, 4, dtype=dtype), torch.zeros(1, 1, 3, 4, dtype=dtype)
    mask = Causal(include_self=False, start=0)  # the first query sees nothing
    return AttentionMap(query, key, mask=mask, sinks=torch.tensor([sink], dtype=dtype), impl=impl)


@pytest.mark.parametrize("impl", ENGINES)
@pytest.mark.parametrize("sink", [0.0, 40.0, 60.0, 90.0, 200.0])
def test_the_support_of_order_1_is_the_exponential_of_the_entropy(sink: float, impl: str) -> None:
    m = _map(sink, impl)
    assert m.effective_count(order=1)[0, 0, 0] == 0
    torch.testing.assert_close(m.effective_count(order=1)[0, 0, 1], m.entropy()[0, 0, 1].exp())
    assert m.effective_count(order=1)[0, 0, 1] >= 1


@pytest.mark.parametrize("impl", ENGINES)
def test_the_support_of_order_2_grows_beyond_every_number(impl: str) -> None:
    m = _map(40.0, impl)
    torch.testing.assert_close(
        m.effective_count()[0, 0].double(), _map(40.0, "reference", torch.float64).effective_count()[0, 0]
    )
    assert _map(90.0, impl).effective_count()[0, 0].tolist() == [0, torch.inf]


def test_support_is_prepared_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    m, passes, rows = _map(1.0, "reference"), [], reference.rows
    monkeypatch.setattr(reference, "rows", lambda call, wanted: passes.append(wanted) or rows(call, wanted))
    m.prepare(effective_count=True, entropy=True)
    m.effective_count()
    m.effective_count(order=1)
    assert len(passes) == 1


@pytest.mark.parametrize("impl", ENGINES)
def test_a_sink_of_minus_infinity_takes_nothing(impl: str) -> None:
    m = _map(-torch.inf, impl)
    assert m.sink().learned.tolist() == [[[0, 0]]]
    assert m.entropy().tolist() == [[[0, 0]]]
    query: Tensor = torch.randn(2, 2, 3, 4)
    sinks, mask = torch.tensor([-torch.inf, 1.0]), KeyLengths(torch.tensor([0, 3]))
    learned = AttentionMap(query, query, sinks=sinks, mask=mask, impl=impl).sink().learned
    assert learned[0].tolist() == [[0, 0, 0], [1, 1, 1]]
    assert learned[1, 0].tolist() == [0, 0, 0]
    assert learned[1, 1].gt(0).all()
