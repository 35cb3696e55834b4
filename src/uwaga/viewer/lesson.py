"""uwaga.lesson: the calculation of attention on a small example, in a browser or a notebook, and its numbers.

Letters: N tokens, M width of a token's vector, D width of queries and keys, E of values.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from uwaga._base.arguments import check
from uwaga._base.durable import atomic_replace
from uwaga._base.languages import using
from uwaga.lessons.build import build_steps
from uwaga.lessons.document import LessonStep, matrices
from uwaga.lessons.example import as_lists, parse_example
from uwaga.lessons.matrix import Matrix
from uwaga.lessons.worksheet import worksheet_html
from uwaga.models.tokenizers.token_text import split_words
from uwaga.viewer.api import check_language, display
from uwaga.viewer.page.snapshot import save_snapshot
from uwaga.viewer.service import ViewService
from uwaga.viewer.shown import View

if TYPE_CHECKING:
    from uwaga.viewer.notebook import Widget
    from uwaga.viewer.server.server import ServedView


Inputs = str | Sequence[str] | ArrayLike
FRAGMENT = "tab=lesson"  # opens a page at the lesson


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """The numbers of a lesson, and where it is shown.

    request: the request for the example, with all arguments; it gives the same numbers again.
    language: of the texts of the steps.
    steps: the pages, in order.
    view: the served page, or the notebook's widget; None where nothing is shown.

    >>> from uwaga.viewer.lesson import work_through
    >>> worked = work_through("a pen .")
    >>> worked
    Lesson('a pen .', 24 steps, 267 matrices)
    >>> worked["weights"].sum(axis=1).round(5)
    array([1., 1., 1.], dtype=float32)
    """

    request: Mapping[str, Any]
    steps: tuple[LessonStep, ...]
    language: str = "en"
    view: "ServedView | Widget | None" = None

    @property
    def matrices(self) -> dict[str, Matrix]:
        """Return all matrices by name, with titles, names of rows and columns, and how each number was computed."""
        return matrices(self.steps)

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        """Return a copy of one matrix, (rows, columns) or (queries, rows, columns).

        Raises KeyError, which lists the known names.
        """
        by_name = self.matrices
        if name not in by_name:
            raise KeyError(f"unknown matrix {name!r}: choose one of {', '.join(by_name)}")
        return by_name[name].numbers.numpy().copy()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the lesson as one HTML file that needs no server and no network. Raises OSError.

        The page computes the tables again after an edit. `path#tab=lesson&step=softmax` opens it at a step, by the
        step's id.
        """
        save_snapshot(ViewService(View(), lesson=self.request), path, language=self.language)

    def save_worksheet(self, path: str | os.PathLike[str]) -> None:
        """Write the six steps as an HTML page to print. Raises OSError.

        The page has X and the weights, blank matrices to fill in, and the questions. The solutions, rounded to two
        decimals, begin on a new page.
        """
        with using(self.language), atomic_replace(Path(path)) as file:
            file.write(worksheet_html(self.steps, tuple(self.request["tokens"])).encode())

    def close(self) -> None:
        """Close the view, if there is one."""
        if self.view is not None:
            self.view.close()

    def __enter__(self) -> "Lesson":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        sentence = " ".join(self.request["tokens"])
        address = getattr(self.view, "address", None)
        where = "" if address is None else f", {address}"
        return f"Lesson({sentence!r}, {len(self.steps)} steps, {len(self.matrices)} matrices{where})"

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """Return what a notebook displays: the widget."""
        shown = getattr(self.view, "_repr_mimebundle_", None)
        return {"text/plain": repr(self)} if shown is None else shown(**options)


def work_through(
    inputs: Inputs | None = None,
    *,
    tokens: str | Sequence[str] | None = None,
    wq: ArrayLike | None = None,
    wk: ArrayLike | None = None,
    wv: ArrayLike | None = None,
    wo: ArrayLike | None = None,
    language: str | None = None,
    **settings: object,
) -> Lesson:
    """Return the numbers of the lesson without showing it; arguments and errors as in `lesson`."""
    check_language("lesson", language)
    with using(language or "en"):
        example = parse_example(_request(inputs, tokens, {"wq": wq, "wk": wk, "wv": wv, "wo": wo}, settings))
        return Lesson(request=example.request(), steps=build_steps(example), language=language or "en")


