"""Rows of cross-attention are named by what is written there; those of the decoder's own attention by what it reads."""

from typing import Any

import pytest
import torch

import uwaga
from uwaga.viewer.service import ViewService
from uwaga.viewer.shown import Maps, View

ENCODER, DECODER = ["▁a", "b", "▁c", "</s>"], ["<s>", "▁un", "seen", "▁cat", "."]


@pytest.fixture
def service() -> ViewService:
    def some_map(queries: int, keys: int) -> uwaga.AttentionMap:
        return uwaga.AttentionMap(torch.randn(2, queries, 4), torch.randn(2, keys, 4))

    maps = {("encoder", 0): some_map(4, 4), ("decoder", 0): some_map(5, 5), ("cross", 0): some_map(5, 4)}
    return ViewService(View.of(Maps(maps, tokens={"encoder": ENCODER, "decoder": DECODER})))


def items(service: ViewService, stack: str, merge: str = "tokens", specials: str = "show") -> Any:
    where = {"side": "0", "stack": stack, "merge": merge, "specials": specials}
    return service.answer({"request": "items", **where, "first": 0, "count": 100})


def test_the_axes_of_each_kind(service: ViewService) -> None:
    (side,) = service.answer({"request": "about"}).meta["sides"]
    assert side["kinds"] == {
        "encoder": {"queries": "encoder", "keys": "encoder"},
        "decoder": {"queries": "decoder", "keys": "decoder"},
        "cross": {"queries": "written", "keys": "encoder"},
    }
    assert side["stacks"]["written"] == side["stacks"]["decoder"]


def test_each_row_is_named_by_the_next_token(service: ViewService) -> None:
    read, written = items(service, "decoder"), items(service, "written")
    assert read.meta["labels"] == ["<s>", "un", "seen", "cat", "."]
    assert written.meta["labels"] == ["un", "seen", "cat", ".", "…"]
    assert written.meta["specials"] == []
    assert written.arrays[0].tolist() == read.arrays[0].tolist()


@pytest.mark.parametrize("specials", ["show", "hide"])
def test_words_are_those_that_the_rows_are_merged_by(service: ViewService, specials: str) -> None:
    read, written = (items(service, stack, "words", specials) for stack in ("decoder", "written"))
    assert written.arrays[0].tolist() == read.arrays[0].tolist()
    assert written.meta["total"] == len(written.meta["labels"]) == read.meta["total"]
