"""Recomputes the lesson's numbers in float64 from the provenance rules of a reply, as the page does to explain a number."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from uwaga.viewer.messages import Reply

Cell = tuple[str, int, int, int]  # matrix, slice, row, column


class Numbers:
    """The matrices of a reply by name, and their provenance."""

    def __init__(self, reply: Reply) -> None:
        self.facts: Mapping[str, Any] = reply.meta["matrices"]
        self.arrays = reply.arrays

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        return self.arrays[self.facts[name]["array"]].astype(np.float64)

    def sliced(self, name: str) -> NDArray[np.float64]:
        """(S, R, C); a matrix without slices has S = 1."""
        array = self[name]
        return array if array.ndim == 3 else array[None]

    def recomputed(self, cell: Cell) -> float | None:
        """The number that the rule of a cell gives for the cells that it names; None where the rule is a text."""
        name, _, _, column = cell
        rule = self.facts[name]["source"]
        rule = rule["rules"][column] if rule["op"] == "columns" else rule
        terms = [self.terms(each, rule.get("over", 1), cell) for each in rule["from"]]
        result = _OPERATIONS[rule["op"]](rule, *terms)
        return None if result is None else float(result)

    def terms(self, reference: Mapping[str, Any], over: int, cell: Cell) -> NDArray[np.float64]:
        places = [
            [_index(reference.get(axis, 0), cell, m) for axis in ("slice", "row", "column")]
            for m in range(over if '"m"' in str(reference).replace("'", '"') else 1)
        ]
        return np.array([self.sliced(reference["of"])[tuple(place)] for place in places])


def _index(index: Any, cell: Cell, m: int) -> int:
    if isinstance(index, int):
        return index
    if isinstance(index, str):
        return {"c": cell[1], "i": cell[2], "j": cell[3], "m": m}[index]
    if "add" in index:
        return int(index["add"]) + _index(index["to"], cell, m)
    return int(index["pick"][_index(index["by"], cell, m)])


def _softmax(_: Any, own: NDArray[np.float64], row: NDArray[np.float64]) -> float:
    seen = row[~np.isnan(row)]
    if math.isnan(own[0]):
        return 0.0
    return float(np.exp(own[0] - seen.max()) / np.exp(seen - seen.max()).sum())


_OPERATIONS: dict[str, Callable[..., float | None]] = {
    "typed": lambda rule: None,
    "given": lambda rule: None,
    "code": lambda rule: None,
    "dot": lambda rule, left, right: left @ right,
    "copy": lambda rule, of: of[0],
    "scaled": lambda rule, of: of[0] * rule["times"],
    "product": lambda rule, left, right: left[0] * right[0],
    "plus": lambda rule, left, right: left[0] + right[0],
    "minus": lambda rule, left, right: left[0] - right[0],
    "rest": lambda rule, part, whole: 1 - part[0] / whole[0],
    "total": lambda rule, of: of.sum(),
    "mean": lambda rule, of: of.mean(),
    "variance": lambda rule, of, mean: ((of - mean[0]) ** 2).mean(),
    "normalized": lambda rule, own, mean, variance: (own[0] - mean[0]) / np.sqrt(variance[0] + rule["eps"]),
    "relu": lambda rule, of: max(0.0, of[0]),
    "negative_log": lambda rule, of: -np.log(of[0]),
    "moved": lambda rule, of, gradient: of[0] - rule["times"] * gradient[0],
    "length": lambda rule, of: np.sqrt((of**2).sum()),
    "exponential": lambda rule, own, row: np.exp(own[0] - row.max()),
    "share": lambda rule, own, row: own[0] / row.sum(),
    "softmax": _softmax,
    "masked": lambda rule, of, bit: of[0] if bit[0] else math.nan,
}


@pytest.fixture(scope="session")
def numbers_of() -> Callable[[Reply], Numbers]:
    return Numbers
