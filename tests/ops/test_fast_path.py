"""The short way of plain calls: the same as the long one, taken where it can be and left where it cannot.

Letters: B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width, N packed tokens.
"""

import gc
import weakref

import numpy as np
import pytest
import torch
from drawn import draw
from engines import needs_native

from uwaga import Causal, KeyLengths, Ragged, Window, attention
from uwaga.ops import attention_and_lse
from uwaga.ops.attention import fast_path

pytestmark = needs_native


def _dense(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    return draw(2, 4, 9, 8, dtype=dtype), draw(2, 2, 11, 8, seed=1, dtype=dtype), draw(2, 2, 11, 5, seed=2, dtype=dtype)


def _ragged(rows: int = 3) -> tuple[Ragged, ...]:
    queries, keys = torch.tensor([0, 3, 3, 9])[: rows + 1], torch.tensor([0, 4, 6, 11])[: rows + 1]
    n, m = int(queries[-1]), int(keys[-1])
    return Ragged(draw(n, 4, 8), queries), Ragged(draw(m, 2, 8, seed=1), keys), Ragged(draw(m, 2, 5, seed=2), keys)


OPERANDS = {
    "dense": _dense,
    "bfloat16": lambda: _dense(torch.bfloat16),
    "heads inside tokens": lambda: tuple(draw(2, 7, 4, 8, seed=n).transpose(1, 2) for n in range(3)),
    "no rows": lambda: (draw(2, 4, 0, 8), *_dense()[1:]),
    "ragged": _ragged,
    "no tokens": lambda: _ragged(rows=0),
}
OPTIONS = {
    "plain": {},
    "causal": {"mask": Causal()},
    "strictly past": {"mask": Causal(include_self=False, start=1)},
    "window": {"mask": Window(2, None)},
    "scale and softcap": {"scale": 0.3, "softcap": 2.0},
    "dropout": {"dropout": 0.5},
    "without softmax": {"normalize": None, "impl": "cpu"},
}
# Every option of dense operands, and one option of all others.
CALLS = [("dense", option) for option in OPTIONS] + [(kind, "causal") for kind in OPERANDS if kind != "dense"]
CALLS.append(("ragged", "dropout"))


def _values(x: torch.Tensor | Ragged) -> torch.Tensor:
    return x.values if isinstance(x, Ragged) else x


def _everything(operands: tuple, options: dict) -> list[torch.Tensor]:
    """Output, lse where there is one, and the gradients of both, from a fixed seed."""
    leaves = [_values(x).detach().requires_grad_() for x in operands]
    wrapped = [x.with_values(y) if isinstance(x, Ragged) else y for x, y in zip(operands, leaves, strict=True)]
    torch.manual_seed(7)
    if options.get("normalize", "softmax") is None:
        results = [_values(attention(*wrapped, **options))]
    else:
        results = [_values(x) for x in attention_and_lse(*wrapped, **options)]
    weights = [draw(*x.shape, seed=5).to(x.dtype) for x in results]
    finite = [torch.where(x.isfinite(), x, 0.0) for x in results]
    grads = torch.autograd.grad(finite, leaves, weights)
    torch.manual_seed(7)
    with torch.no_grad():
        return [*results, _values(attention(*operands, **options)), *grads]


@pytest.mark.parametrize(("kind", "option"), CALLS)
def test_both_ways_give_the_same_bits(kind: str, option: str) -> None:
    operands, options = OPERANDS[kind](), OPTIONS[option]
    # A number of NumPy is one that the general path alone takes.
    general = options | {"dropout": np.float32(options.get("dropout", 0.0))}
    for a, b in zip(_everything(operands, options), _everything(operands, general), strict=True):
        assert torch.equal(a, b)
        assert a.stride() == b.stride()
    assert [_takes_the_short_way(operands, arguments) for arguments in (options, general)] == [True, False]


def _takes_the_short_way(operands: tuple, options: dict) -> bool:
    defaults = {"mask": None, "scale": None, "normalize": "softmax", "softcap": None, "dropout": 0.0, "impl": None}
    return fast_path.attend(*operands, **defaults | options, wants_lse=False) is not None


@pytest.mark.parametrize("operands", [OPERANDS["heads inside tokens"], _ragged], ids=["dense", "ragged"])
def test_hooks_see_the_saved_tensors_and_may_move_them(operands) -> None:
    def gradients(*hooks) -> list[torch.Tensor]:
        tensors = operands()
        leaves = [_values(x).requires_grad_() for x in tensors]
        with torch.autograd.graph.saved_tensors_hooks(*hooks):
            out = _values(attention(*tensors, mask=Causal()))
        for x in tensors:
            if isinstance(x, Ragged):
                x.offsets.fill_(-1)  # its memory may be anybody's by now
        return list(torch.autograd.grad(out.square().sum(), leaves))

    seen = []

    def copy(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.shape)
        return x.detach().clone(memory_format=torch.contiguous_format)

    moved = gradients(copy, lambda x: x)
    tensors = operands()
    assert {_values(x).shape for x in tensors} <= set(seen)
    leaves = [_values(x).requires_grad_() for x in tensors]
    expected = torch.autograd.grad(_values(attention(*tensors, mask=Causal())).square().sum(), leaves)
    assert all(torch.equal(a, b) for a, b in zip(moved, expected, strict=True))


def test_the_sizes_of_one_call_are_not_those_of_another() -> None:
    mask = Causal(start=0)
    for queries, keys in ((3, 5), (70, 70), (1, 130)):
        q, k, v = draw(1, 2, queries, 8), draw(1, 2, keys, 8, seed=1), draw(1, 2, keys, 8, seed=2)
        assert torch.allclose(attention(q, k, v, mask=mask), attention(q, k, v, mask=mask, impl="reference"), atol=1e-5)


def test_no_tensor_of_a_call_is_kept() -> None:
    q, k, v = _dense()
    attention(q, k, v, mask=Causal())
    alive = [weakref.ref(x) for x in (q, k, v)]
    del q, k, v
    gc.collect()
    assert [x() for x in alive] == [None] * 3


@pytest.mark.parametrize("mask", [None, KeyLengths(torch.tensor([3, 8]))], ids=["plain", "masked"])
def test_negative_views_are_read_as_what_they_mean(mask: KeyLengths | None) -> None:
    """Views whose numbers are those of their memory with the other sign: of operands, a bias, sinks and gradients."""

    def all_of(x: torch.Tensor) -> list[torch.Tensor]:
        grad = x[..., :5]
        q, k, v = (operand.requires_grad_() for operand in _dense())
        packed = Ragged(x[0].transpose(0, 1), torch.tensor([0, 2, 9]))
        return [
            attention(x, x, x, mask=mask),
            attention(packed, packed, packed).values,
            attention(q, k, v, bias=x[0, 0, :, :1], sinks=x[0, 0, :4, 0]).detach(),
            *torch.autograd.grad(attention(q, k, v, mask=mask), (q, k, v), grad),
            *torch.autograd.grad(attention_and_lse(q, k, v, mask=mask).lse, (q, k), grad[..., 0]),
        ]

    x = torch.complex(draw(2, 4, 9, 8), draw(2, 4, 9, 8, seed=1)).conj().imag
    assert x.is_neg()
    assert all(map(torch.equal, all_of(x), all_of(x.clone())))
