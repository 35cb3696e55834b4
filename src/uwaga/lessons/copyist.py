"""A small encoder and decoder that were trained to copy: the lesson's last blocks run them.

`python recipes/lesson_copyist.py` trained them and wrote copyist.safetensors. A word is one of twelve signs, by its first place in
the sentence, so that any sentence of the lesson can be copied.

Letters: N tokens read, T tokens written, M width, S signs and the start sign.
"""

import functools
import math
from collections.abc import Sequence
from importlib import resources
from typing import NamedTuple

import torch
from safetensors.torch import load
from torch import Tensor, nn

from uwaga.lessons.compute import dense, projected, scores
from uwaga.maps.map import AttentionMap
from uwaga.nn import Decoder, DecoderLayer, Encoder, LayerSpec, SinusoidalPositions
from uwaga.ops.linear.api import linear
from uwaga.ops.masks import Causal

SIGNS, WIDTH, HEADS = 12, 16, 1
_START = 0  # the sign before the first word


class Copyist(nn.Module):
    """One encoder block and one decoder block, pre-norm, with one embedding for what is read, what is written and the output."""

    def __init__(self) -> None:
        super().__init__()
        spec = LayerSpec(d_model=WIDTH, num_heads=HEADS, d_ff=2 * WIDTH, norm="pre", activation="relu")
        self.embedding = nn.Embedding(SIGNS + 1, WIDTH)
        self.positions = SinusoidalPositions(WIDTH)
        self.encoder, self.decoder = Encoder(spec, 1), Decoder(spec, 1)

    def read(self, signs: Tensor) -> Tensor:
        """Return the encoder's output (..., N, M) for signs (..., N)."""
        memory = self.encoder(self.positions(self.embedding(signs)))
        assert isinstance(memory, Tensor)
        return memory

    def write(self, signs: Tensor, memory: Tensor) -> Tensor:
        """Return scores (..., T, S) of the sign that follows each of (..., T) signs; the first one is the start sign."""
        output = self.decoder(self.positions(self.embedding(signs)), memory, mask=Causal())
        logits = linear(output, self.embedding.weight)
        assert isinstance(logits, Tensor)
        return logits


class Copied(NamedTuple):
    """What the model wrote, and how."""

    written: tuple[str, ...]  # N words, by the largest score at each place
    words: tuple[str, ...]  # distinct, S' of them
    logits_NS: Tensor  # scores of the words after each prefix
    scores_NN: Tensor  # of cross-attention, scaled: a row for each word written, a column for each word read
    weights_NN: Tensor


@functools.cache
def trained() -> Copyist:
    """Return the stored model."""
    model = Copyist()
    model.load_state_dict(load(resources.files(__package__).joinpath("copyist.safetensors").read_bytes()), strict=True)
    return model.eval()


@torch.no_grad()
def copy(tokens: Sequence[str]) -> Copied:
    """Let the model read at most SIGNS tokens, and write as many words, each from those that it has written itself."""
    model, words = trained(), tuple(dict.fromkeys(tokens))
    memory = model.read(torch.tensor([words.index(token) + 1 for token in tokens]))
    signs = [_START]
    for _ in tokens:
        logits = model.write(torch.tensor(signs), memory)[:, 1 : len(words) + 1]
        signs.append(int(logits[-1].argmax()) + 1)
    layer = model.decoder.layers[0]
    assert isinstance(layer, DecoderLayer)
    x = model.positions(model.embedding(torch.tensor(signs[:-1])))
    attended = x + layer.attention(layer.attention_norm(x), mask=Causal())
    queries, keys, _ = projected(layer.cross_attention, layer.cross_attention_norm(attended), memory)
    scale = 1.0 / math.sqrt(layer.cross_attention.d_k)
    weights = AttentionMap(queries, keys, scale=scale)
    scores_NN = scores(queries, keys) * scale
    return Copied(tuple(words[sign - 1] for sign in signs[1:]), words, logits, scores_NN, dense(weights))
