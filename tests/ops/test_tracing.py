"""Attention under tracers, transforms and dispatch modes: opcheck, torch.compile, make_fx, torch.func, other modes.

Letters: B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width.
"""

import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch
from engines import NATIVE, needs_native
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

from uwaga import AlibiBias, Causal, Documents, KeyLengths, Ragged, RelativeBias, Window, attention, linear
from uwaga.nn import MultiHeadAttention
from uwaga.ops import attention_and_lse
from uwaga.ops.attention import operators
from uwaga.ops.attention.arguments import AttentionOptions, make_call

OPAQUE = ["reference", NATIVE]


def _x(*shape: int, seed: int = 0, grad: bool = False) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_(grad)


def _call(query, key, value, **options):
    return make_call(query, key, value, AttentionOptions(**options), wants_lse=True)


def _ragged(grad: bool = False) -> Ragged:
    return Ragged(_x(9, 2, 4, grad=grad), torch.tensor([0, 3, 3, 9]))


CALLS = {
    "plain": lambda: _call(_x(2, 4, 5, 8, grad=True), _x(2, 2, 7, 8, grad=True), _x(2, 2, 7, 6, grad=True)),
    "heads inside tokens": lambda: _call(*[_x(2, 5, 4, 8, grad=True).transpose(1, 2)] * 3, mask=Causal()),
    "everything": lambda: _call(
        _x(2, 4, 5, 8, grad=True),
        _x(2, 2, 7, 8, grad=True),
        _x(2, 2, 7, 6),
        mask=Causal() & KeyLengths(torch.tensor([7, 3])) | (_x(5, 7) > 0),
        bias=AlibiBias(_x(4, grad=True)),
        sinks=_x(4, grad=True),
        softcap=3.0,
        dropout=0.2,
    ),
    "dense bias": lambda: _call(_x(2, 4, 5, 8), _x(2, 2, 7, 8), _x(2, 2, 7, 6), bias=_x(4, 1, 7, grad=True)),
    "no softmax": lambda: _call(*[_x(2, 4, 5, 8, grad=True)] * 3, normalize=None, softcap=1.0),
    "ragged": lambda: _call(*[_ragged(grad=True)] * 3, mask=Documents(torch.arange(9) // 2) & Window(3, 3)),
}


@pytest.mark.slow
@pytest.mark.parametrize("impl", [pytest.param("reference", marks=pytest.mark.stress), NATIVE])
@pytest.mark.gate(only=lambda name: name in ("plain", "ragged"))
@pytest.mark.parametrize("name", CALLS)
def test_the_operators_pass_opcheck(impl: str, name: str) -> None:
    call = CALLS[name]()
    leaves = [x if x is None else x.detach().requires_grad_(x.requires_grad) for x in call.tensors]
    arguments = operators.flatten(leaves, call.options, impl)
    torch.library.opcheck(torch.ops.uwaga.forward, arguments)


PROGRAMS = {
    "plain": lambda q, k, v, impl: attention(q, k, v, impl=impl),
    "masks made inside": lambda q, k, v, impl: attention(
        q, k, v, mask=Causal() & KeyLengths(torch.tensor([7, 3])), impl=impl
    ),
    "biases and sinks": lambda q, k, v, impl: attention(
        q, k, v, bias=RelativeBias(q[0, :, :, 0].T.repeat(2, 1), max_distance=32), sinks=q[0, :, 0, 0], impl=impl
    ),
    "lse": lambda q, k, v, impl: attention_and_lse(q, k, v, mask=Window(2, 2), impl=impl).lse,
    "no softmax": lambda q, k, v, impl: attention(q, k, v, normalize=None, mask=Causal(), impl=impl),
    "merging heads": lambda q, k, v, impl: attention(q, k, v, impl=impl).transpose(1, 2).flatten(2).sin(),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "impl", [None, "torch", "reference", pytest.param("cpu", marks=(needs_native, pytest.mark.stress))]
)
@pytest.mark.gate(only=lambda name: name == "plain")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_compiled_program_is_the_program(impl: str | None, name: str) -> None:
    if impl == "torch" and name in ("biases and sinks", "lse", "no softmax"):
        return  # which it refuses
    torch.compiler.reset()
    compiled = torch.compile(PROGRAMS[name], fullgraph=True, backend="aot_eager")
    operands = [_x(2, 4, 5, 8, grad=True), _x(2, 2, 7, 8, seed=1, grad=True), _x(2, 2, 7, 6, seed=2, grad=True)]
    results = []
    for run in (PROGRAMS[name], compiled):
        out = run(*operands, impl)
        gradients = torch.autograd.grad(out.square().sum(), operands, allow_unused=True, materialize_grads=True)
        results.append((out, *gradients))
    for x, y in zip(*results, strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.stress
@pytest.mark.parametrize("impl", [None, *OPAQUE])
def test_ragged_compiles_given_from_outside(impl: str | None) -> None:
    torch.compiler.reset()
    batch = _ragged(grad=True)

    def call(x: Ragged) -> Ragged:
        return attention(x, x, x, mask=Causal(), impl=impl)

    result = torch.compile(call, fullgraph=True, backend="aot_eager")(batch)
    torch.testing.assert_close(result.values, call(batch).values)


@pytest.mark.slow
@pytest.mark.gate(only=lambda impl: impl == "cpu")
@pytest.mark.parametrize("impl", OPAQUE)
def test_other_lengths_need_no_new_graph(impl: str) -> None:
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda q, k: attention(q, k, k, mask=Causal(), impl=impl), backend=counter, fullgraph=True)
    for queries, keys in ((5, 7), (6, 9), (8, 11), (12, 13)):
        q, k = _x(2, 4, queries, 8), _x(2, 2, keys, 8)
        torch.testing.assert_close(compiled(q, k), attention(q, k, k, mask=Causal(), impl=impl))
    assert counter.frame_count <= 2


# Of a decoding step whose query stands at a position that is a tensor.
STEPS = {
    "causal": lambda q, k, at: attention(q, k, k, mask=Causal(start=at)),
    "window": lambda q, k, at: attention(q, k, k, mask=Window(4, 0, start=at)),
    "causal and lengths": lambda q, k, at: attention(q, k, k, mask=Causal(start=at) & KeyLengths(at + 1)),
    "distances": lambda q, k, at: attention(
        q, k, k, mask=Causal(start=at), bias=AlibiBias(torch.tensor([0.5, 0.25, 0.1, 0.0]), start=at)
    ),
}


@pytest.mark.stress
@pytest.mark.parametrize("shape", [(), (1,), (2,)], ids=["scalar", "one", "per sequence"])
@pytest.mark.parametrize("name", STEPS)
def test_a_loop_over_a_static_cache_is_one_graph(name: str, shape: tuple[int, ...]) -> None:
    def step(q: torch.Tensor, new: torch.Tensor, cache: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(2, at.reshape(-1)[:1], new)
        return STEPS[name](q, cache, at)

    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(step, backend=counter, fullgraph=True, dynamic=False)
    eager_cache, cache = torch.zeros(2, 2, 2, 24, 8).unbind()
    for position in range(20):
        q, new = _x(2, 4, 1, 8, seed=position), _x(2, 2, 1, 8, seed=-position)
        at = torch.full(shape, position)
        assert torch.equal(compiled(q, new, cache, at), step(q, new, eager_cache, at))
    assert counter.frame_count == 1


@pytest.mark.slow
def test_starts_beyond_any_sequence_hide_or_show_all_in_a_compiled_program() -> None:
    torch.compiler.reset()
    x = _x(2, 4, 5, 8)
    compiled = torch.compile(lambda at: attention(x, x, x, mask=Causal(start=at)), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(torch.tensor(2**63 - 1)), attention(x, x, x))
    assert torch.equal(compiled(torch.tensor(-(2**63))), torch.zeros_like(x))


class _Exported(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, ...]:
        masked = attention(q, k, k, mask=KeyLengths(torch.tensor([3, 2])), bias=AlibiBias(torch.ones(2)))
        return attention(q, k, k), attention(q, k, k, mask=Causal()), masked


@pytest.mark.stress
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")  # PyTorch's own
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch._inductor compiles with g++")
def test_a_package_compiled_ahead_of_time_runs(tmp_path: Path) -> None:
    from torch._inductor import aoti_compile_and_package, aoti_load_package  # takes seconds

    q, k = _x(2, 2, 5, 8), _x(2, 2, 7, 8, seed=1)
    lengths = {2: torch.export.Dim.DYNAMIC}
    with torch.no_grad():
        program = torch.export.export(_Exported(), (q, k), dynamic_shapes=(lengths, lengths))
        path = aoti_compile_and_package(program, package_path=str(tmp_path / "attention.pt2"))
        loaded = aoti_load_package(path)
        for queries, keys in ((5, 7), (3, 9)):
            q, k = _x(2, 2, queries, 8), _x(2, 2, keys, 8, seed=1)
            for value, expected in zip(loaded(q, k), _Exported()(q, k), strict=True):
                assert torch.equal(value, expected)


def _bias_loss(bias: torch.Tensor, x: torch.Tensor, impl: str) -> torch.Tensor:
    return attention(x, x, x, bias=bias, impl=impl).square().sum()


def _loss_of_lengths(x: torch.Tensor, lengths: torch.Tensor, impl: str) -> torch.Tensor:
    return attention(x, x, x, mask=KeyLengths(lengths), impl=impl).square().sum()


DENSE, IN_DIMS = (2, 4, 5, 8), [(0, 0), (0, None), (None, 0), (1, 0)]
LENGTHS = KeyLengths(torch.tensor([4, 5]))
# What is mapped over, the shapes of its two operands without the mapped dimension, and where that one is.
MAPPED = {
    "queries and keys": (
        lambda q, k, impl: attention(q, k, k, mask=Causal() & LENGTHS, impl=impl), DENSE, DENSE, [(0, 0), (0, None), (None, 1), (2, 0)],
    ),
    "plain matrices": (lambda q, k, impl: attention(q, k, k, impl=impl), (5, 4), (5, 4), [(0, 0)]),
    # Operands of two sequences a map, which see one mask or bias: of the map or of all maps.
    "dense mask": (lambda x, y, impl: attention(x, x, x, mask=y > 0, impl=impl), DENSE, (5, 5), IN_DIMS),
    "dense mask of heads": (lambda x, y, impl: attention(x, x, x, mask=y > 0, impl=impl), DENSE, (4, 5, 5), IN_DIMS),
    "bias": (lambda x, y, impl: attention(x, x, x, bias=y, impl=impl), DENSE, (5, 5), IN_DIMS),
    "bias of sequences": (lambda x, y, impl: attention(x, x, x, bias=y, impl=impl), DENSE, (2, 1, 5, 5), IN_DIMS),
    "documents": (lambda x, y, impl: attention(x, x, x, mask=Documents((y > 0).long()), impl=impl), DENSE, (5,), IN_DIMS),
    "one length": (lambda x, y, impl: attention(x, x, x, mask=KeyLengths((y > 0).sum()), impl=impl), DENSE, (5,), IN_DIMS),
    "gradients under lengths": (
        lambda x, y, impl: torch.func.grad(_loss_of_lengths)(x, (y > 0).sum(-1), impl), DENSE, (2, 5), [(0, 0)],
    ),
    "gradients of a bias": (lambda x, y, impl: torch.func.grad(_bias_loss)(y, x, impl), DENSE, (5, 5), [(0, 0), (0, None)]),
}  # fmt: skip


@pytest.mark.parametrize("impl", OPAQUE)
@pytest.mark.parametrize(("name", "in_dims"), [(name, dims) for name, case in MAPPED.items() for dims in case[-1]])
def test_vmap_is_a_loop(impl: str, name: str, in_dims: tuple[int | None, int | None]) -> None:
    f, *shapes, _ = MAPPED[name]
    operands = [
        _x(*(shape if dim is None else (*shape[:dim], 3, *shape[dim:])), seed=n)
        for n, (dim, shape) in enumerate(zip(in_dims, shapes, strict=True))
    ]
    parts = [
        f(*(x if dim is None else x.select(dim, n) for x, dim in zip(operands, in_dims, strict=True)), impl)
        for n in range(3)
    ]
    torch.testing.assert_close(torch.func.vmap(f, (*in_dims, None))(*operands, impl), torch.stack(parts))


def _with_distances(q: torch.Tensor, start: torch.Tensor | int | None) -> torch.Tensor:
    return attention(q, q, q, bias=AlibiBias(torch.tensor([0.5, 0.1]), start=start))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("call", "starts"),
    [
        (lambda q: attention(q, q, q, mask=Causal()), False),
        (lambda q: _with_distances(q, None), False),
        (lambda q: _with_distances(q, 3), False),
        (_with_distances, True),
    ],
    ids=["causal", "distances", "distances from a start", "distances from starts"],
)
def test_jit_trace_records_the_call_for_other_sizes(call: Callable[..., torch.Tensor], starts: bool) -> None:
    traced = torch.jit.trace(call, (_x(2, 2, 8, 16), *[torch.tensor([1, 3])] * starts))
    for tokens in (3, 8, 300):
        arguments = _x(2 if starts else 3, 2, tokens, 16, seed=tokens), *[torch.tensor([5, -tokens])] * starts
        torch.testing.assert_close(traced(*arguments), call(*arguments))


def test_forward_mode_is_not_lost_where_a_tracer_or_a_mode_looks_on() -> None:
    x, along = _x(2, 5, 8), _x(2, 5, 8, seed=1)
    with pytest.raises(NotImplementedError, match="no forward-mode derivatives"):
        torch.func.linearize(lambda x: attention(x, x, x), x)
    with forward_ad.dual_level(), FlopCounterMode(display=False):
        dual = forward_ad.make_dual(x, along)
        for options in ({}, {"normalize": None, "mask": Causal()}):
            with pytest.raises(NotImplementedError, match="no forward-mode derivatives"):
                attention(dual, x, x, **options)
        assert forward_ad.unpack_dual(attention(dual, x, x, impl="reference")).tangent is not None


def test_another_default_device_changes_nothing() -> None:
    x = _x(2, 5, 8)
    torch.manual_seed(0)
    expected = [attention(x, x, x, dropout=0.5, **options) for options in ({}, {"sinks": torch.zeros(2)})]
    torch.manual_seed(0)
    with torch.device("meta"):
        sinks = torch.zeros(2, device="cpu")
        results = [attention(x, x, x, dropout=0.5, **options) for options in ({}, {"sinks": sinks})]
    for a, b in zip(results, expected, strict=True):
        assert torch.equal(a, b)


TRANSFORMS = {
    "grad": lambda f: torch.func.grad(lambda x: f(x).square().sum()),
    "vjp": lambda f: lambda x: torch.func.vjp(f, x)[1](torch.ones_like(f(x)))[0],
    "jacrev": torch.func.jacrev,
    "vmap(grad)": lambda f: torch.func.vmap(torch.func.grad(lambda x: f(x).square().sum())),
}
TRANSFORMED = {
    "attention": lambda x, other: attention(x, x, x),
    "causal": lambda x, other: attention(x, x, x, mask=Causal()),
    "bias": lambda x, other: attention(x, x, x, bias=other),
    "sinks": lambda x, other: attention(x, x, x, sinks=other[0, :, 0, 0]),
    "no softmax": lambda x, other: attention(x, x, x, normalize=None),
    "linear": lambda x, other: linear(x, other[0, 0]),
}


@pytest.mark.slow
@pytest.mark.gate(
    only=lambda transform, name: (
        (transform, name)
        in {("grad", "attention"), ("grad", "layer"), ("jacrev", "linear"), ("vmap(grad)", "attention")}
    )
)
@pytest.mark.parametrize(
    ("transform", "name"),
    [
        *product(("grad",), [*TRANSFORMED, "layer"]),
        *product(("vjp", "jacrev", "vmap(grad)"), ("attention", "linear")),
    ],
)
def test_a_compiled_transform_of_torch_func_is_the_eager_one(transform: str, name: str) -> None:
    other, layer = _x(1, 2, 4, 4, seed=1), MultiHeadAttention(4, 2)
    shape = (2, 4, 4) if name == "layer" else (2, 2, 4, 4)
    x = _x(3, *shape) if transform.startswith("vmap") else _x(*shape)
    call = (lambda x: layer(x, mask=Causal())) if name == "layer" else (lambda x: TRANSFORMED[name](x, other))
    transformed = TRANSFORMS[transform](call)
    compiled = torch.compile(transformed, backend="aot_eager", fullgraph=name != "layer")
    torch.testing.assert_close(compiled(x), transformed(x))
    torch.compiler.reset()


@pytest.mark.slow
def test_second_derivatives_of_torch_func() -> None:
    """A function's forward turns gradients off: without them the outer transform recorded nothing, and the result was zero."""
    x, keys = (_x(1, 2, 5, 8, seed=seed).double() for seed in range(2))

    def second(of: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
        first = torch.func.grad(lambda a: of(a).sin().sum())
        return torch.func.grad(lambda a: (first(a) * keys).sum())

    expected = second(lambda a: (a @ keys.mT / 8**0.5).softmax(-1) @ keys)(x)
    computed = second(lambda a: attention(a, keys, keys))
    torch.compiler.reset()
    for run in (computed, torch.compile(computed, backend="aot_eager")):
        torch.testing.assert_close(run(x), expected)


AUTOCAST = {
    "plain": {},
    "causal": {"mask": Causal()},
    "no softmax": {"normalize": None},
    "by the reference": {"impl": "reference"},
    "by PyTorch": {"impl": "torch"},
}


@pytest.mark.parametrize("options", AUTOCAST.values(), ids=AUTOCAST)
def test_under_autocast_the_arithmetic_is_what_it_is_outside(options: dict) -> None:
    """Autocast says in which type models hand over their tensors."""
    leaves = [_x(2, 2, 7, 8, seed=n, grad=True) for n in range(3)]

    def results() -> list[torch.Tensor]:
        output = attention(*leaves, **options)
        if options.get("impl") == "torch":  # whose kernel has no second derivatives, nor the first ones in autocast
            return [output]
        first = torch.autograd.grad(output.square().sum(), leaves, create_graph=True)
        return [output, *first, *torch.autograd.grad(first[0].square().sum(), leaves)]

    expected = results()
    with torch.autocast("cpu", torch.bfloat16):
        for x, y in zip(results(), expected, strict=True):
            assert x.dtype == torch.float32
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)
