"""The norm of a residual sum: exact beside PyTorch's composition, the same bits for a row in any batch, and its gradients."""

import pytest
import torch
from drawn import draw
from engines import needs_native
from torch import Tensor
from torch.nn import functional

from uwaga.ops.norms import Lookup, embedding_norm, residual_norm

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
KINDS = ["layer", "rms"]
EPS = 1e-5


def _operands(count: int, width: int, kind: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """x, added, weight and, of a layer norm, bias."""
    shapes = [(count, width), (count, width), (width,), (width,)][: 4 if kind == "layer" else 3]
    return [draw(*shape, seed=n).to(dtype) for n, shape in enumerate(shapes)]


def _run(
    kind: str, x: Tensor, added: Tensor, weight: Tensor, bias: Tensor | None = None, **options
) -> tuple[Tensor, Tensor]:
    result = residual_norm(x, added, kind=kind, weight=weight, bias=bias, eps=EPS, wants_sum=True, **options)
    assert result.sum is not None
    return result.output, result.sum


def _torch(kind: str, x: Tensor, added: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    total = x + added
    if kind == "rms":
        return functional.rms_norm(total, total.shape[-1:], weight, EPS), total
    return functional.layer_norm(total, total.shape[-1:], weight, bias, EPS), total


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [(70, 33), (5, 1000)], ids=str)
def test_values_and_gradients_are_as_exact_as_pytorchs(size: tuple[int, int], dtype: torch.dtype, kind: str) -> None:
    operands, grads = _operands(*size, kind, dtype), [draw(*size, seed=n).to(dtype) for n in (7, 8)]

    def all_of(run, dtype: torch.dtype) -> list[Tensor]:
        leaves = [x.to(dtype).requires_grad_() for x in operands]
        outputs = run(kind, *leaves)
        result = torch.autograd.grad(outputs, leaves, [x.to(dtype) for x in grads])
        return [x.detach().double() for x in (*outputs, *result)]

    exact = all_of(_torch, torch.float64)
    for value, torchs, expected in zip(all_of(_run, dtype), all_of(_torch, dtype), exact, strict=True):
        # A rounding of the largest number: a few numbers may all be exact in PyTorch's order of summation, by chance.
        rounding = torch.finfo(dtype).eps / 2 * expected.abs().max()
        assert (value - expected).abs().max() <= 2 * (torchs - expected).abs().max() + 2 * rounding


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_in_any_batch(dtype: torch.dtype, kind: str) -> None:
    x, added, *weights = _operands(300, 96, kind, dtype)
    output, total = _run(kind, x, added, *weights)
    leaves = [t.clone().requires_grad_() for t in (x, added, *weights)]
    recorded = _run(kind, *leaves)
    assert torch.equal(recorded[0], output)
    assert torch.equal(recorded[1], total)
    grad = draw(300, 96, seed=9).to(dtype)
    first = torch.autograd.grad(recorded[0], leaves, grad)
    for rows in (slice(0, 1), slice(17, 19), slice(255, 300)):
        alone = _run(kind, x[rows], added[rows], *weights)
        assert torch.equal(alone[0], output[rows])
        assert torch.equal(alone[1], total[rows])
    spread = torch.zeros(300, 200, dtype=dtype)
    spread[:, 4:100] = x
    assert torch.equal(_run(kind, spread[:, 4:100], added, *weights)[0], output)
    torch.set_num_threads(3)
    assert torch.equal(_run(kind, x, added, *weights)[0], output)
    again = torch.autograd.grad(_run(kind, *leaves)[0], leaves, grad)
    assert all(map(torch.equal, first, again))


@needs_native
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_gradients(kind: str) -> None:
    """The second derivatives of the native form are those of PyTorch's composition, and in float64 the first those of differences."""
    operands = _operands(4, 6, kind)

    def second(run, dtype: torch.dtype) -> list[Tensor]:
        leaves = [x.to(dtype).requires_grad_() for x in operands]
        output, total = run(kind, *leaves)
        firsts = torch.autograd.grad((output.square() + total.sin()).sum(), leaves, create_graph=True)
        return list(torch.autograd.grad(sum(x.square().sum() for x in firsts), leaves))

    for value, expected in zip(second(_run, torch.float32), second(_torch, torch.float64), strict=True):
        torch.testing.assert_close(value.double(), expected, rtol=1e-3, atol=1e-4)
    doubles = [x.double().requires_grad_() for x in operands]
    assert torch.autograd.gradcheck(lambda *leaves: _run(kind, *leaves), doubles)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (2, 0, 4), (2, 3, 4), (4,)], ids=str)
