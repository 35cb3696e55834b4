"""Calls of layers that raise. Letters: B batch, Q tokens, M width, R rows of a cache, G its heads, D their width."""

import copy
from pathlib import Path

import torch
from torch import nn, zeros

import uwaga
from uwaga import Causal, Documents, Ragged, SoftDatabase
from uwaga.nn import (
    Decoder,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    KeyValueCache,
    LayerSpec,
    LearnedPositions,
    MultiHeadAttention,
    RelativePositions,
    RotaryPositions,
    RotaryScaling,
    SinusoidalPositions,
)
from uwaga.nn import Encoder as Stack

SIZES = {"d_model": 8, "num_heads": 2, "d_ff": 12}
SPEC = LayerSpec(**SIZES)
LAYER = MultiHeadAttention(12, 4)
X = zeros(1, 3, 12)
KEPT = zeros(2, 2, 1, 4)
TABLE = LearnedPositions(6, 4)


def packed(*lengths: int, width: int = 8) -> Ragged:
    return Ragged.from_list([zeros(n, width) for n in lengths])


def cache() -> KeyValueCache:
    """Of one layer, with rows of 3 and 5 tokens."""
    made, rows = KeyValueCache(1), Ragged.from_list([zeros(n, 2, 4) for n in (3, 5)])
    made[0].attention.append(rows, rows)
    return made


def append(key: torch.Tensor | Ragged, value: torch.Tensor) -> object:
    return cache()[0].attention.append(key, value)


def filled_twice() -> None:
    made = KeyValueCache(1)[0].cross_attention
    for _ in range(2):
        made.fill(KEPT, KEPT)
