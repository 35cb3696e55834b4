"""Dropout of hidden states: which numbers are dropped, how many, and that a seed decides."""

import pytest
import torch
from engines import needs_native
from torch import Tensor

from uwaga._base import native
from uwaga.ops.attention.reference import kept
from uwaga.ops.dropout import add_dropped, dropout, rows_from


@needs_native
@pytest.mark.parametrize("level", native.supported_levels() if native.reason_unavailable() is None else [])
def test_the_mask_is_the_documented_hash_at_every_level(level: str) -> None:
    """That of attention's dropout for one head, with rows in place of queries and columns in place of keys."""
    before = native.level()
    native.set_level(level)
    try:
        torch.manual_seed(8)
        result = dropout(torch.ones(37, 101), 0.4)
        torch.manual_seed(8)
        seed = torch.randint(2**63 - 1, (), device="cpu")
        mask = kept(seed, 0.4, 1, 1, 37, 101, torch.device("cpu"))[0, 0]
        torch.testing.assert_close(result, mask / 0.6, rtol=1e-6, atol=0.0)
    finally:
        native.set_level(before)


@needs_native
@pytest.mark.parametrize("first", [1, 30, 36])
def test_rows_of_a_longer_batch_are_dropped_as_there(first: int) -> None:
    for seed in range(20):
        torch.manual_seed(seed)
        whole = dropout(torch.ones(37, 101), 0.4)
        torch.manual_seed(seed)
        with rows_from(first):
            assert torch.equal(dropout(torch.ones(37 - first, 101), 0.4), whole[first:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_gradients_have_the_same_mask(dtype: torch.dtype) -> None:
    x, added = torch.full((30, 20), 2.0, dtype=dtype).requires_grad_(), torch.ones(30, 20, dtype=dtype).requires_grad_()
    y = dropout(x, 0.25)
    mask = (y.detach() != 0).to(dtype) / 0.75
    torch.testing.assert_close(y, x * mask)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], mask)
    total = add_dropped(x, added, 0.25)
    mask = (total.detach() != 2).to(dtype) / 0.75
    torch.testing.assert_close(torch.autograd.grad(total.sum(), (x, added)), (torch.ones_like(x), mask))
    for p in (0.0, 1.0):
        assert torch.equal(dropout(x, p), x * (1 - p))
        assert torch.equal(add_dropped(x, added, p), x + added * (1 - p))


def test_gradients_of_gradients_and_batches_of_them() -> None:
    x, grad = torch.ones(6, 5, requires_grad=True), torch.ones(6, 5, requires_grad=True)
    y = dropout(x, 0.5)
    (first,) = torch.autograd.grad(y, x, grad, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(first.sum(), grad)[0], y.detach())
    batch = torch.stack([torch.ones(6, 5), torch.zeros(6, 5)])
    (result,) = torch.autograd.grad(y, x, batch, is_grads_batched=True)
    torch.testing.assert_close(result, batch * y.detach())
    mapped = torch.func.vmap(lambda x: dropout(x, 0.5), randomness="different")(torch.ones(8, 8))
    assert set(mapped.unique().tolist()) == {0.0, 2.0}


def test_torchs_generator_decides() -> None:
    x = torch.randn(200, 96)

    def run() -> list[Tensor]:
        torch.manual_seed(5)
        return [dropout(x, 0.3), dropout(x, 0.3), add_dropped(x, x, 0.3)]

    first = run()
    assert not torch.equal(first[0], first[1])
    torch.set_num_threads(3)
    assert all(map(torch.equal, first, run()))
