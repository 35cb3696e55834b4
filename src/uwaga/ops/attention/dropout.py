"""Which weights dropout keeps: a hash of (seed, sequence, head, query, key), the same in every engine.

All arithmetic is modulo 2**64, and modulo 2**32 for the part per key; PyTorch's int64 wraps, so it serves for both.

    splitmix(x): x += 0x9E3779B97F4A7C15; x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9; x = (x ^ x >> 27) * 0x94D049BB133111EB;
                 x ^ x >> 31                                         (Steele, Lea and Flood 2014: SplitMix64)
    row_key = low 32 bits of splitmix(splitmix(seed + b * H + h) + i)
    x = row_key + j * 0x9E3779B1; x ^= x >> 16; x *= 0x85EBCA6B; x ^= x >> 13; x *= 0xC2B2AE35; x ^= x >> 16
                                                                     (Appleby's MurmurHash3 finalizer)
    the weight is kept iff x >= min(floor(p * 2**32), 2**32 - 1)

Letters: B sequences, H query heads, Q queries, K keys.
"""

import torch
from torch import Tensor

_LOW_32 = 0xFFFFFFFF


def kept(seed: Tensor, dropout: float, batch: int, heads: int, queries: int, keys: int, device) -> Tensor:
    """(B, H, Q, K) bool: True where the weight is kept."""
    sequence_head = torch.arange(batch * heads, device=device).view(batch, heads, 1)
    i_Q = torch.arange(queries, device=device)
    j_K = torch.arange(keys, device=device)
    row_BHQ = _splitmix(_splitmix(seed.to(device) + sequence_head) + i_Q) & _LOW_32
    x = (row_BHQ[..., None] + j_K * 0x9E3779B1) & _LOW_32
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & _LOW_32
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & _LOW_32
    x = x ^ (x >> 16)
    return x >= min(int(dropout * 2**32), 2**32 - 1)


def _splitmix(x: Tensor) -> Tensor:
    x = x + _signed(0x9E3779B97F4A7C15)
    x = (x ^ _shift(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """A logical shift to the right: int64's own would drag the sign along."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(constant: int) -> int:
    return constant - (1 << 64) if constant >= 1 << 63 else constant
