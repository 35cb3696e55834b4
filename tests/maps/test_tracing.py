"""Maps under tracers, torch.func, tensor subclasses, other default devices and autocast: what they are without, or an error.

Letters: B batch, H query heads, G key heads, Q queries, K keys, D query/key width.
"""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from engines import NATIVE, needs_native
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor

from uwaga import AlibiBias, AttentionMap, Causal, KeyLengths, Ragged, attend, attention
from uwaga.inspect import head_table, induction, previous_token, rollout, value_norms
from uwaga.maps import SubsetMap, WordMap

READINGS: dict[str, Callable[[AttentionMap], object]] = {
    "an index": lambda m: m[0, 1, [4, 0, 0], ::-2],
    "row": lambda m: m.row(-1),
    "column": lambda m: m.column(1),
    "to_dense": lambda m: m.to_dense(),
    "scores": lambda m: m.scores[0, 1, 2:],
    "select": lambda m: m.select(1, 0).to_dense(),
    "diagonal": lambda m: m.diagonal(-1),
    "diagonal of every map": lambda m: SubsetMap(m, [0, 2, 3]).diagonal(-1, start=torch.tensor([0, 1], device="cpu")),
    "lse": lambda m: m.lse,
    "entropy": lambda m: m.entropy(),
    "normalized entropy": lambda m: m.entropy(normalize=True),
    "topk": lambda m: m.topk(3),
    "peak": lambda m: m.peak(),
    "distance": lambda m: m.distance(),
    "effective_count": lambda m: m.effective_count(),
    "sink": lambda m: m.sink(),
    "mass": lambda m: m.mass(Causal(start=1)),
    "received": lambda m: m.received(),
    "received, last": lambda m: m.received(last=2),
    "pool": lambda m: m.pool(2, 3),
    "pool, max": lambda m: m.pool(2, 3, pooling="max"),
    "pool, edges": lambda m: m.pool([0, 1, 4], 3, pooling="max"),
    "words": lambda m: WordMap(m, [0, 0, 1, 2, 3]).to_dense(),
    "rollout": lambda m: rollout([m, m]),
    "previous token": previous_token,
    "induction": lambda m: induction(m, torch.tensor([1, 2, 1, 2, 1], device="cpu")),
    "head_table": lambda m: head_table(m).matrix("entropy"),
}
# What a tracer cannot follow: here Python decides by numbers that it is given in tensors. PyTorch says so.
DECIDED = ("diagonal of every map", "pool, edges", "rollout")
TRACED = [name for name in READINGS if name not in (*DECIDED, "head_table")]  # which is of Python's own numbers


def _x(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator("cpu").manual_seed(sum(shape)), device="cpu")


QUERY, OTHER = _x(2, 4, 5, 8), _x(2, 4, 5, 8).flip(-1)
KEY = _x(2, 2, 5, 8)
SINKS, PROJECTION = _x(4), _x(32, 16)


def _map(query: Tensor, impl: str | None = None) -> AttentionMap:
    return AttentionMap(query, KEY, mask=Causal(), bias=AlibiBias(SINKS.abs()), sinks=SINKS, impl=impl)


def _tensors(result: object) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return [y for x in result for y in _tensors(x)] if isinstance(result, tuple) else []


def _assert_same(result: object, expected: object) -> None:
    pairs = list(zip(_tensors(result), _tensors(expected), strict=True))
    assert pairs
    for x, y in pairs:
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6, equal_nan=True)


def _attended(query: Tensor) -> tuple[Tensor, ...]:
    output, lse, m = attend(query, KEY, KEY, mask=Causal(), entropy=True)
    return output, lse, m.entropy()


def _jit(f: Callable, *arguments: Tensor) -> Callable:
    return torch.jit.trace(f, arguments, check_trace=False)


