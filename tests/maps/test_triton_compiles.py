"""Triton's compiler takes the kernels of the engine `triton`, which the other tests run in its interpreter.

A process of its own compiles them for a GPU that need not be there: a pretended driver names the target, Triton's own compiler and ptxas
do the rest, and nothing is run.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")
import triton

from uwaga import AttentionMap, Causal, KeyLengths, Ragged, RelativeBias, Window
from uwaga.maps.engines import triton as engine
from uwaga.maps.engines import triton_kernels

KERNELS = ("row_statistics", "second_mask", "received_weights", "pooled_cells", "chosen_weights", "probe")


@pytest.mark.stress
@pytest.mark.skipif(sys.platform != "linux", reason="Triton's compiler for NVIDIA's GPUs is on Linux alone")
def test_every_kernel_compiles(tmp_path: Path) -> None:
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    result = subprocess.run(
        [sys.executable, __file__], env={**variables, "TRITON_CACHE_DIR": str(tmp_path)}, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert set(result.stdout.split()) == set(KERNELS)


class Hopper:
    """A driver with a GPU of compute capability 9.0."""

    def get_current_target(self) -> object:
        return triton.backends.compiler.GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0


class Compiled:
    """A kernel that is compiled where it would be launched."""

    def __init__(self, kernel) -> None:
        self.kernel = kernel

    def __getitem__(self, grid):
        def launch(*arguments, **options) -> None:
            assert self.kernel.warmup(*arguments, grid=grid, **options).asm["cubin"]
            sys.stdout.write(f"{self.kernel.__name__}\n")

        return launch


def read_everything(m: AttentionMap) -> None:
    m.prepare(entropy=True, topk=8)
    m.prepare(effective_count=True, distance=True)
    m.mass(Window(3, 3))
    m.received()
    m.received(last=4)
    m.pool(5, 7)
    m.pool(5, 7, pooling="max")


def compile_all() -> None:
    triton.runtime.driver.set_active(Hopper())
    engine.reason_unavailable = lambda device, dtype: None
    for name in KERNELS:
        setattr(triton_kernels, name, Compiled(getattr(triton_kernels, name)))
    triton_kernels.probe[(1,)](torch.zeros(1), num_warps=1)
    for dtype, width in ((torch.bfloat16, 128), (torch.float32, 64)):
        query, key = torch.randn(2, 4, 67, width).to(dtype), torch.randn(2, 2, 67, width).to(dtype)
        m = AttentionMap(query, key, mask=Causal(), impl="triton")
        read_everything(m)
        m[0, 0, 3:9]
    query, key = torch.randn(2, 4, 67, 40).half(), torch.randn(2, 2, 67, 40).half()
    options = {
        "mask": Causal() | KeyLengths(torch.tensor([3, 60])),
        "bias": RelativeBias(torch.randn(8, 4)),
        "softcap": 3.0,
        "sinks": torch.randn(4),
    }
    read_everything(AttentionMap(query, key, **options, impl="triton"))
    read_everything(AttentionMap(query, key, bias=torch.randn(67, 67), impl="triton"))
    offsets = torch.tensor([0, 30, 67])
    packed = (Ragged(x[0].transpose(0, 1).contiguous(), offsets) for x in (query, key))
    read_everything(AttentionMap(*packed, mask=Causal(), impl="triton"))


if __name__ == "__main__":
    compile_all()
