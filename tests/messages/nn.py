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
    MemoryAttention,
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


def memory(folder: Path, **options: object) -> MemoryAttention:
    with SoftDatabase.create(folder / "db", key_width=8, value_width=3, heads=2) as database:
        database.append(zeros(5, 2, 8), zeros(5, 2, 3))
    return MemoryAttention(SoftDatabase.open(folder / "db"), **options)


CALLS = {
    "uwaga.nn: unknown name": lambda: uwaga.nn.MultiheadAttention,
    "MultiHeadAttention: heads of keys": lambda: MultiHeadAttention(12, 4, num_kv_heads=3),
    "MultiHeadAttention: width": lambda: MultiHeadAttention(10, 4),
    "MultiHeadAttention: value without key": lambda: LAYER(zeros(5, 12), value=zeros(5, 12)),
    "MultiHeadAttention: width of a key": lambda: LAYER(zeros(2, 5, 12), zeros(2, 5, 11)),
    "MultiHeadAttention: width of packed tokens": lambda: LAYER(Ragged(zeros(3, 11), torch.tensor([0, 3]))),
    "MultiHeadAttention: a vector": lambda: LAYER(zeros(12)),
    "MultiHeadAttention: rank of packed tokens": lambda: LAYER(Ragged(zeros(3, 1, 12), torch.tensor([0, 3]))),
    "MultiHeadAttention: queries of a padded batch": lambda: EncoderLayer(SPEC).attention(zeros(3, 7, 8), queries=torch.tensor([0, 7, 14])),
    "MultiHeadAttention: rotary and another key": lambda: LAYER(X, X + 1, rotary=RotaryPositions(2)(X)),
    "MultiHeadAttention: rotary in cross-attention": lambda: LAYER(X, X, rotary=RotaryPositions(2)(X), cache=KeyValueCache(1)[0].cross_attention),
    "MultiHeadAttention: rotary wider than a head": lambda: LAYER(X, rotary=RotaryPositions(8)(X)),
    "MultiHeadAttention: an empty cache of cross-attention": lambda: LAYER(X, cache=KeyValueCache(1)[0].cross_attention),
    "MultiHeadAttention: a cache without rows": lambda: LAYER(zeros(5, 12), cache=KeyValueCache(1)[0].attention),
    "MultiHeadAttention: a key of its own width": lambda: MultiHeadAttention(12, 3, key_dim=10)(X),
    "MultiHeadAttention.from_torch: add_bias_kv": lambda: MultiHeadAttention.from_torch(nn.MultiheadAttention(8, 2, add_bias_kv=True)),
    "MultiHeadAttention.from_torch: add_zero_attn": lambda: MultiHeadAttention.from_torch(nn.MultiheadAttention(8, 2, add_zero_attn=True)),
    "MultiHeadAttention.qk_clip: threshold 0": lambda: LAYER.qk_clip(zeros(2, 4), 0.0),
    "MultiHeadAttention.qk_clip: threshold below 0": lambda: LAYER.qk_clip(zeros(2, 4), -1.0),
    "MultiHeadAttention.qk_clip: infinite threshold": lambda: LAYER.qk_clip(zeros(2, 4), float("inf")),
    "MultiHeadAttention.qk_clip: threshold NaN": lambda: LAYER.qk_clip(zeros(2, 4), float("nan")),
    "MultiHeadAttention.qk_clip: logits of other heads": lambda: LAYER.qk_clip(zeros(2, 3), 1.0),
    "MultiHeadAttention.qk_clip: a logit NaN": lambda: LAYER.qk_clip(torch.tensor([0.0, 0.0, torch.nan, 0.0]), 1.0),
    "MultiHeadAttention.qk_clip: an infinite logit": lambda: LAYER.qk_clip(torch.tensor([0.0, 0.0, torch.inf, 0.0]), 1.0),
    "MultiHeadAttention.qk_clip: with a softcap": lambda: MultiHeadAttention(16, 4, softcap=5.0).qk_clip(zeros(4), 1.0),
    "MultiHeadAttention.qk_clip: with norms of queries and keys": lambda: MultiHeadAttention(16, 4, qk_norm_eps=1e-6).qk_clip(zeros(4), 1.0),
    "MemoryAttention: query without heads": lambda folder: memory(folder)(zeros(5, 8), zeros(5, 3)),
    "MemoryAttention: width of local": lambda folder: memory(folder)(zeros(1, 2, 5, 8), zeros(1, 2, 5, 4)),
    "MemoryAttention: scale below 0": lambda folder: memory(folder, scale=-1),
    "MemoryAttention: a copy": lambda folder: copy.deepcopy(memory(folder)),
    "LayerSpec: unknown norm": lambda: LayerSpec(**SIZES, norm="Pre"),
    "LayerSpec: output_norms after": lambda: LayerSpec(**SIZES, output_norms=True),
    "LayerSpec: unknown norm_type": lambda: LayerSpec(**SIZES, norm_type="batch"),
    "EncoderLayer: width": lambda: EncoderLayer(SPEC)(zeros(5, 9)),
    "EncoderLayer: only of a padded batch": lambda: EncoderLayer(SPEC)(zeros(3, 7, 8), only="first"),
    "EncoderLayer: unknown only": lambda: EncoderLayer(SPEC)(packed(2), only="both"),
    "EncoderLayer: only of an empty row": lambda: EncoderLayer(SPEC)(packed(2, 0), only="last"),
    "Encoder: cache of other layers": lambda: Stack(SPEC, 2)(zeros(1, 2, 8), cache=KeyValueCache(3)),
    "Decoder: no memory": lambda: Decoder(SPEC, 2)(zeros(1, 3, 8)),
    "Decoder: no memory with a cache": lambda: Decoder(SPEC, 2)(zeros(1, 3, 8), cache=KeyValueCache(2)),
    "Decoder: cache of other layers": lambda: Decoder(SPEC, 2)(*[zeros(1, 3, 8)] * 2, cache=KeyValueCache(1)),
    "DecoderLayer: width": lambda: DecoderLayer(SPEC)(zeros(5, 9), zeros(5, 8)),
    "DecoderLayer: output_norms": lambda: DecoderLayer(LayerSpec(**SIZES, norm="pre", output_norms=True)),
    "FeedForward: unknown activation": lambda: FeedForward(4, 6, activation="gelo"),
    "FeedForward: width": lambda: FeedForward(4, 6)(zeros(2, 5)),
    "KeyValueCache: a gradient": lambda: append(KEPT.clone().requires_grad_(), KEPT),
    "KeyValueCache: two kinds": lambda: append(Ragged(KEPT[0], torch.tensor([0, 1, 2])), KEPT[0]),
    "KeyValueCache: dtype": lambda: append(KEPT.double(), KEPT.double()),
    "KeyValueCache: rows of a key": lambda: append(KEPT[:1], KEPT[:1]),
    "KeyValueCache: width of a value": lambda: append(KEPT, KEPT[..., :3]),
    "KeyValueCache: tokens of a value": lambda: append(KEPT, torch.cat((KEPT, KEPT), 2)),
    "KeyValueCache: rewound too far": lambda: cache().rewind(4),
    "KeyValueCache: rewound below 0": lambda: cache().rewind(torch.tensor([1, -1])),
    "KeyValueCache: reordered beyond its rows": lambda: cache().reorder(torch.tensor([0, 2])),
    "KeyValueCache: documents without ids of queries": lambda: append(KEPT, KEPT).mask(Causal() & Documents(zeros(6).long())),
    "KeyValueCache: cross-attention twice": filled_twice,
    "LearnedPositions: too many tokens": lambda: TABLE(zeros(7, 4)),
    "LearnedPositions: start at the end": lambda: TABLE(zeros(2, 4), start=5),
    "LearnedPositions: starts past the end": lambda: TABLE(zeros(2, 3, 4), start=torch.tensor([0, 9])),
    "LearnedPositions: width": lambda: TABLE(zeros(7, 3)),
    "LearnedPositions: starts of other rows": lambda: TABLE(zeros(2, 3, 4), start=torch.tensor([0, 1, 2])),
    "RelativePositions: two buckets": lambda: RelativePositions(2, num_buckets=2),
    "RotaryPositions: no dimensions": lambda: RotaryPositions(0),
    "RotaryPositions: unknown layout": lambda: RotaryPositions(4, layout="mixed"),
    "RotaryPositions: start below 0": lambda: RotaryPositions(4)(X, start=-3),
    "RotaryScaling: unknown kind": lambda: RotaryScaling(kind="ntk", factor=2.0),
    "RotaryScaling: factor 0": lambda: RotaryScaling(kind="linear", factor=0.0),
    "RotaryScaling: yarn without positions": lambda: RotaryScaling(kind="yarn", factor=2.0),
    "RotaryScaling: low_freq_factor 0": lambda: RotaryScaling(kind="llama3", factor=2.0, low_freq_factor=0.0, original_max_position_embeddings=8),
    "RotaryScaling: beta_slow 0": lambda: RotaryScaling(kind="yarn", factor=2.0, beta_slow=0.0, original_max_position_embeddings=8),
    "SinusoidalPositions: odd width": lambda: SinusoidalPositions(5),
    "SinusoidalPositions: unknown layout": lambda: SinusoidalPositions(4, layout="mixed"),
    "SinusoidalPositions: base 1": lambda: SinusoidalPositions(4, base=1.0),
    "SinusoidalPositions: tolerance above sqrt(2)": lambda: SinusoidalPositions(4).repeats(1.5),
    "SinusoidalPositions: start below 0": lambda: SinusoidalPositions(4)(zeros(3, 4), start=-1),
    "SinusoidalPositions: starts below 0": lambda: SinusoidalPositions(4)(zeros(2, 3, 4), start=torch.tensor([3, -2])),
    "SinusoidalPositions: width": lambda: SinusoidalPositions(4)(zeros(3, 6)),
}  # fmt: skip
