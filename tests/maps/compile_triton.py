"""Compile the kernels of the engine `triton` for a GPU that need not be there, and print what ptxas says of each.

    python tests/maps/compile_triton.py 90      # compute capability 9.0

A pretended driver names the target; Triton's own compiler and ptxas do the rest. Nothing is run.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from uwaga import AttentionMap, Causal, KeyLengths, Ragged, RelativeBias, Window
from uwaga.maps.engines import triton as engine
from uwaga.maps.engines import triton_kernels

KERNELS = ("row_statistics", "second_mask", "received_weights", "pooled_cells", "chosen_weights", "probe")


class _Driver:
    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0


class _Compiled:
    """A kernel that is compiled where it would be launched."""

    def __init__(self, kernel, capability: int) -> None:
        self.kernel, self.capability = kernel, capability

    def __getitem__(self, grid):
        def launch(*arguments, **options) -> None:
            compiled = self.kernel.warmup(*arguments, grid=grid, **options)
            assert compiled.asm["cubin"]
            tile = [options.get(name, "") for name in ("DOT", "BLOCK_M", "BLOCK_N", "BLOCK_D")]
            registers, spilled = _ptxas(compiled.asm["ptx"], self.capability)
            print(self.kernel.__name__, *tile, registers, "registers", spilled, "bytes spilled", flush=True)

        return launch


def _ptxas(ptx: str, capability: int) -> tuple[int, int]:
    """Registers and spilled bytes of a kernel."""
    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        name = f"sm_{capability}" + "a" * (capability >= 90)
        command = [program, "-v", f"--gpu-name={name}", file.name, "-o", "/dev/null"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    result = re.search(r"Used (\d+) registers", said), re.search(r"(\d+) bytes spill stores", said)
    assert all(result), said
    return int(result[0][1]), int(result[1][1])


def _read_everything(m: AttentionMap, k: int = 8) -> None:
    m.prepare(entropy=True, topk=k)
    m.prepare(effective_count=True, distance=True)
    m.mass(Window(3, 3))
    m.received()
    m.received(last=4)
    m.pool(5, 7)
    m.pool(5, 7, pooling="max")


def main(capability: int) -> None:
    driver.set_active(_Driver(capability))
    engine.reason_unavailable = lambda device, dtype: None
    for name in KERNELS:
        setattr(triton_kernels, name, _Compiled(getattr(triton_kernels, name), capability))
    triton_kernels.probe[(1,)](torch.zeros(1), num_warps=1)
    for dtype, width in ((torch.bfloat16, 128), (torch.float32, 64)):
        query, key = torch.randn(2, 4, 67, width).to(dtype), torch.randn(2, 2, 67, width).to(dtype)
        m = AttentionMap(query, key, mask=Causal(), impl="triton")
        _read_everything(m)
        m[0, 0, 3:9]
    query, key = torch.randn(2, 4, 67, 40).half(), torch.randn(2, 2, 67, 40).half()
    options = {
        "mask": Causal() | KeyLengths(torch.tensor([3, 60])),
        "bias": RelativeBias(torch.randn(8, 4)),
        "softcap": 3.0,
        "sinks": torch.randn(4),
    }
    _read_everything(AttentionMap(query, key, **options, impl="triton"))
    _read_everything(AttentionMap(query, key, bias=torch.randn(67, 67), impl="triton"))
    offsets = torch.tensor([0, 30, 67])
    packed = (Ragged(x[0].transpose(0, 1).contiguous(), offsets) for x in (query, key))
    _read_everything(AttentionMap(*packed, mask=Causal(), impl="triton"))


if __name__ == "__main__":
    main(int(sys.argv[1]))