TRACERS = {
    "torch.jit.trace": _jit,
    "make_fx": lambda f, *arguments: make_fx(f)(*arguments),
    "make_fx before autograd": lambda f, *arguments: make_fx(f, pre_dispatch=True)(*arguments),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.gate(
    only=lambda tracer, reading: (
        reading in ("topk", "attend")
        or (tracer == "torch.jit.trace" and reading in ("an index", "received", "pool, max", "sink", "words"))
    )
)
@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize("reading", [*TRACED, "attend"])
def test_what_a_tracer_writes_down_computes_the_map(tracer: str, reading: str) -> None:
    def f(query: Tensor) -> tuple[Tensor, ...]:
        return _attended(query) if reading == "attend" else tuple(_tensors(READINGS[reading](_map(query))))

    _assert_same(TRACERS[tracer](f, QUERY)(OTHER), f(OTHER))


@pytest.mark.parametrize("reading", DECIDED)
def test_what_a_tracer_cannot_follow_is_an_error(reading: str) -> None:
    with pytest.raises(RuntimeError, match="value out of a tracing tensor"):
        make_fx(lambda x: tuple(_tensors(READINGS[reading](_map(x)))))(QUERY)


@pytest.mark.parametrize("read", [lambda m: m.entropy(), lambda m: m[0]], ids=["rows", "part"])
def test_the_lengths_of_a_ragged_map_are_not_written_down(read: Callable) -> None:
    def f(offsets: Tensor) -> object:
        batch = Ragged(KEY[0].transpose(0, 1), offsets, max_length=5)
        return read(AttentionMap(batch, batch)).values

    with pytest.raises(NotImplementedError, match="ragged"):
        make_fx(f)(torch.tensor([0, 2, 5]))


def test_a_recorded_map_hides_what_it_hides() -> None:
    """Which keys are finite is asked of the tensors of each call, and not of those that were traced."""

    def f(key: Tensor) -> Tensor:
        return AttentionMap(QUERY, key, mask=KeyLengths(torch.tensor([3, 5]))).entropy()

    key = KEY.clone()
    key[0, :, 4] = torch.nan
    key[1, :, 4, 0] = torch.inf
    _assert_same(make_fx(f)(KEY)(key), f(key))
    assert f(key)[0].isfinite().all()
    assert f(key)[1].isnan().any()


def test_a_recorded_gradient_meets_no_hidden_number() -> None:
    def f(key: Tensor) -> Tensor:
        m = AttentionMap(QUERY.double(), key, mask=KeyLengths(torch.tensor([3, 5])))
        return torch.autograd.grad(m.entropy().square().sum(), key)[0]

    key = KEY.double()
    key[0, :, 4] = torch.nan
    _assert_same(make_fx(f)(KEY.double().requires_grad_())(key.requires_grad_()), f(key))


@pytest.mark.slow
def test_attend_is_one_graph_of_torch_compile() -> None:
    torch.compiler.reset()
    compiled = torch.compile(lambda x: attend(x, KEY, KEY).output * 2, backend="aot_eager", fullgraph=True)
    _assert_same(compiled(QUERY), attention(QUERY, KEY, KEY) * 2)


@pytest.mark.stress
def test_torch_export_keeps_statistics_and_the_output_of_attend() -> None:
    class Module(torch.nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            m = AttentionMap(x, x, mask=Causal())
            return attend(x, x, x).output, m.entropy(), m.received(), m.pool(2, 2).weights

    program = torch.export.export(Module(), (QUERY,), strict=False)
    _assert_same(program.module()(OTHER), Module()(OTHER))


@pytest.mark.parametrize("reading", ["entropy", "lse", "received", "peak", "sink", "attend"])
def test_torch_func_maps_over_maps(reading: str) -> None:
    def f(query: Tensor, key: Tensor) -> tuple[Tensor, ...]:
        if reading == "attend":
            return attend(query, key, key, mask=Causal())[:2]
        return tuple(_tensors(READINGS[reading](AttentionMap(query, key, mask=Causal()))))

    _assert_same(torch.func.vmap(f)(QUERY, KEY), f(QUERY, KEY))


def test_fake_and_meta_tensors_give_shapes() -> None:
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(QUERY), mode.from_tensor(KEY)
        with pytest.raises(RuntimeError):
            AttentionMap(*fake)[0, 0, 3]
    for query, key in (fake, (QUERY.to("meta"), KEY.to("meta"))):
        with mode if query is fake[0] else nullcontext():
            m = AttentionMap(query, key, mask=Causal())
            assert m.entropy().shape == m.peak().position.shape == (2, 4, 5)
            assert m.received().device == query.device
            output, lse, m = attend(query, key, key, entropy=True)
            assert output.shape == (2, 4, 5, 8)
            assert lse.shape == m.entropy().shape == (2, 4, 5)


def test_tensor_subclasses_go_by_their_own_operators() -> None:
    query, key = TwoTensor(QUERY, OTHER), TwoTensor(KEY, KEY)
    result = AttentionMap(query, key).entropy()
    _assert_same((result.a, result.b), (AttentionMap(QUERY, KEY).entropy(), AttentionMap(OTHER, KEY).entropy()))
    output = attend(query, key, key).output
    _assert_same((output.a, output.b), (attention(QUERY, KEY, KEY), attention(OTHER, KEY, KEY)))


@pytest.mark.parametrize(
    ("name", "x"), [("query", QUERY), ("mask", torch.ones(5, 5) > 0), ("bias", torch.zeros(5, 5)), ("sinks", SINKS)]
)
@needs_native
def test_the_native_engine_by_name_reads_memory(name: str, x: Tensor) -> None:
    with pytest.raises(ValueError, match="cannot serve this map"):
        AttentionMap(**{"query": QUERY, "key": KEY} | {name: TwoTensor(x, x)}, impl="cpu")


def _ragged() -> tuple[Tensor, ...]:
    batch = Ragged(_x(7, 2, 8), torch.tensor([0, 3, 3, 7], device="cpu"))
    m = AttentionMap(batch, batch, mask=Causal())
    weighed = m.received(weights=m.entropy())
    values = [x.values for x in (m.diagonal(), m.entropy(), m.received(last=2), weighed, m.sink().first_key)]
    return (*values, m[2].to_dense(), m.pool(2, 2).weights, attend(batch, batch, batch).output.values)


SURROUNDED: dict[str, Callable[[str], object]] = {
    **{name: lambda impl, read=read: read(_map(QUERY, impl)) for name, read in READINGS.items()},
    "attend": lambda impl: attend(QUERY, KEY, KEY, impl=impl).output,
    "ragged maps": lambda impl: _ragged(),
    "norms": lambda impl: value_norms(KEY, PROJECTION),
}


@pytest.mark.parametrize(
    "surroundings",
    [lambda: torch.device("meta"), lambda: torch.autocast("cpu", torch.bfloat16)],
    ids=["another default device", "autocast"],
)
@pytest.mark.parametrize("impl", ["reference", NATIVE])
def test_surroundings_change_nothing(impl: str, surroundings: Callable) -> None:
    for reading, read in SURROUNDED.items():
        expected = _tensors(read(impl))
        with surroundings():
            result = _tensors(read(impl))
        for x, y in zip(result, expected, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True, msg=reading)
