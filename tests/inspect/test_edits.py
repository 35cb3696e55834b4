"""Changes of attention as data: what is accepted, and what is refused from outside."""

import re

import pytest
import torch

import uwaga

_KEY = {"kind": "encoder", "layer": 0, "head": 0}
_RULE = '(kind, layer, head) with kind "encoder", "decoder" or "cross", numbers from 0, and head None for all'

WRONG = [
    (lambda: uwaga.Links([1, 1], 0), "Links: queries must be different integers, and 1 is there twice"),
    (lambda: uwaga.Links([-1], 0), "Links: queries must be integers from 0, not -1"),
    (lambda: uwaga.Links(True, 0), "Links: queries must be integers from 0, not True"),
    (lambda: uwaga.Links("12", 0), "Links: queries must be integers from 0, or None for all, not '12'"),
    (lambda: uwaga.Links(0, [0.5]), "Links: keys must be integers from 0, not 0.5"),
    (lambda: uwaga.Links(0, 0, float("nan")), "Links: factor must be a finite number, not nan"),
    (lambda: uwaga.Patch("head", torch.ones(1, 2)), "Patch: operand must be one of query, key, value, output, not 'head'"),
    (lambda: uwaga.Patch("key", torch.ones(2)), "Patch: source must be a tensor (P, D) or (B, P, D), not (2,)"),
    (lambda: uwaga.Patch("key", [1.0]), "Patch: source must be a tensor (P, D) or (B, P, D), not list"),
    (lambda: uwaga.Patch("key", torch.ones(2, 3), [1]), "Patch: there are 1 positions for 2 vectors of the source"),
    (lambda: uwaga.Edits(heads=[1]), "edit: heads must be a dict from (kind, layer, head), not list"),
    (lambda: uwaga.Edits(heads={("self", 0, 0): 0.0}), f"edit: a key of heads must be {_RULE}, not ('self', 0, 0)"),
    (lambda: uwaga.Edits(heads={("decoder", 0): 0.0}), f"edit: a key of heads must be {_RULE}, not ('decoder', 0)"),
    (lambda: uwaga.Edits(scores={("decoder", -1, 0): uwaga.Links(0, 0)}), f"edit: a key of scores must be {_RULE}, not ('decoder', -1, 0)"),
    (
        lambda: uwaga.Edits(heads={("decoder", 0, 0): "zero"}),
        """edit: heads ('decoder', 0, 0) must be a finite number, "mean" or a floating tensor (E,), not 'zero'""",
    ),
    (
        lambda: uwaga.Edits(heads={("decoder", 0, 0): torch.ones(2, 2)}),
        "edit: heads ('decoder', 0, 0) must be a finite number, \"mean\" or a floating tensor (E,), not a tensor (2, 2) of torch.float32",
    ),
    (
        lambda: uwaga.Edits(scores={("decoder", 0, 0): [3]}),
        "edit: scores ('decoder', 0, 0) must be uwaga.Links, or a list of them, not int",
    ),
    (
        lambda: uwaga.Edits(patch={("decoder", 0, 0): []}),
        "edit: patch ('decoder', 0, 0) must be uwaga.Patch, or a list of them, not an empty list",
    ),
    (
        lambda: uwaga.Edits(scores={("decoder", 0, 0): uwaga.Links(0, 0, 0.5)}),
        "edit: scores ('decoder', 0, 0): Links with a factor belong to weights: before softmax links are only blocked",
    ),
    (
        lambda: uwaga.Edits(weights={("decoder", 0, 0): torch.ones(2)}),
        "edit: weights ('decoder', 0, 0): a matrix must be (Q, K) or (B, Q, K), not (2,)",
    ),
    (
        lambda: uwaga.Edits(weights={("decoder", 0, 0): torch.ones(2, 2)}).to_dict(),
        "Edits.to_dict: weights ('decoder', 0, 0) holds a tensor, which has no description",
    ),
    (
        lambda: uwaga.Edits(patch={("decoder", 0, 0): uwaga.Patch("key", torch.ones(1, 2))}).as_python(),
        "Edits.as_python: patch ('decoder', 0, 0) holds a tensor, which has no description",
    ),
    (lambda: uwaga.Edits.from_dict([]), "Edits: a description must be a dict, not list"),
    (
        lambda: uwaga.Edits.from_dict({"patch": []}),
        "Edits: a description has an unknown entry 'patch'; known are heads, scores, weights",
    ),
    (lambda: uwaga.Edits.from_dict({"heads": {}}), "Edits: heads must be a list of dicts"),
    (lambda: uwaga.Edits.from_dict({"heads": [_KEY]}), "Edits: heads[0] has no 'value'"),
    (
        lambda: uwaga.Edits.from_dict({"heads": [_KEY | {"value": True}]}),
        "Edits: heads[0].value must be a finite number, not True",
    ),
    (
        lambda: uwaga.Edits.from_dict({"heads": [_KEY | {"value": 1}, _KEY | {"value": 0}]}),
        "Edits: heads[1] changes ('encoder', 0, 0) a second time",
    ),
    (
        lambda: uwaga.Edits.from_dict({"heads": [_KEY | {"kind": ["encoder"], "value": 1}]}),
        f"edit: a key of heads must be {_RULE}, not (['encoder'], 0, 0)",
    ),
    (
        lambda: uwaga.Edits.from_dict({"scores": [_KEY | {"queries": [0], "keys": None, "factor": 0}]}),
        "Edits: scores[0] has an unknown entry 'factor'; known are kind, layer, head, queries, keys",
    ),
    (
        lambda: uwaga.Edits.from_dict({"scores": [_KEY | {"queries": {"a": 1}, "keys": None}]}),
        "Links: queries must be integers from 0, or None for all, not {'a': 1}",
    ),
    (
        lambda: uwaga.Edits.from_dict({"heads": [_KEY | {"value": 1}] * 10_001}),
        "Edits: a description has 10001 changes, more than 10000",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), WRONG, ids=[message[:70] for _, message in WRONG])
def test_each_mistake_is_named(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make()


def test_positions_of_any_form_are_the_same() -> None:
    forms = (3, [3], (3,), torch.tensor(3), torch.tensor([3]), range(3, 4))
    assert {uwaga.Links(form, form).queries for form in forms} == {(3,)}
    assert uwaga.Links([0], 1) == uwaga.Links([0], [1])


def test_no_changes_are_false_and_some_are_listed() -> None:
    assert not uwaga.Edits()
    edits = uwaga.Edits(heads={("encoder", 0, 1): 0}, scores={("encoder", 0, 1): uwaga.Links(0, 1)})
    assert edits
    assert edits.wheres() == [("encoder", 0, 1)]
    assert repr(uwaga.Patch("key", torch.ones(1, 2), 4)) == "uwaga.Patch('key', <tensor (1, 2)>, [4])"
