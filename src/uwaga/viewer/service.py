"""The service behind a page: it dispatches requests by the table, runs the texts that are typed, and caches the last few results.

A short request is computed under the lock of its result, and continues what an earlier request has begun. A long request takes the lock for
each step. One text is run at a time: a new text ends the run before.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

import numpy as np
from annotated_types import MaxLen

from uwaga._base.languages import using
from uwaga._base.options import Integer, Switch, Text, Words
from uwaga.inspect.edits import Edits
from uwaga.inspect.run_text import TextTooLongError
from uwaga.lessons import example as examples
from uwaga.lessons.build import build_steps
from uwaga.lessons.document import as_json, matrices
from uwaga.viewer.messages import Reply, Request, RequestError
from uwaga.viewer.page.snapshot import MAX_PREDICTED, make_snapshot
from uwaga.viewer.queries import labels, maps, raster, statistics, weights  # noqa: F401  # all enter their requests into the table
from uwaga.viewer.queries.result import ViewResult
from uwaga.viewer.queries.why import CHANGED, NO_MODEL, explain, link
from uwaga.viewer.request_table import TABLE, Language, Shown, in_range, one_of, parse, request
from uwaga.viewer.shown import ScoreSource, View
from uwaga.viewer.texts import RunRequest, TextRunner

if TYPE_CHECKING:
    from uwaga.inspect.recordings.recording import Recording

# The page checks these before it sends a request.
_LIMITS = {
    "tokens": examples.MAX_TOKENS,
    "width": examples.MAX_WIDTH,
    "heads": examples.MAX_HEADS,
    "sentences": examples.MAX_SENTENCES,
    "number": examples.MAX_NUMBER,
    "steps": examples.MAX_STEPS,
    "rate": examples.MAX_RATE,
}
_MAX_EXACT = 512  # requests, such as for tiles, whose exact replies a page adds to its snapshot
MAX_CHARACTERS = 60_000  # of each text of a run; the body of a request is bounded too
MAX_SECONDS = 60.0  # of a run
_CACHED = 4  # results, in addition to that of the start
_WORDS = 5  # predicted per position


class ViewService:
    """Answers every request of a page. Thread-safe.

    A request may name, as "run", the number of a text that was run. Without "run", the request is about what the view opened with. The first
    result and the last few are kept, and the others are freed. Splitting a score may need its text to be read again; another score or another
    text ends that reading. The recording of the last such text is cached.

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
        first: View,
        *,
        lesson: Mapping[str, object] | None = None,
        runner: TextRunner | None = None,
        typed: RunRequest | None = None,
    ) -> None:
        self.runner = runner
        self.lesson = {"request": "lesson"} if lesson is None else dict(lesson)
        self.opens_with_lesson = lesson is not None or not first.sides
        self._results = {0: ViewResult(self, 0, first, typed)}
        self._numbers = 1
        self._guard, self._running = threading.Lock(), threading.Lock()
        self._latest: object = None  # the last text that was to be run
        self._asked: object = None  # the last score that was asked for
        self._recorded: tuple[ScoreSource, Recording] | None = None
        self._closed = False

    @property
    def view(self) -> View:
        """Return what the page opened with."""
        return self._results[0].view

    def answer(self, asked: Request) -> Reply:
        """Return the reply to a request.

        Raises:
            RequestError: an unknown request; an argument that is missing, invalid or unknown; a side, layer or head that does
                not exist; a text that cannot be run, or is no longer kept; a view that was closed.
        """
        handler, arguments = parse(asked)
        if self._closed:
            raise RequestError("the view is closed")
        result = self.result(arguments.pop("run"))
        try:
            return result.answer(handler, arguments)
        except RequestError as error:
            raise RequestError(f"{handler.name}: {error}") from error

    def close(self) -> None:
        """Reject all further requests, and end what is run or saved at its next step."""
        with self._guard:
            self._latest, self._asked, self._closed = None, None, True
            results = list(self._results.values())
        for result in results:
            result.close()

    def result(self, number: int | None) -> ViewResult:
        """Return a result by its number. Raises RequestError: it was freed, or there was none."""
        with self._guard:
            found = self._results.get(0 if number is None else number)
        if found is None:
            raise RequestError("run: this text is no longer kept: run it again")
        return found

    def run(self, typed: RunRequest) -> int:
        """Run a text, and return the number of its result.

        Raises:
            RequestError: another text came meanwhile, or the time is over.
            RecordError: the model cannot read it.
        """
        assert self.runner is not None
        mine = object()
        with self._guard:
            self._latest = mine
        with self._running:  # the run before ends at its next check
            for number, result in self._results.items():
                if result.typed == typed:
                    return number
            until = time.monotonic() + MAX_SECONDS
            self._check(mine, until)
            return self._keep(typed, self.runner.run(typed, lambda _: self._check(mine, until)))

    def stop(self) -> None:
        """End the text that is run, and the score that is split."""
        with self._guard:
            self._latest = self._asked = None

    def split(
        self, source: ScoreSource | None, compute: Callable[[Callable[[], "Recording"]], dict[str, Any]]
    ) -> dict[str, Any]:
        """Compute something of a score, given what reads its text again with values.

        A text that is run is read first, and the score before ends at its next check. Raises RequestError: another
        score was asked for, or the time is over.
        """
        mine, until = object(), time.monotonic() + MAX_SECONDS
        with self._guard:
            self._asked, latest = mine, self._latest

        def check(_: float = 0.0) -> None:
            if self._asked is not mine:
                raise RequestError("it was stopped" if self._asked is None else "another score was asked for instead")
            self._check(latest, until)

        def with_values() -> "Recording":
            assert source is not None
            if self._recorded is None or self._recorded[0] is not source:
                self._recorded = None  # not both at a time
                self._recorded = source, source.recorded(check)
            return self._recorded[1]

        with self._running:
            check()
            return compute(with_values)

    def _keep(self, typed: RunRequest, view: View) -> int:
        with self._guard:
            if self._closed:
                raise RequestError("the view is closed")
            number = self._numbers
            self._numbers += 1
            self._results[number] = ViewResult(self, number, view, typed)
            if len(self._results) > 1 + _CACHED:
                self._results.pop(list(self._results)[1]).close()
            if self._recorded is not None and not any(
                self._recorded[0] is side.scores for result in self._results.values() for side in result.view.sides
            ):
                self._recorded = None
        return number

    def _check(self, mine: object, until: float) -> None:
        if self._latest is not mine:
            raise RequestError("it was stopped" if self._latest is None else "another text was run instead")
        if time.monotonic() > until:
            raise RequestError(f"it takes longer than the {MAX_SECONDS:g} seconds that a page may ask for")


