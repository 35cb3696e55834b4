"""Processors that tests pretend, and the caches that remember which one it was; a GPU of which functions are pretended."""

from types import SimpleNamespace

import pytest
import torch

from uwaga._base.processor import Processor
from uwaga.ops.attention import fast_path
from uwaga.ops.linear import choose


def x86(vendor: str, family: int, model: int, *flags: str) -> Processor:
    return Processor(vendor=vendor, family=family, model=model, flags=frozenset(flags))


MILAN = x86("AMD", 25, 1, "avx2")
GENOA = x86("AMD", 25, 17, "avx2", "avx512f", "avx512_bf16")
TURIN = x86("AMD", 26, 2, "avx2", "avx512f", "avx512_bf16")
SAPPHIRE_RAPIDS = x86("Intel", 6, 143, "avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16")
M2 = Processor(name="arm")


def forget() -> None:
    """Forget what was chosen for the processor before."""
    for function in (
        fast_path.plan_of,
        fast_path.dense_layout,
        choose.named_by_environment,
        choose.order,
        choose.eager_engine,
    ):
        function.cache_clear()


def pretend_cuda(monkeypatch: pytest.MonkeyPatch, **functions: object) -> None:
    """Let functions of torch.cuda be these ones until the test ends."""
    monkeypatch.setattr(torch, "cuda", SimpleNamespace(**vars(torch.cuda) | functions))
