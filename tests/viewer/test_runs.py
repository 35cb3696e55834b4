"""Texts that a page runs: one at a time, bounded, the last few kept, and refusals of everything else."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from waiting import HANG

import uwaga
from uwaga.viewer import service as view_service
from uwaga.viewer.messages import RequestError
from uwaga.viewer.service import ViewService
from uwaga.viewer.text_runner import RunRequest, RunResult
from uwaga.viewer.view_model import ViewModel

Answer = Callable[..., Any]


class Runner:
    """Maps of as many tokens as the text has letters; "wait" waits until it is told to end."""

    def __init__(self) -> None:
        self.read: list[RunRequest] = []
        self.begun = threading.Event()

    def about(self) -> Mapping[str, Any]:
        return {
            "boxes": ["text"],
            "examples": ["abc"],
            "model": "a model",
            "command": "uwaga view TEXT",
            "max_tokens": 9,
        }

    def run(self, typed: RunRequest, check: Callable[[], None]) -> RunResult:
        self.read.append(typed)
        if typed.text == "wrong":
            raise ValueError("the text is wrong")
        self.begun.set()
        while typed.text == "wait":
            check()
            time.sleep(0.001)
        return a_run(typed.text)


class Letters:
    kind, stack = "next", "encoder"

    def __len__(self) -> int:
        return 4

    def top(
        self, first: int, last: int, count: int, before: "Letters | None" = None
    ) -> tuple[list[list[str]], np.ndarray]:
        sides = 1 if before is None else 2
        return [["x"] * count for _ in range(first, last)], np.full((sides, last - first, count), 0.2, np.float32)


def a_run(text: str) -> RunResult:
    query, key = torch.randn(2, 1, len(text), 8)
    model = ViewModel.create(uwaga.AttentionMap(query, key), tokens=list(text), title=text)
    vector = np.array([1.0, 0.0], np.float32) if text == "abcd" else np.array([0.6, 0.8], np.float32)
    return RunResult(view_model=model, predictions={"0": Letters()}, vectors=[vector])


@pytest.fixture
def runner() -> Runner:
    return Runner()


@pytest.fixture
def service(runner: Runner) -> ViewService:
    return ViewService(a_run("abcd"), runner=runner, typed=RunRequest("abcd"))


def outcome(service: ViewService, text: str, **more: Any) -> Mapping[str, Any]:
    request = {"request": "run", "text": text, "second": None, "target": None, "edits": None, **more}
    return service.answer(request).meta


def run(service: ViewService, text: str, **more: Any) -> int:
    return int(outcome(service, text, **more)["run"])


def about(service: ViewService, number: int | None = None) -> Mapping[str, Any]:
    return service.answer({"request": "about"} if number is None else {"request": "about", "run": number}).meta


def test_a_text_that_is_run_is_shown_beside_the_first(service: ViewService) -> None:
    number = run(service, "abcdef")
    assert [about(service, each)["title"] for each in (0, number)] == ["abcd", "abcdef"]
    assert about(service)["typed"] == {"text": "abcd", "second": None, "target": None, "edits": None}
    assert about(service, number)["typed"]["text"] == "abcdef"
    where = {"side": "0", "kind": "encoder", "layer": 0, "head": 0, "merge": "tokens", "specials": "show"}
    assert service.answer({"request": "row", **where, "query": 5, "run": number}).arrays[0].shape == (6,)
    with pytest.raises(RequestError, match="row: query must be from 0 to 3, not 5"):
        service.answer({"request": "row", **where, "query": 5})


def test_a_text_that_is_kept_is_not_run_again(service: ViewService, runner: Runner) -> None:
    assert run(service, "abcd") == 0
    assert run(service, "abc") == run(service, "abc") == 1
    assert [each.text for each in runner.read] == ["abc"]


def test_the_last_four_are_kept_and_the_first_always(service: ViewService) -> None:
    numbers = [run(service, "x" * size) for size in range(1, 8)]
    for number in (0, *numbers[-4:]):
        about(service, number)
    for number in numbers[:-4]:
        with pytest.raises(RequestError, match="this text is no longer kept: run it again"):
            about(service, number)


def test_a_new_text_ends_the_one_before(service: ViewService, runner: Runner) -> None:
    said: list[str] = []

    def wait() -> None:
        said.append(outcome(service, "wait")["error"])

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert runner.begun.wait(HANG)
    assert about(service, run(service, "abc"))["title"] == "abc"
    waiting.join(HANG)
    assert said == ["another text was run instead"]


@pytest.mark.parametrize("how", ["stop", "close", "time"])
def test_a_run_ends_when_it_is_stopped(
    service: ViewService, runner: Runner, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "time":
        monkeypatch.setattr(view_service, "MAX_SECONDS", 0.05)
    said: list[str] = []

    def wait() -> None:
        said.append(outcome(service, "wait")["error"])

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert runner.begun.wait(HANG)
    if how == "stop":
        service.answer({"request": "stop"})
    if how == "close":
        service.close()
    waiting.join(HANG)
    longer = "it takes longer than the 0.05 seconds that a page may ask for"
    assert said == [longer if how == "time" else "it was stopped"]


def test_a_text_that_cannot_be_read_has_no_number(service: ViewService) -> None:
    assert outcome(service, "wrong") == {"error": "the text is wrong"}
    assert about(service)["title"] == "abcd"


def test_a_view_of_maps_offers_no_text(runner: Runner) -> None:
    service = ViewService(a_run("abcd"))
    assert about(service)["typing"] is None


def test_predictions(service: ViewService) -> None:
    reply = service.answer({"request": "predictions", "side": "0", "first": 2, "count": 256})
    assert reply.meta["words"] == [["x"] * 5] * 2
    assert reply.arrays[0].shape == (2, 5)


def test_how_alike_texts_are(service: ViewService) -> None:
    number = run(service, "abc")
    assert about(service, number)["similar"] == [("abcd", 0.6)]
    assert about(service)["similar"] == [("abc", 0.6)]
    assert about(service, number)["probes"] == []


def test_a_changed_model_is_compared_with_other_texts_before_and_after() -> None:
    vectors = [np.array(each, np.float32) for each in ([1.0, 0.0], [0.8, 0.6])]
    probe = ("a probe", np.array([0.0, 1.0], np.float32))
    maps = [uwaga.AttentionMap(*torch.randn(2, 1, 4, 8)) for _ in range(2)]
    shown = ViewModel.create(
        maps[0], tokens=list("abcd"), title="abcd", second=maps[1], second_title="with the changes"
    )
    changed = RunResult(
        view_model=shown,
        predictions={"0": Letters(), "1": Letters()},
        vectors=vectors,
        python="uwaga.edit(...)",
        probes=[probe],
    )
    kept = ViewService(changed)
    found = about(kept)
    assert (found["probes"], found["similar"], found["unchanged"]) == ([("a probe", 0.0, 0.6)], [], 0.8)
    for side, arrays in (("0", 1), ("1", 2)):
        asked = {"request": "predictions", "side": side, "first": 0, "count": 2}
        assert len(kept.answer(asked).arrays) == arrays
