"""The kernels of the engine `triton` in Triton's interpreter: a few small calls that have every option, in all three dtypes.

With UWAGA_INTERPRET=1 (`make interpret`) the whole suite runs with this engine, in about an hour.

Letters: B sequences, H query heads, G key/value heads, Q queries, K keys, D query/key width, N packed tokens.
"""

import sys
from collections.abc import Callable
from contextlib import nullcontext

import map_oracle
import oracle
import pytest
import torch
from drawn import draw
from processors import pretend_cuda
from torch import Tensor

from uwaga import (
    AlibiBias,
    AttentionMap,
    Causal,
    Documents,
    KeyLengths,
    Ragged,
    RelativeBias,
    Window,
    attend,
    attention,
)
from uwaga.maps.engines import triton as engine
from uwaga.ops.mask_program import And, Band, Lengths, Or, SameDocument
from uwaga.ops.mask_program import Dense as DenseMask

pytest.importorskip("triton", reason="Triton is not installed")


def _bits(*sizes: int) -> Tensor:
    return torch.rand(sizes, generator=torch.Generator().manual_seed(3)) < 0.4


# Sizes (B, H, G, Q, K, D), dtype and options. Tiles are 64 x 64, or smaller where there are fewer queries.
CASES: dict[str, tuple[tuple[int, ...], torch.dtype, dict]] = {
    "two tiles of rows and of keys": (
        (1, 2, 1, 66, 70, 5),
        torch.float32,
        {"mask": Causal(), "sinks": draw(2), "softcap": 3.0, "bias": AlibiBias(torch.rand(2)), "scale": 0.7},
    ),
    "more queries than keys": ((1, 1, 1, 20, 9, 3), torch.float32, {"mask": Causal() & Window(4, None)}),
    "32 x 32 tiles": ((1, 1, 1, 33, 40, 33), torch.float32, {}),
    "starts per row, a row without keys": (
        (2, 1, 1, 6, 70, 4),
        torch.bfloat16,
        {"mask": Causal(start=torch.tensor([-4, 66])), "bias": RelativeBias(draw(8, 1), max_distance=16, start=1)},
    ),
    "lengths or bits": (
        (2, 2, 2, 9, 20, 8),
        torch.bfloat16,
        {"mask": KeyLengths(torch.tensor([0, 15])) | _bits(1, 2, 9, 20), "sinks": draw(2)},
    ),
    "documents and a bias that hides": (
        (1, 2, 2, 12, 30, 4),
        torch.float16,
        {
            "mask": Documents(torch.tensor([0] * 10 + [1] * 20)) & _bits(12, 30),
            "bias": draw(1, 2, 12, 30).half().masked_fill(_bits(12, 30), -torch.inf),
        },
    ),
}  # fmt: skip


def _operands(name: str) -> dict:
    (B, H, G, Q, K, D), dtype, options = CASES[name]
    return {"query": draw(B, H, Q, D).to(dtype), "key": draw(B, G, K, D, seed=1).to(dtype), **options}


def _tensors_to_float64(operands: dict) -> dict:
    exact = oracle.to_float64({name: operands[name] for name in ("query", "key")})
    bias = operands.get("bias")
    return {**operands, **exact, "bias": bias.double() if isinstance(bias, Tensor) else bias}


@pytest.mark.stress
@pytest.mark.parametrize("name", CASES)
def test_statistics_are_as_exact_as_twice_the_usual(name: str) -> None:
    operands = _operands(name)
    case = map_oracle.Case.of(operands, _tensors_to_float64(operands))
    m = AttentionMap(**operands, impl="triton")
    # As map_fuzz: of so few numbers the plain computation may be exact by chance.
    for statistic, how in map_oracle.STATISTICS.items():
        map_oracle.assert_as_exact(statistic, how.of_map(m), case, factor=20.0)


def _ragged(lengths: list[int], heads: int, seed: int) -> Ragged:
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return Ragged(draw(int(offsets[-1]), heads, 6, seed=seed), offsets)


