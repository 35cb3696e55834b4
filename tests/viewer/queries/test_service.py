"""The first request of a page, the wire format, and invalid requests."""

import io
import threading
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from waiting import HANG

import uwaga
from uwaga.viewer.messages import Reply
from uwaga.viewer.queries import result as result_module
from uwaga.viewer.service import ViewService
from uwaga.viewer.shown import Maps, View


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
    service = ViewService(View.of(Maps({("decoder", 0): m}, tokens=["a", "b", "##c", *"defghi"])))
    (side,) = service.answer({"request": "about"}).meta["sides"]
    assert side["maps"][0]["sees"] == sees
    words = [(0, 1), (1, 3), *((at, at + 1) for at in range(3, 9))]
    for merge, spans in (("tokens", [(at, at + 1) for at in range(9)]), ("words", words)):
        where = {"side": "0", "kind": "decoder", "layer": 0, "head": 1, "merge": merge, "specials": "show"}
        reply = service.answer({"request": "npz", **where, "rows": [1, len(spans)], "columns": [0, len(spans)]})
        weights = np.load(io.BytesIO(reply.arrays[0].tobytes()))["weights"]
        exact = torch.as_tensor(m.scores[1, :, :]) > -float("inf")
        for row, (first, last) in enumerate(spans[1:]):
            for column, (start, stop) in enumerate(spans):
                is_seen = sees is None or bool(exact[first:last, start:stop].any())
                assert np.isnan(weights[row, column]) == (not is_seen)


def test_a_reply_is_the_same_after_serialization(service: ViewService) -> None:
    reply = Reply(
        meta={"text": 'é <script> "'}, arrays=(np.arange(6, dtype=np.float32).reshape(2, 3), np.array([7], np.uint8))
    )
    data = reply.to_bytes()
    assert (4 + int.from_bytes(data[:4], "little")) % 8 == 0
    assert len(data) % 8 == 0
    back = Reply.from_bytes(data)
    assert back.meta == reply.meta
    assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(back.arrays, reply.arrays, strict=True))


HEAD = {"side": "0", "kind": "encoder", "layer": 0, "head": 0, "merge": "tokens", "specials": "show"}


def test_concurrent_threads_get_the_same_replies(service: ViewService) -> None:
    results: list[np.ndarray] = []
    asked = {"request": "row", **HEAD, "query": 5}
    threads = [threading.Thread(target=lambda: results.append(service.answer(asked).arrays[0])) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 20
    assert all(np.array_equal(result, results[0]) for result in results)


@pytest.mark.parametrize("name", ["stop", "lesson"])
def test_what_reads_no_maps_does_not_wait_for_them(service: ViewService, name: str) -> None:
    answered = threading.Event()

    def ask() -> None:
        service.answer({"request": name})
        answered.set()

    with service.result(0).lock:
        threading.Thread(target=ask, daemon=True).start()
        assert answered.wait(HANG)


def test_the_caches_are_bounded(long_map: uwaga.AttentionMap, monkeypatch: pytest.MonkeyPatch) -> None:
    service = ViewService(View.of(long_map))
    monkeypatch.setattr(result_module, "_MAX_CACHED_BYTES", 1 << 20)
    tile = HEAD | {"request": "tile", "kind": "decoder", "pooling": "sum", "level": 0, "column": 0}
    tiles = [weakref.ref(service.answer({**tile, "row": row}).arrays[0]) for row in range(8)]
    kept = [array for each in tiles if (array := each()) is not None]
    assert 1 < len(kept) < 8
    assert sum(array.nbytes for array in kept) <= 1 << 20
