"""Triton's compiler takes the kernels of the engine `triton`, which the other tests run in its interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")
PROGRAM = Path(__file__).parent / "compile_triton.py"


@pytest.mark.stress
@pytest.mark.skipif(sys.platform != "linux", reason="Triton's compiler for NVIDIA's GPUs is on Linux alone")
def test_every_kernel_compiles(tmp_path: Path) -> None:
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    result = subprocess.run(
        [sys.executable, PROGRAM, "90"],
        env={**variables, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    kernels = {"row_statistics", "second_mask", "received_weights", "pooled_cells", "chosen_weights", "probe"}
    assert {line.split()[0] for line in result.stdout.splitlines()} == kernels
