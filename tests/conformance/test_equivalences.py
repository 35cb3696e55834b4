"""The same row gives the same bits, however it comes: alone, padded or ragged, in any batch, on any number of threads.

Letters: B sequences, H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width.
"""

import pytest
import torch
from torch import Tensor

from uwaga import AlibiBias, Causal, KeyLengths, Ragged, Window, attention
from uwaga.ops import attention_and_lse

LENGTHS = [67, 0, 1, 130, 33]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
MASKS = {"none": None, "causal": Causal(), "strictly past": Causal(include_self=False), "window": Window(9, 4)}


@pytest.fixture(params=DTYPES, ids=str)
def rows(request: pytest.FixtureRequest) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Sequences (T, H, D), (T, G, D), (T, G, E) of several lengths."""
    generator = torch.Generator().manual_seed(0)
    widths = ((4, 32), (2, 32), (2, 24))
    return [
        tuple(torch.randn(length, *width, generator=generator).to(request.param) for width in widths)
        for length in LENGTHS
    ]


def _run(query, key, value, **options) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Output, lse and the three gradients, for gradients of the output that only depend on the output's own row."""
    operands = [x.values if isinstance(x, Ragged) else x for x in (query, key, value)]
    leaves = [x.detach().requires_grad_() for x in operands]
    same = zip((query, key, value), leaves, strict=True)
    inputs = [x.with_values(leaf) if isinstance(x, Ragged) else leaf for x, leaf in same]
    output, lse = attention_and_lse(*inputs, impl="cpu", **options)
    output, lse = (x.values if isinstance(x, Ragged) else x for x in (output, lse))
    weight = output.detach() * 1.5  # a function of the row itself, so the same in every arrangement
    return output.detach(), lse.detach(), *torch.autograd.grad(output, leaves, weight)


def _alone(row, **options):
    return _run(*(x.transpose(0, 1)[None] for x in row), **options)


def _ragged(rows):
    return [Ragged.from_list([row[at] for row in rows]) for at in range(3)]


def _assert_same(result, expected, what: str) -> None:
    for name, x, y in zip(("output", "lse", "d query", "d key", "d value"), result, expected, strict=True):
        assert torch.equal(x, y), f"{what}: {name} differs"


@pytest.mark.parametrize("name", MASKS)
def test_ragged_is_each_sequence_alone(cpu: str, rows, name: str) -> None:
    packed = _run(*_ragged(rows), mask=MASKS[name])
    for at, row in enumerate(rows):
        tokens = slice(sum(LENGTHS[:at]), sum(LENGTHS[: at + 1]))
        alone = [x[0].transpose(0, 1) for x in _alone(row, mask=MASKS[name])]
        _assert_same([x[tokens] for x in packed], alone, f"row {at}")


@pytest.mark.parametrize("name", ["none", "causal"])
def test_padded_is_each_sequence_alone(cpu: str, rows, name: str) -> None:
    """Behind the lengths stands nan, and nothing of it is seen."""
    longest = max(LENGTHS)
    query, key, value = (x.to_padded(fill=torch.nan).transpose(1, 2) for x in _ragged(rows))
    lengths = KeyLengths(torch.tensor(LENGTHS))
    mask = lengths if name == "none" else Causal(start=0) & lengths
    leaves = [x.detach().requires_grad_() for x in (query.nan_to_num(), key, value)]
    output, lse = attention_and_lse(*leaves, mask=mask, impl="cpu")
    inside = torch.arange(longest) < torch.tensor(LENGTHS)[:, None, None, None].transpose(-1, -2)
    weight = torch.where(inside.transpose(-1, -2), output.detach() * 1.5, 0.0)
    padded = (output, lse[..., None], *torch.autograd.grad(output, leaves, weight))
    for at, row in enumerate(rows):
        alone = _alone(row, mask=MASKS[name])
        parts = [x[at : at + 1, :, : LENGTHS[at]].detach() for x in padded]
        parts[1] = parts[1][..., 0]
        _assert_same(parts, alone, f"row {at}")


def test_causal_is_its_dense_mask(cpu: str, rows) -> None:
    for row in rows:
        lower = torch.ones(len(row[0]), len(row[0]), dtype=torch.bool).tril()
        _assert_same(_alone(row, mask=Causal()), _alone(row, mask=lower), "dense")


@pytest.mark.parametrize("name", MASKS)
def test_one_thread_is_two_and_twice_is_once(cpu: str, rows, name: str) -> None:
    bias = AlibiBias(torch.tensor([0.5, 0.25, 0.125, 0.1]))
    runs = []
    for threads in (1, 2, 2):
        torch.set_num_threads(threads)
        runs.append(_run(*_ragged(rows), mask=MASKS[name], bias=bias))
    _assert_same(runs[1], runs[0], "two threads")
    _assert_same(runs[2], runs[1], "again")


def test_one_query_over_many_keys_on_one_thread_is_two(cpu: str) -> None:
    generator = torch.Generator().manual_seed(1)
    query, key = torch.randn(1, 2, 1, 64, generator=generator), torch.randn(1, 2, 20_000, 64, generator=generator)
    one = attention(query, key, key, impl="cpu")
    torch.set_num_threads(2)
    assert torch.equal(one, attention(query, key, key, impl="cpu"))


@pytest.mark.parametrize("name", MASKS)
def test_strides_do_not_matter(cpu: str, rows, name: str) -> None:
    """Heads inside tokens, every second token, reversed memory order: read in place, the same bits."""
    row = [x.transpose(0, 1)[None] for x in rows[0]]
    expected = _run(*(x.contiguous() for x in row), mask=MASKS[name])
    _assert_same(_run(*row, mask=MASKS[name]), expected, "heads inside tokens")
    apart = [torch.stack((x, torch.full_like(x, torch.nan)), dim=3)[:, :, :, 0] for x in row]
    _assert_same(_run(*apart, mask=MASKS[name]), expected, "every second token")
    columns = [x.transpose(-1, -2).contiguous().transpose(-1, -2) for x in row]
    _assert_same(_run(*columns, mask=MASKS[name]), expected, "columns first")


def test_what_is_expanded_need_not_be_copied(cpu: str) -> None:
    query, key = torch.randn(3, 2, 9, 16), torch.randn(1, 2, 11, 16)
    once = attention(query, key.expand(3, -1, -1, -1), key.expand(3, -1, -1, -1), impl="cpu")
    copied = key.repeat(3, 1, 1, 1)
    assert torch.equal(once, attention(query, copied, copied, impl="cpu"))
