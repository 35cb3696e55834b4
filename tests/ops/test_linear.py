"""The linear map: values, forms of the input, bits of a row, changed weights, bad input."""

import copy
import io
import pickle
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import engines
import foreign
import numpy as np
import processors
import pytest
import torch
from forked import exit_code, fork
from torch import Tensor, nn
from torch.nn import functional

import uwaga
from uwaga import Ragged
from uwaga._base.processor import Processor
from uwaga.ops.activations import ACTIVATIONS
from uwaga.ops.linear import choose
from uwaga.ops.linear.api import explain
from uwaga.ops.linear.engines import onednn

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
    doubles = [None if each is None else each.double() for each in (x, weight, bias, residual)]

    def exact() -> Tensor:
        return separately(*doubles[:3], activation, doubles[3])

    result = uwaga.linear(x, weight, bias, activation=activation, residual=residual, impl=impl)
    assert_as_exact(result, separately(x, weight, bias, activation, residual), exact)


@cases
def test_operands_may_have_any_strides(impl: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    plain = [torch.randn(6, 12), torch.randn(10, 12), torch.randn(10), torch.randn(6, 10)]
    x, weight, bias, residual = (each.to(dtype) for each in plain)
    expected = uwaga.linear(x, weight, bias, residual=residual, impl=impl)
    turned = [each.t().contiguous().t() for each in (x, weight, residual)]
    spread = [each.repeat_interleave(2, -1)[..., ::2] for each in (x, weight, residual, bias)]
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


class Mapped(NamedTuple):
    """300 rows, their map, and the arguments of it."""

    x: Tensor
    residual: Tensor
    weight: Tensor
    bias: Tensor
    whole: Tensor
    impl: str | None

    @classmethod
    def of(cls, width: int, outputs: int, dtype: torch.dtype, impl: str | None) -> "Mapped":
        torch.manual_seed(0)
        x, weight, bias = (torch.randn(shape).to(dtype) for shape in ((300, width), (outputs, width), (outputs,)))
        residual = torch.randn(300, outputs).to(dtype)
        whole = uwaga.linear(x, weight, bias, activation="gelu", residual=residual, impl=impl)
        return cls(x, residual, weight, bias, whole, impl)

    def parts_with_other_bits(self, counts: Iterable[int]) -> list[tuple[slice, Tensor]]:
        """Of the first and last rows, of these numbers, those that have other bits than among all, with what they have."""
        results = []
        for rows in counts:
            for part in (slice(0, rows), slice(300 - rows, 300)):
                alone = uwaga.linear(
                    self.x[part],
                    self.weight,
                    self.bias,
                    activation="gelu",
                    residual=self.residual[part],
                    impl=self.impl,
                )
                if not torch.equal(alone, self.whole[part]):
                    results.append((part, alone))
        return results

    def exact(self, part: slice) -> Tensor:
        doubles = (each.double() for each in (self.x[part], self.weight, self.bias))
        return separately(*doubles, "gelu", self.residual[part].double())


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
    mapped = Mapped.of(width, outputs, dtype, impl)
    others = mapped.parts_with_other_bits(COUNTS if width < 100 else FEW_COUNTS)
    if impl == "cpu" or choose.has_batch_invariant_rows(impl, dtype):
        assert [part for part, _ in others] == []
    for part, value in others:
        assert_as_exact(value, mapped.whole[part], partial(mapped.exact, part))


def test_the_native_kernels_promise_it_on_every_processor_and_others_where_it_was_shown(
    on: Callable[[Processor], None],
) -> None:
    promised = {}
    for here in (processors.MILAN, processors.SAPPHIRE_RAPIDS, processors.M2):
        on(here)
        promised[here.vendor] = {
            name: [choose.has_batch_invariant_rows(name, dtype) for dtype in engines.DTYPES] for name in choose.NAMES
        }
    native, shown, nothing = [True] * 3, [True, True, False], [False] * 3
    assert promised == {
        "AMD": {"cpu": native, "onednn": shown, "torch": shown},
        "Intel": {"cpu": native, "onednn": nothing, "torch": nothing},
        "Apple": {"cpu": native, "onednn": nothing, "torch": nothing},
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_check_finds_an_engine_whose_rows_depend_on_their_number(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(choose.NATIVE, "cpu", foreign.Drifting())
    assert Mapped.of(24, 40, dtype, "cpu").parts_with_other_bits(FEW_COUNTS)


@pytest.mark.parametrize("computes", [True, False])
def test_onednn_refuses_bfloat16_where_the_processor_has_no_instruction_that_it_needs(
    computes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onednn, "reason_unavailable", lambda: None)
    monkeypatch.setattr(onednn, "computes_bfloat16", lambda: computes)
    x = torch.ones(3, 6)
    assert "onednn" not in explain(x, x).refused
    refused = explain(x.bfloat16(), x.bfloat16()).refused.get("onednn")
    assert refused == (
        None if computes else "oneDNN computes bfloat16 on processors with AVX-512 or AVX-NE-CONVERT only"
    )


# No engine keeps a copy of a weight: whatever changes it, the next call computes with the new one.


def _written(linear: nn.Linear, weight: Tensor) -> nn.Linear:
    linear.weight.copy_(weight)
    return linear


def _saved(linear: nn.Linear, weight: Tensor) -> None:
    file = io.BytesIO()
    torch.save({"weight": weight, "bias": linear.bias.detach()}, file)
    file.seek(0)
    linear.load_state_dict(torch.load(file, weights_only=True), assign=True)


# Without gradients; a change gives the linear map that has the weight now, if it is another one.
CHANGES: dict[str, Callable[[nn.Linear, Tensor], object]] = {
    "load_state_dict": lambda linear, weight: linear.load_state_dict({"weight": weight, "bias": linear.bias}),
    "in place": _written,
    "data": lambda linear, weight: setattr(linear.weight, "data", weight.clone()),
    "NumPy": lambda linear, weight: np.copyto(linear.weight.numpy(), weight.numpy()),  # no version counter sees this
    "set_": lambda linear, weight: linear.weight.set_(weight.clone()),
    "pickle": lambda linear, weight: _written(pickle.loads(pickle.dumps(linear)), weight),
    "deepcopy": lambda linear, weight: _written(copy.deepcopy(linear), weight),
    "torch.save": _saved,
}


@by_engines
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_weight_is_computed_with(impl: str, change: str) -> None:
    linear, x, weight = nn.Linear(6, 5), torch.randn(8, 6), torch.randn(5, 6)
    before = uwaga.linear(x, linear.weight, linear.bias, impl=impl)
    with torch.no_grad():
        result = CHANGES[change](linear, weight)
    changed = result if isinstance(result, nn.Linear) else linear
    after = uwaga.linear(x, changed.weight, changed.bias, impl=impl)
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, functional.linear(x, weight, linear.bias.float()))


@pytest.mark.slow
@by_engines
def test_a_forked_process_computes_with_its_own_weight(impl: str) -> None:
    x, weight = torch.randn(8, 6), torch.randn(5, 6)
    before = uwaga.linear(x, weight, impl=impl)
    child = fork(lambda: int(not torch.allclose(uwaga.linear(x, weight.mul_(2), impl=impl), 2 * before)))
    assert exit_code(child) == 0
    assert torch.equal(uwaga.linear(x, weight, impl=impl), before)


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
