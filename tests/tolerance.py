"""The bound of every exactness test (DESIGN.md, "Exactness"): an error is at most twice the larger of the peer's and that which
the arithmetic makes by itself, on any processor.

The peer's error is a draw: another processor sums in blocks of another width, with fused multiplications or without. The second is derived,
by Monte Carlo arithmetic (Parker, "Monte Carlo Arithmetic: exploiting the error of floating-point", UCLA CSD-970002, 1997): the
computation in float64 is run again with each of its operations rounded as the arithmetic rounds, and its error is the root mean
square of what that changes. The roundings:

- Of every operation: its result to float32, to nearest. Of operands in float32, that is what IEEE 754 says.
- Of a sum of n terms t, in any order: of each of its n - 1 partial sums, u / sqrt(3) of it, the root mean square of a rounding whose
  largest is u = 2^-24 of the number. The square of a partial sum is at most sum t^2 where signs are random, and at most
  (sum t)^2 where they are equal: the larger of both is taken. The last of them, the result, is rounded as of every operation. Sums in
  blocks, lanes or pairs err less. A term of a sum of products has a rounding of its own: sum t^2 more. Zeros are no terms.
- In half precision: of results, and of the operands of products of matrices (the weights before they meet the values, and the
  gradients of scores: FlashAttention does so, and matrix units ask for it), by a random number of at most half a unit, so that
  each run is a draw. All sums are in float32.

Overflow is not imitated.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from uwaga.ops.attention import operators

# Errors are compared by their root mean square. That of n errors is itself a draw: relative to what they have in common,
# its standard deviation is 1 / sqrt(2 n), and that of a quotient of two, sqrt(1 / n). By three numbers,
# one peer in seven is twice as good as on the average; by forty, a quotient of 2 is four standard deviations off.
_ENOUGH = 40
# The largest of eight draws: where few numbers make the whole error, it is two standard deviations, and twice that are four.
DRAWS = 8
# With UWAGA_WITHOUT_PEERS=1 the derived error alone bounds: what holds then holds whatever PyTorch does on a processor.
_PEERS = 0.0 if os.environ.get("UWAGA_WITHOUT_PEERS") else 1.0

_draw: ContextVar[tuple[torch.dtype, int] | None] = ContextVar("draw", default=None)

_aten = torch.ops.aten


def _operators(names: str) -> set[object]:
    return {getattr(_aten, name) for name in names.split()}


_PRODUCTS = _operators("""
    mm bmm addmm baddbmm convolution convolution_backward mv dot
""")
_SUMS = _operators("""
    sum cumsum index_add index_add_ index_put index_put_ _index_put_impl_ scatter_add embedding_dense_backward
""") | {torch.ops.prims.sum}
# Several operations in one, by PyTorch's own definition of each.
_COMPOSED = _operators("""
    _softmax _softmax_backward_data _log_softmax _log_softmax_backward_data _safe_softmax logsumexp var_mean
    native_layer_norm native_group_norm native_group_norm_backward native_layer_norm_backward _fused_rms_norm
    gelu gelu_backward silu silu_backward special_entr linalg_vector_norm _weight_norm_interface
    _scaled_dot_product_flash_attention_for_cpu
""")
# No arithmetic: numbers are moved or selected.
_MOVES = _operators("""
    _local_scalar_dense _to_copy _unsafe_view amax amin arange cat clamp_ clone constant_pad_nd copy_ detach
    detach_ embedding empty empty_like empty_strided eye fill_ flip full full_like gather index index_copy
    index_copy_ index_select lift_fresh lift_fresh_copy linspace masked_fill masked_fill_ masked_scatter max min
    new_empty new_empty_strided new_full new_ones new_zeros ones ones_like repeat roll scalar_tensor scatter
    select_backward slice_backward sort stack topk tril triu value_selecting_reduction_backward zero_ zeros
    zeros_like
""")

# The kernels of the package's operators: in float64 they are the reference's operations.
_KERNELS = {torch.ops.uwaga.forward.default: operators.forward, torch.ops.uwaga.backward.default: operators.backward}


def _mean(
    x: Tensor, dim: list[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    total = x.sum(dim, keepdim, dtype=dtype)
    return total / (x.numel() / max(total.numel(), 1))


def _variance(
    x: Tensor, dim: list[int], correction: float | None = 1, *, output_dtype: torch.dtype | None = None
) -> Tensor:
    mean = _mean(x, dim, True)
    total = (x - mean).square().sum(dim, dtype=output_dtype)
    return total / (x.numel() / max(total.numel(), 1) - (1 if correction is None else correction))


def _weight_norm_backward(grad: Tensor, v: Tensor, g: Tensor, norm: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Of w = v * g / norm, where the norm is over all dimensions but `dim`."""
    along = (grad * v).sum([d for d in range(v.dim()) if d != dim], keepdim=True) / norm
    return g / norm * (grad - v * (along / norm)), along


_FORMULAS = {
    _aten.mean: _mean,
    torch.ops.prims.var: _variance,
    **dict.fromkeys(_operators("_weight_norm_interface_backward"), _weight_norm_backward),
}


