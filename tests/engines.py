"""The engines that this machine has: what tests of the native one need, and those of the linear map with their dtypes."""

import pytest
import torch

from uwaga._base import native
from uwaga.ops.linear.engines import cpu

needs_native = pytest.mark.skipif(native.reason_unavailable() is not None, reason=str(native.reason_unavailable()))
NATIVE = pytest.param("cpu", marks=needs_native)  # as an engine's name

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NATIVE_LINEAR = ["cpu"] if cpu.refusal() is None else []
LINEAR = [*NATIVE_LINEAR, "torch"]
LINEAR_CASES = [
    (name, dtype)
    for name in LINEAR
    for dtype in DTYPES
    if name == "torch" or cpu.refusal(torch.empty(0, dtype=dtype)) is None
]