@request()
def about(result: ViewResult) -> Reply:
    """Return what a page needs first: what `maps.describe` says, and these keys:

    lesson: whether the page opens with the lesson.
    run: the number of the result.
    typing: None where no text can be typed; else what the runner says ("boxes": which of "text", "second" and "target" there
        are; "examples": texts; "model"; "command": what makes another text on the command line; "max_tokens") with
        "max_characters" and "max_seconds".
    typed: the texts and changes, None where unknown.
    python: the line that makes the changes.
    predictions: by side {"kind", "stack", "tokens"}.
    why: by side, why the scores of its links cannot be split into parts of the model: "model", there is none, or "changed"; "" where they can.
    similarity: the cosine of the vectors of both sides, None where there are none.
    """
    service, view = result.service, result.view
    typing = None
    if service.runner is not None:
        typing = {**service.runner.about(), "max_characters": MAX_CHARACTERS, "max_seconds": MAX_SECONDS}
    meta = {
        **maps.describe(result.resolver),
        "lesson": service.opens_with_lesson,
        "run": result.number,
        "typing": typing,
        "typed": None if result.typed is None else result.typed.as_json(),
        "python": view.python,
        "predictions": {
            side: {"kind": predicted.kind, "stack": predicted.stack, "tokens": len(predicted)}
            for side, predicted in view.predictions.items()
        },
        "why": {
            str(number): "" if side.scores else CHANGED if number and view.python else NO_MODEL
            for number, side in enumerate(view.sides)
        },
        "similarity": round(float(view.vectors[0] @ view.vectors[1]), 6) if view.vectors else None,
    }
    return Reply(meta=meta)


@request(lane="run")
def run(
    result: ViewResult,
    *,
    text: Text,
    second: Text | None,
    target: Text | None,
    edits: dict[str, Any] | None,
    long: Literal["first"] | None = None,
) -> Reply:
    """Run texts: {"run": the number of the result}, or {"error": why there is none}.

    There is none if the model cannot read a text, the time is over, or another text came meanwhile. If a text is too
    long, the reply also has "most", the tokens that are read with {"long": "first"}.

    Raises:
        RequestError: a view without a runner, a text of too many characters, edits that are invalid or come with a second text.
    """
    for name, written in (("text", text), ("second", second), ("target", target)):
        if written is not None and len(written) > MAX_CHARACTERS:
            raise RequestError(
                f"the {name} has {len(written):,} characters; at most {MAX_CHARACTERS:,} are run from a page"
            )
    if edits is not None and second is not None:
        raise RequestError("edits are shown next to the text: leave out the second text")
    try:
        changes = None if edits is None else Edits.from_dict(edits)
    except ValueError as error:
        raise RequestError(f"edits: {error}") from error
    runner = result.service.runner
    if runner is None:
        raise RequestError("this view has no model that could read a text")
    try:
        return Reply(meta={"run": result.service.run(RunRequest(text, second, target, changes, long))})
    except TextTooLongError as error:
        return Reply(meta={"error": str(error), "most": error.most})
    except ValueError as error:
        return Reply(meta={"error": str(error)})