class _Rounding(TorchDispatchMode):
    """What is computed in float64 is rounded as float32 arithmetic rounds it, with operands of products in `stored`."""

    def __init__(self, stored: torch.dtype, seed: int) -> None:
        super().__init__()
        self.stored_dtype = stored
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        args, kwargs, packet = [_rounded_number(x) for x in args], kwargs or {}, func.overloadpacket
        if func.namespace == "uwaga":
            with self:
                return _KERNELS[func](*args, **kwargs)
        if packet in _COMPOSED:
            with self:
                return decomposition_table[func](*args, **kwargs)
        if packet in _FORMULAS:
            with self:
                return _FORMULAS[packet](*args, **kwargs)
        with self:
            parts = func.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts
        if packet in _PRODUCTS:
            args = [self.rounded(x) if _is_double(x) else x for x in args]
        noise = self.noise(func, args, kwargs) if packet in _PRODUCTS | _SUMS and any(map(_is_double, args)) else None
        result = func(*args, **kwargs)
        results = _doubles(result)
        if func.is_view or not results:
            return result
        if noise is not None:
            for x, rounding in zip(results, noise, strict=True):
                x += rounding
        else:
            # The parts of _COMPOSED that are of `prims` and no sums are elementwise.
            is_known = torch.Tag.pointwise in func.tags or packet in _MOVES or func.namespace == "prims"
            assert is_known, f"tolerance.py has no rule for the roundings of {func}"
        for x in results:
            x.copy_(_rounded(x, torch.float32))
        return result

    def stored(self, x: Tensor) -> Tensor:
        """As it may be met where it was stored on the way."""
        with _disable_current_modes():
            return self.rounded(x)

    def rounded(self, x: Tensor) -> Tensor:
        """A rounding is at most half a unit of x's binade; a number that the dtype has keeps its value."""
        numbers = torch.finfo(self.stored_dtype)
        unit = numbers.eps * x.abs().clamp(min=numbers.tiny).log2().floor().exp2()
        draw = torch.rand(x.shape, generator=self.generator, dtype=torch.float64) - 0.5
        return torch.where(x == x.to(self.stored_dtype).double(), x, x + unit * draw)

    def noise(self, func, args: list, kwargs: dict) -> list[Tensor]:
        """What the partial sums' roundings add up to, in each result."""

        def summed(of: Callable[[Tensor], Tensor]) -> list[Tensor]:
            return _doubles(func(*(of(x) if _is_double(x) else x for x in args), **kwargs))

        u, noise = torch.finfo(torch.float32).eps / 2, []
        for total, squares, n in zip(
            summed(torch.clone), summed(torch.square), summed(lambda x: (x != 0).double()), strict=True
        ):
            variance = (n - 2).clamp(min=0) * torch.maximum(squares, total.square())
            if func.overloadpacket in _PRODUCTS:
                variance += (n > 1) * squares  # a product that is alone is the result
            draw = torch.randn(total.shape, generator=self.generator, dtype=torch.float64)
            noise.append(u / 3**0.5 * variance.sqrt() * draw)
        return noise


def _doubles(result: object) -> list[Tensor]:
    return [x for x in (result if isinstance(result, (tuple, list)) else [result]) if _is_double(x)]


def _is_double(x: object) -> bool:
    return isinstance(x, Tensor) and x.dtype == torch.float64


def _rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    y = x.to(dtype).double()
    return torch.where(y.isinf(), x, y)


def _rounded_number(x: object) -> object:
    """The scale, an epsilon: a kernel has it in float32."""
    return _rounded(torch.tensor(x, dtype=torch.float64), torch.float32).item() if isinstance(x, float) else x


@contextmanager
def roundings(stored: torch.dtype, seed: int) -> Iterator[_Rounding]:
    """What is computed in float64 in this context has the roundings above; operands are stored in that dtype."""
    token = _draw.set((stored, seed))
    try:
        with sdpa_kernel(SDPBackend.MATH), _Rounding(stored, seed) as arithmetic:
            yield arithmetic
    finally:
        _draw.reset(token)


T = TypeVar("T")


def once(compute: Callable[[], T]) -> Callable[[], T]:
    """A computation in float64 of which several parts are compared: it runs once, and once for each draw of roundings."""
    made: dict[tuple[torch.dtype, int] | None, T] = {}

    def computed() -> T:
        if _draw.get() not in made:
            made[_draw.get()] = compute()
        return made[_draw.get()]

    return computed


def rms(x: Tensor) -> float:
    return float(x.detach().square().mean().sqrt()) if x.numel() else 0.0


def assert_within(what: str, error: float, peer: float, derived: Iterable[float], factor: float, size: float) -> None:
    """`error` is at most `factor` times the larger of the peer's and of the derived ones, which are computed if they decide."""
    allowed = factor * peer * _PEERS
    for derived_error in derived if error > allowed else ():
        allowed = max(allowed, factor * derived_error)
        if error <= allowed:
            break
    assert error <= allowed, f"{what}: error {error:.3g}, allowed {allowed:.3g}, of values of {size:.3g}"


def assert_as_exact(
    result: Tensor, peer: Tensor, exact: Callable[[], Tensor], *, stored: torch.dtype | None = None
) -> None:
    """`result` is at most twice as far from the float64 result as the peer's own is, or as float32 arithmetic is by itself, by
    their root mean square.

    Args:
        result, peer: of one dtype.
        exact: computes the result in float64, of the same shape; at least 40 numbers, of as many draws as there are. Called
            again, with roundings, where the peer's error does not decide.
        stored: of the operands of products, if they are not of the dtype of `result`: that of autocast.
    """
    right = exact().detach()
    assert result.shape == right.shape
    assert result.dtype == peer.dtype
    assert right.dtype == torch.float64
    assert right.numel() >= _ENOUGH, f"{right.numel()} numbers: too few for the size of their errors to mean something"

    def derived() -> Iterator[float]:
        for seed in range(DRAWS):
            with roundings(stored or result.dtype, seed) as arithmetic:
                again = exact().detach()
            yield rms((again if stored else arithmetic.stored(again)) - right)

    errors = (rms(x.detach().double() - right) for x in (result, peer))
    assert_within("result", *errors, derived(), 2.0, rms(right))
