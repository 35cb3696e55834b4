"""The service behind a page: answers queries about its maps, requests for the lesson, and requests for a snapshot."""

from collections.abc import Mapping

import numpy as np

from uwaga.viewer.lesson.build import answer as answer_lesson
from uwaga.viewer.messages import Reply, Request, RequestError, RequestParser
from uwaga.viewer.page.snapshot import snapshot_html
from uwaga.viewer.queries.service import QueryService
from uwaga.viewer.view_model import ViewModel

_MAX_EXACT_IN_SNAPSHOT = 512  # requests, such as for tiles, whose exact replies a page adds to its snapshot
_IN_SNAPSHOT = ("tile", "overview", "entry", "row", "column", "between", "statistics", "items", "lesson")


class ViewService:
    """Answers every request of a page: "page" and "lesson" here, all others by the query service. Thread-safe.

    Args:
        view_model: the maps that are shown.
        lesson: the request whose reply opens the lesson, {"ask": "lesson", ...}; None: the default example.
    """

    def __init__(self, view_model: ViewModel, *, lesson: Mapping[str, object] | None = None) -> None:
        self._queries = QueryService(view_model)
        self._lesson = {"ask": "lesson"} if lesson is None else dict(lesson)
        self._closed = False

    @property
    def view_model(self) -> ViewModel:
        """The maps that are shown."""
        return self._queries.view_model

    def answer(self, request: Request) -> Reply:
        """The reply to a request.

        Raises:
            RequestError: an unknown request; an argument that is missing, invalid or unknown; a side, layer or head that does
                not exist; a view that was closed.
        """
        parser = RequestParser(request)
        if self._closed:
            raise RequestError("the view is closed")
        if parser.ask == "lesson":
            return answer_lesson(self._lesson if dict(request) == {"ask": "lesson"} else request)
        if parser.ask == "page":
            return self._snapshot(parser)
        if parser.ask not in self._queries.names:
            known = ", ".join([*self._queries.names, "page", "lesson"])
            raise parser.invalid("ask", f"one of {known}", parser.ask)
        return self._queries.answer(request)

    def close(self) -> None:
        """Refuse all further requests; a snapshot that is being made ends at its next request."""
        self._closed = True
        self._queries.close()

    def _snapshot(self, parser: RequestParser) -> Reply:
        exact = parser.requests("exact", _MAX_EXACT_IN_SNAPSHOT)
        parser.done()
        for request in exact:
            RequestParser(request).text("ask", _IN_SNAPSHOT)
        html = snapshot_html(self.answer, exact=exact)
        return Reply(meta={"name": "attention.html"}, arrays=(np.frombuffer(html, np.uint8),))
