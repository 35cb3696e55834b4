"""The calls that are divided over processes, made from their names: by the processes, and by the test on the whole sequence.

Letters as in uwaga.sequence_parallel.sequence.
"""

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import uwaga
from uwaga.ops import attention_and_lse


class Whole(NamedTuple):
    query: Any  # a tensor, or Ragged
    key: Any
    value: Any
    options: dict[str, Any]
    grad_output: Tensor
    parameters: list[Tensor]  # that gradients flow to beside the operands


def make(
    queries: int,
    keys: int | None = None,
    *,
    batch: tuple[int, ...] = (1,),
    heads: int = 2,
    groups: int = 2,
    dtype: torch.dtype = torch.float32,
    options: Callable[[], dict[str, Any]] = dict,
) -> Callable[[], Whole]:
    def made() -> Whole:
        torch.manual_seed(queries + heads)
        count = queries if keys is None else keys
        query = torch.randn(*batch, heads, queries, 16).to(dtype)
        key = torch.randn(*batch, groups, count, 16).to(dtype)
        value = torch.randn(*batch, groups, count, 24).to(dtype)
        grad_output = torch.randn(*batch, heads, queries, 24).to(dtype)
        result = options()
        bias = result.get("bias")
        learned = bias.parameter() if isinstance(bias, uwaga.AlibiBias | uwaga.RelativeBias) else bias
        parameters = [x for x in (result.get("sinks"), learned) if x is not None and x.requires_grad]
        return Whole(query, key, value, result, grad_output, parameters)

    return made


def ids(*lengths: int) -> Tensor:
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))


def alibi() -> dict[str, Any]:
    return {"mask": uwaga.Causal(), "bias": uwaga.AlibiBias(torch.tensor([0.5, 0.01], requires_grad=True))}


def relative() -> dict[str, Any]:
    return {"bias": uwaga.RelativeBias(torch.randn(16, 2).requires_grad_())}


def sinks() -> dict[str, Any]:
    return {"mask": uwaga.Causal(), "sinks": torch.randn(6).requires_grad_(), "softcap": 5.0, "scale": 0.3}


def _starts() -> dict[str, Any]:
    starts = torch.tensor([30, 150])
    slopes = torch.tensor([0.5, 0.01], requires_grad=True)
    return {"mask": uwaga.Causal(start=starts), "bias": uwaga.AlibiBias(slopes, start=starts)}


def _bias() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    return {"bias": torch.randn(2, 2300, 2300, generator=generator), "mask": uwaga.Window(2200, 50)}


