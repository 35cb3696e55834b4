"""Questions made to cost much: each is answered in bounded time and memory, or refused, and others are answered meanwhile.

Times are counted in the steps that a desk takes, since a clock also measures what else the machine does.
"""

import io
import json
import threading
import time

import numpy as np
import pytest
import torch

import uwaga
from uwaga.viewer.desk import Desk, QuestionError
from uwaga.viewer.desk.lens import Lens
from uwaga.viewer.exhibit import Exhibit

WHERE = {"side": "0", "kind": "encoder", "layer": 0, "head": 0, "merge": "tokens", "specials": "show"}
LONG = 100_000


@pytest.fixture(scope="module")
def long_desk() -> Desk:
    """One head over a text without spaces."""
    x = torch.ones(1, LONG, 1)
    return Desk(Exhibit.of({("encoder", 0): uwaga.AttentionMap(x, x)}, tokens=["[CLS]", "a", *["##b"] * (LONG - 2)]))


def desk_of(tokens: list[str], heads: int = 1) -> Desk:
    torch.manual_seed(0)
    maps = {("encoder", 0): uwaga.AttentionMap(*torch.randn(2, heads, len(tokens), 4))}
    return Desk(Exhibit.of(maps, tokens=tokens))


@pytest.mark.parametrize("ask", ["weights", "npz"])
def test_few_columns_of_all_rows_are_still_all_rows(long_desk: Desk, ask: str) -> None:
    with pytest.raises(QuestionError) as caught:
        long_desk.answer({"ask": ask, **WHERE, "rows": [0, LONG], "columns": [0, 10]})
    rule = "100000 rows are more than are read at once: each is normalised over all keys; ask for fewer"
    assert str(caught.value) == rule


def test_a_text_without_spaces_is_no_word_of_a_hundred_thousand_tokens(long_desk: Desk) -> None:
    words = {"side": "0", "stack": "encoder", "merge": "words", "specials": "show", "first": 0, "count": 3}
    found = long_desk.answer({"ask": "items", **words})
    assert found.arrays[0].tolist() == [[0, 1], [1, 33], [33, 65]]
    row = long_desk.answer({"ask": "row", **WHERE, "merge": "words", "query": 1}).arrays[0]
    assert row.sum() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("merge", ["tokens", "words"])
@pytest.mark.parametrize("specials", ["show", "hide"])
def test_no_step_computes_more_than_its_share(long_desk: Desk, merge: str, specials: str) -> None:
    where = {**WHERE, "merge": merge, "specials": specials}
    where.pop("head")
    from uwaga.viewer.desk.arguments import Arguments

    lens = long_desk._hall.lens(long_desk._hall.place(Arguments({"ask": "tile", **where})), 0)
    first = 0
    for _ in range(20):
        stop = lens.stop(first, lens.sizes[0])
        assert stop > first
        assert stop == first + 1 or lens.work[stop] - lens.work[first] <= 1 << 23
        first = stop
    rows = np.arange(0, lens.sizes[0], 7)
    steps = list(lens.steps(rows))
    assert [step.start for step in steps] == [0, *(step.stop for step in steps[:-1])]
    assert steps[-1].stop == len(rows)


def test_what_is_begun_and_never_asked_again_is_forgotten(long_desk: Desk) -> None:
    for row in range(300):
        question = {**WHERE, "how": "mass", "level": 1, "row": row % 100, "column": row // 100}
        long_desk._go_on(("tile", json.dumps(question)), _Heavy)
    assert sum(weight for _, weight in long_desk._unfinished._kept.values()) <= 128 << 20


class _Heavy:
    """As heavy as a tile."""

    nbytes = 256 * 256 * 12

    def go_on(self, until: float) -> None:
        pass

    def reply(self) -> uwaga.viewer.desk.Reply:
        return uwaga.viewer.desk.Reply(meta={"complete": 0.5})


def test_a_thousand_heads_are_not_begun_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uwaga.viewer.desk.desk._BUDGET", 0.0)
    desk = desk_of(["a"] * 8, heads=1000)
    overview = {"ask": "overview", **WHERE, "how": "mass"}
    del overview["head"]
    for question in (overview, {"ask": "statistics", "side": "0", "kind": "encoder", "layer": 0}):
        reply = desk.answer(question)
        assert 0 < reply.meta["complete"] < 0.01
        assert len(desk._hall._lenses) < 10


def test_a_token_of_a_million_letters_is_not_one_of_every_token() -> None:
    """NumPy's strings are all as long as the longest."""
    tokens = ["x" * 1_000_000, "a\0", *(f"t{number % 7}" for number in range(998))]
    desk = desk_of(tokens)
    found = desk.answer({"ask": "items", **_axis(), "first": 0, "count": 2}).meta["labels"]
    assert found == ["x" * 999 + "…", "a\0"]
    assert desk.answer({"ask": "statistics", "side": "0", "kind": "encoder", "layer": 0}).meta["complete"] == 1
    reply = desk.answer({"ask": "npz", **WHERE, "rows": [0, 1000], "columns": [0, 3]})
    with np.load(io.BytesIO(reply.arrays[0].tobytes())) as file:
        assert file["query_tokens"].nbytes <= 1 << 26
        assert file["key_tokens"].tolist() == ["x" * 999 + "…", "a␀", "t0"]


def _axis() -> dict[str, object]:
    return {"side": "0", "stack": "encoder", "merge": "tokens", "specials": "show"}


def test_a_page_within_a_page() -> None:
    desk = desk_of(["a", "b"])
    for ask in ("page", "npz", "weights", "about", "none"):
        with pytest.raises(QuestionError) as caught:
            desk.answer({"ask": "page", "exact": [{"ask": ask, "exact": []}]})
        assert str(caught.value).startswith(f"{ask}: ask must be one of tile, overview, ")


@pytest.mark.parametrize("depth", [1, 100, 500, 900, 1000, 3000])
def test_nesting_that_json_reads_and_messages_repeat(depth: int) -> None:
    nested: object = 1
    for number in range(depth):
        nested = [nested] if number % 2 else {"side": nested}
    desk = desk_of(["a", "b"])
    for question in ({"ask": nested}, {"ask": "row", **WHERE, "side": nested}, {"ask": "page", "exact": nested}):
        with pytest.raises(QuestionError) as caught:
            desk.answer(question)
        assert len(str(caught.value)) < 200


def test_a_block_in_steps_leaves_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a block takes ten steps of a tenth of a second, another asker waits for one of them."""
    monkeypatch.setattr("uwaga.viewer.desk.lens._STEP", 1)
    monkeypatch.setattr("uwaga.viewer.desk.desk._BUDGET", 0.0)
    desk, read = desk_of(["a"] * 10), Lens.read

    def slow(self: Lens, rows: slice, columns: slice) -> torch.Tensor:
        time.sleep(0.1)
        return read(self, rows, columns)

    monkeypatch.setattr(Lens, "read", slow)
    found: list[np.ndarray] = []
    question = {"ask": "weights", **WHERE, "rows": [0, 10], "columns": [0, 10]}
    thread = threading.Thread(target=lambda: found.append(desk.answer(question).arrays[0]))
    thread.start()
    answered = 0
    while thread.is_alive():
        desk.answer({"ask": "about"})
        answered += 1
        time.sleep(0.01)
    thread.join()
    assert answered >= 4
    np.testing.assert_allclose(found[0].sum(1), 1, rtol=1e-5)
    desk.close()
    with pytest.raises(QuestionError, match=r"^the view is closed$"):
        desk.answer(question)
