"""The service behind a page: answers queries about its maps, requests for the lesson, for a snapshot, and to run a text."""

from collections.abc import Mapping

import numpy as np

from uwaga.viewer.messages import Reply, Request, RequestError, RequestParser
from uwaga.viewer.page.snapshot import snapshot_html
from uwaga.viewer.queries.lesson import answer_lesson
from uwaga.viewer.runs import Run, Runner, Runs, Typed
from uwaga.viewer.view_model import ViewModel

_IN_SNAPSHOT = (
    "tile", "overview", "entry", "row", "column", "between", "statistics", "items", "lesson", "predictions", "labels",
)  # fmt: skip


class ViewService:
    """Answers every request of a page. Thread-safe.

    A request may name, as "run", the result of an earlier request to run a text; without it, it is about what the view opened with.

    Args:
        first: what is shown: maps, or what a runner has made of a text.
        lesson: the request whose reply opens the lesson, {"ask": "lesson", ...}; None: the default example.
        runner: runs further texts; None: the page offers no text box.
        typed: the text of `first`, where it is known.
    """

    def __init__(
        self,
        first: ViewModel | Run,
        *,
        lesson: Mapping[str, object] | None = None,
        runner: Runner | None = None,
        typed: Typed | None = None,
    ) -> None:
        run = first if isinstance(first, Run) else Run(view_model=first)
        self._runs = Runs(run, typed, runner)
        self._lesson = {"ask": "lesson"} if lesson is None else dict(lesson)
        self._closed = False

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
        number = parser.value("run")
        request = {name: value for name, value in request.items() if name != "run"}
        if self._closed:
            raise RequestError("the view is closed")
        if parser.ask == "lesson":
            chosen = {name: value for name, value in request.items() if name == "language"}
            return answer_lesson(
                {**self._lesson, **chosen} if {**request, **chosen} == {"ask": "lesson", **chosen} else request
            )
        if parser.ask == "run":
            return self._runs.run(parser)
        if parser.ask == "stop":
            return self._runs.stop()
        if parser.ask == "predictions":
            return self._runs.predictions(parser, number)
        if parser.ask == "page":
            return self._snapshot(parser, number)
        queries = self._runs.queries(number)
        reply = queries.answer(parser)
        if parser.ask == "about":
            return Reply(meta={**reply.meta, **self._runs.about(number)}, arrays=reply.arrays)
        return reply

    def close(self) -> None:
        """Refuse all further requests; a text that is run and a snapshot that is being made end at their next step."""
        self._closed = True
        self._runs.close()

    def _snapshot(self, parser: RequestParser, number: int | None) -> Reply:
        exact, language = parser.value("exact"), parser.value("language") or "en"
        for at, request in enumerate(exact):
            try:
                RequestParser(request).text("ask", _IN_SNAPSHOT)
            except RequestError as error:
                raise RequestError(f"page: exact[{at}]: {error}") from error
        html = snapshot_html(lambda request: self.answer({**request, "run": number}), exact=exact, language=language)
        return Reply(meta={"name": "attention.html"}, arrays=(np.frombuffer(html, np.uint8),))
