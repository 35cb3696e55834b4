"""uwaga.lesson: the calculation of attention on a small example, in a browser or a notebook, and its numbers.

Letters: N tokens, M width of a token's vector, D inner width of queries and keys, E of values.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from uwaga.viewer.desk.reply import Reply
from uwaga.viewer.lesson.example import example
from uwaga.viewer.lesson.parts import Matrix, Step, matrices
from uwaga.viewer.lesson.replying import answer
from uwaga.viewer.lesson.working import steps

if TYPE_CHECKING:
    from uwaga.viewer.desk import Desk
    from uwaga.viewer.door import View
    from uwaga.viewer.notebook import Widget

__all__ = ["Lesson", "LessonDesk", "lesson", "work_through"]

Given = str | Sequence[str] | ArrayLike


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """The numbers of a lesson, and where it is shown.

    question: what was worked through, nothing left out; it gives the same numbers again.
    steps: the pages, in order.
    view: the served page or the notebook's widget; None where nothing is shown.

    >>> from uwaga.viewer.lesson import work_through
    >>> worked = work_through("a pen .")
    >>> worked
    Lesson('a pen .', 14 steps, 85 matrices)
    >>> worked["weights"].sum(axis=1).round(5)
    array([1., 1., 1.], dtype=float32)
    """

    question: Mapping[str, Any]
    steps: tuple[Step, ...]
    view: "View | Widget | None" = None

    @property
    def matrices(self) -> dict[str, Matrix]:
        """All tables by their names, with titles, names of rows and columns, and the rule that each number came from."""
        return matrices(self.steps)

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        """The numbers of one table, (rows, columns), or (queries, rows, columns). Raises KeyError, with the names."""
        known = self.matrices
        if name not in known:
            raise KeyError(f"there is no table {name!r}: choose one of {', '.join(known)}")
        return known[name].numbers.numpy().copy()

    def close(self) -> None:
        """Stop showing it."""
        if self.view is not None:
            self.view.close()

    def __enter__(self) -> "Lesson":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        sentence = " ".join(self.question["tokens"])
        address = getattr(self.view, "address", None)
        where = "" if address is None else f", {address}"
        return f"Lesson({sentence!r}, {len(self.steps)} steps, {len(self.matrices)} matrices{where})"

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """In a notebook: the widget."""
        shown = getattr(self.view, "_repr_mimebundle_", None)
        return {"text/plain": repr(self)} if shown is None else shown(**options)


class LessonDesk:
    """A desk whose lesson begins with an example of one's own."""

    def __init__(self, desk: "Desk", start: Mapping[str, object]) -> None:
        self._desk, self._start = desk, dict(start)

    def answer(self, question: Mapping[str, object]) -> Reply:
        """Raises QuestionError."""
        if dict(question) == {"ask": "lesson"}:
            return answer(self._start)
        return self._desk.answer(question)

    def close(self) -> None:
        self._desk.close()


def work_through(
    given: Given | None = None,
    *,
    tokens: str | Sequence[str] | None = None,
    wq: ArrayLike | None = None,
    wk: ArrayLike | None = None,
    wv: ArrayLike | None = None,
    wo: ArrayLike | None = None,
    **settings: object,
) -> Lesson:
    """The numbers of the lesson, without showing them; arguments and errors as `lesson`."""
    question = _question(given, tokens, {"wq": wq, "wk": wk, "wv": wv, "wo": wo}, settings)
    asked = example(question)
    return Lesson(question=asked.question(), steps=steps(asked))


def served_lesson(desk: LessonDesk, *, tell: Callable[[str], object], port: int = 0) -> "View":
    """A view of a desk, open at the lesson; `tell` as of a Server. Raises ImportError without the extra, and OSError: a port
    that cannot be had."""
    from uwaga.viewer.door import serve

    return serve(cast("Desk", desk), "lesson", port=port, name="lesson", place="tab=lesson", tell=tell)