def test_a_ragged_map_is_its_sequences() -> None:
    query, key = _ragged([3, 0, 18, 1], 2, 0), _ragged([5, 2, 33, 0], 1, 1)
    ids = torch.randint(0, 2, (40,), generator=torch.Generator().manual_seed(0))
    query_ids = torch.randint(0, 2, (22,), generator=torch.Generator().manual_seed(1))
    options = {
        "mask": Causal() & KeyLengths(torch.tensor([5, 1, 30, 0])) | Documents(ids, query_ids=query_ids),
        "bias": RelativeBias(draw(8, 2), max_distance=16),
        "sinks": draw(2),
    }
    maps = [AttentionMap(query, key, **options, impl=impl) for impl in ("triton", "reference")]
    for m in maps:
        m.prepare(entropy=True, effective_count=True, distance=True, topk=3)
    of: list[Callable[[AttentionMap], Ragged | Tensor]] = [
        lambda m: m.lse,
        lambda m: m.entropy(),
        lambda m: m.effective_count(),
        lambda m: m.distance(),
        lambda m: m.topk(3).weights,
        lambda m: m.topk(3).positions,
        lambda m: m.mass(Window(2, 2)),
        lambda m: m.received(),
        lambda m: m.received(last=2),
        lambda m: m.pool(2, 3).weights,
        lambda m: m.pool(2, 3, pooling="max").weights,
        lambda m: m.pool(2, 3, pooling="max").positions,
    ]
    for statistic in of:
        result, expected = (x.values if isinstance(x, Ragged) else x for x in map(statistic, maps))
        torch.testing.assert_close(result, expected)
    torch.testing.assert_close(*(m[2][1, 3:7, ::5] for m in maps))


def test_what_hidden_keys_hold_is_not_felt_and_a_visible_nan_is_nan() -> None:
    query, key = draw(1, 1, 40, 4), draw(1, 1, 40, 4, seed=1)
    spoilt = key.index_fill(2, torch.tensor(30), torch.nan)
    clean, dirty = (AttentionMap(query, x, mask=Causal(), impl="triton") for x in (key, spoilt))
    for m in (clean, dirty):
        m.prepare(entropy=True, effective_count=True, distance=True, topk=4)
    for of in (
        lambda m: m.lse,
        lambda m: m.entropy(),
        lambda m: m.effective_count(),
        lambda m: m.distance(),
        lambda m: m.peak().weight,
    ):
        assert torch.equal(of(dirty)[..., :30], of(clean)[..., :30])
        assert of(dirty)[..., 30:].isnan().all()
    weights = (torch.arange(40) < 30).float()
    assert torch.equal(dirty.received(weights=weights), clean.received(weights=weights))
    assert dirty.received()[..., :31].isnan().all()
    for pooling in ("sum", "max"):
        cells = dirty.pool([0, 30, 31, 40], [0, 20, 31], pooling=pooling).weights
        assert torch.equal(cells[:, :, 0], clean.pool([0, 30, 31, 40], [0, 20, 31], pooling=pooling).weights[:, :, 0])
        assert cells[:, :, 1:].isnan().all()


def test_equal_weights_are_in_the_order_of_their_keys() -> None:
    m = AttentionMap(torch.zeros(3, 2), draw(70, 2), impl="triton")
    assert m.topk(5).positions.tolist() == [[0, 1, 2, 3, 4]] * 3
    assert m.pool(1, [0, 2, 70], pooling="max").positions.tolist() == [[[0, 0], [0, 2]]]


def test_entries_have_their_bits_in_whatever_rectangle_and_gradients_of_their_definition() -> None:
    query, key = draw(1, 4, 20, 4), draw(1, 2, 30, 4, seed=1)
    read, dense = (AttentionMap(query, key, mask=Causal(), impl="triton") for _ in range(2))
    whole = dense.to_dense()
    # Triton's interpreter multiplies by NumPy, whose BLAS has other bits for other shapes on some processors.
    unit = 0.0 if query.is_cuda else 4 * torch.finfo(torch.float32).eps
    for where in ((0, 3, slice(5, 9), slice(2, 29, 3)), (0, 1, 7)):  # of rows whose normalizer is not known yet
        torch.testing.assert_close(read[where], whole[where], rtol=unit, atol=unit)
    grads = []
    for impl in ("triton", "reference"):
        q, k = query.clone().requires_grad_(), key.clone().requires_grad_()
        m = AttentionMap(q, k, mask=Causal(), impl=impl)
        total = m.lse.sum() + m.entropy().square().sum() + (m.received() ** 2).sum() + m[0, 1, 3:6, 2:5].sum()
        grads.append(torch.autograd.grad(total, (q, k)))
    torch.testing.assert_close(*grads)


def test_empty_calls() -> None:
    for B, Q, K in ((0, 3, 4), (2, 0, 4), (2, 3, 0)):
        maps = [AttentionMap(draw(B, 2, Q, 4), draw(B, 2, K, 4), impl=impl) for impl in ("triton", "reference")]
        for of in (lambda m: m.lse, lambda m: m.topk(2).positions, lambda m: m.received(), lambda m: m.to_dense()):
            assert torch.equal(*map(of, maps))
        assert torch.equal(*(m.pool(2, 2).weights for m in maps))