def _learned(*shape: int, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    bias = torch.randn(shape, generator=generator).to(dtype).requires_grad_()
    return {"bias": bias, "mask": uwaga.Window(400, 50)}


def _dense() -> dict[str, Any]:
    return {"mask": torch.rand(300, 300) < 0.3}


def _of_heads() -> dict[str, Any]:
    """Everything that differs between sequences or heads."""
    generator = torch.Generator().manual_seed(0)
    slopes = torch.linspace(0.01, 0.5, 6).requires_grad_()
    bits = torch.rand(2, 6, 700, 700, generator=generator) < 0.8
    mask = uwaga.Causal() & bits & uwaga.KeyLengths(torch.tensor([700, 90]))
    sinks = torch.randn(6, generator=generator).requires_grad_()
    return {"mask": mask, "bias": uwaga.AlibiBias(slopes), "sinks": sinks, "dropout": 0.2}


CASES = {
    "no sequences": make(40, batch=(0,), options=lambda: {"mask": uwaga.Causal()}),
    "all": make(2300),
    "many blocks": make(9000, heads=2, options=lambda: {"mask": uwaga.Causal()}),
    "a window of many blocks": make(9000, heads=1, groups=1, options=lambda: {"mask": uwaga.Window(700, 300)}),
    "lengths": make(
        400, batch=(3,), options=lambda: {"mask": uwaga.Causal() & uwaga.KeyLengths(torch.tensor([400, 0, 199]))}
    ),
    "documents of a batch": make(
        200, batch=(2,), options=lambda: {"mask": uwaga.Documents(torch.stack([ids(150, 50), ids(20, 180)]))}
    ),
    "either": make(500, options=lambda: {"mask": uwaga.Window(20, 0) | uwaga.Documents(ids(300, 100, 100))}),
    "alibi": make(2600, options=alibi),
    "relative": make(700, options=relative),
    "sinks, softcap, grouped heads": make(700, heads=6, options=sinks),
    "three key heads": make(700, batch=(2,), heads=6, groups=3, options=_of_heads),
    "a start per sequence": make(200, 350, batch=(2,), options=_starts),
    "cross": make(330, 2500, options=lambda: {"mask": uwaga.Causal()}),
    "cross documents": make(60, 90, options=lambda: {"mask": uwaga.Documents(ids(20, 70), query_ids=ids(50, 10))}),
    "dense": make(300, options=_dense),
    "bias": make(2300, options=_bias),
    "learned bias": make(700, batch=(2,), options=lambda: _learned(2, 2, 700, 700)),
    "learned bias of keys": make(700, options=lambda: _learned(2, 1, 700)),
    "learned bias in bfloat16": make(
        500, dtype=torch.bfloat16, options=lambda: _learned(2, 500, 500, dtype=torch.bfloat16)
    ),
    "dropout": make(2300, batch=(2,), options=lambda: {"mask": uwaga.Causal(), "dropout": 0.3}),
    "without softmax": make(2300, options=lambda: {"mask": uwaga.Causal(), "normalize": None}),
    "float16": make(500, dtype=torch.float16, options=lambda: {"mask": uwaga.Window(100, 100)}),
    "fewer tokens than processes": make(2, options=lambda: {"mask": uwaga.Causal()}),
    "no tokens": make(0),
    "five dimensions": make(90, batch=(2, 3), options=lambda: {"mask": uwaga.Causal()}),
    "no leading dimensions": make(90, batch=()),
}

# Cases of `make test`, each the only one of its kind.
GATE = {
    "many blocks", "a window of many blocks", "lengths", "documents of a batch", "either", "relative", "sinks, softcap, grouped heads",
    "three key heads", "a start per sequence", "cross", "learned bias", "learned bias of keys", "without softmax", "no tokens",
    "no leading dimensions",
}  # fmt: skip
# Maps have neither dropout nor a form without softmax.
CASES_OF_MAPS = [
    name for name in CASES if name not in ("dropout", "without softmax", "three key heads") and "learned" not in name
]
GATE_OF_MAPS = {
    "a window of many blocks", "lengths", "documents of a batch", "alibi", "sinks, softcap, grouped heads", "a start per sequence", "cross",
    "dense", "float16", "no tokens",
}  # fmt: skip


def attend(query: Any, key: Any, value: Any, **options: Any) -> tuple[Any, Any]:
    """Output and lse, of zeros where there is no softmax; dropout of the same weights in every call."""
    torch.manual_seed(1)
    if options.get("normalize", "softmax") is not None:
        return attention_and_lse(query, key, value, **options)
    output = uwaga.attention(query, key, value, **options)
    if isinstance(output, uwaga.Ragged):
        return output, output.with_values(torch.zeros(output.values.shape[:-1]))
    return output, torch.zeros(output.shape[:-1])


def parts(length: int, size: int, seed: str) -> list[int]:
    """Where each process's part begins, and the end: of random lengths; with more than two processes one has none."""
    chosen = random.Random(f"{seed} {size}")
    cuts = sorted(chosen.randint(0, length) for _ in range(size - 1))
    if size > 2:
        empty = chosen.randrange(size - 2)
        cuts[empty + 1] = cuts[empty]
    return [0, *cuts, length]


def gradients_of(whole: Whole, attend: Callable[..., Any], first: int, last: int, first_key: int, last_key: int) -> Any:
    """Output, lse, and the gradients of query, key, value and parameters, of a part of the whole."""
    query = whole.query[..., first:last, :].clone().requires_grad_()
    key, value = (x[..., first_key:last_key, :].clone().requires_grad_() for x in (whole.key, whole.value))
    output, lse = attend(query, key, value, **whole.options)
    # The lse has a gradient too; a row that sees no key has none.
    loss = (output * whole.grad_output[..., first:last, :]).sum() + torch.where(lse.isfinite(), lse, 0.0).sum()
    operands = [query, key, value, *whole.parameters]
    result = torch.autograd.grad(loss, operands)
    return [output.detach(), lse.detach(), *result]


def check_sums(by_process: Tensor, expected: Tensor, terms: int) -> None:
    """Sums of n terms in another order: at most n units of rounding of the terms apart (Higham, "Accuracy and Stability of Numerical
    Algorithms", 2002, section 4.2), of which the processes' sums are the largest that a test can see."""
    bound = terms * torch.finfo(torch.float32).eps / 2 * by_process.abs().sum(0)
    assert ((by_process.sum(0) - expected).abs() <= bound).all()
