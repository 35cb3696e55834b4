"""Checksums of the tensors that all processes must have: of their values, whatever their strides."""

import pytest
import torch
from torch import Tensor

from uwaga.sequence_parallel.agreement import checksum_of

_GENERATOR = torch.Generator().manual_seed(0)
_BITS = torch.rand(3, 2, 1200, 1100, generator=_GENERATOR) < 0.5
_ROW, _COLUMN = _BITS[:, :1, :1], _BITS[:1, :, :, :1]


@pytest.mark.parametrize(
    "tensor",
    [
        _BITS,
        _BITS.transpose(2, 3),
        _BITS[:, :, ::3, 5:],
        _ROW.expand(3, 2, 1200, 1100),  # a mask of padded keys, as transformers makes it
        _COLUMN.expand(3, 2, 1200, 1100),
        _BITS[:1, :1].expand(3, 2, 1200, 1100),
        _BITS[:, :1, :, :1].expand(3, 7, 1200, 1100),
        torch.randn(700, generator=_GENERATOR).to(torch.bfloat16)[:, None].expand(700, 900),
        torch.arange(3)[:1].expand(1),
        torch.tensor(5).broadcast_to((1,)),
        torch.tensor(5),
        torch.zeros(0, 4),
        torch.zeros(1 << 21, 0),
    ],
)
def test_strides_make_no_difference(tensor: Tensor) -> None:
    dense = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
    assert checksum_of(tensor, 7) == checksum_of(dense, 7) != checksum_of(dense, 8)


def test_shapes_and_dtypes_make_one() -> None:
    bits = torch.rand(40, generator=_GENERATOR) < 0.7
    pair = torch.tensor([False, True])
    tensors = [bits, bits[None], bits[:, None], bits.view(torch.uint8), pair.expand(2, 2), pair[:, None].expand(2, 2)]
    assert len({checksum_of(x, 0) for x in tensors}) == len(tensors)


@pytest.mark.parametrize("shape", [(1, 1_000_000), (1_000_000, 1)], ids=["row", "column"])
def test_what_is_repeated_is_read_once(shape: tuple[int, int]) -> None:
    """10^12 bytes, which nobody could copy, nor read within the test's time."""
    bits = (torch.arange(1_000_000) < 400_000).view(shape)
    other = bits.clone()
    other.view(-1)[3] = False
    first, same, another = (checksum_of(x.expand(1, 1, 1_000_000, 1_000_000), 0) for x in (bits, bits.clone(), other))
    assert first == same != another
