"""The linear map under torch.compile, export, tracers, dispatch modes and torch.func."""

from collections.abc import Callable
from itertools import product
from typing import Any

import engines
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import uwaga
from uwaga.ops.linear.api import explain

native = pytest.mark.parametrize("impl", engines.NATIVE_LINEAR)
slow = pytest.mark.slow


class Map(nn.Module):
    """A linear map with an activation and a residual."""

    def __init__(self, impl: str | None = None) -> None:
        super().__init__()
        self.inner, self.impl = nn.Linear(6, 6), impl

    def forward(self, x: Tensor) -> Tensor:
        result = uwaga.linear(x, self.inner.weight, self.inner.bias, activation="gelu", residual=x, impl=self.impl)
        assert isinstance(result, Tensor)
        return result


@engines.needs_native
def test_the_registered_operator_passes_opcheck() -> None:
    x, weight, bias, residual = torch.randn(4, 6), torch.randn(5, 6), torch.randn(5), torch.randn(4, 5)
    torch.library.opcheck(torch.ops.uwaga.linear.default, (x, weight, bias, residual, "gelu"))
    for operand in (x, weight, bias, residual):
        operand.requires_grad_()
    torch.library.opcheck(torch.ops.uwaga.linear.default, (x, weight, bias, residual, ""))
    torch.library.opcheck(torch.ops.uwaga.linear.default, (x.detach()[None].requires_grad_(), weight, None, None, ""))


@slow
@pytest.mark.gate(only=lambda backend: backend == "aot_eager")
@pytest.mark.parametrize(
    ("impl", "backend"),
    list(product(engines.NATIVE_LINEAR, ("aot_eager", "inductor"))),
)
def test_a_map_compiles_into_one_graph(impl: str, backend: str) -> None:
    torch.compiler.reset()  # its limit counts the compilations of other cases, too
    module, x = Map(impl), torch.randn(4, 6, requires_grad=True)
    compiled = torch.compile(module, fullgraph=True, backend=backend)
    for rows in (x, torch.randn(3, 7, 6)):
        expected, result = module(rows), compiled(rows)
        torch.testing.assert_close(result, expected)
        inputs = [rows, *module.parameters()] if rows.requires_grad else list(module.parameters())
        ours, theirs = (torch.autograd.grad(output.square().sum(), inputs) for output in (result, expected))
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), module(x))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled(x), module(x), rtol=2**-6, atol=2**-6)


@slow
def test_an_exported_program_holds_operators_of_pytorch() -> None:
    module, x = Map().eval(), torch.randn(4, 6)
    program = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim("rows", min=2)},))
    assert not [node for node in program.graph.nodes if "uwaga" in str(node.target)]
    rows = torch.randn(9, 6)
    torch.testing.assert_close(program.module()(rows), module(rows))


def test_torch_jit_trace_records_the_map() -> None:
    module, x = Map().eval(), torch.randn(4, 6)
    with torch.no_grad():
        traced: Any = torch.jit.trace(module, (x,), check_trace=False)
        rows = torch.randn(9, 6)
        torch.testing.assert_close(traced(rows), module(rows))


def test_a_dispatch_mode_sees_the_operators_of_pytorch() -> None:
    x, weight = torch.randn(4, 6), torch.randn(5, 6)
    with FlopCounterMode(display=False) as counter:
        uwaga.linear(x, weight)
        refused = explain(x, weight).refused
    assert counter.get_total_flops() == 2 * 4 * 6 * 5
    assert "cpu" in refused


def mapped(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    result = uwaga.linear(x, weight, bias, activation="gelu")
    assert isinstance(result, Tensor)
    return result


def plainly(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.gelu(functional.linear(x, weight, bias))


OPERANDS = (torch.randn(3, 4, 6), torch.randn(5, 6), torch.randn(5))


def _loss(f: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda weight: f(OPERANDS[0], weight, OPERANDS[2]).square().sum()


def _dual(f: Callable[..., Tensor]) -> Tensor:
    x, weight, bias = OPERANDS
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        return torch.autograd.forward_ad.unpack_dual(f(dual, weight, bias)).tangent


MAPPED = torch.randn(4, 6, 7), torch.randn(5, 7, 6)
TANGENTS = tuple(map(torch.randn_like, OPERANDS))
TRANSFORMS: dict[str, Callable[[Callable[..., Tensor]], object]] = {
    "jvp": lambda f: torch.func.jvp(f, OPERANDS, TANGENTS),
    "forward mode": _dual,
    **{transform.__name__: lambda f, transform=transform: transform(_loss(f))(OPERANDS[1]) for transform in (torch.func.grad, torch.func.hessian, torch.func.jacrev)},
    "vmap": lambda f: torch.func.vmap(f, (2, 1, None))(*MAPPED, OPERANDS[2]),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_torch_func(name: str) -> None:
    torch.testing.assert_close(TRANSFORMS[name](mapped), TRANSFORMS[name](plainly), rtol=1e-4, atol=1e-4)
