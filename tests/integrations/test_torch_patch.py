"""patch_torch: PyTorch's scaled_dot_product_attention gives what it gave, run through this engine, and comes back.

Letters: B batch, H query heads, Q queries, K keys, D query/key width, E value width.
"""

import threading
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from drawn import draw
from engines import needs_native
from torch import Tensor
from torch._C import DisableTorchFunctionSubclass
from torch.autograd import forward_ad
from torch.autograd.profiler import profile
from torch.nn.attention import SDPBackend, bias, sdpa_kernel

from uwaga import attention
from uwaga.integrations import patch_torch

pytestmark = [
    needs_native,
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning"),
]
SDPA = F.scaled_dot_product_attention


Q, K, V, MASK = draw(2, 4, 5, 8), draw(2, 4, 7, 8, seed=1), draw(2, 4, 7, 6, seed=2), draw(5, 7, seed=3)


def patched(call: Callable[[], Tensor]) -> tuple[Tensor, bool]:
    """What a call gives under the patch, and whether PyTorch's operator had no part in it."""
    torch.manual_seed(0)
    with patch_torch(), profile() as seen:
        result = call()
    return result, "aten::scaled_dot_product_attention" not in {event.name for event in seen.function_events}


def unpatched(call: Callable[[], Tensor]) -> Tensor:
    torch.manual_seed(0)
    return call()


def _loss(query: Tensor, **options) -> Tensor:
    key, value = K.to(query.dtype), V.to(query.dtype)
    return F.scaled_dot_product_attention(query, key, value, **options).square().sum()


def _tangent(query: Tensor, mask: Tensor | None) -> Tensor:
    """The tangent of the output along the mask, or else along the query."""
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(*[query if mask is None else mask] * 2)
        operands = (dual, K, V) if mask is None else (query, K, V, dual)
        return forward_ad.unpack_dual(F.scaled_dot_product_attention(*operands)).tangent


ROWS, SMALL = torch.stack((Q, -Q)), Q[:1, :1, :2]
SERVED = {
    "plain": lambda: F.scaled_dot_product_attention(Q, K, V),
    "causal, upper left": lambda: F.scaled_dot_product_attention(Q, K, V, is_causal=True),
    "bool mask": lambda: F.scaled_dot_product_attention(Q, K, V, attn_mask=MASK.tril().bool()),
    "float mask": lambda: F.scaled_dot_product_attention(Q, K, V, draw(2, 1, 5, 7)),
    "scale": lambda: F.scaled_dot_product_attention(Q, K, V, scale=0.3),
    "grouped": lambda: F.scaled_dot_product_attention(Q, K[:, :2], V[:, :2], enable_gqa=True),
    "three dimensions": lambda: F.scaled_dot_product_attention(Q[0], K[0], V[0]),
    "strided": lambda: F.scaled_dot_product_attention(*(x.mT.contiguous().mT for x in (Q, K, V))),
}
# What the kernels cannot compute. Values of another width than the keys go to PyTorch's kernel made of operations, which has all derivatives.
NOT_SERVED = {
    "one key head, by broadcasting": lambda: F.scaled_dot_product_attention(Q, K[:1, :1], V[:1, :1]),
    "gradients of torch.func": lambda: torch.func.grad(lambda q: _loss(q, is_causal=True))(Q),
    "vmap": lambda: torch.func.vmap(F.scaled_dot_product_attention)(Q, K, V),
    "float64": lambda: F.scaled_dot_product_attention(Q.double(), K.double(), V.double()),
    "all dropped": lambda: F.scaled_dot_product_attention(Q, K, V, dropout_p=1.0),
    "an infinite scale": lambda: F.scaled_dot_product_attention(Q, K, V, scale=float("inf")),
    "values of no width": lambda: F.scaled_dot_product_attention(Q, K, V[..., :0]),
    "strided nested tensors": lambda: F.scaled_dot_product_attention(
        *(torch.nested.nested_tensor([x[0], x[1]]) for x in (Q, K, K))
    ).values(),
    "functionalize": lambda: torch.func.functionalize(_loss)(Q),
    "dropout in vmap": lambda: torch.func.vmap(lambda q: _loss(q, dropout_p=0.5), randomness="different")(ROWS),
    "jvp": lambda: torch.func.jvp(_loss, (Q,), (Q,))[1],
    "a Hessian": lambda: torch.func.hessian(_loss)(SMALL),
    "dual numbers": lambda: _tangent(Q, None),
    "dual numbers as a mask": lambda: _tangent(Q, MASK),
    "uwaga's own engine of PyTorch": lambda: attention(Q, K, K, impl="torch"),
}


@pytest.mark.parametrize("name", [*SERVED, *NOT_SERVED])
def test_a_program_gives_what_it_gave(name: str) -> None:
    call = {**SERVED, **NOT_SERVED}[name]
    result, is_served = patched(call)
    assert is_served == (name in SERVED)
    torch.testing.assert_close(result, unpatched(call), equal_nan=True)


