"""Masks with tensors are laid out once for many calls: the same bits as every time anew, and what changes is seen.

Letters: B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width, R ragged rows, N packed tokens.
"""

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from drawn import draw
from engines import needs_native
from torch import Tensor

from uwaga import Causal, Documents, KeyLengths, Ragged, Window, attention
from uwaga.ops import attention_and_lse
from uwaga.ops.masks import DenseMask, Mask

pytestmark = needs_native

Call = tuple[Tensor | Ragged, Tensor | Ragged, Tensor | Ragged]


def _dense(keys: int = 7) -> Call:
    return draw(2, 4, 5, 8), draw(2, 2, keys, 8, seed=1), draw(2, 2, keys, 6, seed=2)


def _ragged() -> Call:
    offsets = torch.tensor([0, 3, 10])
    return (
        Ragged(draw(10, 4, 8), offsets),
        Ragged(draw(10, 2, 8, seed=1), offsets),
        Ragged(draw(10, 2, 6, seed=2), offsets),
    )


# What makes a mask of a tensor, that tensor, and another one that may be written over it.
DENSE = {
    "lengths": (KeyLengths, torch.tensor([3, 7]), torch.tensor([7, 0])),
    "one length for all": (KeyLengths, torch.tensor(4), torch.tensor(6)),
    "ids": (
        lambda ids: Documents(ids, query_ids=torch.tensor([0, 0, 1, 1, 2])),
        torch.tensor([[0, 0, 0, 1, 1, 2, 2], [0, 1, 2, 2, 1, 0, 0]]),
        torch.tensor([[2, 1, 0, 2, 1, 0, 2], [1, 1, 1, 1, 1, 1, 1]]),
    ),
    "the last ids": (Documents, torch.tensor([0, 0, 0, 1, 1, 2, 2]), torch.tensor([2, 1, 0, 2, 1, 0, 2])),
    "bits": (lambda bits: DenseMask(bits=bits), draw(2, 1, 5, 7, seed=3) > 0, draw(2, 1, 5, 7, seed=4) > 0),
    "starts": (lambda start: Causal(start=start), torch.tensor([0, 2]), torch.tensor([1, -3])),
    "both": (lambda lengths: Causal() & KeyLengths(lengths), torch.tensor([3, 7]), torch.tensor([7, 2])),
    "either": (lambda bits: Window(0, 0) | bits, draw(2, 1, 5, 7, seed=3) > 0, draw(2, 1, 5, 7, seed=4) > 0),
}
RAGGED = {
    "lengths": (KeyLengths, torch.tensor([3, 5]), torch.tensor([0, 7])),
    "ids": (Documents, torch.arange(10) // 2, torch.arange(10) // 3),
    "both": (lambda lengths: Causal() & KeyLengths(lengths), torch.tensor([3, 5]), torch.tensor([1, 7])),
}
CASES = [(_dense, *case) for case in DENSE.values()] + [(_ragged, *case) for case in RAGGED.values()]
IDS = [f"dense, {name}" for name in DENSE] + [f"ragged, {name}" for name in RAGGED]


def _values(x: Tensor | Ragged) -> Tensor:
    return x.values if isinstance(x, Ragged) else x


def _long(operands: Call, mask: Mask | Tensor, **options) -> list[Tensor]:
    """Output and lse, laid out for this call alone."""
    return _both(operands, copy.copy(mask), **options)


def _both(operands: Call, mask: Mask | Tensor, **options) -> list[Tensor]:
    return [_values(x) for x in attention_and_lse(*operands, mask=mask, **options)]


def _assert_same(result: list[Tensor], expected: list[Tensor]) -> None:
    for a, b in zip(result, expected, strict=True):
        assert a.stride() == b.stride()
        assert torch.equal(a, b)


@pytest.mark.parametrize(("operands", "make", "tensor", "other"), CASES, ids=IDS)
def test_the_second_call_gives_the_bits_of_the_first_until_the_mask_changes(
    operands: Callable, make, tensor, other
) -> None:
    """Written into, or with other memory."""
    mine, inputs = tensor.clone(), operands()
    mask, expected, changed = make(mine), _long(inputs, make(tensor)), _long(inputs, make(other.to(mine.dtype)))
    assert not torch.equal(expected[0], changed[0])
    for _ in range(3):
        _assert_same(_both(inputs, mask), expected)
    mine.copy_(other)
    _assert_same(_both(inputs, mask), changed)
    mine.data = tensor.clone()
    _assert_same(_both(inputs, mask), expected)


UNFIT = {
    "lengths": (_dense, KeyLengths, [3, 5], [3, 8], "KeyLengths"),
    "ragged lengths": (_ragged, KeyLengths, [3, 5], [-1, 3], "KeyLengths"),
    "starts": (_dense, lambda start: Causal(start=start), [0, 2], [0, 2**62], "start"),
}


@pytest.mark.parametrize(("operands", "make", "before", "after", "said"), UNFIT.values(), ids=UNFIT)
def test_numbers_that_fit_no_longer_are_an_error(operands: Callable, make, before, after, said: str) -> None:
    mine = torch.tensor(before)
    mask, inputs = make(mine), operands()
    _both(inputs, mask)
    mine.copy_(torch.tensor(after))
    with pytest.raises(ValueError, match=said):
        attention(*inputs, mask=mask)


def test_sizes_options_and_offsets_of_another_call_count() -> None:
    mask = KeyLengths(torch.tensor([3, 5]))
    calls: list[tuple[Call, dict]] = [(_dense(keys), {}) for keys in (7, 6, 6, 9)]
    calls += [(_dense(), options) for options in ({"scale": 2.0}, {"scale": 2.0, "softcap": 1.0}, {})]
    packed, offsets = _ragged(), torch.tensor([0, 5, 10])
    others = tuple(Ragged(x.values, offsets, max_length=7) for x in packed)
    for operands, options in [*calls, (packed, {}), (others, {})]:
        _assert_same(_both(operands, mask, **options), _long(operands, mask, **options))


def test_what_is_cached_is_no_part_of_a_masks_value() -> None:
    mask, inputs = KeyLengths(torch.tensor([3, 6])), _dense()
    expected = _both(inputs, mask)
    for other in (copy.copy(mask), copy.deepcopy(mask), pickle.loads(pickle.dumps(mask))):
        assert not hasattr(other, "cached_layout")
        _assert_same(_both(inputs, other), expected)
    assert repr(mask) == "KeyLengths(lengths=tensor([3, 6]))"


def test_a_mask_of_ones_own_is_asked_every_time() -> None:
    @dataclass(frozen=True, slots=True, eq=False)
    class Growing(Mask):
        asked: list

        def encode(self, program) -> None:
            self.asked.append(1)
            program.lengths(torch.tensor([len(self.asked), 7]))

    mask, inputs = Growing([]), _dense()
    for seen in (1, 2, 3):
        _assert_same(_both(inputs, mask), _long(inputs, KeyLengths(torch.tensor([seen, 7]))))
