"""Masks: their dense form against loops that say what they mean, and their parts and intervals against their dense form.

Letters: B sequences, H query heads, Q queries, K keys.
"""

import dataclasses
import itertools

import pytest
import torch

from uwaga import Causal, Documents, KeyLengths, Window, attention
from uwaga.ops.mask_program import (
    CallPart,
    keys_seen,
    queries_that_see,
    rectangle,
    select,
    visible,
)
from uwaga.ops.masks import MAX_NESTING, DenseMask, Mask
from uwaga.ops.score_shape import ScoreShape

Q, K = 7, 11
SIZES = ScoreShape(queries=Q, keys=K, batch=(2,), heads=2)
_IDS = torch.tensor([[0] * 4 + [1] * 7, [5] * 11])
_BITS = torch.rand(2, 1, Q, K, generator=torch.Generator().manual_seed(0)) < 0.5

# Each mask with what it says: whether query i of sequence b sees key j, standing at position p.
LAST = K - Q
MEANINGS = {
    "causal": (Causal(), lambda b, i, j: j <= i + LAST),
    "strictly past": (Causal(include_self=False), lambda b, i, j: j < i + LAST),
    "upper left": (Causal(start=0), lambda b, i, j: j <= i),
    "starts": (Causal(start=torch.tensor([2, -3])), lambda b, i, j: j <= i + [2, -3][b]),
    "window": (Window(2, 1), lambda b, i, j: i + LAST - 2 <= j <= i + LAST + 1),
    "unbounded": (Window(None, 1, start=0), lambda b, i, j: j <= i + 1),
    "lengths": (KeyLengths(torch.tensor([3, 0])), lambda b, i, j: j < [3, 0][b]),
    "one length": (KeyLengths(torch.tensor(4)), lambda b, i, j: j < 4),
    "documents": (Documents(_IDS), lambda b, i, j: bool(_IDS[b, i + LAST] == _IDS[b, j])),
    "shared documents": (Documents(_IDS[0]), lambda b, i, j: bool(_IDS[0, i + LAST] == _IDS[0, j])),
    "documents of queries": (
        Documents(_IDS, query_ids=torch.tensor([0, 1, 5, 5, 1, 0, 9])),
        lambda b, i, j: bool(_IDS[b, j] == [0, 1, 5, 5, 1, 0, 9][i]),
    ),
    "dense": (DenseMask(_BITS), lambda b, i, j: bool(_BITS[b, 0, i, j])),
    "and": (Causal() & KeyLengths(torch.tensor([3, 9])), lambda b, i, j: j <= i + LAST and j < [3, 9][b]),
    "or": (Causal(start=0) | _BITS, lambda b, i, j: j <= i or bool(_BITS[b, 0, i, j])),
}


@pytest.mark.parametrize("name", MEANINGS)
def test_dense_form_is_what_the_mask_says(name: str) -> None:
    mask, sees = MEANINGS[name]
    dense = mask.dense(SIZES).expand(2, 2, Q, K)
    for b, h, i, j in itertools.product(range(2), range(2), range(Q), range(K)):
        assert bool(dense[b, h, i, j]) == sees(b, i, j), (b, h, i, j)


def test_bool_tensors_of_any_rank_combine_from_either_side() -> None:
    for mask in (_BITS & Causal(), Causal() & _BITS):
        assert torch.equal(mask.dense(SIZES), _BITS & Causal().dense(SIZES))
    for dimensions in ((K,), (Q, 1), (2, Q, K), (2, 1, 1, K)):
        bits = torch.rand(dimensions) < 0.5
        assert torch.equal(
            (bits | Causal()).dense(SIZES).expand(2, 2, Q, K), bits | Causal().dense(SIZES).expand(2, 2, Q, K)
        )


def test_no_structured_mask_holds_a_matrix() -> None:
    """A million queries by a million keys: programs of a few numbers."""
    size = 1_000_000
    sizes = ScoreShape(queries=size, keys=size)
    mask = Causal() & Window(128, 0) & KeyLengths(torch.tensor(size))
    assert sum(x.numel() for x in mask.over(sizes).tensors) == 1
    made = mask.over(sizes)
    assert keys_seen(made.program, made.tensors, (size, size), (512, 513)) == (384, 513)


