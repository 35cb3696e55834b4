"""What writes into the residual stream of each stack of a model, and the linear map from what was written to an operand of a head.

A stream is a sum: embeddings, heads through W_O, feed-forward layers, biases. A norm stands between the sum and what reads it, and in a
post-norm stack in the stream itself. At one token it is a linear map, once its mean and its scale are measured there:

    LayerNorm(x) = diag(w) (I - 1 1^T / M) x / sigma + b,   RMSNorm(x) = diag(w) x / rms

(Elhage et al., "A Mathematical Framework for Transformer Circuits", 2021, "Handling Layer Normalization"). sigma is a number per token and
the rest belongs to the model, so that any chain of norms is one matrix of the model times one number per token.

Letters: T tokens, M model width, H query heads, D query/key width, E value width, W width of what is written, n parts.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from uwaga.models.embeddings import Embeddings
from uwaga.models.transformer import Transformer
from uwaga.nn import LearnedPositions, MultiHeadAttention, RotaryPositions
from uwaga.nn.attention_id import AttentionId
from uwaga.nn.norms import ZeroCenteredRMSNorm


class Part(NamedTuple):
    """Something that wrote into a residual stream.

    Attributes:
        name: "token", "position" (learned or sinusoidal), "type" (of the token), "head", "feed-forward", "bias": all constants, those of
            output maps, norms and the projection itself; "distance": a bias of the score by the distance of its tokens, which belongs to no pair.
        kind: of a head: "encoder", "decoder" or "cross".
        layer, head: where there are several.
    """

    name: str
    kind: str | None = None
    layer: int | None = None
    head: int | None = None

    def __str__(self) -> str:
        """
        >>> str(Part("head", "decoder", 1, 3)), str(Part("head", "cross", 0, 2)), str(Part("feed-forward", None, 0)), str(Part("token"))
        ('head 1.3', 'cross head 0.2', 'feed-forward 0', 'token')
        """
        name = "cross head" if self.kind == "cross" else self.name
        place = ".".join(str(x) for x in (self.layer, self.head) if x is not None)
        return f"{name} {place}" if place else name


class Scale(NamedTuple):
    """A norm as the linear map that it is at some tokens."""

    weight: Tensor | None  # (M,)
    bias: Tensor | None  # (M,)
    is_centred: bool
    factor_T: Tensor  # 1 / sigma

    @staticmethod
    def of(norm: nn.Module, x_TM: Tensor) -> "Scale":
        """At tokens where the norm reads x, in float64."""
        assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
        is_centred = isinstance(norm, nn.LayerNorm)
        centred = x_TM - x_TM.mean(-1, keepdim=True) if is_centred else x_TM
        assert norm.eps is not None
        weight = norm.factor() if isinstance(norm, ZeroCenteredRMSNorm) else norm.weight
        bias = norm.bias if isinstance(norm, nn.LayerNorm) else None
        return Scale(_double(weight), _double(bias), is_centred, (centred.square().mean(-1) + norm.eps).rsqrt())

    def apply(self, x_TM: Tensor) -> Tensor:
        """The norm of x at these tokens, (..., T, M)."""
        x = (x_TM - x_TM.mean(-1, keepdim=True) if self.is_centred else x_TM) * self.factor_T[:, None]
        x = x if self.weight is None else x * self.weight
        return x if self.bias is None else x + self.bias

    def before(self, map_DM: Tensor) -> Tensor:
        """The map of what the norm reads, from the map of what it gives; without `factor_T`."""
        result = map_DM if self.weight is None else map_DM * self.weight
        return result - result.mean(-1, keepdim=True) if self.is_centred else result


class Linear(NamedTuple):
    """A linear map of the stream, as between ALBERT's embeddings and its layers."""

    weight: Tensor  # (M, W)
    bias: Tensor | None


class Write(NamedTuple):
    """What one module has added to the stream at each token."""

    parts: tuple[Part, ...]
    values: Tensor  # (T, n, W)
    weight: Tensor | None = None  # (n, W, M); None: W is M
    bias: Tensor | None = None  # (M,) added with it
    norm: Scale | None = None  # of the module's output


class Sublayer(NamedTuple):
    """Attention or a feed-forward layer of a stack, with its norms."""

    module: Any
    where: AttentionId | None  # None: a feed-forward layer
    layer: int
    norm: nn.Module
    output_norm: nn.Module | None


class Stack(NamedTuple):
    """One residual stream: the layers of an encoder or of a decoder."""

    kind: str
    sublayers: list[Sublayer]
    is_pre: bool
    final_norm: nn.Module | None
    rotary: list[RotaryPositions | None]  # by layer
    # (ids of the whole row (N,), tokens (T,), token types (N,) or None) -> what is written before the layers, with norms and maps
    embed: Callable[[Tensor, Tensor, Tensor | None], "Tape"]
    has_types: bool


# What happens to a stream, in order.
Tape = list[Write | Scale | Linear]


