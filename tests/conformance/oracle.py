"""What an engine is measured against: the reference in float64, a plain PyTorch computation in the input's dtype, and that
computation with the roundings that its arithmetic has on any processor.

The rule (DESIGN.md, "Exactness"): an engine's error against the float64 reference is at most twice the larger of the plain
computation's on the same inputs and of the derived one (tolerance.py); no hand-tuned tolerance.

Letters: B sequences, H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width.
"""

import dataclasses
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial

import tolerance
import torch
from torch import Tensor

from uwaga import Ragged
from uwaga.ops import attention_and_lse
from uwaga.ops.attention import reference
from uwaga.ops.attention.api import attention
from uwaga.ops.attention.arguments import AttentionOptions, make_call
from uwaga.ops.attention.relative_bias import relative_scores
from uwaga.ops.attention.sequences import split
from uwaga.ops.mask_program import visible

# Where engines compute: `make gpu` sets a GPU. Operands are drawn, and exact results computed, on the CPU.
DEVICE = torch.device(os.environ.get("UWAGA_CONFORMANCE_DEVICE", "cpu"))


@dataclass(frozen=True, kw_only=True)
class Result:
    """Everything that a call computes: output, lse (None without softmax) and gradients by operand."""

    output: Tensor
    lse: Tensor | None
    gradients: dict[str, Tensor]


def plain(call, softmax: bool, by_logarithm: bool = False) -> tuple[Tensor, Tensor | None]:
    """Attention as one writes it down in PyTorch: every operation in the dtype of the query, with its rounding."""
    v = call.value.repeat_interleave(call.heads_per_key_head, dim=1)
    weights, lse = plain_weights(call, softmax, by_logarithm)
    if call.options.dropout:
        kept = reference.kept(call.seed, call.options.dropout, *weights.shape, "cpu")
        weights = torch.where(kept, weights / (1 - call.options.dropout), 0.0)
    return weights @ v, lse


def plain_weights(call, softmax: bool, by_logarithm: bool = False) -> tuple[Tensor, Tensor | None]:
    """The weights (B, H, Q, K) and the lse, in the same way.

    There are two ways to write softmax: as such, and as exp(s - logsumexp(s)). The second is what every kernel does
    that does not keep its N x N weights, PyTorch's own included: it makes them again from the lse.
    """
    dtype, (batch, heads, queries, _) = call.query.dtype, call.query.shape
    scores, seen = plain_scores(call)
    if not softmax:
        return torch.where(seen, scores, 0.0), None
    scores = scores.masked_fill(~seen, torch.finfo(dtype).min)
    if call.sinks is not None:
        sinks = call.sinks.to(dtype)[:, None, None].expand(batch, heads, queries, 1)
        scores = torch.cat((scores, sinks), dim=-1)
    lse = torch.logsumexp(scores.float() if dtype != torch.float64 else scores, dim=-1)
    of_all = torch.logsumexp(scores, dim=-1, keepdim=True)
    weights = torch.exp(scores - of_all) if by_logarithm else torch.softmax(scores, dim=-1)
    if call.sinks is None:
        lse = torch.where(seen.any(-1), lse, -math.inf)
    return torch.where(seen, weights[..., : seen.shape[3]], 0.0), lse


def plain_scores(call) -> tuple[Tensor, Tensor]:
    """The scores (B, H, Q, K), and which of them are visible."""
    dtype, (batch, heads, queries, _) = call.query.dtype, call.query.shape
    k = call.key.repeat_interleave(call.heads_per_key_head, dim=1)
    scores = call.query @ k.transpose(-1, -2) * call.options.scale
    if call.options.softcap:
        scores = call.options.softcap * torch.tanh(scores / call.options.softcap)
    if call.relative is not None:
        scores = scores + relative_scores(call).to(dtype)
    if call.bias is not None:
        scores = scores + call.bias.to(dtype)
    seen = visible(call.options.mask_program, call.mask_tensors, queries, k.shape[2], "cpu")
    seen = seen.expand(batch, heads, queries, k.shape[2])
    if call.bias is not None:
        seen = seen & (call.bias != -math.inf)
    return scores, seen


