"""Changes of attention as data: what is accepted, and what is refused from outside."""

import torch

import uwaga


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