def stacks(model: Transformer) -> dict[str, Stack]:
    """By kind, "encoder" and "decoder"."""
    results = {}
    for kind, part in (("encoder", model.encoder), ("decoder", model.decoder)):
        if part is not None:
            embeddings = model.embeddings if kind == "encoder" else model.output_embeddings
            rotary: list[RotaryPositions | None] = [part.rotary[rope] for rope in part.config.ropes]
            results[kind] = Stack(
                kind,
                list(_sublayers(kind, part.layers)),
                part.config.norm == "pre",
                part.norm,
                rotary or [None] * len(part.layers),
                partial(_embedded, embeddings),
                embeddings.token_types is not None,
            )
    return results


def _sublayers(kind: str, layers: nn.ModuleList) -> Iterator[Sublayer]:
    for n, layer in enumerate(layers):
        for name in ("attention", "cross_attention", "feed_forward"):
            module: Any = getattr(layer, name, None)
            if module is not None:
                where = AttentionId("cross" if name == "cross_attention" else kind, n)
                is_attention = isinstance(module, MultiHeadAttention)
                norms = getattr(layer, f"{name}_norm"), getattr(layer, f"{name}_output_norm", None)
                yield Sublayer(module, where if is_attention else None, n, *norms)


def _embedded(embeddings: Embeddings, ids_N: Tensor, tokens_T: Tensor, types_N: Tensor | None) -> Tape:
    words_TM = embeddings.words(ids_N[tokens_T])
    tape: Tape = [_written("token", words_TM)]
    if embeddings.token_types is not None:
        types = torch.zeros_like(tokens_T) if types_N is None else types_N[tokens_T]
        tape.append(_written("type", embeddings.token_types.weight[types]))
    positions = embeddings.positions
    if isinstance(positions, LearnedPositions):
        tape.append(_written("position", positions.weight[embeddings.position_ids(ids_N[None]).view(-1)[tokens_T]]))
    elif positions is not None:
        added = positions(torch.zeros_like(words_TM)[:, None], start=tokens_T)
        assert isinstance(added, Tensor)
        tape.append(_written("position", added[:, 0]))
    if embeddings.norm is not None:
        tape.append(Scale.of(embeddings.norm, stream(tape)))
    if embeddings.projection is not None:
        weight, bias = _double(embeddings.projection.weight), _double(embeddings.projection.bias)
        assert weight is not None
        tape.append(Linear(weight, bias))
    return tape


def _written(name: str, x_TM: Tensor) -> Write:
    return Write((Part(name),), x_TM.double()[:, None])


def stream(tape: Tape) -> Tensor:
    """(T, M): the sum of what was written, through what happened to it; of writes without a weight, as embeddings are."""
    x: Any = 0.0
    for entry in tape:
        if isinstance(entry, Write):
            assert entry.weight is None
            x = x + entry.values.sum(1)
        elif isinstance(entry, Scale):
            x = entry.apply(x)
        else:
            x = x @ entry.weight.T
            x = x if entry.bias is None else x + entry.bias
    result: Tensor = x
    return result


class Reached(NamedTuple):
    """A write with the map from what was written to an operand: `values @ map * factor`."""

    write: Write
    map_nWD: Tensor | None  # None: a constant, (T, D) as `constant`
    factor_T: Tensor
    constant_TD: Tensor | None = None


def reach(tape: Tape, weight_DM: Tensor, bias_D: Tensor | None, tokens: int) -> Iterator[Reached]:
    """All writes of a tape, the last first, with their maps to `weight x + bias` of the stream x at its end; among them the constants.

    tokens: T.
    """
    nothing = Write((Part("bias"),), weight_DM.new_zeros(tokens, 1, 0))
    map_DM, factor_T = weight_DM, weight_DM.new_ones(tokens)

    def constant(bias: Tensor | None, of: Tensor, factor: Tensor) -> Iterator[Reached]:
        if bias is not None:
            yield Reached(nothing, None, factor, factor[:, None] * (of @ bias))

    if bias_D is not None:
        yield Reached(nothing, None, factor_T, bias_D.expand(tokens, -1))
    for entry in reversed(tape):
        if isinstance(entry, Scale):
            yield from constant(entry.bias, map_DM, factor_T)
            map_DM, factor_T = entry.before(map_DM), factor_T * entry.factor_T
        elif isinstance(entry, Linear):
            yield from constant(entry.bias, map_DM, factor_T)
            map_DM = map_DM @ entry.weight
        else:
            own_DM, own_T = map_DM, factor_T
            if entry.norm is not None:
                yield from constant(entry.norm.bias, own_DM, own_T)
                own_DM, own_T = entry.norm.before(own_DM), own_T * entry.norm.factor_T
            yield from constant(entry.bias, own_DM, own_T)
            weight_nWM = entry.weight
            yield Reached(entry, own_DM.T[None] if weight_nWM is None else weight_nWM @ own_DM.T, own_T)


def _double(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.detach().double()
