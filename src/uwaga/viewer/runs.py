"""Texts that are typed into a page: the request, what runs them, and the last few results, which are kept."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from uwaga.viewer.messages import Reply, RequestError, RequestParser
from uwaga.viewer.queries.service import QueryService
from uwaga.viewer.view_model import ViewModel

MAX_CHARACTERS = 60_000  # of each text of a run; the body of a request is bounded too
MAX_TOKENS = 50_000  # of each text, where the model takes more: a few seconds a layer, after which a run can be stopped
MAX_SECONDS = 60.0  # of a run
MAX_PREDICTED = 256  # positions per reply
_KEPT = 4  # results, beside that of the start
_WORDS = 5  # predicted per position

Check = Callable[[], None]


class Typed(NamedTuple):
    """What a page asks to run.

    text: the text.
    second: another, which is shown beside it.
    target: what the decoder of an encoder-decoder reads; None: it generates.
    edits: a change of the model as `uwaga.inspect.edits.Edits.to_dict` describes it: the text is shown as it is, and beside it as it is with the
        changes.
    """

    text: str
    second: str | None = None
    target: str | None = None
    edits: Mapping[str, Any] | None = None


class Predictions(Protocol):
    """What a model predicts at each token of one stack of a text."""

    @property
    def kind(self) -> str:
        """ "next": the token after each; "masked": the token at its place."""
        ...

    @property
    def stack(self) -> str:
        """ "encoder" or "decoder"."""
        ...

    def __len__(self) -> int:
        """T tokens."""
        ...

    def top(self, first: int, last: int, count: int) -> tuple[list[list[str]], NDArray[np.float32]]:
        """For each token from `first` to `last` the `count` most probable tokens, and their probabilities (last - first, count)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One or two texts that a model has read.

    Attributes:
        view_model: their maps.
        predictions: by side, "0" or "1"; none where the model predicts no tokens.
        vectors: one of unit length per side, by which texts are compared; none where the model has none.
        python: the line of Python that makes the changes; "" without changes.
    """

    view_model: ViewModel
    predictions: Mapping[str, Predictions] = field(default_factory=dict)
    vectors: Sequence[NDArray[np.float32]] = ()
    python: str = ""


class Runner(Protocol):
    """Runs texts through the models of a view, one call at a time."""

    def about(self) -> Mapping[str, Any]:
        """What a page needs to offer a text box, as JSON: see `Runs.about`."""
        ...

    def run(self, typed: Typed, check: Check) -> Run:
        """Read the texts, of at most MAX_TOKENS tokens each. `check` is called after each layer; it raises RequestError where the run must
        end.

        Raises:
            ValueError: a text that cannot be read; the message is shown to the user.
        """
        ...


class _Kept(NamedTuple):
    typed: Typed | None  # None: what the view was opened with, and nobody typed
    run: Run
    queries: QueryService


class Runs:
    """The results of a page's texts, numbered from 0, that of the start, which is kept. Thread-safe.

    One text is run at a time: a new one ends the one before. Of the results the last few are kept, and freed after that.

    Args:
        first: what the view opens with.
        typed: the texts of it, where they are known.
        runner: runs further ones; None: no text can be typed.
    """

    def __init__(self, first: Run, typed: Typed | None = None, runner: Runner | None = None) -> None:
        self._runner = runner
        self._kept = {0: _Kept(typed, first, QueryService(first.view_model))}
        self._numbers = 1
        self._guard, self._running = threading.Lock(), threading.Lock()
        self._latest: object = None
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
        similar: cosines of the first text with the second and with other texts that are kept, [[text, cosine], ...].
        """
        number = 0 if number is None else number
        kept = self._result(number)
        typing = None
        if self._runner is not None:
            typing = {**self._runner.about(), "max_characters": MAX_CHARACTERS, "max_seconds": MAX_SECONDS}
        return {
            "run": number,
            "typing": typing,
            "typed": None if kept.typed is None else kept.typed._asdict(),
            "python": kept.run.python,
            "predictions": {
                side: {"kind": each.kind, "stack": each.stack, "tokens": len(each)}
                for side, each in kept.run.predictions.items()
            },
            "similar": self._similar(kept),
        }

    def run(self, parser: RequestParser) -> Reply:
        """Run texts: {"run": the number of the result}, or {"error": why there is none}: a text that the model cannot read, the time is
        over, another text came meanwhile.

        Raises:
            RequestError: a view without a runner, a text of too many characters, arguments that are invalid.
        """
        typed = _typed(parser)
        runner = self._runner
        if runner is None:
            raise RequestError("run: this view has no model that could read a text")
        mine = object()
        with self._guard:
            self._latest = mine
        with self._running:  # the run before ends at its next check
            known = next((number for number, each in self._kept.items() if each.typed == typed), None)
            if known is None:
                until = time.monotonic() + MAX_SECONDS
                try:
                    self._check(mine, until)
                    found = runner.run(typed, lambda: self._check(mine, until))
                except ValueError as error:
                    return Reply(meta={"error": str(error)})
                known = self._keep(typed, found)
        return Reply(meta={"run": known})

    def stop(self) -> Reply:
        """End the text that is run."""
        with self._guard:
            self._latest = None
        return Reply(meta={})

    def predictions(self, parser: RequestParser, number: int | None) -> Reply:
        """The most probable tokens at positions of a side: {"words": [[text, ...], ...]} and their probabilities."""
        by_side = self._result(number).run.predictions
        side = parser.value("side")
        if side not in by_side:
            raise parser.invalid(
                "side", f"one of {', '.join(by_side) or 'those with predictions: there are none'}", side
            )
        found = by_side[side]
        first = parser.integer("first", 0, len(found))
        count = parser.integer("count", 1, MAX_PREDICTED + 1)
        words, probabilities = found.top(first, min(first + count, len(found)), _WORDS)
        return Reply(meta={"words": words}, arrays=(probabilities,))

    def close(self) -> None:
        """End the text that is run, and refuse all further requests."""
        with self._guard:
            self._latest, self._closed = None, True
            kept = list(self._kept.values())
        for each in kept:
            each.queries.close()

    def _result(self, number: int | None) -> _Kept:
        with self._guard:
            found = self._kept.get(0 if number is None else number)
        if found is None:
            raise RequestError("run: this text is no longer kept: run it again")
        return found

    def _keep(self, typed: Typed, run: Run) -> int:
        kept = _Kept(typed, run, QueryService(run.view_model))
        with self._guard:
            if self._closed:
                raise RequestError("the view is closed")
            number = self._numbers
            self._numbers += 1
            self._kept[number] = kept
            freed = [self._kept.pop(old) for old in sorted(self._kept)[1:-_KEPT]]
        for each in freed:
            each.queries.close()
        return number

    def _check(self, mine: object, until: float) -> None:
        if self._latest is not mine:
            raise RequestError("it was stopped" if self._latest is None else "another text was run instead")
        if time.monotonic() > until:
            raise RequestError(f"it takes longer than the {MAX_SECONDS:g} seconds that a page may ask for")

    def _similar(self, kept: _Kept) -> list[tuple[str, float]]:
        if not kept.run.vectors:
            return []
        own = kept.run.vectors[0]
        found: dict[str, float] = {}
        with self._guard:
            others = [
                each
                for each in reversed(self._kept.values())
                if each is not kept and (kept.typed is None or each.typed is None or each.typed.text != kept.typed.text)
            ]
        for run in (kept.run, *(each.run for each in others)):
            for side, vector in list(zip(run.view_model.sides, run.vectors, strict=True))[
                1 if run is kept.run else 0 :
            ]:
                found.setdefault(side.title, round(float(own @ vector), 6))
        return list(found.items())


def _typed(parser: RequestParser) -> Typed:
    from uwaga.inspect.edits import Edits

    typed = Typed(*map(parser.value, Typed._fields))
    for name, text in (("text", typed.text), ("second", typed.second), ("target", typed.target)):
        if text is not None and len(text) > MAX_CHARACTERS:
            raise RequestError(
                f"run: the {name} has {len(text):,} characters; at most {MAX_CHARACTERS:,} are run from a page"
            )
    if typed.edits is not None:
        if typed.second is not None:
            raise RequestError("run: edits are shown beside the text: leave out the second text")
        try:
            Edits.from_dict(typed.edits)
        except ValueError as error:
            raise RequestError(f"run: edits: {error}") from error
    return typed
