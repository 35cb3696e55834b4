"""The service behind a page: answers queries about its maps, requests for the lesson, for a snapshot, and to run a text."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from uwaga._base.languages import using
from uwaga.lessons.build import build_steps
from uwaga.lessons.document import matrices
from uwaga.lessons.example import (
    MAX_HEADS,
    MAX_NUMBER,
    MAX_RATE,
    MAX_SENTENCES,
    MAX_STEPS,
    MAX_TOKENS,
    MAX_WIDTH,
    Example,
    ExampleError,
    parse_example,
)
from uwaga.viewer.messages import Reply, Request, RequestError, RequestParser
from uwaga.viewer.page.snapshot import make_snapshot
from uwaga.viewer.runs import RunCache
from uwaga.viewer.text_runner import RunRequest, RunResult, TextRunner
from uwaga.viewer.view_model import ViewModel

# The page checks these before it sends a request.
_LIMITS = {
    "tokens": MAX_TOKENS,
    "width": MAX_WIDTH,
    "heads": MAX_HEADS,
    "sentences": MAX_SENTENCES,
    "number": MAX_NUMBER,
    "steps": MAX_STEPS,
    "rate": MAX_RATE,
}
_IN_SNAPSHOT = (
    "tile", "overview", "entry", "row", "column", "statistics", "items", "lesson", "predictions", "labels", "heads", "picture",
)  # fmt: skip


class ViewService:
    """Answers every request of a page. Thread-safe.

    A request may name, as "run", the result of an earlier request to run a text; without it, it is about what the view opened with.

    Args:
        first: what is shown: maps, or what a runner has made of a text.
        lesson: the request whose reply opens the lesson, {"request": "lesson", ...}; None: a page with maps opens without the
            lesson. A request for it is answered in any case, with the default example.
        runner: runs further texts; None: the page offers no text box.
        typed: the text of `first`, where it is known.

    Attributes:
        opens_with_lesson: whether a page has the lesson from the first; else it loads the lesson's script where it is opened, which only
            a served page can.
    """

    def __init__(
        self,
        first: ViewModel | RunResult,
        *,
        lesson: Mapping[str, object] | None = None,
        runner: TextRunner | None = None,
        typed: RunRequest | None = None,
    ) -> None:
        run = first if isinstance(first, RunResult) else RunResult(view_model=first)
        self._runs = RunCache(run, typed, runner)
        self._lesson = {"request": "lesson"} if lesson is None else dict(lesson)
        self.opens_with_lesson = lesson is not None or not run.view_model.sides
        self._closed = False
        # Each with the number of the text that the request is about; what is not here is about its maps.
        self._handlers: Mapping[str, Callable[[RequestParser, int | None], Reply]] = {
            "about": self._about,
            "lesson": self._answer_lesson,
            "page": self._snapshot,
            "predictions": self._runs.predictions,
            "why": self._runs.why,
            "run": lambda parser, _: self._runs.run(parser),
            "stop": lambda parser, _: self._runs.stop(),
        }

    @property
    def view_model(self) -> ViewModel:
        """The maps that the view opened with."""
        return self._runs.queries(0).view_model

    def answer(self, request: Request) -> Reply:
        """The reply to a request.

        Raises:
            RequestError: an unknown request; an argument that is missing, invalid or unknown; a side, layer or head that does
                not exist; a text that cannot be run, or is no longer kept; a view that was closed.
        """
        parser = RequestParser(request)
        if self._closed:
            raise RequestError("the view is closed")
        return self._handlers.get(parser.name, self._query)(parser, parser.value("run"))

    def close(self) -> None:
        """Refuse all further requests; a text that is run and a snapshot that is being made end at their next step."""
        self._closed = True
        self._runs.close()

    def _query(self, parser: RequestParser, number: int | None) -> Reply:
        return self._runs.queries(number).answer(parser)

    def _about(self, parser: RequestParser, number: int | None) -> Reply:
        reply = self._query(parser, number)
        meta = {**reply.meta, "lesson": self.opens_with_lesson, **self._runs.about(number)}
        return Reply(meta=meta, arrays=reply.arrays)

    def _answer_lesson(self, parser: RequestParser, number: int | None) -> Reply:
        example = parser.values("text", "tokens", "x", "settings")
        return answer_lesson(
            {"request": "lesson", **example} if example else self._lesson, parser.value("language") or "en"
        )

    def _snapshot(self, parser: RequestParser, number: int | None) -> Reply:
        exact, language = parser.value("exact"), parser.value("language") or "en"
        for at, request in enumerate(exact):
            try:
                RequestParser(request).check_name(_IN_SNAPSHOT)
            except RequestError as error:
                raise RequestError(f"page: exact[{at}]: {error}") from error
        page = make_snapshot(
            lambda request: self.answer({**request, "run": number}),
            exact=exact,
            language=language,
            lesson=bool(parser.value("lesson")),
        )
        return Reply(meta={"name": "attention.html"}, arrays=(np.frombuffer(page.html, np.uint8),))


def answer_lesson(request: Mapping[str, object], language: str = "en") -> Reply:
    """The reply to a request for the lesson.

    Args:
        request: {"request": "lesson"} and the arguments of `uwaga.lessons.example.parse_example`.
        language: of the texts.

    Returns:
        meta: {"request": the request with all defaults filled in, "limits": {...}, "steps": [...], "matrices": {id: {...}}},
            as `to_json` of document.py gives them; arrays: float32, one per matrix.

    Raises:
        RequestError: an argument that is unknown, invalid or too large.
    """
    with using(language):
        try:
            return _lesson_reply(parse_example(request))
        except ExampleError as error:
            raise RequestError(str(error)) from error


def _lesson_reply(example: Example) -> Reply:
    steps = build_steps(example)
    shown = matrices(steps)
    meta: dict[str, Any] = {
        "request": example.request(),
        "limits": _LIMITS,
        "steps": [step.to_json() for step in steps],
        "matrices": {id: matrix.to_json(index) for index, (id, matrix) in enumerate(shown.items())},
    }
    arrays = tuple(
        np.ascontiguousarray(each.numbers.detach().to(torch.float32).numpy(), dtype="<f4") for each in shown.values()
    )
    return Reply(meta=meta, arrays=arrays)
