"""The first request of a page, the wire format, and invalid requests."""

import base64
import json
import threading
from typing import Any

import numpy as np
import pytest
import torch
from saved_pages import read_reply
from waiting import HANG

import uwaga
from uwaga.viewer.messages import Reply
from uwaga.viewer.page.bundle import FRONT
from uwaga.viewer.page.snapshot import canonical
from uwaga.viewer.service import ViewService
from uwaga.viewer.shown import Maps, View

WIRE = json.loads((FRONT / "tests" / "wire.json").read_text(encoding="utf-8"))
_TYPES = {"Float32Array": np.float32, "Int32Array": np.int32, "Uint8Array": np.uint8}


def test_the_first_reply_lists_sides_layers_and_axes(service: ViewService) -> None:
    meta = service.answer({"request": "about"}).meta
    (side,) = meta["sides"]
    assert meta["title"] == "unseen the cat sat on the mat ."
    # The second layer has a window.
    assert side["maps"] == [
        {"kind": "encoder", "layer": 0, "heads": 3, "sees": [None, None]},
        {"kind": "encoder", "layer": 1, "heads": 3, "sees": [4, 4]},
    ]
    assert side["stacks"] == {"encoder": {"tokens": 11, "words": 10, "specials": 2, "unknown": 0}}
    assert side["kinds"] == {"encoder": {"queries": "encoder", "keys": "encoder"}}
    assert meta["start"] == {"side": "0", "kind": "encoder", "layer": 0, "head": 0, "merge": "tokens"}


def test_items_have_no_prefixes_of_the_tokenizer(service: ViewService) -> None:
    asked = {"request": "items", "side": "0", "stack": "encoder", "first": 0, "count": 100}
    result = service.answer({**asked, "merge": "words", "specials": "hide"})
    assert result.meta["labels"] == ["unseen", "the", "cat", "sat", "on", "the", "mat", "."]
    assert result.arrays[0].tolist()[:2] == [[1, 3], [3, 4]]
    shown = service.answer({**asked, "merge": "tokens", "specials": "show", "first": 9}).meta
    assert shown == {
        "labels": [".", "[SEP]"],
        "no_space_before": [0, 0],
        "specials": [10],
        "unknown": [],
        "breaks": [],
        "total": 11,
    }


@pytest.mark.parametrize("stands_for", ["[UNK]", "<unk>"])
def test_tokens_that_the_vocabulary_lacks_are_counted_and_marked(stands_for: str) -> None:
    tokens = ["[CLS]", "he", stands_for, "##s", stands_for, "[SEP]"]
    model = View.of(Maps(uwaga.AttentionMap(torch.randn(1, 6, 4), torch.randn(1, 6, 4)), tokens=tokens))
    service = ViewService(model)
    (side,) = service.answer({"request": "about"}).meta["sides"]
    assert side["stacks"]["encoder"] == {
        "tokens": 6,
        "words": 5,
        "specials": 2,
        "unknown": 2,
        "unknown_token": stands_for,
    }
    asked = {"request": "items", "side": "0", "stack": "encoder", "first": 0, "count": 100}
    for merge, specials, unknown in (("tokens", "show", [2, 4]), ("tokens", "hide", [1, 3]), ("words", "show", [2, 3])):
        assert service.answer({**asked, "merge": merge, "specials": specials}).meta["unknown"] == unknown


@pytest.mark.parametrize(
    ("mask", "sees"),
    [
        (None, [None, None]),
        (uwaga.Causal(), [None, 0]),
        (uwaga.Window(3, 0), [3, 0]),
        (uwaga.Window(2, 4), [2, 4]),
        (torch.ones(9, 9).tril().bool(), [None, 0]),
        (torch.eye(9).bool() | (torch.arange(9) == 4), None),
    ],
)
def test_what_a_query_may_look_at_is_that_of_the_mask(mask: Any, sees: list[int | None] | None) -> None:
    m = uwaga.AttentionMap(torch.randn(2, 9, 4), torch.randn(2, 9, 4), mask=mask)
    service = ViewService(View.of(Maps({("decoder", 0): m})))
    (side,) = service.answer({"request": "about"}).meta["sides"]
    assert side["maps"][0]["sees"] == sees
    if sees is not None:
        before, after = (9 if number is None else number for number in sees)
        away = torch.arange(9) - torch.arange(9)[:, None]
        assert torch.equal((away >= -before) & (away <= after), torch.as_tensor(m.scores[1, :, :]) > -float("inf"))


