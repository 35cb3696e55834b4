"""Provenance: the rule of every number of the lesson gives that number from the cells that it names."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from uwaga.viewer.lesson import answer

# Rules without a formula: the user's own numbers, measurements, position codes, and the layer over other tokens.
TEXT_RULES = {"typed", "given", "code"}


def random_question(tokens: int, width: int, inner: int, values: int, heads: int, **settings: Any) -> dict[str, Any]:
    """A request with random numbers, so that none is a special case."""
    generator = torch.Generator().manual_seed(tokens * 100 + width)

    def rows(*shape: int) -> list[list[float]]:
        return torch.randn(shape, generator=generator).tolist()

    weights = {"wq": rows(width, inner), "wk": rows(width, inner), "wv": rows(width, values), "wo": rows(values, width)}
    words = [f"w{place}" for place in range(tokens)]
    return {
        "ask": "lesson",
        "tokens": words,
        "x": rows(tokens, width),
        "settings": weights | {"heads": heads} | settings,
    }


QUESTIONS = {
    "default": {"ask": "lesson"},
    "unscaled": {"ask": "lesson", "settings": {"scaled": False, "heads": 4}},
    "one token": random_question(1, 1, 1, 1, 1),
    "largest": random_question(12, 8, 8, 8, 4, window=3, length=5, limit=2),
    "odd": random_question(3, 5, 3, 6, 3, length=0, sharpness=-2.0, order=[1, 2, 0]),
    "narrow": random_question(4, 2, 6, 2, 2, scaled=False, sharpness=0.0, payload=[[1.0], [2.0], [3.0], [-4.0]]),
}


@pytest.mark.slow
@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS.keys())
def test_every_number_equals_what_its_rule_gives(question: dict[str, Any], numbers_of: Callable[..., Any]) -> None:
    numbers = numbers_of(answer(question))
    checked = 0
    for name in numbers.facts:
        allowed = tolerance(numbers, name)
        for cell, value in cells(numbers, name):
            expected = numbers.recomputed(cell)
            if expected is None:
                continue
            checked += 1
            assert np.isclose(value, expected, rtol=1e-5, atol=allowed, equal_nan=True), (cell, value, expected)
    assert checked > 50


def test_rules_name_existing_matrices(numbers_of: Callable[..., Any]) -> None:
    numbers = numbers_of(answer({"ask": "lesson"}))
    for name, facts in numbers.facts.items():
        rules = facts["source"].get("rules", [facts["source"]])
        assert all(reference["of"] in numbers.facts for rule in rules for reference in rule["from"]), name
        assert all(rule["op"] not in TEXT_RULES or not rule["from"] for rule in rules), name
        assert all(rule.get("say", "words") for rule in rules), name


def test_rules_have_no_cycles(numbers_of: Callable[..., Any]) -> None:
    """Following the rules from any number ends at an input or at a text."""
    numbers = numbers_of(answer({"ask": "lesson"}))

    def depth(name: str, above: tuple[str, ...]) -> int:
        rule = numbers.facts[name]["source"]
        rules = rule.get("rules", [rule])
        # A column of a matrix may be computed from another column of the same matrix.
        named = {each["of"] for one in rules for each in one["from"]} - {name}
        assert not named & set(above), (name, above)
        return 1 + max((depth(each, (*above, name)) for each in named), default=0)

    # layer_output <- joined <- head <- weights <- scores <- raw <- q of the head <- q <- x
    assert max(depth(name, ()) for name in numbers.facts) >= 8


def cells(numbers: Any, name: str) -> Iterator[tuple[tuple[str, int, int, int], float]]:
    for (c, i, j), value in np.ndenumerate(numbers.sliced(name)):
        yield (name, c, i, j), float(value)


def tolerance(numbers: Any, name: str) -> float:
    """Twice the float32 rounding error of a sum of at most 12 products of numbers of this size; exp of a score has the absolute
    error of the score as its relative error."""
    rule = numbers.facts[name]["source"]
    parts = [each["of"] for one in rule.get("rules", [rule]) for each in one["from"]]
    largest = [float(np.nanmax(np.abs(numbers[part]), initial=0.0)) for part in parts]
    scale = float(np.prod(largest)) if rule["op"] == "dot" else max(largest, default=1.0)
    return 24 * float(np.finfo(np.float32).eps) * max(1.0, scale)
