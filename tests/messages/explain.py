"""What `explain` says of calls: each row raises it. All of the same processor but where a row names another one."""

from collections.abc import Callable

import processors
import pytest
import torch
from torch import Tensor, zeros
from torch._subclasses import FakeTensorMode

from uwaga import AlibiBias, Causal, Ragged, Window, explain
from uwaga._base import native, processor
from uwaga._base.processor import Processor
from uwaga.ops.attention.engines import flex
from uwaga.ops.engine_choice import Choice
from uwaga.ops.linear.api import explain as explain_linear

X, ONES = zeros(2, 4, 8), torch.ones(3, 6)
DENSE = zeros(2, 3, 9, 8)
BATCH = Ragged.from_list([zeros(n, 2, 8) for n in (30, 100)])


class Explained(Exception):
    """The engine, why, and what the others lack."""


def of(call: Callable[[], Choice], *, here: Processor = processors.GENOA, refused: tuple[str, ...] = ()) -> None:
    """Raise what is said on a processor; `refused`: of these engines, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processor, "detect", lambda: here)
        processors.forget()
        choice = call()
    processors.forget()
    lacks = "".join(f"\n  {name}: {choice.refused.get(name, 'could serve it')}" for name in refused)
    raise Explained(f"{choice.engine}: {choice.reason}{lacks}")


def same(x: Tensor | Ragged, **options: object) -> Callable[[], Choice]:
    return lambda: explain(x, x, x, **options)


def without_library(patch: pytest.MonkeyPatch, call: Callable[[], Choice]) -> None:
    patch.setattr(native, "reason_unavailable", lambda: "it was left at home")
    of(call)


def on_gpu(patch: pytest.MonkeyPatch, *, has_triton: bool = True, **options: object) -> None:
    """Of a call on a GPU that there need not be."""
    patch.setattr("torch.utils._triton.has_triton", lambda: has_triton)
    flex._search_for_triton.cache_clear()
    if has_triton:
        patch.setattr(flex, "why_not_on_cuda", lambda: None)
    try:
        with FakeTensorMode():
            if "sinks" in options:
                options["sinks"] = zeros(2, device="cuda")
            of(same(zeros(2, 2, 300, 16, device="cuda"), **options), refused=() if has_triton else ("flex",))
    finally:
        flex._search_for_triton.cache_clear()


META = zeros(3, 2, 100, 8, device="meta")
OTHER_DEVICE: dict[str, dict] = {
    "plain": {},
    "causal": {"mask": Causal()},
    "a window": {"mask": Window(5, 0)},
    "distances": {"mask": Causal(), "bias": AlibiBias(torch.ones(2, device="meta"))},
    "softcap": {"softcap": 5.0},
    "sinks": {"sinks": zeros(2, device="meta")},
}
GPU: dict[str, dict] = {
    "plain": {},
    "causal": {"mask": Causal()},
    "a window": {"mask": Window(5, 0)},
    "softcap": {"softcap": 5.0},
    "sinks": {"sinks": None},
    "dropout": {"dropout": 0.1},
    "no softmax": {"normalize": None, "mask": Causal()},
    "no softmax, softcap": {"normalize": None, "softcap": 2.0},
}
WITHOUT_LIBRARY: dict[str, Callable[[], Choice]] = {
    "plain": same(X),
    "causal": same(X, mask=Causal()),
    "softcap": same(X, softcap=1.0),
    "no softmax": same(X, normalize=None),
    "float64": same(X.double()),
}
CALLS = {
    "causal": lambda: of(same(X, mask=Causal()), refused=("torch", "linear", "reference")),
    "causal in bfloat16": lambda: of(same(X.bfloat16(), mask=Causal())),
    "causal in float16": lambda: of(same(X.half(), mask=Causal())),
    "float64": lambda: of(same(X.double())),
    "softcap and dropout": lambda: of(same(X, softcap=2.0, dropout=0.1), refused=("torch", "linear")),
    "sinks": lambda: of(same(X, sinks=zeros(2)), refused=("torch",)),
    "named": lambda: of(same(X, impl="torch")),
    "no softmax": lambda: of(same(X, normalize=None), refused=("flex",)),
    "no softmax, causal": lambda: of(same(X, normalize=None, mask=Causal())),
    "no softmax in bfloat16": lambda: of(same(X.bfloat16(), normalize=None)),
    "no softmax, ragged": lambda: of(same(Ragged(zeros(4, 2, 8), torch.tensor([0, 1, 4])), normalize=None)),
    "no softmax, softcap": lambda: of(same(X, normalize=None, softcap=1.0), refused=("linear",)),
    "ragged, by PyTorch": lambda: of(same(BATCH, impl="torch")),
    "ragged, by the reference": lambda: of(same(BATCH, impl="reference")),
    "ragged in float64": lambda: of(same(BATCH.with_values(BATCH.values.double()))),
    "FlexAttention of the CPU": lambda: of(same(zeros(1, 2, 9, 8), softcap=2.0, impl="flex")),
    "FlexAttention of float64": lambda: of(same(X.double()), refused=("flex",)),
    **{f"no library: {name}": lambda patch, call=call: without_library(patch, call) for name, call in WITHOUT_LIBRARY.items()},
    **{f"another device: {name}": lambda options=options: of(same(META, **options)) for name, options in OTHER_DEVICE.items()},
    "another device: what the others lack": lambda: of(same(X.to("meta")), refused=("cpu", "flex")),
    **{f"a GPU: {name}": lambda patch, options=options: on_gpu(patch, **options) for name, options in GPU.items()},
    "a GPU without Triton": lambda patch: on_gpu(patch, has_triton=False, mask=Window(5, 0)),
    "Intel with AMX: float32": lambda: of(same(DENSE), here=processors.SAPPHIRE_RAPIDS),
    "Intel with AMX: bfloat16": lambda: of(same(DENSE.bfloat16()), here=processors.SAPPHIRE_RAPIDS),
    "linear map, Intel with AMX: float32": lambda: of(lambda: explain_linear(ONES, ONES), here=processors.SAPPHIRE_RAPIDS),
    "linear map, Intel with AMX: bfloat16": lambda: of(lambda: explain_linear(*[ONES.bfloat16()] * 2), here=processors.SAPPHIRE_RAPIDS),
    "linear map, Apple": lambda: of(lambda: explain_linear(ONES, ONES), here=processors.M2),
    "linear map, AMD Zen 3": lambda: of(lambda: explain_linear(ONES, ONES), here=processors.MILAN),
    "linear map, float64": lambda: of(lambda: explain_linear(ONES.double(), ONES.double()), refused=("cpu", "onednn")),
    "linear map, named": lambda: of(lambda: explain_linear(ONES, ONES, impl="torch")),
}  # fmt: skip
