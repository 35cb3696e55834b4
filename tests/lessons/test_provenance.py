"""Provenance: the rule of every number of the lesson gives that number from the cells that it names, in Python and in a saved page."""

import copy
import json
import math
import shutil
import subprocess
from collections.abc import Callable, Mapping
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from uwaga.viewer.messages import Reply
from uwaga.viewer.page.bundle import FRONT
from uwaga.viewer.service import answer_lesson as answer

Cell = tuple[str, int, int, int]  # matrix, slice, row, column


class Numbers:
    """The matrices of a reply by name, recomputed in float64 from the rules of their provenance, as the page does to explain a number."""

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
        terms = [self.terms(reference, rule.get("over", 1), cell) for reference in rule["from"]]
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


def _softmax(_: Any, score: NDArray[np.float64], row: NDArray[np.float64]) -> float:
    seen = row[~np.isnan(row)]
    if math.isnan(score[0]):
        return 0.0
    return float(np.exp(score[0] - seen.max()) / np.exp(seen - seen.max()).sum())


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
    "normalized": lambda rule, of, mean, variance: (of[0] - mean[0]) / np.sqrt(variance[0] + rule["eps"]),
    "relu": lambda rule, of: max(0.0, of[0]),
    "negative_log": lambda rule, of: -np.log(of[0]),
    "moved": lambda rule, of, gradient: of[0] - rule["times"] * gradient[0],
    "length": lambda rule, of: np.sqrt((of**2).sum()),
    "exponential": lambda rule, of, row: np.exp(of[0] - row.max()),
    "share": lambda rule, of, row: of[0] / row.sum(),
    "softmax": _softmax,
    "masked": lambda rule, of, bit: of[0] if bit[0] else math.nan,
}

# Rules without a formula: the user's own numbers, measurements, position codes, and the layer over other tokens.
TEXT_RULES = {"typed", "given", "code"}
TYPED = ("x", "wq", "wk", "wv", "wo", "payload", "w1", "w2")

# What a saved page does with an edit.
_PAGE = """
import { readFileSync } from "node:fs";
import { readLesson } from "%(front)s/lesson/reply.js";
import { recomputed } from "%(front)s/lesson/rules.js";
const { meta, arrays, request } = JSON.parse(readFileSync(0, "utf8"));
const reply = { meta, arrays: arrays.map((data) => ({ data: Float32Array.from(data, (value) => value ?? NaN) })) };
const { matrices } = recomputed(readLesson(reply), request);
console.log(JSON.stringify(Object.fromEntries([...matrices].map(([id, { data }]) => [id, [...data].map((value) => (Number.isNaN(value) ? null : value))]))));
"""


def random_question(tokens: int, width: int, inner: int, values: int, heads: int, **settings: Any) -> dict[str, Any]:
    """A request with random numbers, so that none is a special case."""
    generator = torch.Generator().manual_seed(tokens * 100 + width)

    def rows(*shape: int) -> list[list[float]]:
        return torch.randn(shape, generator=generator).tolist()

    weights = {"wq": rows(width, inner), "wk": rows(width, inner), "wv": rows(width, values), "wo": rows(values, width)}
    words = [f"w{place}" for place in range(tokens)]
    return {
        "request": "lesson",
        "tokens": words,
        "x": rows(tokens, width),
        "settings": weights | {"heads": heads} | settings,
    }


QUESTIONS = {
    "default": {"request": "lesson"},
    "odd": random_question(3, 5, 3, 6, 3, length=0, sharpness=-2.0, order=[1, 2, 0]),
    "before": random_question(6, 4, 8, 4, 2, norm="pre", steps=7, written=["w0", "other", "w0"]),
}


@settings(max_examples=5)
@given(st.data())
def test_numbers_of_random_lessons_equal_what_their_rules_give(data: st.DataObject) -> None:
    """Over sentences, numbers and settings: a few numbers of every matrix of every step, recomputed in float64."""
    draw = data.draw
    width, heads = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    inner, values = (heads * draw(st.integers(1, 2)) for _ in range(2))
    tokens = draw(st.lists(st.sampled_from(["this", "is", "a", "pen", ".", "猫"]), min_size=1, max_size=7))
    question = random_question(len(tokens), width, inner, values, heads, seed=draw(st.integers(0, 3)))
    question["tokens"] = tokens
    question["settings"] |= {
        "scaled": draw(st.booleans()),
        "norm": draw(st.sampled_from(["post", "pre"])),
        "steps": draw(st.integers(0, 20)),
        "rate": draw(st.sampled_from([0.5, 2.0])),
        "written": draw(st.lists(st.sampled_from(["a", "pen", "yes"]), min_size=1, max_size=4)),
    }
    numbers = Numbers(answer(question))
    chooser = np.random.default_rng(draw(st.integers(0, 2**16)))
    for name in numbers.facts:
        places = np.argwhere(np.ones(numbers.sliced(name).shape))
        check(numbers, name, chooser.permutation(places)[:5])


def check(numbers: Numbers, name: str, places: np.ndarray) -> None:
    """Assert that cells of a matrix have the numbers of its rule, if that is not a text."""
    allowed = tolerance(numbers, name)
    for place in places.tolist():
        value, expected = float(numbers.sliced(name)[tuple(place)]), numbers.recomputed((name, *place))
        if expected is not None:
            assert np.isclose(value, expected, rtol=1e-5, atol=allowed, equal_nan=True), (name, place, value, expected)


