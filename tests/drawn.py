"""Random operands by a seed."""

from collections.abc import Sequence

import torch

from uwaga import Ragged


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def draw_rows(lengths: Sequence[int], *sizes: int, seed: int = 0) -> Ragged:
    generator = torch.Generator().manual_seed(seed)
    return Ragged.from_list([torch.randn(length, *sizes, generator=generator) for length in lengths])