@pytest.mark.parametrize("far", [2**59, -(2**59)])
def test_what_is_as_far_as_can_be_does_not_overflow(far: int) -> None:
    x = torch.randn(1, 5, 8)
    for mask in (Causal(start=far), Window(None, 2**59, start=far), Window(2**59, 0, start=far)):
        for start in (far, torch.tensor(far)):
            exact = dataclasses.replace(mask, start=start)
            output = attention(x, x, x, mask=exact)
            torch.testing.assert_close(output, attention(x, x, x, mask=exact, impl="reference"))


@pytest.mark.parametrize("name", MEANINGS)
def test_selected_parts_and_rectangles_mask_as_the_whole_does(name: str) -> None:
    made = MEANINGS[name][0].over(SIZES)
    whole = visible(made.program, made.tensors, Q, K, "cpu").expand(2, 2, Q, K)
    for b, h in itertools.product(range(2), range(2)):
        part = select(made.program, made.tensors, CallPart(torch.tensor([b]), torch.tensor([h])))
        assert torch.equal(visible(made.program, part, Q, K, "cpu").expand(1, 1, Q, K), whole[b : b + 1, h : h + 1])
    for rows, columns in (((0, Q), (0, K)), ((2, 5), (3, 9)), ((6, 7), (0, 4)), ((0, 3), (8, 11)), ((3, 3), (2, 5))):
        program, tensors = rectangle(made.program, made.tensors, (Q, K), rows, columns)
        sizes = rows[1] - rows[0], columns[1] - columns[0]
        part = visible(program, tensors, *sizes, "cpu").expand(2, 2, *sizes)
        assert torch.equal(part, whole[..., slice(*rows), slice(*columns)])


# What these say of a block's keys and queries is an interval that may hold more; of all other masks it is exact.
_WIDER = {"dense", "or", "starts", "lengths", "and"}


@pytest.mark.parametrize("name", MEANINGS)
def test_the_keys_that_queries_see_and_the_queries_that_see_keys(name: str) -> None:
    made = MEANINGS[name][0].over(SIZES)
    dense = visible(made.program, made.tensors, Q, K, "cpu").expand(2, 2, Q, K).flatten(0, 1).any(0)
    for find, bits, count, others in ((keys_seen, dense, Q, K), (queries_that_see, dense.T, K, Q)):
        for first, last in itertools.combinations_with_replacement(range(count + 1), 2):
            seen = bits[first:last].any(0).nonzero().flatten().tolist()
            result = find(made.program, made.tensors, (Q, K), (first, last))
            assert 0 <= result[0] <= result[1] <= others
            if name in _WIDER or first == last:
                assert not seen or (result[0] <= seen[0] and seen[-1] < result[1])
            else:
                assert result == ((seen[0], seen[-1] + 1) if seen else (0, 0)), (first, last)


@pytest.mark.parametrize("how", ["and", "or"])
def test_masks_are_nested_up_to_a_limit(how: str) -> None:
    """Deeper ones are refused, since a RecursionError depends on who calls."""

    def combined(count: int) -> Mask:
        mask: Mask = Causal()
        for _ in range(count):
            mask = mask & Window(2, 0) if how == "and" else mask | Window(2, 0)
        return mask

    deepest = combined(MAX_NESTING)
    shape = ScoreShape(queries=6, keys=6)
    flat = Causal() & Window(2, 0) if how == "and" else Causal()
    assert torch.equal(deepest.dense(shape), flat.dense(shape))
    x = torch.randn(1, 6, 4)
    assert attention(x, x, x, mask=deepest).shape == (1, 6, 4)
    assert deepest == combined(MAX_NESTING)
    assert hash(deepest) == hash(combined(MAX_NESTING))
    assert repr(deepest).count("left=") > MAX_NESTING
