"""Texts that are typed into a page: one is run at a time, and the last few results are cached."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from uwaga.inspect.run_text import TextTooLongError
from uwaga.viewer.messages import Reply, RequestError, RequestParser
from uwaga.viewer.queries import why
from uwaga.viewer.queries.service import QueryService
from uwaga.viewer.text_runner import RunRequest, RunResult, TextRunner
from uwaga.viewer.view_model import ScoreSource

MAX_CHARACTERS = 60_000  # of each text of a run; the body of a request is bounded too
MAX_SECONDS = 60.0  # of a run
MAX_PREDICTED = 256  # positions per reply
_CACHED = 4  # results, beside that of the start
_WORDS = 5  # predicted per position
_PROBES = 6  # texts with which the output of a changed model is compared


if TYPE_CHECKING:
    from uwaga.inspect.recordings.recording import Recording


class _CachedRun(NamedTuple):
    typed: RunRequest | None  # None: what the view was opened with, and nobody typed
    run: RunResult
    queries: QueryService


class RunCache:
    """The results of a page's texts, numbered from 0, that of the start, which is cached. Thread-safe.

    One text is run at a time: a new one ends the one before. Of the results the last few are cached, and freed after that. A score that
    is split may need its text to be read again; another score, and another text, end that. The recording of the last such text is cached.

    Args:
        first: what the view opens with.
        typed: the texts of it, where they are known.
        runner: runs further ones; None: no text can be typed.
    """

    def __init__(self, first: RunResult, typed: RunRequest | None = None, runner: TextRunner | None = None) -> None:
        self._runner = runner
        self._cached = {0: _CachedRun(typed, first, QueryService(first.view_model))}
        self._numbers = 1
        self._guard, self._running = threading.Lock(), threading.Lock()
        self._latest: object = None
        self._asked: object = None  # the last score that was asked for
        self._recorded: tuple[ScoreSource, Recording] | None = None
        self._closed = False

    def queries(self, number: int | None) -> QueryService:
        """The query service of a result. Raises RequestError: it was freed, or there was none."""
        return self._result(number).queries

    def about(self, number: int | None) -> dict[str, Any]:
        """What the page is told of a result beside its maps.

        run: its number.
        typing: None where no text can be typed; else what the runner says ("boxes": which of "text", "second" and "target" there
            are; "examples": texts; "model"; "command": what makes another text on the command line; "max_tokens") with
            "max_characters" and "max_seconds".
        typed: the texts and changes, None where unknown.
        python: the line that makes the changes.
        predictions: by side {"kind", "stack", "tokens"}.
        why: by side, why the scores of its links cannot be split into parts of the model: "model", there is none, or "changed"; "" where they can.
        similar: cosines of the first text with the second and with other texts that are cached, [[text, cosine], ...].
        unchanged: the cosine of the text's vectors without and with the changes, None without changes or vectors.
        probes: beside changes the cosines of other texts with the text without and with them, [[text, before, after], ...].
        """
        number = 0 if number is None else number
        cached = self._result(number)
        typing = None
        if self._runner is not None:
            typing = {**self._runner.about(), "max_characters": MAX_CHARACTERS, "max_seconds": MAX_SECONDS}
        return {
            "run": number,
            "typing": typing,
            "typed": None if cached.typed is None else cached.typed.as_json(),
            "python": cached.run.python,
            "predictions": {
                side: {"kind": each.kind, "stack": each.stack, "tokens": len(each)}
                for side, each in cached.run.predictions.items()
            },
            "why": {
                str(number): "" if side.scores else why.CHANGED if number and cached.run.python else why.NO_MODEL
                for number, side in enumerate(cached.run.view_model.sides)
            },
            "similar": self._similar(cached),
            "unchanged": _unchanged(cached),
            "probes": self._probes(cached),
        }

    def run(self, parser: RequestParser) -> Reply:
        """Run texts: {"run": the number of the result}, or {"error": why there is none}: a text that the model cannot read, the time is
        over, another text came meanwhile. Of a text that is too long also "most", the tokens that are read of it with {"long": "first"}, and
        "longer", the name of a model that reads it with {"long": the name}, or None.

        Raises:
            RequestError: a view without a runner, a text of too many characters, arguments that are invalid.
        """
        typed = _run_request(parser)
        runner = self._runner
        if runner is None:
            raise RequestError("run: this view has no model that could read a text")
        mine = object()
        with self._guard:
            self._latest = mine
        with self._running:  # the run before ends at its next check
            known = next((number for number, each in self._cached.items() if each.typed == typed), None)
            if known is None:
                until = time.monotonic() + MAX_SECONDS
                try:
                    self._check(mine, until)
                    result = runner.run(typed, lambda: self._check(mine, until))
                except TextTooLongError as error:
                    return Reply(meta={"error": str(error), "most": error.most, "longer": runner.longer})
                except ValueError as error:
                    return Reply(meta={"error": str(error)})
                known = self._keep(typed, result)
        return Reply(meta={"run": known})

    def stop(self) -> Reply:
        """End the text that is run, and the score that is split."""
        with self._guard:
            self._latest = self._asked = None
        return Reply(meta={})

    def why(self, parser: RequestParser, number: int | None) -> Reply:
        """A score as a sum over parts of the model (`queries.why`), or {"error": why it is not split}: a reason that the page knows, or a
        sentence.

        Raises:
            RequestError: a result that was freed, a side, layer or head that does not exist, or items out of range.
        """
        link = self.queries(number).link(parser)
        mine, until = object(), time.monotonic() + MAX_SECONDS
        with self._guard:
            self._asked, latest = mine, self._latest

        def check() -> None:
            if self._asked is not mine:
                raise RequestError("it was stopped" if self._asked is None else "another score was asked for instead")
            self._check(latest, until)

        with self._running:  # a text that is run is read first; the score before ends at its next check
            try:
                check()
                meta = why.explain(link, parser.value("by"), lambda: self._with_values(link.side.scores, check))
            except ValueError as error:
                meta = {"error": str(error).removeprefix("score_attribution: ")}
        return Reply(meta=meta)

    def predictions(self, parser: RequestParser, number: int | None) -> Reply:
        """The most probable tokens at positions of a side: {"words": [[text, ...], ...]} and their probabilities. Of the side with changes
        of the model the tokens are those most probable with or without them, and the second array is the probabilities without."""
        run = self._result(number).run
        by_side = run.predictions
        side = parser.value("side")
        if side not in by_side:
            raise parser.invalid(
                "side", f"one of {', '.join(by_side) or 'those with predictions: there are none'}", side
            )
        predictions = by_side[side]
        first = parser.integer("first", 0, len(predictions))
        count = parser.integer("count", 1, MAX_PREDICTED + 1)
        last = min(first + count, len(predictions))
        before = by_side["0"] if run.python and side == "1" else None
        words, probabilities = predictions.top(first, last, _WORDS, before)
        return Reply(meta={"words": words}, arrays=tuple(probabilities))

    def close(self) -> None:
        """End the text that is run, and refuse all further requests."""
        with self._guard:
            self._latest, self._asked, self._closed = None, None, True
            cached = list(self._cached.values())
        for each in cached:
            each.queries.close()

    def _result(self, number: int | None) -> _CachedRun:
        with self._guard:
            cached = self._cached.get(0 if number is None else number)
        if cached is None:
            raise RequestError("run: this text is no longer kept: run it again")
        return cached

    def _keep(self, typed: RunRequest, run: RunResult) -> int:
        cached = _CachedRun(typed, run, QueryService(run.view_model))
        with self._guard:
            if self._closed:
                raise RequestError("the view is closed")
            number = self._numbers
            self._numbers += 1
            self._cached[number] = cached
            freed = [self._cached.pop(old) for old in sorted(self._cached)[1:-_CACHED]]
            sources = [side.scores for each in self._cached.values() for side in each.run.view_model.sides]
            if self._recorded is not None and self._recorded[0] not in sources:
                self._recorded = None
        for each in freed:
            each.queries.close()
        return number

    def _with_values(self, source: ScoreSource | None, check: Callable[[], None]) -> "Recording":
        assert source is not None
        if self._recorded is None or self._recorded[0] is not source:
            self._recorded = None  # not both at a time
            self._recorded = source, source.recorded(check)
        return self._recorded[1]

    def _check(self, mine: object, until: float) -> None:
        if self._latest is not mine:
            raise RequestError("it was stopped" if self._latest is None else "another text was run instead")
        if time.monotonic() > until:
            raise RequestError(f"it takes longer than the {MAX_SECONDS:g} seconds that a page may ask for")

    def _similar(self, cached: _CachedRun) -> list[tuple[str, float]]:
        if not cached.run.vectors or cached.run.python:
            return []
        similar: dict[str, float] = {}
        for title, vector in self._others(cached):
            similar.setdefault(title, _cosine(cached.run.vectors[0], vector))
        return list(similar.items())

    def _probes(self, cached: _CachedRun) -> list[tuple[str, float, float]]:
        if not cached.run.python or len(cached.run.vectors) < 2:
            return []
        others = dict([*reversed(list(self._others(cached))), *cached.run.probes])
        before, after = cached.run.vectors
        return [(text, _cosine(before, vector), _cosine(after, vector)) for text, vector in others.items()][-_PROBES:]

    def _others(self, cached: _CachedRun) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Titles and vectors of other texts: of the second one, and of those that are cached."""
        with self._guard:
            others = [
                each
                for each in reversed(self._cached.values())
                if each is not cached
                and (cached.typed is None or each.typed is None or each.typed.text != cached.typed.text)
            ]
        for run in (cached.run, *(each.run for each in others)):
            sides = list(zip(run.view_model.sides, run.vectors, strict=False))
            # What a changed model makes of a text is no text to compare with.
            for side, vector in sides[1 if run is cached.run else 0 : 1 if run.python else None]:
                yield side.title, vector


def _unchanged(cached: _CachedRun) -> float | None:
    """The cosine of the text's vectors without and with the changes of the model; None without changes, or without vectors."""
    if not cached.run.python or len(cached.run.vectors) < 2:
        return None
    return _cosine(*cached.run.vectors)


def _cosine(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    return round(float(one @ other), 6)


def _run_request(parser: RequestParser) -> RunRequest:
    """Raises RequestError: a text of too many characters, edits that are invalid or beside a second text."""
    from uwaga.inspect.edits import Edits

    texts = {name: parser.value(name) for name in ("text", "second", "target", "long")}
    for name, text in texts.items():
        if text is not None and len(text) > MAX_CHARACTERS:
            raise RequestError(
                f"run: the {name} has {len(text):,} characters; at most {MAX_CHARACTERS:,} are run from a page"
            )
    described = parser.value("edits")
    if described is None:
        return RunRequest(**texts)
    if texts["second"] is not None:
        raise RequestError("run: edits are shown beside the text: leave out the second text")
    try:
        return RunRequest(**texts, edits=Edits.from_dict(described))
    except ValueError as error:
        raise RequestError(f"run: edits: {error}") from error
