"""The linear map: values, forms of the input, bits of a row, changed weights, bad input."""

from collections.abc import Callable
from functools import partial

import engines
import numpy as np
import processors
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import uwaga
from uwaga import Ragged
from uwaga.ops.activations import ACTIVATIONS
from uwaga.ops.linear import choose
from uwaga.ops.linear.api import explain

by_engines = pytest.mark.parametrize("impl", engines.LINEAR)
cases = pytest.mark.parametrize(("impl", "dtype"), engines.LINEAR_CASES)


def separately(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, residual: Tensor | None
) -> Tensor:
    mapped = functional.linear(x, weight, bias)
    mapped = mapped if activation is None else ACTIVATIONS[activation](mapped)
    return mapped if residual is None else residual + mapped


@cases
@pytest.mark.parametrize(
    ("activation", "has_bias"), [(name, True) for name in (None, *ACTIVATIONS)] + [(None, False), ("gelu", False)]
)
def test_values_are_as_exact_as_those_of_pytorch(
    impl: str,
    dtype: torch.dtype,
    activation: str | None,
    has_bias: bool,
    assert_as_exact: Callable[[Tensor, Tensor, Callable[[], Tensor]], None],
) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(3, 7, 70).to(dtype), torch.randn(50, 70).to(dtype)
    bias = torch.randn(50).to(dtype) if has_bias else None
    residual = None if has_bias else torch.randn(3, 7, 50).to(dtype)
    doubles = [None if operand is None else operand.double() for operand in (x, weight, bias, residual)]

    def exact() -> Tensor:
        return separately(*doubles[:3], activation, doubles[3])

    result = uwaga.linear(x, weight, bias, activation=activation, residual=residual, impl=impl)
    assert_as_exact(result, separately(x, weight, bias, activation, residual), exact)