@request(reads_maps=False)
def stop(result: ViewResult) -> Reply:
    """End the text that is run, and the score that is split."""
    result.service.stop()
    return Reply(meta={})


@request(lane="why")
def why(
    result: ViewResult,
    *,
    head: Integer,
    query: Integer,
    key: Integer,
    than: Integer | None,
    **shown: Unpack[Shown],
) -> Reply:
    """Split a score into parts of the model (`queries.why`), or return {"error": a reason}."""
    with result.lock:
        of = link(result.resolver, head=head, query=query, key=key, than=than, **shown)
    try:
        meta = result.service.split(of.side.scores, lambda read: explain(of, read))
    except ValueError as error:
        meta = {"error": str(error).removeprefix("score_attribution: ")}
    return Reply(meta=meta)


@request(saved=True, reads_maps=False)
def predictions(result: ViewResult, *, side: Text, first: Integer, count: Integer) -> Reply:
    """Return the most probable tokens at positions of a side, and their probabilities.

    The tokens are {"words": [[text, ...], ...]}. If the side has changes of the model, they are the most probable ones
    with or without the changes, and the second array has the probabilities without.
    """
    by_side = result.view.predictions
    predicted = by_side[one_of("side", side, by_side or ["those with predictions: there are none"])]
    in_range("first", first, 0, len(predicted))
    last = min(first + in_range("count", count, 1, MAX_PREDICTED + 1), len(predicted))
    before = by_side["0"] if result.view.python and side == "1" else None
    words, probabilities = predicted.top(first, last, _WORDS, before)
    return Reply(meta={"words": words}, arrays=tuple(probabilities))


@request(lane="long")
def page(
    result: ViewResult,
    *,
    exact: Annotated[list[dict[str, Any]], MaxLen(_MAX_EXACT), Words(f"a list of at most {_MAX_EXACT} requests")],
    language: Language = "en",
    lesson: Switch = False,
) -> Reply:
    """Return a page that is one file. exact: requests whose replies it holds as they are."""
    for at, asked in enumerate(exact):
        try:
            handler, _ = parse(asked)
            if not handler.saved:
                one_of("request", handler.name, [row.name for row in TABLE.values() if row.saved])
        except RequestError as error:
            raise RequestError(f"exact[{at}]: {error}") from error
    made = make_snapshot(
        lambda asked: result.service.answer({**asked, "run": result.number}),
        exact=exact,
        language=language,
        lesson=lesson,
    )
    return Reply(meta={"name": "attention.html"}, arrays=(np.frombuffer(made.html, np.uint8),))


@request(saved=True, reads_maps=False)
def lesson(
    result: ViewResult,
    *,
    language: Language = "en",
    text: Any = None,
    tokens: Any = None,
    x: Any = None,
    settings: Any = None,
) -> Reply:
    """Return the lesson of an example, whose parts `uwaga.lessons.example` declares and checks."""
    arguments = {"text": text, "tokens": tokens, "x": x, "settings": settings}
    example = {name: value for name, value in arguments.items() if value is not None}
    return answer_lesson({"request": "lesson", **example} if example else result.service.lesson, language)


def answer_lesson(request: Mapping[str, object], language: str = "en") -> Reply:
    """Return the reply to a request for the lesson.

    Args:
        request: {"request": "lesson"} and the arguments of `uwaga.lessons.example.parse_example`.
        language: of the texts.

    Returns:
        meta: {"request": the request with all defaults filled in, "limits": {...}, "steps": [...], "matrices": {id: {...}}},
            as `as_json` and `Matrix.to_json` give them; arrays: float32, one per matrix.

    Raises:
        RequestError: an argument that is unknown, invalid or too large.
    """
    with using(language):
        try:
            example = examples.parse_example(request)
            steps = build_steps(example)
        except examples.ExampleError as error:
            raise RequestError(str(error).removeprefix("lesson: ")) from error
        shown = matrices(steps)
        meta: dict[str, Any] = {
            "request": example.request(),
            "limits": _LIMITS,
            "steps": as_json(steps),
            "matrices": {id: matrix.to_json(index) for index, (id, matrix) in enumerate(shown.items())},
        }
    return Reply(meta=meta, arrays=tuple(matrix.numbers.detach().float().numpy() for matrix in shown.values()))
