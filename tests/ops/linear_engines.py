"""The engines of the linear map that this machine has, and their dtypes."""

import torch

from uwaga.ops.linear import choose

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NATIVE = [name for name in choose.NATIVE if choose.NATIVE[name].refusal(torch.empty(0)) is None]
ENGINES = [*NATIVE, "torch"]
CASES = [
    (name, dtype)
    for name in ENGINES
    for dtype in DTYPES
    if name == "torch" or choose.NATIVE[name].refusal(torch.empty(0, dtype=dtype)) is None
]