def lesson(
    inputs: Inputs | None = None,
    *,
    tokens: str | Sequence[str] | None = None,
    wq: ArrayLike | None = None,
    wk: ArrayLike | None = None,
    wv: ArrayLike | None = None,
    wo: ArrayLike | None = None,
    port: int = 0,
    browser: bool | None = None,
    block: bool | None = None,
    language: str | None = None,
    **settings: object,
) -> Lesson:
    """Show how attention is computed, step by step, in a browser or a notebook. The numbers can be edited there.

        worked = uwaga.lesson("the pen is mine .")
        worked["weights"]

    Args:
        inputs: a sentence, a list of words, or a matrix X (N, M), with N at most 12 and M at most 8. Default: the sentence of the
            page's language, "this is a pen ." in English. The word boundaries of Unicode (UAX 29) split a sentence into words and
            punctuation marks.
        tokens: the words of a matrix X, as a list or a sentence.
        wq, wk: weights of queries and keys, (M, D) with D at most 8.
        wv: weights of values, (M, E) with E at most 8.
        wo: weights of the output, (E, M) for the first head or (heads * E, M) for all heads.
        port, browser, block, language: as in `uwaga.view`.
        settings: for the whole lesson: `heads`, at most 4, and `scaled`, False for scores without 1/sqrt(d_k). wq, wk and wv are
            those of the first head; further heads have matrices of the same sizes. For single steps:

            - masks: `window`, visible keys before the query's own; `length`, keys that are not padding.
            - soft database: `sharpness`, a factor of the scores; `payload`, N rows of values.
            - batches: `sentences`, lists of words; `limit`, the context length of a model.
            - positions: `order`, a permutation of the tokens. Random vectors: `seed`.
            - blocks: `w1` (M, F) and `w2` (F, M) of the feed-forward layer; `norm`, "post" or "pre".
            - decoder: `written`, a sentence or words that the decoder has written.
            - learning: `steps`, at most 240, and `rate`, at most 4, of gradient descent.

    Returns:
        The numbers of this example. Edits on the page do not change them. A notebook displays the result as a widget.

    Raises:
        ValueError: an unknown language, too many tokens, NaN or infinite numbers, shapes that do not fit, an unknown setting.
        ImportError: in a notebook, the extra `uwaga[view]` is not installed.
        OSError: the port is not available.
    """
    worked = work_through(inputs, tokens=tokens, wq=wq, wk=wk, wv=wv, wo=wo, language=language, **settings)
    # The page's own example is that of the language that the page is in.
    is_default = inputs is None and all(value is None for value in (tokens, wq, wk, wv, wo)) and not settings
    service = ViewService(View(), lesson={"request": "lesson"} if is_default else worked.request)
    view = display(service, "lesson", port=port, browser=browser, block=block, fragment=FRAGMENT, language=language)
    return Lesson(request=worked.request, steps=worked.steps, language=worked.language, view=view)


def _request(
    inputs: Inputs | None,
    tokens: str | Sequence[str] | None,
    weights: Mapping[str, ArrayLike | None],
    settings: Mapping[str, object],
) -> dict[str, object]:
    """Return the request for an example. Raises ValueError: tokens are given twice."""
    request: dict[str, object] = {"request": "lesson"}
    written = inputs if isinstance(inputs, str) or _are_words(inputs) else tokens
    is_given_twice = written is inputs and inputs is not None and tokens is not None
    check(not is_given_twice, "lesson: the words are given twice: tokens= is only for a matrix X")
    if written is not inputs and inputs is not None:
        x = _rows("inputs", inputs)
        request["x"] = x
        request["tokens"] = [f"x{place + 1}" for place in range(len(x))]
        written = split_words(tokens) if isinstance(tokens, str) else tokens
    if isinstance(written, str):
        request["text"] = written
    elif written is not None:
        request["tokens"] = as_lists(written)
    numbers = {name: _rows(name, weight) for name, weight in weights.items() if weight is not None}
    request["settings"] = numbers | {name: as_lists(value) for name, value in settings.items()}
    return request


def _are_words(inputs: object) -> bool:
    return isinstance(inputs, Sequence) and bool(inputs) and all(isinstance(word, str) for word in inputs)


def _rows(name: str, numbers: object) -> list[list[float]]:
    """Return a matrix as lists. Raises ValueError for anything else."""
    try:
        result = numbers.detach().cpu().numpy() if isinstance(numbers, torch.Tensor) else np.asarray(numbers)
        matrix = result.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"lesson: {name} must be a matrix of numbers: {error}") from error
    check(matrix.ndim == 2, f"lesson: {name} must be a matrix, but has shape {matrix.shape}")
    rows: list[list[float]] = matrix.tolist()
    return rows