def test_any_shape(shape: tuple[int, ...]) -> None:
    x, weight = draw(*shape).requires_grad_(), torch.ones(shape[-1])
    if shape[-1] == 0:
        assert residual_norm(x, x, kind="rms", weight=weight, eps=EPS).output.shape == shape
        return
    output, total = _run("layer", x, x, weight)
    torch.testing.assert_close((output, total), _torch("layer", x, x, weight))
    (output.sum() + total.sum()).backward()
    assert x.grad is not None
    assert x.grad.shape == shape


def test_transforms_and_autocast() -> None:
    x, added, weight, bias = _operands(4, 8, "layer")
    expected = _torch("layer", x, added, weight, bias)

    def run(x: Tensor) -> Tensor:
        return _run("layer", x, added, weight, bias)[0]

    torch.testing.assert_close(
        torch.func.vmap(lambda x, y: _run("layer", x, y, weight, bias)[0])(x, added), expected[0]
    )
    torch.testing.assert_close(torch.func.jvp(run, (x,), (added,))[0], expected[0])
    with torch.autocast("cpu", torch.bfloat16):
        assert run(x).dtype is _torch("layer", x, added, weight, bias)[0].dtype
    leaf = x.clone().requires_grad_()
    rows = torch.eye(32).reshape(32, 4, 8)
    (batched,) = torch.autograd.grad(run(leaf), leaf, rows, is_grads_batched=True)
    one_by_one = torch.stack([torch.autograd.grad(run(leaf), leaf, row)[0] for row in rows])
    torch.testing.assert_close(batched, one_by_one)


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_in_the_same_pass(kind: str) -> None:
    operands = [x.requires_grad_() for x in _operands(50, 40, kind)]
    x, added, *weights = operands
    torch.manual_seed(4)
    output, total = _run(kind, x, added, *weights, p=0.3)
    mask = torch.where((total - x).abs() > 1e-6, 1 / 0.7, 0.0)
    assert 0.6 < float(mask.count_nonzero()) / mask.numel() < 0.8
    expected, wanted_total = _torch(kind, x, added * mask, *weights)
    torch.testing.assert_close((output, total), (expected, wanted_total))
    grads = torch.autograd.grad(output.square().sum() + total.sin().sum(), operands)
    wanted_grads = torch.autograd.grad(expected.square().sum() + wanted_total.sin().sum(), operands)
    torch.testing.assert_close(grads, wanted_grads, rtol=1e-4, atol=1e-4)
    torch.manual_seed(4)
    assert torch.equal(_run(kind, x, added, *weights, p=0.3)[0], output)


@pytest.mark.parametrize("has_types", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_norm_of_a_sum_of_embeddings(dtype: torch.dtype, has_types: bool) -> None:
    words, places, kinds = (draw(n, 48, seed=n).to(dtype) for n in (50, 20, 2))
    weight, bias = (draw(48, seed=n).to(dtype) for n in (3, 4))
    ids, at, kind = (torch.arange(300) * 7 % n for n in (50, 20, 2))

    def run(*tables: Tensor, ids: Tensor = ids, at: Tensor = at) -> Tensor:
        types = Lookup(tables[1], kind) if has_types else None
        return embedding_norm(Lookup(tables[0], ids), types, Lookup(tables[2], at), weight=weight, bias=bias, eps=EPS)

    exact = words.double()[ids] + places.double()[at] + (kinds.double()[kind] if has_types else 0)
    exact = functional.layer_norm(exact, (48,), weight.double(), bias.double(), EPS)
    result = run(words, kinds, places)
    torchs = words[ids] + kinds[kind] + places[at] if has_types else words[ids] + places[at]
    torchs = functional.layer_norm(torchs, (48,), weight, bias, EPS)
    assert (result - exact).abs().max() <= 2 * (torchs - exact).abs().max()
    if not has_types:
        alone = run(words, kinds, places, ids=ids[7:8], at=at[7:8])
        assert torch.equal(alone, result[7:8])
    leaves = [x.clone().requires_grad_() for x in (words, kinds, places)]
    recorded = run(*leaves)
    assert recorded.requires_grad
    assert (recorded - exact).abs().max() <= 2 * (torchs - exact).abs().max()


@needs_native
@pytest.mark.parametrize("index", [-1, 5, 2**40])
def test_an_index_past_a_table_is_refused(index: int) -> None:
    table, ids = torch.ones(5, 4), torch.tensor([0, index])
    with pytest.raises(ValueError, match="an index is not a row of its table"):
        embedding_norm(Lookup(table, ids), None, Lookup(table, torch.zeros_like(ids)), weight=None, bias=None, eps=EPS)