def run_plain(query, key, value, *, by_logarithm: bool = False, **options) -> tuple:
    """`plain` with the arguments of uwaga.attention."""
    softmax = options.get("normalize", "softmax") is not None
    call = make_call(query, key, value, AttentionOptions(**options), wants_lse=softmax)
    if not isinstance(query, Ragged):
        return plain(call, softmax, by_logarithm)
    parts = [plain(part, softmax, by_logarithm) for part in split(call)]
    output = torch.cat([out[0].transpose(0, 1) for out, _ in parts])
    return output, torch.cat([lse[0].T for _, lse in parts]) if softmax else None


def run_engine(impl: str):
    """A function with the arguments of uwaga.attention that gives the output and the lse of an engine as tensors."""

    def run(query, key, value, **options):
        if DEVICE.type != "cpu" and _tensor(query).dtype != torch.float64:
            query, key, value, options = map(on_device, (query, key, value, options))
        if options.get("normalize", "softmax") is None or impl == "torch":
            output, lse = attention(query, key, value, impl=impl, **options), None
        else:
            output, lse = attention_and_lse(query, key, value, impl=impl, **options)
        output, lse = _tensor(output), _tensor(lse)
        return output.cpu(), None if lse is None else lse.cpu()

    return run


def measure(
    run,
    operands: dict[str, Tensor],
    build,
    *,
    with_lse: bool = True,
    seed: int = 0,
    stored: Callable[[Tensor], Tensor] = lambda x: x,
) -> Result:
    """Forward and backward of `run(**build(operands))`, with fixed gradients of the output and the lse.

    Args:
        stored: from the output to what the backward pass meets of it. Kernels take sum_j a_ij da_ij from there: it is the product of
            output and its gradient (Dao et al., "FlashAttention", 2022, algorithm 4). The gradient of the lse is subtracted from
            that sum: as such what the output's rounding changes in it is put in here.
    """
    leaves = {name: x.detach().requires_grad_(x.is_floating_point()) for name, x in operands.items()}
    torch.manual_seed(seed)
    output, lse = run(**build(leaves))
    generator = torch.Generator().manual_seed(seed + 1)
    # Numbers that every dtype has: the exact gradients are of the very same loss.
    loss = torch.randn(output.shape, generator=generator).bfloat16().half()
    outputs, weights = [output], [loss.to(output.dtype)]
    if lse is not None and lse.requires_grad:
        # A row that sees nothing has lse = -inf; a loss would not touch it.
        drawn = torch.where(lse.isfinite(), torch.randn(lse.shape, generator=generator), 0.0).to(lse.dtype)
        drawn = drawn if with_lse else torch.zeros_like(drawn)
        drawn = drawn - (weights[0] * (stored(output.detach()) - output.detach())).sum(-1).to(lse.dtype)
        outputs.append(lse)
        weights.append(drawn)
    inputs = {name: x for name, x in leaves.items() if x.requires_grad}
    result = torch.autograd.grad(outputs, list(inputs.values()), weights, allow_unused=True, materialize_grads=True)
    gradients = dict(zip(inputs, (x.detach() for x in result), strict=True))
    return Result(output=output.detach(), lse=None if lse is None else lse.detach(), gradients=gradients)


def to_float64(operands: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: x.double() if x.is_floating_point() else x for name, x in operands.items()}


def usual(operands: dict[str, Tensor], build, *, with_lse: bool = True) -> list[Result]:
    """The plain computations that an engine is measured by. In half precision only the first way counts: rounding a
    logarithm to eight bits is a mistake, not a way to write it."""
    direct = measure(run_plain, operands, build, with_lse=with_lse)
    if operands["query"].dtype != torch.float32:
        return [direct]
    return [direct, measure(partial(run_plain, by_logarithm=True), operands, build, with_lse=with_lse)]