def test_rules_name_existing_matrices_and_have_no_cycles() -> None:
    """Following the rules from any number ends at an input or at a text."""
    numbers = Numbers(answer({"request": "lesson"}))
    for name, facts in numbers.facts.items():
        rules = facts["source"].get("rules", [facts["source"]])
        assert all(reference["of"] in numbers.facts for rule in rules for reference in rule["from"]), name
        assert all(rule["op"] not in TEXT_RULES or not rule["from"] for rule in rules), name
        assert all(rule.get("say", "words") for rule in rules), name
    in_order(numbers)  # raises CycleError


def tolerance(numbers: Numbers, name: str) -> float:
    """Twice the float32 rounding error of a sum of at most 12 products of numbers of this size; exp of a score has the absolute
    error of the score as its relative error."""
    rule = numbers.facts[name]["source"]
    if rule["op"] == "normalized":  # the mean's rounding error is divided by the standard deviation
        x, stats = (numbers[reference["of"]] for reference in rule["from"][:2])
        return (
            24
            * float(np.finfo(np.float32).eps)
            * max(1.0, float(np.abs(x).max()) / float(np.sqrt(stats[:, 1].min() + rule["eps"])))
        )
    parts = [reference["of"] for one in rule.get("rules", [rule]) for reference in one["from"]]
    largest = [float(np.nanmax(np.abs(numbers[part]), initial=0.0)) for part in parts]
    scale = float(np.prod(largest)) if rule["op"] == "dot" else max(largest, default=1.0)
    return 24 * float(np.finfo(np.float32).eps) * max(1.0, scale)


def edited(request: dict[str, Any], seed: int) -> dict[str, Any]:
    """The request with one other number in every matrix that a reader can type into."""
    chooser, result = np.random.default_rng(seed), copy.deepcopy(request)
    for name in TYPED:
        rows = result["x"] if name == "x" else result["settings"][name]
        row, column = chooser.integers(len(rows)), chooser.integers(len(rows[0]))
        rows[row][column] = round(float(chooser.normal()), 2)
    return result


def page_numbers(reply: Reply, request: dict[str, Any], tmp_path: Path) -> dict[str, np.ndarray]:
    """The matrices that a saved page has after the edit, flat, in float64."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node")
    script = tmp_path / "page.mjs"
    script.write_text(_PAGE % {"front": FRONT.as_uri()})
    arrays = [[None if np.isnan(x) else x for x in array.ravel().tolist()] for array in reply.arrays]
    asked = json.dumps({"meta": reply.meta, "arrays": arrays, "request": request})
    done = subprocess.run([node, str(script)], input=asked, capture_output=True, text=True, check=True)
    return {name: np.array(data, dtype=np.float64) for name, data in json.loads(done.stdout).items()}


@pytest.mark.slow
@pytest.mark.gate(only=lambda name: name == "odd")
@pytest.mark.parametrize("name", ["default", "odd", "before"])
def test_an_edited_saved_page_has_the_numbers_of_python(name: str, tmp_path: Path) -> None:
    reply = answer(QUESTIONS[name])
    request = edited(reply.meta["request"], seed=len(name))
    found = page_numbers(reply, request, tmp_path)

    numbers = Numbers(reply)
    numbers.arrays = [array.astype(np.float64) for array in reply.arrays]
    for field in TYPED:
        typed = request["x"] if field == "x" else request["settings"][field]
        numbers.arrays[numbers.facts[field]["array"]] = np.float64(np.float32(typed))
    assert len(found) > 200
    for id in in_order(numbers):
        array = numbers.sliced(id)
        for column in range(array.shape[2]):
            for slice, row in np.ndindex(*array.shape[:2]):
                value = numbers.recomputed((id, slice, row, column))
                if value is not None:
                    array[slice, row, column] = value
            numbers.arrays[numbers.facts[id]["array"]] = array if numbers[id].ndim == 3 else array[0]
        if id in found:
            expected = array.ravel()
            np.testing.assert_allclose(found[id] / scale(expected), expected / scale(expected), rtol=0, atol=1e-12)

    # What no rule gives is left out if it depends on the edit.
    answered = Numbers(answer(request))
    for id, values in found.items():
        expected = answered[id].ravel()
        np.testing.assert_allclose(values / scale(expected), expected / scale(expected), rtol=0, atol=2e-4, err_msg=id)


def scale(values: np.ndarray) -> np.ndarray:
    return np.maximum(1.0, np.abs(values))


def sources(numbers: Numbers, name: str) -> set[str]:
    """The other matrices that the rules of a matrix name. A column may be computed from another column of the same matrix."""
    facts = numbers.facts[name]
    rules = facts["source"].get("rules", [facts["source"]])
    return {reference["of"] for rule in rules for reference in rule["from"]} - {name}


def in_order(numbers: Numbers) -> list[str]:
    """The matrices, each after those that its rules name."""
    return list(TopologicalSorter({name: sources(numbers, name) for name in numbers.facts}).static_order())
