"""A query service of small maps, and a map that takes more than one step to compute."""

import pytest
import torch

import uwaga
from uwaga.viewer.service import ViewService
from uwaga.viewer.shown import Maps, View

TOKENS = ["[CLS]", "un", "##seen", "the", "cat", "sat", "on", "the", "mat", ".", "[SEP]"]


@pytest.fixture
def maps() -> dict[tuple[str, int], uwaga.AttentionMap]:
    """Two layers of three heads over eleven tokens."""
    torch.manual_seed(0)
    n = len(TOKENS)
    return {
        ("encoder", 0): uwaga.AttentionMap(torch.randn(1, 3, n, 8), torch.randn(1, 3, n, 8)),
        ("encoder", 1): uwaga.AttentionMap(torch.randn(1, 3, n, 8), torch.randn(1, 3, n, 8), mask=uwaga.Window(4, 4)),
    }


@pytest.fixture
def service(maps: dict[tuple[str, int], uwaga.AttentionMap]) -> ViewService:
    return ViewService(View.of(Maps(maps, tokens=TOKENS)))


@pytest.fixture
def long_map() -> uwaga.AttentionMap:
    """One causal head over 9,000 tokens: more weights than are computed in one step."""
    torch.manual_seed(0)
    x = torch.randn(1, 9000, 16)
    return uwaga.AttentionMap(x, x.roll(1, 1), mask=uwaga.Causal())


@pytest.fixture
def where() -> dict[str, object]:
    """The keys that most requests have."""
    return {"side": "0", "kind": "encoder", "layer": 0, "head": 1, "merge": "tokens", "specials": "show"}