@pytest.mark.parametrize("kept", WIRE["replies"])
def test_replies_are_the_bytes_that_tests_of_the_front_end_read(kept: dict[str, Any]) -> None:
    arrays = tuple(
        np.array([np.nan if value is None else value for value in values], _TYPES[name]).reshape(shape)
        for name, shape, values in kept["arrays"]
    )
    data = base64.b64decode(kept["base64"])
    assert Reply(meta=kept["meta"], arrays=arrays).to_bytes() == data
    back = read_reply(data)
    assert back.meta == kept["meta"]
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(back.arrays, arrays, strict=True))


@pytest.mark.parametrize("kept", WIRE["requests"])
def test_requests_have_the_keys_that_tests_of_the_front_end_expect(kept: dict[str, Any]) -> None:
    assert canonical(kept["request"]) == kept["name"]


@pytest.mark.parametrize("name", ["stop", "lesson"])
def test_what_reads_no_maps_does_not_wait_for_them(service: ViewService, name: str) -> None:
    answered = threading.Event()

    def ask() -> None:
        service.answer({"request": name})
        answered.set()

    with service.result(0).lock:
        threading.Thread(target=ask, daemon=True).start()
        assert answered.wait(HANG)


ENCODER, DECODER = ["▁a", "b", "▁c", "</s>"], ["<s>", "▁un", "seen", "▁cat", "."]


@pytest.fixture
def writing() -> ViewService:
    """An encoder-decoder's maps."""

    def some_map(queries: int, keys: int) -> uwaga.AttentionMap:
        return uwaga.AttentionMap(torch.randn(2, queries, 4), torch.randn(2, keys, 4))

    maps = {("encoder", 0): some_map(4, 4), ("decoder", 0): some_map(5, 5), ("cross", 0): some_map(5, 4)}
    return ViewService(View.of(Maps(maps, tokens={"encoder": ENCODER, "decoder": DECODER})))


def items(writing: ViewService, stack: str, merge: str = "tokens", specials: str = "show") -> Any:
    where = {"side": "0", "stack": stack, "merge": merge, "specials": specials}
    return writing.answer({"request": "items", **where, "first": 0, "count": 100})


def test_the_axes_of_each_kind(writing: ViewService) -> None:
    (side,) = writing.answer({"request": "about"}).meta["sides"]
    assert side["kinds"] == {
        "encoder": {"queries": "encoder", "keys": "encoder"},
        "decoder": {"queries": "decoder", "keys": "decoder"},
        "cross": {"queries": "written", "keys": "encoder"},
    }
    assert side["stacks"]["written"] == side["stacks"]["decoder"]


def test_each_row_is_named_by_the_next_token(writing: ViewService) -> None:
    read, written = items(writing, "decoder"), items(writing, "written")
    assert read.meta["labels"] == ["<s>", "un", "seen", "cat", "."]
    assert written.meta["labels"] == ["un", "seen", "cat", ".", "…"]
    assert written.meta["specials"] == []
    assert written.arrays[0].tolist() == read.arrays[0].tolist()


@pytest.mark.parametrize("specials", ["show", "hide"])
def test_words_are_those_that_the_rows_are_merged_by(writing: ViewService, specials: str) -> None:
    read, written = (items(writing, stack, "words", specials) for stack in ("decoder", "written"))
    assert written.arrays[0].tolist() == read.arrays[0].tolist()
    assert written.meta["total"] == len(written.meta["labels"]) == read.meta["total"]
