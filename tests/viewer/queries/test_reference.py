"""Every request of the query service, over random maps and settings, compared with the dense matrix."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from asking import complete
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import uwaga
from uwaga.viewer.service import ViewService
from uwaga.viewer.shown import Maps, View

pytestmark = pytest.mark.slow

ANY = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
WORDS = ("[CLS]", "un", "##seen", "the", "##s", "[SEP]", ".")


@st.composite
def texts(draw: st.DrawFn) -> list[str]:
    return draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=23))


@st.composite
def maps(draw: st.DrawFn, queries: int, keys: int) -> uwaga.AttentionMap:
    """Maps that are causal or windowed, have rows without visible keys, grouped heads, sinks or non-finite keys."""
    torch.manual_seed(draw(st.integers(0, 1 << 20)))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    q, k = torch.randn(4, queries, 6, dtype=dtype), torch.randn(draw(st.sampled_from([4, 2, 1])), keys, 6, dtype=dtype)
    if draw(st.integers(0, 4)) == 0:
        k[..., draw(st.integers(0, keys - 1)), 0] = draw(st.sampled_from([float("nan"), float("inf")]))
    masks = [
        None,
        uwaga.Causal(),
        uwaga.Window(2, 1),
        uwaga.Causal() & uwaga.Window(3, 0),
        torch.rand(queries, keys) > 0.6,
    ]
    options: dict[str, Any] = {"mask": masks[draw(st.integers(0, len(masks) - 1))]}
    if draw(st.booleans()):
        options["sinks"] = torch.randn(4, dtype=dtype)
    return uwaga.AttentionMap(q, k, **options)


def items(service: ViewService, side: str, stack: str, how: dict[str, str]) -> list[list[int]]:
    """The tokens of each item (a token or a word), without hidden special tokens."""
    asked = {"request": "items", "side": side, "stack": stack, **how, "first": 0, "count": 100}
    result = service.answer(asked)
    tokens = service.view.sides[0].token_text(stack)
    hides = how["specials"] == "hide" and not all(tokens.special)
    return [[t for t in range(a, b) if not (hides and tokens.special[t])] for a, b in result.arrays[0].tolist()]


def expected_matrix(
    weights: NDArray[np.float64], rows: list[list[int]], columns: list[list[int]]
) -> NDArray[np.float64]:
    """Rows are renormalised without hidden tokens; words are sums over keys and means over queries."""
    kept_rows, kept = ([t for item in axis for t in item] for axis in (rows, columns))
    part = weights[:, kept] if len(kept) < weights.shape[1] or len(kept_rows) < len(weights) else weights
    if part is not weights:
        sums = part.sum(1, keepdims=True)
        part = np.divide(part, sums, out=np.zeros_like(part), where=sums != 0)
    at = np.cumsum([0, *map(len, columns)])
    joined = np.stack([part[:, a:b].sum(1) for a, b in pairwise(at)], 1)
    return np.stack([joined[item].mean(0) for item in rows])


@pytest.fixture(params=[1 << 23, 30], ids=["at once", "in steps"], autouse=True)
def _steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"heads._STEP": request.param}
    if request.param < 1 << 23:
        request.getfixturevalue("one_step")
        limits |= {"raster._NO_SAMPLE": 40, "raster._SAMPLES": 2}
    for name, value in limits.items():
        monkeypatch.setattr(f"uwaga.viewer.queries.{name}", value)


@ANY
@given(st.data())
def test_every_query_agrees_with_the_dense_matrix(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["encoder", "cross"]))
    tokens = {"encoder": data.draw(texts())}
    if kind == "cross":
        tokens["decoder"] = data.draw(texts())
    sizes = [len(tokens[stack]) for stack in (("decoder", "encoder") if kind == "cross" else ("encoder", "encoder"))]
    first = data.draw(maps(*sizes))
    compares = data.draw(st.booleans())
    second = data.draw(maps(*sizes)) if compares else None
    service = ViewService(View.of(*(Maps({(kind, 0): m}, tokens=tokens) for m in (first, second) if m is not None)))
    side = "difference" if compares else "0"
    how = {
        "merge": data.draw(st.sampled_from(["tokens", "words"])),
        "specials": data.draw(st.sampled_from(["show", "hide"])),
    }
    head = data.draw(st.integers(0, 3))
    rows, columns = (
        items(service, side, stack, how) for stack in (("decoder", "encoder") if kind == "cross" else ("encoder",) * 2)
    )
    dense = [m.to_dense()[head].double().numpy() for m in (first, second) if m is not None]
    seen = [expected_matrix(matrix, rows, columns) for matrix in dense]
    expected = seen[0] if len(seen) == 1 else seen[0] - seen[1]
    where = {"side": side, "kind": kind, "layer": 0, "head": head, **how}
    check(service, where, expected, data)


def check(service: ViewService, where: dict[str, object], expected: NDArray[np.float64], data: st.DataObject) -> None:
    queries, keys = expected.shape
    near = {"rtol": 2e-4, "atol": 2e-6}
    tile = {"request": "tile", **where, "row": 0, "column": 0}
    np.testing.assert_allclose(complete(service, **tile, pooling="sum", level=0).arrays[0], expected, **near)
    i, j = data.draw(st.integers(0, queries - 1)), data.draw(st.integers(0, keys - 1))
    np.testing.assert_allclose(service.answer({"request": "row", **where, "query": i}).arrays[0], expected[i], **near)
    np.testing.assert_allclose(complete(service, request="column", **where, key=j).arrays[0], expected[:, j], **near)
    weight = service.answer({"request": "entry", **where, "query": i, "key": j}).meta["weight"]
    assert (weight is None) == (not np.isfinite(expected[i, j]))
    assert weight is None or weight == pytest.approx(expected[i, j], rel=2e-4, abs=2e-6)
    level = data.draw(st.integers(1, max(max(queries, keys) - 1, 1).bit_length()))
    size = 1 << level
    blocks = [[expected[r : r + size, c : c + size] for c in range(0, keys, size)] for r in range(0, queries, size)]
    mass = np.array([[block.sum(1).mean() for block in line] for line in blocks])
    np.testing.assert_allclose(complete(service, **tile, pooling="sum", level=level).arrays[0], mass, **near)
    if np.isfinite(expected).all():
        most = np.array([[block.flat[np.abs(block).argmax()] for block in line] for line in blocks])
        result = complete(service, **tile, pooling="max", level=level).arrays[0]
        np.testing.assert_allclose(np.abs(result), np.abs(most), **near)
