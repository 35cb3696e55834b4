"""The lesson as a document: steps, sections, matrices, charts and findings; and their JSON.

Letters: S slices (one per query), R rows, C columns.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from torch import Tensor

from uwaga._base.languages import decimal, integer, significant
from uwaga.lessons.matrix import Matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A line chart: columns of a matrix over its first column."""

    title: str
    matrix: str
    lines: Sequence[int]
    description: str
    x_title: str
    y_title: str
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LessonFinding:
    """A sentence about the numbers, and the cells that it is about: (matrix, row, column)."""

    text: str
    cells: Sequence[tuple[str, int, int]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Illustration:
    """A drawing of numbers.

    kind: "arcs", a row of weights or scores as arcs between words; "ribbons", all rows of weights between two sentences;
        "rows", the row of one word in each of several matrices; "film", a matrix per moment, with a slider; "waves", each
        column as a curve over the rows; "circles", a matrix; "shapes", matrices as rectangles that fit each other, or do not; "layers", a batch
        as layers, one of rows for each sentence.
    matrices: what is drawn; a film's first has a slice per moment, its second a row per moment with the curves next to it, its
        third the weights of each moment, and then the position codes, W_Q and W_K of each moment. A matrix is drawn as circles where it stands in a section.
    labels: of the moments, or of the shapes.
    sizes: of "shapes": rows and columns of each.
    """

    kind: str
    title: str
    description: str = ""
    matrices: Sequence[Matrix] = ()
    labels: Sequence[str] = ()
    sizes: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is wrong with the calculation as it stands at a step, measured there; or what has removed it.

    numbers: those that were measured, to four digits, which the problem's drawing shows.
    """

    id: str
    title: str
    text: str
    solved: bool
    numbers: Sequence[float] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Matrices that are shown together.

    form: "matrix" and "token" are two sections side by side, the same calculation in both forms; "" for all others.
    controls: settings that the user can change here.
    folded: whether the page shows the section only when it is opened.
    told: whether it is shown only when the step's question has been answered.
    """

    title: str
    folded: bool = False
    told: bool = False
    pictures: Sequence[Illustration] = ()
    text: Sequence[str] = ()
    form: str = ""
    matrices: Sequence[Matrix] = ()
    charts: Sequence[Chart] = ()
    findings: Sequence[LessonFinding] = ()
    controls: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawingPart:
    """A box of a drawing, in its own units from the upper left. step: the id of the step that it opens; "" for none."""

    id: str
    label: str
    step: str
    x: int
    y: int
    width: int
    height: int = 34
    shape: str = ""  # of what leaves it


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """Boxes that data goes through, in the order of `parts`, and arrows between them.

    bypasses: residual connections, from where they leave to where they are added.
    repeated: first and last part of what is stacked N times.
    models: for each its "name", the parts that it is "without", and a "text".
    """

    title: str
    parts: Sequence[DrawingPart]
    arrows: Sequence[tuple[str, str]]
    bypasses: Sequence[tuple[str, str]]
    repeated: Sequence[tuple[str, str]]
    models: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question about a step's numbers, with choices; it can be answered before they are shown.

    answers: places of the right choices, more than one where numbers are equal.
    covers: ids of the matrices that would tell the answer.
    cells: those that the answer is about.
    about_sizes: whether the mere shape of the covered matrices would tell the answer.
    tap: the matrix whose columns are the choices in their order, the words of a picture of it; "": the choices are buttons.
    token: the place of the token that it is about, which the page picks; 0 for a question about none or about all.
    """

    text: str
    choices: Sequence[str]
    answers: Sequence[int]
    why: str
    covers: Sequence[str]
    cells: Sequence[tuple[str, int, int]]
    about_sizes: bool = False
    tap: str = ""
    token: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LessonStep:
    """One page of the lesson.

    number: "2 of 6" for the steps of the calculation itself, "" for all others.
    told: paragraphs that are shown when the question has been answered, since they would answer it.
    pictures: what the page shows first, above the question.
    ledger: the problems that are new, removed or measured again here.
    code: the same in Python.
    head: which head of a real model shows this: statistic, sense ("largest"), why.
    """

    id: str
    title: str
    number: str = ""
    text: Sequence[str]
    told: Sequence[str] = ()
    pictures: Sequence[Illustration] = ()
    ledger: Sequence[Problem] = ()
    code: str = ""
    head: Mapping[str, str] | None = None
    drawing: Drawing | None = None
    question: Question | None = None
    sections: Sequence[Section]


def as_json(part: Any) -> Any:
    """Return a part of the lesson as JSON: its fields in their order, and the id of a matrix."""
    if isinstance(part, Matrix):
        return part.id
    if is_dataclass(part):
        return {field.name: as_json(getattr(part, field.name)) for field in fields(part)}
    return [as_json(item) for item in part] if isinstance(part, tuple | list) else part


def difference_shade(difference: Tensor, of: Tensor) -> str:
    """Return the shade of differences: no colours if they are rounding errors of the operands."""
    return "none" if float(difference.abs().max()) <= 1e-5 * float(of.abs().max()) else "signed"


def matrices(steps: Iterable[LessonStep]) -> dict[str, Matrix]:
    """Return all matrices by id; a later step may show one of an earlier step again."""
    results: dict[str, Matrix] = {}
    for step in steps:
        pictures = (*step.pictures, *(picture for section in step.sections for picture in section.pictures))
        tables = (matrix for section in step.sections for matrix in section.matrices)
        for matrix in (*tables, *(matrix for picture in pictures for matrix in picture.matrices)):
            assert results.setdefault(matrix.id, matrix) is matrix, matrix.id
    return results


def shown(number: float | Tensor) -> str:
    """Return a number as a sentence has it: as in the page's tables, but a small number with three digits.

    >>> shown(0.125), shown(-0.001), shown(123456.0), shown(2.0)
    ('0.13', '\N{MINUS SIGN}0.00100', '123,456', '2.00')
    """
    number = float(number)
    size = abs(number)
    if number == 0 or 0.005 <= size < 10_000:
        return decimal(number, 2)
    return integer(number) if 10_000 <= size < 1e7 else significant(number, 3)