def test_attend_takes_the_output_from_the_engine_of_attention() -> None:
    q, k, v = draw(1, 2, 9, 4), draw(1, 2, 9, 4, seed=1), draw(1, 2, 9, 4, seed=2)
    output = attend(q, k, v, mask=Causal(), impl="triton", entropy=True)
    assert torch.equal(output.output, attention(q, k, v, mask=Causal()))
    torch.testing.assert_close(output.map.entropy(), AttentionMap(q, k, mask=Causal()).entropy())
    q.requires_grad_()
    output = attend(q, k, v, mask=Causal(), impl="triton")
    torch.testing.assert_close(output.lse, AttentionMap(q, k, mask=Causal()).lse)
    assert output.output.requires_grad


def test_the_codes_of_masks_are_those_of_the_programs() -> None:
    kernels = engine.load_kernels()
    names = {"BAND": Band, "LENGTHS": Lengths, "DOCUMENTS": SameDocument, "DENSE": DenseMask, "AND": And, "OR": Or}
    assert {name: getattr(kernels, name).value for name in names} == {name: x.code for name, x in names.items()}


# The choice.


def forget() -> None:
    engine.reason_unavailable.cache_clear()
    engine.load_kernels.cache_clear()


@pytest.fixture
def _fresh():
    forget()
    yield
    forget()


def _refusal(dtype: torch.dtype, device: str) -> str | None:
    return engine.reason_unavailable(torch.device(device), dtype)


def test_triton_serves_maps_on_a_gpu_and_the_cpu_only_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    m = AttentionMap(torch.eye(3), torch.eye(3))
    assert m.explain().engine in ("cpu", "reference")
    assert "triton" not in m.explain().refused  # in the interpreter it could
    elsewhere = torch.empty(3, 2, device="meta")
    choice = AttentionMap(elsewhere, elsewhere).explain()
    assert choice.engine == "reference"
    assert choice.refused["triton"] == "it reads memory, and not every tensor is a plain one with memory"
    monkeypatch.setattr(engine, "refusal", lambda call: None)
    assert AttentionMap(torch.eye(3), torch.eye(3)).explain().engine in ("cpu", "reference")
    assert AttentionMap(elsewhere, elsewhere).explain().engine == "triton"


def test_what_it_does_not_compute_is_said() -> None:
    for tensors, why in (
        (torch.ones(2, 4, dtype=torch.float64), "it computes float32, bfloat16 and float16, not float64"),
        (torch.ones(2, 257), "it needs at least one head, and head widths from 1 to 256"),
    ):
        with pytest.raises(ValueError) as error:
            AttentionMap(tensors, tensors, impl="triton")
        assert str(error.value) == f"AttentionMap: engine 'triton' cannot serve this map: {why}"


class _Kernels:
    """Of triton_kernels.py what the choice looks at, compiled for a GPU."""

    IS_INTERPRETED = False

    class TritonError(Exception):
        pass

    class probe:
        def __class_getitem__(cls, _: object) -> None:
            raise _Kernels.TritonError("PTX was compiled with an unsupported toolchain\nmore")


@pytest.mark.usefixtures("_fresh")
def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _refusal(torch.float32, "cuda") == "Triton's interpreter reads CPU tensors, and these are on cuda"
    forget()
    monkeypatch.setitem(sys.modules, "uwaga.maps.engines.triton_kernels", _Kernels)
    assert _refusal(torch.float32, "cpu") == (
        "its kernels run on CUDA GPUs (with TRITON_INTERPRET=1, which is slow, also on the CPU), and the tensors are on cpu"
    )
    tesla = {"get_device_capability": lambda _: (7, 5), "get_device_name": lambda _: "Tesla T4"}
    pretend_cuda(monkeypatch, **tesla, device=nullcontext)
    assert _refusal(torch.bfloat16, "cuda") == (
        "Tesla T4 computes no bfloat16: its compute capability is 7.5, and 8.0 is needed"
    )
    assert _refusal(torch.float16, "cuda") == (
        "Triton cannot run a kernel on cuda: PTX was compiled with an unsupported toolchain"
    )
    forget()
    monkeypatch.setitem(sys.modules, "uwaga.maps.engines.triton_kernels", None)
    said = _refusal(torch.float16, "cuda")
    assert said.startswith("Triton cannot be imported (")
    assert said.endswith("): pip install triton")