@cases
def test_operands_may_have_any_strides(impl: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    plain = [torch.randn(6, 12), torch.randn(10, 12), torch.randn(10), torch.randn(6, 10)]
    x, weight, bias, residual = (operand.to(dtype) for operand in plain)
    expected = uwaga.linear(x, weight, bias, residual=residual, impl=impl)
    turned = [operand.t().contiguous().t() for operand in (x, weight, residual)]
    spread = [operand.repeat_interleave(2, -1)[..., ::2] for operand in (x, weight, residual, bias)]
    shifted = torch.cat((weight.new_zeros(3), weight.flatten()))[3:].view(
        10, 12
    )  # at an address that no vector is aligned to
    for other_x, other_weight, other_residual, other_bias in ((*turned, bias), spread, (x, shifted, residual, bias)):
        result = uwaga.linear(other_x, other_weight, other_bias, residual=other_residual, impl=impl)
        if impl == "cpu":
            assert torch.equal(result, expected)
        torch.testing.assert_close(result, expected)
    repeated = uwaga.linear(x[:1].expand(6, 12), weight, bias, residual=residual[:1].expand(6, 10), impl=impl)
    torch.testing.assert_close(repeated, expected[:1].expand(6, 10))


@by_engines
@pytest.mark.parametrize("shape", [(6,), (1, 6), (3, 6), (2, 2, 6), (5, 1, 6)])
def test_any_leading_dimensions(impl: str, shape: tuple[int, ...]) -> None:
    x, weight, bias = torch.randn(shape), torch.randn(5, 6), torch.randn(5)
    residual = torch.randn(*shape[:-1], 5)
    result = uwaga.linear(x, weight, bias, residual=residual, impl=impl)
    torch.testing.assert_close(result, residual + functional.linear(x, weight, bias))
    result.add_(1)  # the result is nobody's view


@pytest.mark.parametrize(("rows", "width", "outputs"), [(0, 6, 5), (3, 0, 5), (3, 6, 0), (0, 0, 0)])
def test_empty_operands_are_computed_by_pytorch(rows: int, width: int, outputs: int) -> None:
    x, weight, bias = torch.randn(2, rows, width), torch.randn(outputs, width), torch.randn(outputs)
    torch.testing.assert_close(uwaga.linear(x, weight, bias), functional.linear(x, weight, bias))
    assert "cpu" in explain(x, weight, bias).refused


def test_a_ragged_batch_is_mapped_token_by_token() -> None:
    x = Ragged(torch.randn(5, 6), torch.tensor([0, 2, 5]))
    weight = torch.randn(4, 6)
    residual = x.with_values(torch.randn(5, 4))
    result = uwaga.linear(x, weight, activation="relu", residual=residual)
    assert isinstance(result, Ragged)
    assert result.offsets is x.offsets
    torch.testing.assert_close(result.values, residual.values + functional.linear(x.values, weight).relu())


# A row has the same bits among any others: by the native kernels always, by other engines where they promise it.

COUNTS = [*range(1, 71), 255, 256, 257, 258]
FEW_COUNTS = (1, 2, 3, 5, 17, 70, 257)


# Without gradients; a change gives the linear map that has the weight now, if it is another one.
@cases
@pytest.mark.parametrize(("threads", "width", "outputs"), [(1, 24, 40), (2, 1536, 384)])
def test_a_row_has_the_same_bits_among_any_others(
    impl: str,
    dtype: torch.dtype,
    threads: int,
    width: int,
    outputs: int,
    assert_as_exact: Callable[[Tensor, Tensor, Callable[[], Tensor]], None],
) -> None:
    """Of engines that do not promise it on this processor: within the rounding of the dtype."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(shape).to(dtype) for shape in ((300, width), (outputs, width), (outputs,)))
    residual = torch.randn(300, outputs).to(dtype)

    def mapped(part: slice) -> Tensor:
        return uwaga.linear(x[part], weight, bias, activation="gelu", residual=residual[part], impl=impl)

    def exact(part: slice) -> Tensor:
        doubles = (operand.double() for operand in (x[part], weight, bias))
        return separately(*doubles, "gelu", residual[part].double())

    whole = mapped(slice(300))
    for rows in COUNTS if width < 100 else FEW_COUNTS:
        for part in (slice(0, rows), slice(300 - rows, 300)):
            alone = mapped(part)
            if impl == "cpu" or choose.has_batch_invariant_rows(impl, dtype):
                assert torch.equal(alone, whole[part])
            elif not torch.equal(alone, whole[part]):
                assert_as_exact(alone, whole[part], partial(exact, part))


@by_engines
def test_a_changed_weight_is_computed_with(impl: str) -> None:
    """No engine keeps a copy of a weight."""
    linear, x = nn.Linear(6, 5), torch.randn(8, 6)
    changes: list[Callable[[Tensor], object]] = [
        linear.weight.copy_,
        lambda weight: setattr(linear.weight, "data", weight),
        lambda weight: np.copyto(linear.weight.numpy(), weight.numpy()),  # no version counter sees this
    ]
    with torch.no_grad():
        for change in changes:
            weight = torch.randn(5, 6)
            change(weight)
            result = uwaga.linear(x, linear.weight, linear.bias, impl=impl)
            torch.testing.assert_close(result, functional.linear(x, weight, linear.bias))


# The choice.


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch):
    """Sets UWAGA_LINEAR as if the process had started with it."""

    def name(engine: str) -> None:
        monkeypatch.setenv("UWAGA_LINEAR", engine)
        processors.forget()

    yield name
    monkeypatch.delenv("UWAGA_LINEAR", raising=False)
    processors.forget()


@by_engines
def test_uwaga_linear_names_the_engine_of_all_calls(impl: str, named: Callable[[str], None]) -> None:
    named(impl)
    x, weight = torch.randn(3, 6), torch.randn(5, 6)
    note = "" if impl == "cpu" else "; a row may have other bits in another batch: UWAGA_LINEAR=cpu keeps them"
    if "cpu" not in engines.NATIVE_LINEAR:
        note = "; a row may have other bits in another batch, and the native kernels, which keep them, cannot serve this call"
    assert explain(x, weight)[:2] == (impl, f"named by UWAGA_LINEAR{note}")
    assert torch.equal(uwaga.linear(x, weight), uwaga.linear(x, weight, impl=impl))
    assert explain(x.double(), weight.double()).engine == "torch"  # where it cannot serve, the next does


class Marked(Tensor):
    """A subclass of torch.Tensor."""


def test_tensor_subclasses_and_other_devices_are_left_to_pytorch() -> None:
    x, weight = torch.randn(3, 6).as_subclass(Marked), torch.randn(5, 6)
    assert "cpu" in explain(x, weight).refused
    assert type(uwaga.linear(x, weight)) is Marked
    assert uwaga.linear(torch.zeros(3, 6, device="meta"), weight.to("meta")).shape == (3, 5)


def test_a_lazy_negation_is_read_with_its_sign() -> None:
    x = torch.complex(torch.randn(3, 6), torch.randn(3, 6)).conj().imag
    assert x.is_neg()
    weight = torch.randn(5, 6)
    torch.testing.assert_close(uwaga.linear(x, weight), functional.linear(x.resolve_neg(), weight))


def test_nan_and_infinity_reach_their_own_rows_only() -> None:
    x, weight = torch.randn(9, 6), torch.randn(5, 6)
    expected = uwaga.linear(x, weight)
    x[2, 3], x[7, 0] = float("nan"), float("inf")
    result = uwaga.linear(x, weight)
    touched = torch.tensor([2, 7])
    assert not result[touched].isfinite().any()
    rest = [0, 1, 3, 4, 5, 6, 8]
    assert torch.equal(result[rest], expected[rest])