def test_what_another_kernel_or_device_is_asked_for_is_left_to_pytorch() -> None:
    with sdpa_kernel(SDPBackend.MATH):
        assert not patched(SERVED["plain"])[1]
    result, _ = patched(lambda: F.scaled_dot_product_attention(*(x.to("meta") for x in (Q, K, V))))
    assert (result.shape, result.device.type) == ((2, 4, 5, 6), "meta")


ERRORS = {
    "widths": lambda f: f(Q, K[..., :3], V),
    "two masks": lambda f: f(Q, K, V, attn_mask=MASK.bool(), is_causal=True),
    "heads": lambda f: f(Q, K[:, :3], V[:, :3], enable_gqa=True),
    "a query that is a list": lambda f: f([1.0], K, V),
    "a sparse query": lambda f: f(Q.to_sparse(), K, V),
    "an unknown option": lambda f: f(Q, K, V, causal=True),
    # PyTorch's fused kernel has no such derivative either.
    "forward mode": lambda f: torch.func.jvp(lambda q: f(q, K, K), (Q,), (Q,)),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_pytorch_refuses_is_refused_in_its_words(name: str) -> None:
    kinds = (ValueError, RuntimeError, TypeError)
    with pytest.raises(kinds) as expected:
        ERRORS[name](SDPA)
    with patch_torch(), pytest.raises(kinds) as result:
        ERRORS[name](F.scaled_dot_product_attention)
    assert result.type is expected.type
    assert str(result.value).splitlines()[0] == str(expected.value).splitlines()[0]


def test_gradients_and_dropout_go_through() -> None:
    query = Q.clone().requires_grad_()
    out, is_served = patched(lambda: F.scaled_dot_product_attention(query, K, V, dropout_p=0.5))
    assert is_served
    out.sum().backward()
    torch.testing.assert_close(out, unpatched(lambda: attention(Q, K, V, dropout=0.5, impl="cpu")))
    assert query.grad.isfinite().all()


def test_autocast_casts_as_pytorch_does(assert_as_exact) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        expected = SDPA(Q, K, V, MASK)
        output, is_served = patched(lambda: F.scaled_dot_product_attention(Q, K, V, MASK))
    assert is_served
    assert output.dtype == expected.dtype == torch.bfloat16
    assert_as_exact(output, expected, lambda: SDPA(*(x.bfloat16().double() for x in (Q, K, V, MASK))))


class _Overriding(Tensor):
    """Looks the function up in a table, as PyTorch's documents do."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        assert function is SDPA or function.__name__ != SDPA.__name__
        return super().__torch_function__(function, types, args, kwargs or {})


class _Calling(Tensor):
    """Calls the function by its name, with overrides off."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with DisableTorchFunctionSubclass():
            return F.scaled_dot_product_attention(*args, **(kwargs or {})).neg()


SUBCLASSES = {
    "causal, upper left": lambda: F.scaled_dot_product_attention(Q, K, V, bias.causal_upper_left(5, 7)),
    "causal, lower right": lambda: F.scaled_dot_product_attention(Q, K, V, bias.causal_lower_right(5, 7)),
    "jagged nested tensors": lambda: F.scaled_dot_product_attention(
        *(
            torch.nested.nested_tensor([draw(5, 4, 8), draw(3, 4, 8)], layout=torch.jagged).transpose(1, 2)
            for _ in range(3)
        )
    ).values(),
    "a subclass with a table": lambda: F.scaled_dot_product_attention(Q.as_subclass(_Overriding), K, V),
    "a subclass that calls": lambda: F.scaled_dot_product_attention(Q, K.as_subclass(_Calling), V),
}


@pytest.mark.parametrize("name", SUBCLASSES)
def test_tensor_subclasses_give_what_they_gave(name: str) -> None:
    expected = SUBCLASSES[name]()
    with patch_torch():
        result = SUBCLASSES[name]()
    assert type(result) is type(expected)
    torch.testing.assert_close(result.as_subclass(Tensor), expected.as_subclass(Tensor))


@pytest.mark.slow
@pytest.mark.parametrize("make", [lambda *_: None, bias.causal_lower_right], ids=["no mask", "a subclass"])
def test_a_compiled_program_gains_too(make) -> None:
    torch.compiler.reset()
    mask = make(5, 7)
    with patch_torch():
        compiled = torch.compile(
            lambda q: F.scaled_dot_product_attention(q, K, V, mask), fullgraph=True, backend="aot_eager"
        )
        result = compiled(Q)
    torch.testing.assert_close(result, SDPA(Q, K, V, mask))


def test_patches_nest_in_any_order() -> None:
    first, second = patch_torch(), patch_torch()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert F.scaled_dot_product_attention is not SDPA
    with patch_torch():
        second.__exit__(None, None, None)
        assert F.scaled_dot_product_attention is not SDPA
    assert F.scaled_dot_product_attention is SDPA


def test_patches_of_many_threads() -> None:
    def work() -> None:
        for _ in range(100):
            with patch_torch():
                assert F.scaled_dot_product_attention is not SDPA

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert F.scaled_dot_product_attention is SDPA
