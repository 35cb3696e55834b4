"""Texts that a page runs: one at a time, bounded, the last few kept, and refusals of everything else."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from waiting import HANG

import uwaga
from uwaga.viewer import service as view_service
from uwaga.viewer.messages import RequestError
from uwaga.viewer.service import ViewService
from uwaga.viewer.shown import Maps, ScoreSource, View
from uwaga.viewer.texts import RunRequest

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

    def run(self, typed: RunRequest, check: Callable[[float], object]) -> View:
        self.read.append(typed)
        if typed.text == "wrong":
            raise ValueError("the text is wrong")
        if typed.text == "wait":
            self.wait(check)
        return a_run(typed.text)

    def wait(self, check: Callable[[float], object]) -> uwaga.Recording:
        """Wait until it is told to end."""
        self.begun.set()
        for _ in range(int(HANG * 1000)):
            check(0.0)
            time.sleep(0.001)
        raise AssertionError("nothing ended it")


def a_run(text: str) -> View:
    query, key = torch.randn(2, 1, len(text), 8)
    return View.of(Maps(uwaga.AttentionMap(query, key), tokens=list(text), title=text))


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
    assert [about(service, n)["title"] for n in (0, number)] == ["abcd", "abcdef"]
    assert about(service)["typed"] == {"text": "abcd", "second": None, "target": None, "edits": None}
    assert about(service, number)["typed"]["text"] == "abcdef"
    where = {"side": "0", "kind": "encoder", "layer": 0, "head": 0, "merge": "tokens", "specials": "show"}
    assert service.answer({"request": "row", **where, "query": 5, "run": number}).arrays[0].shape == (6,)
    with pytest.raises(RequestError, match="row: query must be from 0 to 3, not 5"):
        service.answer({"request": "row", **where, "query": 5})


def test_a_text_that_is_kept_is_not_run_again(service: ViewService, runner: Runner) -> None:
    assert run(service, "abcd") == 0
    assert run(service, "abc") == run(service, "abc") == 1
    assert [request.text for request in runner.read] == ["abc"]


def test_the_last_four_are_kept_and_the_first_always(service: ViewService) -> None:
    numbers = [run(service, "x" * size) for size in range(1, 8)]
    for number in (0, *numbers[-4:]):
        about(service, number)
    for number in numbers[:-4]:
        with pytest.raises(RequestError, match="no longer kept"):
            about(service, number)


WHY = {"request": "why", "side": "0", "kind": "encoder", "layer": 0, "head": 0, "query": 1, "key": 2}
WHY |= {"merge": "tokens", "specials": "show", "than": None}
RUN = {"request": "run", "text": "wait", "second": None, "target": None, "edits": None}


ENDS = {
    "stop": "it was stopped",
    "close": "it was stopped",
    "score": "another score was asked for instead",
    "text": "another text was run instead",
    "time": "it takes longer than the 0.05 seconds that a page may ask for",
}


@pytest.mark.parametrize(
    ("waiting", "how"), [(RUN, how) for how in ENDS if how != "score"] + [(WHY, how) for how in ENDS]
)
def test_a_run_and_a_score_end_when_they_are_stopped(
    runner: Runner, waiting: dict[str, Any], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "time":
        monkeypatch.setattr(view_service, "MAX_SECONDS", 0.05)
    shown = a_run("abcd")
    source = ScoreSource(torch.nn.Identity(), runner.wait)
    side = replace(shown.sides[0], scores=source)
    service = ViewService(replace(shown, sides=(side,)), runner=runner)
    errors: list[str] = []

    def ask(**more: object) -> threading.Thread:
        thread = threading.Thread(target=lambda: errors.append(service.answer(waiting | more).meta["error"]))
        thread.start()
        return thread

    threads = [ask()]
    assert runner.begun.wait(HANG)
    if how == "stop":
        service.answer({"request": "stop"})
    elif how == "close":
        service.close()
    elif how == "text":
        assert about(service, run(service, "abc"))["title"] == "abc"
    elif how == "score":
        threads.append(ask(query=2))
    threads[0].join(HANG)
    assert errors == [ENDS[how]]
    service.close()
    for thread in threads:
        thread.join(HANG)


def test_a_text_that_cannot_be_read_has_no_number(service: ViewService) -> None:
    assert outcome(service, "wrong") == {"error": "the text is wrong"}
    assert about(service)["title"] == "abcd"
