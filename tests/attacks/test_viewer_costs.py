"""Questions made to cost much: each is answered in bounded time and memory, or refused, and others are answered meanwhile.

Times are counted in the steps that a service takes, since a clock also measures what else the machine does.
"""

import gc
import weakref

import numpy as np
import pytest
import torch

import uwaga
from uwaga.viewer.messages import Reply
from uwaga.viewer.queries.heads import HeadView
from uwaga.viewer.request_table import Handler
from uwaga.viewer.service import TABLE, ViewService
from uwaga.viewer.shown import Maps, View

WHERE = {"side": "0", "kind": "encoder", "layer": 0, "head": 0, "merge": "tokens", "specials": "show"}
LONG = 100_000


@pytest.fixture(scope="module")
def long_service() -> ViewService:
    """One head over a text without spaces."""
    x = torch.ones(1, LONG, 1)
    return ViewService(
        View.of(Maps({("encoder", 0): uwaga.AttentionMap(x, x)}, tokens=["[CLS]", "a", *["##b"] * (LONG - 2)]))
    )


def service_of(tokens: list[str], heads: int = 1) -> ViewService:
    torch.manual_seed(0)
    maps = {("encoder", 0): uwaga.AttentionMap(*torch.randn(2, heads, len(tokens), 4))}
    return ViewService(View.of(Maps(maps, tokens=tokens)))


def test_a_text_without_spaces_is_no_word_of_a_hundred_thousand_tokens(long_service: ViewService) -> None:
    words = {"side": "0", "stack": "encoder", "merge": "words", "specials": "show", "first": 0, "count": 3}
    result = long_service.answer({"request": "items", **words})
    assert result.arrays[0].tolist() == [[0, 1], [1, 33], [33, 65]]
    row = long_service.answer({"request": "row", **WHERE, "merge": "words", "query": 1}).arrays[0]
    assert row.sum() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("merge", ["tokens", "words"])
@pytest.mark.parametrize("specials", ["show", "hide"])
def test_no_step_computes_more_than_its_share(long_service: ViewService, merge: str, specials: str) -> None:
    where = {**WHERE, "merge": merge, "specials": specials}
    _, head_view = long_service.result(0).resolver.select(**where)
    first = 0
    for _ in range(20):
        stop = head_view.stop(first, head_view.sizes[0])
        assert stop > first
        assert stop == first + 1 or head_view.cost[stop] - head_view.cost[first] <= 1 << 23
        first = stop
    rows = np.arange(0, head_view.sizes[0], 7)
    steps = list(head_view.steps(rows))
    assert [step.start for step in steps] == [0, *(step.stop for step in steps[:-1])]
    assert steps[-1].stop == len(rows)


def test_what_is_begun_and_never_asked_again_is_forgotten(long_service: ViewService) -> None:
    begun: weakref.WeakSet[_Heavy] = weakref.WeakSet()

    def begin(*_: object, **__: object) -> _Heavy:
        begun.add(heavy := _Heavy())
        return heavy

    heavy = Handler("tile", begin, *TABLE["tile"][2:])
    for row in range(500):
        request = {**WHERE, "pooling": "sum", "level": 1, "row": row % 100, "column": row // 100}
        long_service.result(0).answer(heavy, request)
    assert 100 << 20 <= sum(computation.nbytes for computation in begun) <= 256 << 20


class _Heavy:
    """As heavy as a tile."""

    nbytes = 256 * 256 * 12

    def advance(self, until: float) -> None:
        pass

    def reply(self) -> Reply:
        return Reply(meta={"complete": 0.5})


@pytest.mark.usefixtures("one_step")
def test_a_thousand_heads_are_not_begun_at_once() -> None:
    service, others = service_of(["a"] * 8, heads=1000), head_views()
    overview = {"request": "overview", **WHERE, "pooling": "sum"}
    del overview["head"]
    for request in (overview, {"request": "statistics", "side": "0", "kind": "encoder", "layer": 0}):
        reply = service.answer(request)
        assert 0 < reply.meta["complete"] < 0.01
        assert 0 < head_views() - others < 10


def head_views() -> int:
    gc.collect()
    return sum(type(value) is HeadView for value in gc.get_objects())


def test_a_token_of_a_million_letters_is_shortened() -> None:
    tokens = ["x" * 1_000_000, "a\0", *(f"t{number % 7}" for number in range(998))]
    service = service_of(tokens)
    result = service.answer({"request": "items", **_axis(), "first": 0, "count": 2}).meta["labels"]
    assert result == ["x" * 999 + "…", "a\0"]
    assert service.answer({"request": "statistics", "side": "0", "kind": "encoder", "layer": 0}).meta["complete"] == 1


def _axis() -> dict[str, object]:
    return {"side": "0", "stack": "encoder", "merge": "tokens", "specials": "show"}
