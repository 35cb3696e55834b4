"""What a lesson is made of: matrices, charts, findings, sections and steps; and how they become JSON.

Letters: S slices (one per query), R rows, C columns.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from torch import Tensor

from uwaga.viewer.lesson.sources import Rule


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Matrix:
    """A table of numbers, each of which knows what it came from.

    numbers: (R, C) float32, or (S, R, C) with a slice per query; nan is a hidden number.
    field: the argument of the question that sets it, where the user may.
    shade: "none"; "signed", negative and positive; "share", from 0 to 1; "bits", 0 or 1.
    """

    id: str
    title: str
    formula: str
    rows: Sequence[str]
    columns: Sequence[str]
    numbers: Tensor
    source: Rule
    field: str | None = None
    shade: str = "signed"
    digits: int = 2
    note: str = ""

    def __post_init__(self) -> None:
        assert self.numbers.shape[-2:] == (len(self.rows), len(self.columns)), self.id

    def facts(self, array: int) -> dict[str, Any]:
        """All but the numbers, as JSON; `array` says where these are."""
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
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Columns of a matrix over its first one."""

    title: str
    matrix: str
    lines: Sequence[int]
    description: str
    x_title: str
    y_title: str
    log_x: bool = False
    log_y: bool = False

    def facts(self) -> dict[str, Any]:
        return {name: _plain(getattr(self, name)) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A sentence about the numbers, and the cells that it speaks of: (matrix, row, column)."""

    text: str
    cells: Sequence[tuple[str, int, int]] = ()

    def facts(self) -> dict[str, Any]:
        return {"text": self.text, "cells": [list(cell) for cell in self.cells]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Matrices that belong together. form: "matrix" or "token", two sections side by side; "" for neither."""

    title: str
    matrices: Sequence[Matrix] = ()
    text: Sequence[str] = ()
    form: str = ""
    charts: Sequence[Chart] = ()
    findings: Sequence[Finding] = ()
    controls: Sequence[str] = ()  # settings that the user may change here

    def facts(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "text": list(self.text),
            "form": self.form,
            "matrices": [matrix.id for matrix in self.matrices],
            "charts": [chart.facts() for chart in self.charts],
            "findings": [finding.facts() for finding in self.findings],
            "controls": list(self.controls),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One page of the lesson. number: "2 of 6" for the steps of the calculation itself, "" for what is around it."""

    id: str
    title: str
    text: Sequence[str]
    sections: Sequence[Section]
    number: str = ""
    code: str = ""  # the same in Python
    head: dict[str, str] = field(default_factory=dict)  # which head of a real model shows this: statistic, sense, why

    def facts(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "title": self.title,
            "number": self.number,
            "text": list(self.text),
            "code": self.code,
            "head": dict(self.head) or None,
            "sections": [section.facts() for section in self.sections],
        }


def matrices(steps: Iterable[Step]) -> dict[str, Matrix]:
    """All matrices by id, each once: a later step may show one of an earlier step again."""
    found: dict[str, Matrix] = {}
    for step in steps:
        for section in step.sections:
            for matrix in section.matrices:
                assert found.setdefault(matrix.id, matrix) is matrix, matrix.id
    return found


def shown(number: float) -> str:
    """A number inside a sentence.

    >>> shown(0.125), shown(-0.001), shown(123456.0), shown(2.0)
    ('0.13', '-0.001', '1.23e+05', '2.00')
    """
    if number == 0 or 0.005 <= abs(number) < 10_000:
        return rounded(number, 2)
    return f"{number:.3g}"


def rounded(number: float, digits: int) -> str:
    """With so many digits behind the point, halves away from zero, as the page rounds them; Python's own are even.

    >>> rounded(0.625, 2), rounded(-0.001, 2)
    ('0.63', '0.00')
    """
    text = str(Decimal(number).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))
    return text.removeprefix("-") if not float(text) else text


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple | list) else value
