"""The memory of activations."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, torch
from uwaga.encode.inference import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def asked(times=20):
    before = faults()
    for _ in range(times):
        torch.ones(3 << 20)
    return (faults() - before) / times

before = asked()
keep_freed_memory()
asked(1)
print(before, asked())
"""


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="is about glibc's malloc")
def test_blocks_of_a_dozen_megabytes_are_used_again() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    before, after = map(float, done.stdout.split())
    assert after < before / 10 + 1  # 12 MB have 3072 pages, where these are not large ones
