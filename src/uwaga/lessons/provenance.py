"""Provenance: how each number was computed, a rule per matrix, which the page resolves for the cell that is picked.

A rule is JSON: {"op": ..., "from": [reference, ...], ...}. A reference {"of": id, "row": index, "column": index} names a cell
of another matrix, with "slice" where that one has a slice per query. An index is a number; "i", "j" or "c", the row, column
and slice of the cell itself; "m", which runs from 0 to `over` - 1; {"add": n, "to": index}; or {"pick": [numbers],
"by": index}. front/lesson/explanation.js evaluates the rules.
"""

from collections.abc import Sequence
from typing import Any

Index = str | int | dict[str, Any]
Rule = dict[str, Any]


def cell(of: str, row: Index, column: Index, slice: Index | None = None) -> Rule:
    """A reference to a cell."""
    where: Rule = {"of": of, "row": row, "column": column}
    return where if slice is None else where | {"slice": slice}


def shifted(by: int, index: Index) -> Index:
    """index + by."""
    return {"add": by, "to": index}


def picked(numbers: Sequence[int], index: Index) -> Index:
    """numbers[index]."""
    return {"pick": list(numbers), "by": index}


def typed() -> Rule:
    """A number that the user can type."""
    return {"op": "typed", "from": []}


def given(say: str) -> Rule:
    """A number that is explained by the text `say`, not by other matrices."""
    return {"op": "given", "from": [], "say": say}


def dot(left: Rule, right: Rule, over: int) -> Rule:
    """sum_m left * right."""
    return {"op": "dot", "from": [left, right], "over": over}


def copy(of: Rule) -> Rule:
    """The same number."""
    return {"op": "copy", "from": [of]}


def scaled(of: Rule, times: float, say: str) -> Rule:
    """of * times; `say` is the text for the factor."""
    return {"op": "scaled", "from": [of], "times": times, "say": say}


def product(left: Rule, right: Rule) -> Rule:
    """left * right."""
    return {"op": "product", "from": [left, right]}


def plus(left: Rule, right: Rule) -> Rule:
    """left + right."""
    return {"op": "plus", "from": [left, right]}


def minus(left: Rule, right: Rule) -> Rule:
    """left - right."""
    return {"op": "minus", "from": [left, right]}


def rest(part: Rule, whole: Rule) -> Rule:
    """1 - part / whole."""
    return {"op": "rest", "from": [part, whole]}


def total(of: Rule, over: int) -> Rule:
    """sum_m of."""
    return {"op": "total", "from": [of], "over": over}


def mean(of: Rule, over: int) -> Rule:
    """sum_m of / over."""
    return {"op": "mean", "from": [of], "over": over}


def variance(of: Rule, mean: Rule, over: int) -> Rule:
    """sum_m (of - mean)^2 / over."""
    return {"op": "variance", "from": [of, mean], "over": over}


def normalized(own: Rule, mean: Rule, variance: Rule, eps: float) -> Rule:
    """(own - mean) / sqrt(variance + eps)."""
    return {"op": "normalized", "from": [own, mean, variance], "eps": eps}


def relu(of: Rule) -> Rule:
    """The larger of 0 and of."""
    return {"op": "relu", "from": [of]}


def negative_log(of: Rule) -> Rule:
    """-log(of)."""
    return {"op": "negative_log", "from": [of]}


def moved(of: Rule, gradient: Rule, rate: float) -> Rule:
    """of - rate * gradient."""
    return {"op": "moved", "from": [of, gradient], "times": rate}


def length(of: Rule, over: int) -> Rule:
    """sqrt(sum_m of^2)."""
    return {"op": "length", "from": [of], "over": over}


def exponential(own: Rule, row: Rule, over: int) -> Rule:
    """exp(own - max_m row)."""
    return {"op": "exponential", "from": [own, row], "over": over}


def share(own: Rule, row: Rule, over: int) -> Rule:
    """own / sum_m row."""
    return {"op": "share", "from": [own, row], "over": over}


def softmax(own: Rule, row: Rule, over: int) -> Rule:
    """exp(own) / sum_m exp(row) over what is not masked (NaN); 0 where own is masked."""
    return {"op": "softmax", "from": [own, row], "over": over}


def masked(of: Rule, bit: Rule) -> Rule:
    """of where the bit is 1, masked (NaN) where it is 0."""
    return {"op": "masked", "from": [of, bit]}


def by_column(rules: Sequence[Rule]) -> Rule:
    """A rule for each column."""
    return {"op": "columns", "from": [], "rules": list(rules)}
