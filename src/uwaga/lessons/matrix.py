"""Matrices of the lesson: expressions of them give numbers, and for each number the rule that it was computed by.

A rule is JSON: {"op": ..., "from": [reference, ...], ...}. A reference {"of": id, "row": index, "column": index} names a cell
of another matrix, with "slice" if that matrix has a slice per query. An index is a number; "i", "j" or "c", the row, column
and slice of the cell itself; "m", which runs from 0 to `over` - 1; {"add": n, "to": index}; or {"pick": [numbers],
"by": index}. front/lesson/rules.js evaluates the rules.

Letters: S slices (one per query), R rows, C columns.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from uwaga.lessons.compute import mapped, scores

Index = str | int | dict[str, Any]
Rule = dict[str, Any]
Place = int | slice | Sequence[int]
EVERY = slice(None)


def cell(of: str, row: Index, column: Index) -> Rule:
    """Return a reference to a cell of the matrix `of`."""
    return {"of": of, "row": row, "column": column}


def rule(op: str, *of: Rule, **more: Any) -> Rule:
    """Return the rule that computes a number from the cells that it refers to."""
    return {"op": op, "from": list(of), **more}


class Operand:
    """A matrix, or a view of one: what an expression is made of."""

    numbers: Tensor
    rows: Sequence[str]
    columns: Sequence[str]

    def at(self, row: Index = "i", column: Index = "j") -> Rule:
        """Return a reference to a cell, by default to the one at the place of the cell that is computed."""
        raise NotImplementedError

    @property
    def T(self) -> "View":  # as in PyTorch
        return View(self.numbers.T, self.columns, self.rows, lambda i, j: self.at(j, i), is_turned=True)

    def __getitem__(self, places: tuple[Place, Place]) -> "View":
        """Return some rows and columns. One number keeps its axis, and is the same cell for every row or column of an
        expression."""
        row, column = places
        kept = [_kept(place, names) for place, names in zip(places, (self.rows, self.columns), strict=True)]
        return View(
            self.numbers[..., kept[0], :][..., kept[1]],
            [self.rows[n] for n in kept[0]],
            [self.columns[n] for n in kept[1]],
            lambda i, j: self.at(_moved(row, i), _moved(column, j)),
        )

    def __matmul__(self, other: "Operand") -> "Matrix":
        """Return the product, computed as scores if the other is transposed, else as a linear map."""
        is_turned = isinstance(other, View) and other.is_turned
        return self._product(other, scores if is_turned else mapped)

    def times(self, other: "Operand") -> "Matrix":
        """Return the product with a matrix that is no layer's, as attention computes scores."""
        return self._product(other, scores)

    def _product(self, other: "Operand", compute: Callable[[Tensor, Tensor], Tensor]) -> "Matrix":
        numbers = compute(self.numbers.contiguous(), other.numbers.T.contiguous())
        source = rule("dot", self.at("i", "m"), other.at("m", "j"), over=len(other.rows))
        return made(numbers, self.rows, other.columns, source)

    def __add__(self, other: "Operand") -> "Matrix":
        return self._by_cell(self.numbers + other.numbers, "plus", other)

    def __sub__(self, other: "Operand") -> "Matrix":
        return self._by_cell(self.numbers - other.numbers, "minus", other)

    def __mul__(self, other: "Operand") -> "Matrix":
        return self._by_cell(self.numbers * other.numbers, "product", other)

    def _by_cell(self, numbers: Tensor, op: str, *others: "Operand", **more: Any) -> "Matrix":
        return made(numbers, self.rows, self.columns, rule(op, self.at(), *(other.at() for other in others), **more))

    def _by_row(self, numbers: Tensor, op: str) -> "Matrix":
        source = rule(op, self.at(), self.at("i", "m"), over=len(self.columns))
        return made(numbers, self.rows, self.columns, source, shade="share")

    def _along(self, axis: int, numbers: Tensor, op: str, name: str) -> "Matrix":
        """Return one number of each row (axis 1), or of each column (axis 0), which `name` names."""
        if axis:
            source = rule(op, self.at("i", "m"), over=len(self.columns))
            return made(numbers, self.rows, (name,), source)
        return made(numbers, (name,), self.columns, rule(op, self.at("m", "j"), over=len(self.rows)))

    def copied(self) -> "Matrix":
        """Return the same numbers."""
        return self._by_cell(self.numbers, "copy")

    def scaled(self, times: float, say: str) -> "Matrix":
        """Return the numbers times a factor; `say` is the text for it."""
        return self._by_cell(self.numbers * times, "scaled", times=times, say=say)

    def where(self, bits: "Operand") -> "Matrix":
        """Return the numbers where a bit is 1, masked (NaN) where it is 0."""
        return self._by_cell(self.numbers.where(bits.numbers > 0, torch.nan), "masked", bits)

    def relu(self) -> "Matrix":
        return self._by_cell(self.numbers.relu(), "relu")

    def moved(self, gradient: "Operand", rate: float) -> "Matrix":
        """Return the numbers after a step of gradient descent."""
        return self._by_cell(self.numbers - rate * gradient.numbers, "moved", gradient, times=rate)

    def exponentials(self) -> "Matrix":
        """Return exp of how far each number is below the largest of its row."""
        return self._by_row((self.numbers - self.numbers.amax(-1, keepdim=True)).exp(), "exponential")

    def shares(self) -> "Matrix":
        """Return each number divided by the sum of its row."""
        return self._by_row(self.numbers / self.numbers.sum(-1, keepdim=True), "share")

    def softmax(self) -> "Matrix":
        """Return softmax of each row over the numbers that are not masked."""
        return self._by_row(self.numbers.nan_to_num(-torch.inf).softmax(-1).nan_to_num(0.0), "softmax")

    def total(self, name: str, axis: int = 1) -> "Matrix":
        """Return the sum of each row, or with axis 0 of each column."""
        return self._along(axis, self.numbers.sum(axis - 2, keepdim=True), "total", name)

    def mean(self, name: str, axis: int = 1) -> "Matrix":
        """Return the mean of each row, or with axis 0 of each column."""
        return self._along(axis, self.numbers.mean(axis - 2, keepdim=True), "mean", name)

    def length(self, name: str) -> "Matrix":
        """Return the length of each row."""
        return self._along(1, self.numbers.norm(dim=-1, keepdim=True), "length", name)

    def weighing(self, other: "Operand") -> "Matrix":
        """Return a slice for each row: the rows of another matrix times this row's numbers."""
        source = rule("product", self.at("c", "i"), other.at())
        return made(self.numbers[:, :, None] * other.numbers, other.rows, other.columns, source)


