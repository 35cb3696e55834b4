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
    why_not_on_cuda = flex.why_not_on_cuda
    why_not_on_cuda.cache_clear()
    if has_triton:
        patch.setattr(flex, "why_not_on_cuda", lambda: None)
    try:
        with FakeTensorMode():
            if "sinks" in options:
                options["sinks"] = zeros(2, device="cuda")
            of(same(zeros(2, 2, 300, 16, device="cuda"), **options), refused=() if has_triton else ("flex",))
    finally:
        why_not_on_cuda.cache_clear()


META = zeros(3, 2, 100, 8, device="meta")