def lesson(
    given: Given | None = None,
    *,
    tokens: str | Sequence[str] | None = None,
    wq: ArrayLike | None = None,
    wk: ArrayLike | None = None,
    wv: ArrayLike | None = None,
    wo: ArrayLike | None = None,
    port: int = 0,
    browser: bool | None = None,
    block: bool | None = None,
    **settings: object,
) -> Lesson:
    """See the calculation of attention step by step, on numbers that can be changed, in a browser or a notebook.

        worked = uwaga.lesson("the pen is mine .")
        worked["weights"]

    Args:
        given: a sentence, its words, or numbers X (N, M), at most 12 tokens and 8 wide; None: "this is a pen .".
        tokens: the words of X.
        wq, wk: (M, D), D at most 8.
        wv: (M, E), E at most 8.
        wo: (E, M).
        port, browser, block: as in `uwaga.view`.
        settings: heads (at most 4, which divide D and E), scaled (whether by 1/sqrt(d_k)), and what the steps have besides:
            window, length, sharpness, payload, sentences, limit, order, seed.

    Returns:
        The numbers of what was given; what is changed on the page stays there. In a notebook it shows itself.

    Raises:
        ValueError: too many tokens, numbers that are not finite, shapes that do not fit, an unknown setting.
        ImportError: without the extra `uwaga[view]`.
        OSError: a port that cannot be had.
    """
    from uwaga.viewer.desk import Desk
    from uwaga.viewer.door import at_prompt, in_notebook
    from uwaga.viewer.exhibit import Exhibit

    worked = work_through(given, tokens=tokens, wq=wq, wk=wk, wv=wv, wo=wo, **settings)
    desk = LessonDesk(Desk(Exhibit.empty()), worked.question)
    if in_notebook():
        from uwaga.viewer.notebook import widget

        return Lesson(question=worked.question, steps=worked.steps, view=widget(cast("Desk", desk)))

    def tell(address: str) -> None:
        print(f"uwaga.lesson: {address}", flush=True)  # noqa: T201  # the only way to it where no browser opens

    served = served_lesson(desk, port=port, tell=tell)
    tell(served.address)
    if browser or browser is None:
        served.browse()
    if block or (block is None and not at_prompt()):
        served.wait()
    return Lesson(question=worked.question, steps=worked.steps, view=served)


def _question(
    given: Given | None,
    tokens: str | Sequence[str] | None,
    weights: Mapping[str, ArrayLike | None],
    settings: Mapping[str, object],
) -> dict[str, object]:
    """What `answer` is asked. Raises ValueError: tokens that are said twice."""
    question: dict[str, object] = {"ask": "lesson"}
    words = _words(given)
    if words is not None and tokens is not None:
        raise ValueError("lesson: the words are given twice; tokens= goes with numbers X")
    if words is None and given is not None:
        x = _rows("given", given)
        question["x"] = x
        words = [f"x{place + 1}" for place in range(len(x))] if tokens is None else _words(tokens)
    elif tokens is not None:
        words = _words(tokens)
    if words is not None:
        question["tokens"] = words
    said = {name: _rows(name, each) for name, each in weights.items() if each is not None}
    question["settings"] = said | {name: _plain(each) for name, each in settings.items()}
    return question


def _words(given: object) -> list[str] | None:
    """The words of a sentence or a list of them; None: it is something else."""
    if isinstance(given, str):
        return given.split()
    if isinstance(given, Sequence) and given and all(isinstance(word, str) for word in given):
        return list(given)
    return None


def _rows(name: str, numbers: object) -> list[list[float]]:
    """Raises ValueError unless it is a matrix."""
    try:
        found = numbers.detach().cpu().numpy() if isinstance(numbers, torch.Tensor) else np.asarray(numbers)
        matrix = found.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"lesson: {name} must be a matrix of numbers: {error}") from error
    if matrix.ndim != 2:
        raise ValueError(f"lesson: {name} must be a matrix, not of shape {matrix.shape}")
    rows: list[list[float]] = matrix.tolist()
    return rows


def _plain(value: object) -> object:
    """Tuples, tensors and arrays as lists."""
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return value
