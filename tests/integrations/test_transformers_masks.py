"""The plans of masks mean what transformers' own dense masks mean.

Letters: B batch, Q queries, K keys.
"""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

transformers = pytest.importorskip("transformers", minversion="5")
from transformers import masking_utils  # noqa: E402

from uwaga.integrations.transformers.mask_plan import LazyMask, lazy_mask  # noqa: E402

QUERIES, KEYS = 3, 8
RIGHT = torch.arange(KEYS) < torch.tensor([8, 5, 1])[:, None]
PADDING = {"whole": None, "right": RIGHT, "left": RIGHT.flip(1), "holes": RIGHT & (torch.arange(KEYS) != 2)}
BLOCKS = torch.tensor([[0, 0, 1, 1, -1, -1, 2, 2]]).expand(3, -1)


FUNCTIONS = {
    "causal": masking_utils.causal_mask_function,
    "both ways": masking_utils.bidirectional_mask_function,
    "window": masking_utils.sliding_window_causal_mask_function(3),
    "window both ways": masking_utils.sliding_window_bidirectional_mask_function(2),
    "chunks": masking_utils.chunked_causal_mask_function(3, torch.tensor([0, 1, 2])),
    "blocks": masking_utils.or_masks(
        masking_utils.causal_mask_function, masking_utils.blockwise_overlay(BLOCKS)
    ),
}  # fmt: skip


def both(function: Callable, queries: int, padding: Tensor | None, offset: int) -> tuple[Tensor, Tensor]:
    sizes = {"batch_size": 3, "q_length": queries, "kv_length": KEYS, "q_offset": offset, "kv_offset": 0}
    ours = lazy_mask(**sizes, mask_function=function, attention_mask=padding)
    theirs = masking_utils.sdpa_mask(
        **sizes, mask_function=function, attention_mask=padding, allow_is_causal_skip=False,
        allow_is_bidirectional_skip=False,
    )  # fmt: skip
    assert isinstance(ours, LazyMask)
    assert ours.shape == (3, 1, queries, KEYS)
    return ours.dense(), theirs.expand(3, 1, -1, -1)


def tokens(padding: Tensor | None, first: int, queries: int) -> Tensor:
    """(B, Q) True where a query is no padding: what others see does not count."""
    whole = torch.ones(3, KEYS, dtype=torch.bool) if padding is None else padding
    return whole[:, first : first + queries]


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("queries", "offset"), [(KEYS, 0), (QUERIES, KEYS - QUERIES), (1, 4)])
def test_transformers_functions(name: str, queries: int, offset: int, padding: str) -> None:
    ours, theirs = both(FUNCTIONS[name], queries, PADDING[padding], offset)
    count = tokens(PADDING[padding], offset, queries)
    assert torch.equal(ours[:, 0][count], theirs[:, 0][count])


def test_a_function_of_somebody_else_is_taken_densely() -> None:
    def every_third(batch: int, head: int, query: Tensor, key: Tensor) -> Tensor:
        return (query - key) % 3 == 0

    sizes = {"batch_size": 2, "q_length": 6, "kv_length": 6, "q_offset": 0, "kv_offset": 0}
    mask = lazy_mask(**sizes, mask_function=masking_utils.and_masks(FUNCTIONS["causal"], every_third))
    assert type(mask) is Tensor
    i, j = torch.arange(6)[:, None], torch.arange(6)
    assert torch.equal(mask, ((i >= j) & ((i - j) % 3 == 0)).expand(2, 1, 6, 6))


def test_no_mask_where_transformers_wants_none() -> None:
    everything = FUNCTIONS["both ways"]
    sizes = {"batch_size": 3, "q_length": KEYS, "kv_length": KEYS, "mask_function": everything}
    assert lazy_mask(**sizes, allow_is_bidirectional_skip=True) is None
    assert lazy_mask(**sizes, allow_is_bidirectional_skip=True, attention_mask=torch.ones(3, KEYS).bool()) is None
    assert lazy_mask(**sizes, allow_is_bidirectional_skip=True, attention_mask=RIGHT) is not None


def test_a_plan_becomes_a_tensor_when_somebody_looks_into_it() -> None:
    mask = lazy_mask(batch_size=2, q_length=4, kv_length=4)
    lower = torch.ones(4, 4, dtype=torch.bool).tril().expand(2, 1, 4, 4)
    assert torch.equal(mask[:, :, :, :3], lower[..., :3])
    assert torch.equal(torch.cat((mask, mask)), torch.cat((lower, lower)))
    assert torch.equal(~mask, ~lower)
    assert mask.materialized is not None
    assert repr(mask) == "LazyMask(shape=(2, 1, 4, 4), Causal(include_self=True, start=0))"


def test_what_is_written_into_a_plan_counts() -> None:
    """Some models open or close a corner of their mask in place."""
    mask = lazy_mask(batch_size=2, q_length=4, kv_length=4)
    mask[:, :, 0, 3] = True
    assert mask.dense()[:, :, 0, 3].all()
    assert torch.equal(mask.sum(), torch.tensor(2 * 11))
    assert copy.copy(mask).dense()[0, 0, 0, 3]