@dataclass(frozen=True, eq=False)
class View(Operand):
    """A matrix transposed, or some of its rows and columns: references go to the matrix itself."""

    numbers: Tensor
    rows: Sequence[str]
    columns: Sequence[str]
    cell: Callable[[Index, Index], Rule]
    is_turned: bool = False

    def at(self, row: Index = "i", column: Index = "j") -> Rule:
        return self.cell(row, column)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Matrix(Operand):
    """A matrix of numbers, and the rule that each of them was computed by. An expression has no id until `Page.matrix` names it.

    numbers: (R, C) float32, or (S, R, C) with a slice per query; NaN is a masked number.
    shade: the colours of the cells: "none"; "signed", negative and positive; "share", 0 to 1; "bits", 0 or 1.
    """

    id: str
    title: str
    formula: str
    rows: Sequence[str]
    columns: Sequence[str]
    numbers: Tensor
    source: Rule
    shade: str = "signed"
    digits: int = 2
    note: str = ""

    def __post_init__(self) -> None:
        assert self.numbers.shape[-2:] == (len(self.rows), len(self.columns)), self.id

    def at(self, row: Index = "i", column: Index = "j") -> Rule:
        assert self.id, "a rule can only refer to a matrix with a name"
        return cell(self.id, row, column) | ({"slice": "c"} if self.numbers.dim() == 3 else {})

    def by_library(self, numbers: Tensor) -> "Matrix":
        """Return the same rule with the numbers of the library's own operation. Their rounding differs. A test compares
        the two."""
        return replace(self, numbers=numbers)

    def styled(self, **looks: Any) -> "Matrix":
        """Return the same matrix with another shade, other digits, or other names of its columns."""
        return replace(self, **looks)

    @property
    def field(self) -> str | None:
        """Return the argument of the request that sets the matrix, if the user can edit it."""
        return self.id if self.source["op"] == "typed" else None

    @property
    def product(self) -> str:
        """Return the shapes of the factors and of this product, or "" if it is no product."""
        if self.source["op"] != "dot" or self.numbers.dim() == 3:
            return ""
        left, right = self.source["from"]
        if "i" not in (left["row"], left.get("column")) or "j" not in (right.get("row"), right["column"]):
            return ""
        (rows, columns), over = self.numbers.shape, self.source["over"]
        return f"{rows}×{over} · {over}×{columns} = {rows}×{columns}"

    def to_json(self, array: int) -> dict[str, Any]:
        """Return all but the numbers; `array` is their index in the reply."""
        return {
            "id": self.id,
            "title": self.title,
            "formula": self.formula,
            "rows": list(self.rows),
            "columns": list(self.columns),
            "array": array,
            "sliced": self.numbers.dim() == 3,
            "source": self.source,
            "field": self.field,
            "shade": self.shade,
            "digits": self.digits,
            "note": self.note,
            "product": self.product,
        }


def made(numbers: Tensor, rows: Sequence[str], columns: Sequence[str], source: Rule, **looks: Any) -> Matrix:
    """Return a matrix without a name yet. looks: shade, digits and note."""
    return Matrix(id="", title="", formula="", rows=rows, columns=columns, numbers=numbers, source=source, **looks)


def typed(numbers: Tensor, rows: Sequence[str], columns: Sequence[str]) -> Matrix:
    """Return numbers that the user can edit, by the setting of the matrix's name."""
    return made(numbers, rows, columns, rule("typed"))


def by_columns(rules: Sequence[Rule]) -> Rule:
    """Return a rule for each column."""
    return rule("columns", rules=list(rules))


def side_by_side(parts: Sequence[Operand]) -> Matrix:
    """Return the columns of several matrices, one after another."""
    rules = [rule("copy", part.at("i", column)) for part in parts for column in range(len(part.columns))]
    columns = [name for part in parts for name in part.columns]
    return made(torch.cat([part.numbers for part in parts], dim=-1), parts[0].rows, columns, by_columns(rules))


def _kept(place: Place, names: Sequence[str]) -> list[int]:
    if isinstance(place, int):
        return [range(len(names))[place]]
    return [*range(len(names))[place]] if isinstance(place, slice) else list(place)


def _moved(place: Place, index: Index) -> Index:
    """Return the index in a matrix of what has an index in its view."""
    if isinstance(place, int):
        return place
    if isinstance(place, slice):
        return index if place.start is None else {"add": place.start, "to": index}
    return {"pick": list(place), "by": index}