def derived(operands: dict[str, Tensor], build, seed: int, *, with_lse: bool = True) -> Result:
    """One draw of the plain computation with the roundings of its arithmetic, as it is stored. By the logarithm, as every kernel
    makes the weights that its backward pass needs."""
    dtype = operands["query"].dtype
    with tolerance.roundings(dtype, seed) as arithmetic:
        run = partial(run_plain, by_logarithm=True)
        made = measure(run, to_float64(operands), build, with_lse=with_lse, stored=arithmetic.stored)
    gradients = {name: arithmetic.stored(x) for name, x in made.gradients.items()}
    return Result(output=arithmetic.stored(made.output), lse=made.lse, gradients=gradients)


def assert_as_exact(
    result: list[Result],
    exact: list[Result],
    plains: list[list[Result]],
    derive: Callable[[int], list[Result]],
    *,
    factor: float = 2.0,
) -> None:
    """Every part of what an engine found is at most twice as far from exact as the plain computations are, or as their arithmetic is by
    itself, over the draws of the same case taken together. (Fuzzing looks for what is wrong, in tensors of a few numbers, whose errors
    have no stable size: it takes a larger factor.)

    Args:
        derive: from a seed to `derived` of every draw of the case.
    """
    derive = cache(derive)

    def compare(what: str, part: Callable[[Result], Tensor]) -> None:
        ways = [[part(x) for x in way] for way in zip(*plains, strict=True)]
        assert_near(
            what,
            [part(x) for x in result],
            [part(x) for x in exact],
            ways,
            lambda seed: map(part, derive(seed)),
            factor,
        )

    compare("output", lambda x: x.output)
    if result[0].lse is not None:
        compare("lse", lambda x: x.lse)
    for name in result[0].gradients:
        compare(f"gradient of {name}", lambda x, name=name: x.gradients[name])


def assert_near(
    what: str,
    result: list[Tensor],
    exact: list[Tensor],
    plains: list[list[Tensor]],
    derive: Callable[[int], Iterable[Tensor]],
    factor: float,
) -> None:
    for x, y in zip(result, exact, strict=True):
        assert x.shape == y.shape, what
        is_infinite = ~y.isfinite()
        assert torch.equal(x[is_infinite].double(), y[is_infinite].double()), f"{what}: infinities differ"
    # Errors are compared by their root mean square: it is the whole tensor's, and unlike the largest error it hardly
    # moves when the same sum is taken in another order, so that the factor of two means something.
    peer = max(_error(way, exact) for way in plains)
    of_arithmetic = (_error(list(derive(seed)), exact) for seed in range(tolerance.DRAWS))
    tolerance.assert_within(what, _error(result, exact), peer, of_arithmetic, factor, _size(exact))


def _error(result: list[Tensor], exact: list[Tensor]) -> float:
    return _size([x.double() - y for x, y in zip(result, exact, strict=True)])


def _size(draws: list[Tensor]) -> float:
    """The root mean square of all finite entries."""
    x = torch.cat([x.flatten() for x in draws]).double()
    return tolerance.rms(x[x.isfinite()])


def on_device(x):
    """Operands and options with their tensors on the device that the suite runs on; gradients flow back."""
    if isinstance(x, Tensor):
        return x.to(DEVICE)
    if isinstance(x, Ragged):
        return Ragged(x.values.to(DEVICE), x.offsets.to(DEVICE))
    if isinstance(x, dict):
        return {name: on_device(y) for name, y in x.items()}
    if not dataclasses.is_dataclass(x):
        return x
    parts = {field.name: on_device(getattr(x, field.name)) for field in dataclasses.fields(x)}
    return dataclasses.replace(x, **parts)


def _tensor(x):
    return x.values if isinstance(x, Ragged) else x
