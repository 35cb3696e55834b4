"""Split a head's queries, keys and values at some tokens of a recorded text into the parts of the model that wrote them.

A residual stream is a sum of embeddings, heads through W_O, feed-forward layers and biases. A norm is between the sum and its readers, and
in a post-norm stack in the stream itself. At one token it is a linear map, once its mean and its scale are measured there:

    LayerNorm(x) = diag(w) (I - 1 1^T / M) x / sigma + b,   RMSNorm(x) = diag(w) x / rms

(Elhage et al., "A Mathematical Framework for Transformer Circuits", 2021, "Handling Layer Normalization"). sigma is a number per token and
the other factors belong to the model, so any chain of norms is one matrix of the model times one number per token.

A recording has all of attention: a head's output at a token is its row of the map times the values. Embeddings and feed-forward layers
depend on one token only, and are computed again. So a recording keeps only queries, keys and values. T tokens cost O(T N) for each head
below, and no pass through the model.

Letters: T tokens, N tokens of the text, M model width, H query heads, G key/value heads, D query/key width, E value width, W width of what is
written, n or P parts.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from uwaga._base.arguments import check
from uwaga.inspect.recordings.recording import Recording
from uwaga.maps.map import AttentionMap
from uwaga.models.transformer import Embeddings, Stack, Transformer
from uwaga.nn import LearnedPositions, MultiHeadAttention
from uwaga.nn.attention_id import AttentionId, describe_layers
from uwaga.nn.operand import values_of
from uwaga.nn.plain_modules import ZeroCenteredRMSNorm, apply_linear
from uwaga.nn.positions import Rotation
from uwaga.ops.ragged import Ragged

NAME = "score_attribution"
_REACHED = 3  # the number of operands whose maps `sources` keeps: a query, a key and the other key
BYTES = 2**26  # the most bytes of weights that are read at once


class Part(NamedTuple):
    """Name a part of the model that wrote into a residual stream.

    Attributes:
        name: "token", "position" (learned or sinusoidal), "type" (of the token), "head", "feed-forward"; "bias": all constants of output
            maps, norms and the projection itself; "distance": a bias of the score by the distance of its tokens, which belongs to no pair.
        kind: the kind of a head, "encoder", "decoder" or "cross"; else None.
        layer, head: their numbers, or None.
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

    def attention_head(self) -> tuple[AttentionId, int]:
        """Return the attention and the number of a part that is a head."""
        assert self.kind is not None
        assert self.layer is not None
        assert self.head is not None
        return AttentionId(self.kind, self.layer), self.head


class Scale(NamedTuple):
    """Hold a norm as a linear map at some tokens."""

    weight: Tensor | None  # (M,)
    bias: Tensor | None  # (M,)
    is_centred: bool
    factor_T: Tensor  # 1 / sigma

    @staticmethod
    def of(norm: nn.Module, x_TM: Tensor) -> "Scale":
        """Measure a norm of PyTorch, this package or transformers at tokens where it reads x, in the dtype of x."""
        is_centred = isinstance(norm, nn.LayerNorm)
        centred = x_TM - x_TM.mean(-1, keepdim=True) if is_centred else x_TM
        eps = getattr(norm, "eps", getattr(norm, "variance_epsilon", None))
        eps = torch.finfo(x_TM.dtype).eps if eps is None else eps
        weight, bias = (
            None if x is None else x.detach().to(x_TM.dtype)
            for x in (
                norm.factor() if isinstance(norm, ZeroCenteredRMSNorm) else getattr(norm, "weight", None),
                norm.bias if isinstance(norm, nn.LayerNorm) else None,
            )
        )
        return Scale(weight, bias, is_centred, (centred.square().mean(-1) + eps).rsqrt())

    def apply(self, x_TM: Tensor) -> Tensor:
        """Apply the norm to x at these tokens, (..., T, M)."""
        x = (x_TM - x_TM.mean(-1, keepdim=True) if self.is_centred else x_TM) * self.factor_T[:, None]
        x = x if self.weight is None else x * self.weight
        return x if self.bias is None else x + self.bias

    def before(self, map_DM: Tensor) -> Tensor:
        """Turn a map of the norm's output into a map of its input, without `factor_T`."""
        result = map_DM if self.weight is None else map_DM * self.weight
        return result - result.mean(-1, keepdim=True) if self.is_centred else result


class Write(NamedTuple):
    """Hold the addition of one module to the stream at each token."""

    parts: tuple[Part, ...]
    values: Tensor  # (T, n, W)
    weight: Tensor | None = None  # (n, W, M); None: W is M
    bias: Tensor | None = None  # (M,), added too
    norm: Scale | None = None  # the norm of the module's output


class Sublayer(NamedTuple):
    """Hold attention or a feed-forward layer of a stack, with its norms."""

    module: Any
    where: AttentionId | None  # None: a feed-forward layer
    layer: int
    norm: nn.Module
    output_norm: nn.Module | None


class StreamStack(NamedTuple):
    """Hold one residual stream: the layers of an encoder or of a decoder."""

    kind: str
    embeddings: Embeddings
    layers: Stack
    sublayers: list[Sublayer]


# The steps of a stream, in order. ALBERT has a linear map between its embeddings and its layers.
Tape = list[Write | Scale | nn.Linear]


def stacks(model: Transformer) -> dict[str, StreamStack]:
    """Return the residual streams of a model by kind, "encoder" and "decoder"."""
    parts = (
        ("encoder", model.embeddings, model.encoder),
        ("decoder", model.output_embeddings, model.decoder),
    )
    return {
        kind: StreamStack(kind, embeddings, layers, list(_sublayers(kind, layers.layers)))
        for kind, embeddings, layers in parts
        if layers is not None
    }


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
    """Return the steps of some tokens before the layers. ids_N and types_N belong to the whole row."""
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
        tape.append(embeddings.projection)
    return tape


def _written(name: str, x_TM: Tensor) -> Write:
    return Write((Part(name),), x_TM.double()[:, None])


def stream(tape: Tape) -> Tensor:
    """Compute the stream (T, M) after the steps; writes must have no weight, as those of embeddings."""
    x: Any = 0.0
    for entry in tape:
        if isinstance(entry, Write):
            assert entry.weight is None
            x = x + entry.values.sum(1)
        elif isinstance(entry, Scale):
            x = entry.apply(x)
        else:
            x = x @ entry.weight.detach().double().T
            x = x if entry.bias is None else x + entry.bias.detach().double()
    result: Tensor = x
    return result


class Reached(NamedTuple):
    """Hold a write with the map from its values to an operand: `values @ map * factor`."""

    write: Write
    map_nWD: Tensor
    factor_T: Tensor


def reach(tape: Tape, weight_DM: Tensor, bias_D: Tensor | None, tokens: int) -> Iterator[Reached]:
    """Yield all writes of a tape at T tokens, the last first, and its constants, with their maps to `weight x + bias`.

    x is the stream at the end of the tape.
    """
    one = Write((Part("bias"),), weight_DM.new_ones(tokens, 1, 1))  # whose map is the constant
    map_DM, factor_T = weight_DM, weight_DM.new_ones(tokens)

    def constant(bias: Tensor | None, of: Tensor, factor: Tensor) -> Iterator[Reached]:
        if bias is not None:
            yield Reached(one, (of @ bias)[None, None], factor)

    if bias_D is not None:
        yield Reached(one, bias_D[None, None], factor_T)
    for entry in reversed(tape):
        if isinstance(entry, Scale):
            yield from constant(entry.bias, map_DM, factor_T)
            map_DM, factor_T = entry.before(map_DM), factor_T * entry.factor_T
        elif isinstance(entry, nn.Linear):
            yield from constant(None if entry.bias is None else entry.bias.detach().double(), map_DM, factor_T)
            map_DM = map_DM @ entry.weight.detach().double()
        else:
            write_DM, write_T = map_DM, factor_T
            if entry.norm is not None:
                yield from constant(entry.norm.bias, write_DM, write_T)
                write_DM, write_T = entry.norm.before(write_DM), write_T * entry.norm.factor_T
            yield from constant(entry.bias, write_DM, write_T)
            weight_nWM = entry.weight
            yield Reached(entry, write_DM.T[None] if weight_nWM is None else weight_nWM @ write_DM.T, write_T)


# Operands of a recorded text.


class Operand(NamedTuple):
    """Hold the queries, keys or values of a head at some tokens, as sums of parts."""

    name: str  # "query", "key" or "value"
    tokens: list[int]
    parts: tuple[Part, ...]
    values: Tensor  # (T, P, D) float64
    sizes: Tensor  # (T,): the norm of the operand if no two terms of its sums had opposite signs
    finish: "Finish"  # the steps of each part after its projection
    steps: int  # the number of writes, norms and maps of the stream


class Finish(NamedTuple):
    """Apply the norm of a head's queries or keys at its measured scale, and their rotation."""

    weight_TD: Tensor | None  # of the norm, (T, D) or (T, 1)
    rotation: Rotation | None

    def __call__(self, x_TPD: Tensor) -> Tensor:
        """Apply norm and rotation to parts (T, P, D)."""
        x = x_TPD if self.weight_TD is None else x_TPD * self.weight_TD[:, None]
        return x if self.rotation is None else self.rotation.rotate(x)

    def norm_of(self, sizes_TD: Tensor) -> Tensor:
        """Return the norms (T,) of vectors of these sizes; a rotation changes them only by the scale of its cosines and sines."""
        sizes = sizes_TD if self.weight_TD is None else sizes_TD * self.weight_TD.abs()
        scale = 1.0 if self.rotation is None else max(1.0, float(self.rotation.cos.hypot(self.rotation.sin).amax()))
        return torch.linalg.vector_norm(sizes, dim=-1) * scale


class Reader:
    """Read one row of a recording together with the recorded model.

    Args:
        stacks: the residual streams of the recorded model.
        dtype: the dtype of its weights.
        recording: a recording of all heads with values.
        row: the row of the recording.
        token_types: the types of all rows, (R, N) or Ragged (N,); None: all 0.
        finest: the finest arithmetic that the recorded model may have used.

    Methods raise ValueError if the recording lacks a tensor that they need.
    """

    def __init__(
        self,
        stacks: dict[str, StreamStack],
        dtype: torch.dtype,
        recording: Recording,
        row: int,
        token_types: Any,
        finest: torch.dtype,
    ) -> None:
        self.stacks, self.dtype, self.recording, self.row = stacks, dtype, recording, row
        self._read_last: tuple[object, Tape] | None = None  # queries and keys of one text have the same tape
        self._reached: dict[tuple[AttentionId, str, int, int], tuple[list[Reached], Finish]] = {}
        self._finest = finest
        self._types = None if token_types is None else _row(token_types, row)

    def check(self, where: AttentionId, operand: Operand, recorded: Tensor) -> Tensor:
        """Return `rounding` (T,). Raises ValueError: recorded vectors (N, D) are farther than that from the sums of their parts."""
        right_TD, bound_T = operand.values.sum(1), self.rounding(where, operand)
        apart_T = (recorded[operand.tokens].double() - right_TD).norm(dim=-1)
        for n in (~(apart_T <= bound_T)).nonzero().flatten().tolist():
            raise ValueError(
                f"{NAME}: the recorded {operand.name} of token {operand.tokens[n]} is {float(apart_T[n]):.3g} from the sum of its parts, of "
                f"norm {float(right_TD[n].norm()):.3g}, farther than rounding takes it ({float(bound_T[n]):.3g}): the recording is of another "
                "model, text or token types, was made inside uwaga.edit, or has positions that are not 0, 1, ... (position_ids of a text "
                "padded on the left) or rotary scaling that changes with the length, which are not supported"
            )
        return bound_T

    def rounding(self, where: AttentionId, operand: Operand) -> Tensor:
        """Return the most, (T,) in float64, that rounding may move an operand's recorded vectors from the sums of their parts.

        The bound is 8 sqrt(n) u |x|: n is the number of terms of all sums, one after another, from the embeddings on; u is the largest unit
        roundoff of the model's dtype, the recording's dtype and the finest arithmetic; |x| is the norm that the vector would have if no
        two terms had opposite signs (Higham and Mary, "A New Approach to Probabilistic Rounding Error Analysis", 2019, theorem 2.4, to
        first order: independent roundings exceed it once in 10^13). In half precision, sums are assumed to be in float32, and each step of
        the stream is rounded when it is stored, in proportion to its parts: 4 sqrt(steps) u times the root of the sum of their squares. Real
        models were measured at 0.4 to 2 u, without sqrt(steps). The bound ignores how feed-forward layers and softmax amplify a rounding.
        """
        recorded = values_of(next(iter(self.recording.maps.values())).query).dtype
        u = max(torch.finfo(dtype).eps / 2 for dtype in (self.dtype, self._finest, recorded))
        of_sums = 8.0 * self._terms(where) ** 0.5 * min(u, torch.finfo(torch.float32).eps / 2) * operand.sizes
        return of_sums + 4.0 * operand.steps**0.5 * u * operand.values.square().sum((1, 2)).sqrt()

    def attention(self, where: AttentionId) -> MultiHeadAttention:
        """Return the module of an attention."""
        sublayers = self.stacks[where.stacks[0]].sublayers
        result: MultiHeadAttention = next(sublayer.module for sublayer in sublayers if sublayer.where == where)
        return result

    def map(self, where: AttentionId, head: int | None = None) -> AttentionMap:
        """Return the map (H, Q, K) of the row, or (Q, K) of one head."""
        if where not in self.recording.maps:
            raise ValueError(
                f"{NAME}: the recording has no {where.kind} {where.layer}, which wrote into this query or key; there are "
                f"{describe_layers(self.recording.maps)}"
            )
        whole = self.recording.maps[where]
        heads = self.attention(where).num_heads
        if whole.shape[-3] != heads:
            raise ValueError(
                f"{NAME}: the recording has {whole.shape[-3]} of the {heads} heads of {where}; watch all of them"
            )
        at = (self.row,) if len(whole.shape) == 4 else ()
        result = whole.select(*at) if head is None else whole.select(*at, head)
        queries, keys = result.shape[-2:]
        if where.kind != "cross" and queries != keys:
            raise ValueError(
                f"{NAME}: {where} has {queries} queries and {keys} keys: the recording began when {keys - queries} tokens had been read"
            )
        return result

    def values(self, where: AttentionId) -> Tensor:
        """Return the values (G, N, E) of the row."""
        check(
            where in self.recording.values,
            f"{NAME}: the recording has no values of {where}; uwaga.watch(model, values=True) keeps them",
        )
        value = self.recording.values[where]
        if isinstance(value, Ragged):
            return _row(value, self.row).transpose(0, 1)
        return value[self.row] if value.dim() == 4 else value

    @torch.no_grad()
    def operand(
        self, where: AttentionId, name: str, head: int, tokens: Sequence[int], kept: list[Reached] | None = None
    ) -> Operand:
        """Compute the "query", "key" or "value" of a query head at some tokens, in float64.

        kept: a list that receives all writes below, with their maps to the operand before its norm and rotation.
        """
        weight_DM, bias_D, norm = _projection(self.attention(where), name, head)
        stack, tape = self.tape(where, name, tokens)
        parts: dict[Part, Tensor] = {}
        sizes_TD = torch.zeros(len(tokens), len(weight_DM), dtype=torch.float64)
        for reached in reach(tape, weight_DM, bias_D, len(tokens)):
            if kept is not None:
                kept.append(reached)
            values_nTW, factor_T1 = reached.write.values.transpose(0, 1), reached.factor_T[:, None]
            sizes_TD += (values_nTW.abs() @ reached.map_nWD.abs()).sum(0) * factor_T1
            for part, x_TD in zip(reached.write.parts, values_nTW @ reached.map_nWD * factor_T1, strict=True):
                parts[part] = parts[part] + x_TD if part in parts else x_TD
        order = tuple(sorted(parts, key=_order))
        x_TPD = torch.stack([parts[part] for part in order], 1)
        weight_TD = rotation = None
        if norm is not None:
            scale = Scale.of(norm, x_TPD.sum(1))
            weight_TD = scale.before(scale.factor_T[:, None])
        if name != "value" and where.kind != "cross" and (ropes := stack.layers.config.ropes):
            rotary = stack.layers.rotary[ropes[where.layer]]
            turned = rotary(torch.zeros(len(tokens), 1, 1, dtype=torch.float64), start=torch.tensor(tokens))
            rotation = Rotation(turned.cos[:, 0], turned.sin[:, 0], turned.is_interleaved)
        finish = Finish(weight_TD, rotation)
        return Operand(name, list(tokens), order, finish(x_TPD), finish.norm_of(sizes_TD), finish, len(tape))

    @torch.no_grad()
    def sources(
        self, where: AttentionId, name: str, head: int, token: int, part: Part
    ) -> tuple[Tensor, Reached, Finish]:
        """Return a head's weights (N,) at a token, and the map from its output (E,) to an operand, as `Reached` and `Finish`."""
        key = (where, name, head, token)
        if key not in self._reached:  # The maps of all parts below cost most, and a score has many heads.
            while len(self._reached) >= _REACHED:
                del self._reached[next(iter(self._reached))]
            kept: list[Reached] = []
            self._reached[key] = kept, self.operand(where, name, head, [token], kept).finish
        writes, finish = self._reached[key]
        reached = next(x for x in writes if part in x.write.parts)
        return self.map(*part.attention_head())[token].double(), reached, finish

    def tape(self, where: AttentionId, name: str, tokens: Sequence[int]) -> tuple[StreamStack, Tape]:
        """Return the stream that an operand reads at some tokens, with its steps before it is read."""
        stack = self.stacks[where.stacks[name != "query"]]
        until = None if where.kind == "cross" and name != "query" else where
        asked = (stack.kind, until, tuple(tokens))
        if self._read_last is None or self._read_last[0] != asked:
            self._read_last = (asked, self._read(stack, until, tokens))
        return stack, self._read_last[1]

    def _terms(self, where: AttentionId) -> int:
        """Count the terms of all sums, one after another, from the embeddings to a score."""
        total = 0
        for kind in dict.fromkeys(reversed(where.stacks)):
            for sublayer in self.stacks[kind].sublayers:
                widths = [x.in_features for x in sublayer.module.modules() if isinstance(x, nn.Linear)]
                total += sum(widths) + (0 if sublayer.where is None else self.map(sublayer.where).shape[-1])
                if sublayer.where == where:
                    break
        return total

    def _read(self, stack: StreamStack, until: AttentionId | None, tokens: Sequence[int]) -> Tape:
        """Compute the steps until an attention, or to the end with the final norm."""
        at_T = torch.tensor(tokens)
        tape = _embedded(stack.embeddings, self._ids(stack.kind), at_T, self._types)
        x_TM, is_pre = stream(tape), stack.layers.config.norm == "pre"
        for sublayer in stack.sublayers:
            if sublayer.where == until and until is not None:
                is_normed = is_pre and not isinstance(sublayer.norm, nn.Identity)
                return [*tape, Scale.of(sublayer.norm, x_TM)] if is_normed else tape
            added_TM, write = self._added(sublayer, x_TM, tokens, is_pre=is_pre)
            x_TM = x_TM + added_TM
            tape.append(write)
            if not is_pre:
                scale = Scale.of(sublayer.norm, x_TM)
                tape.append(scale)
                x_TM = scale.apply(x_TM)
        final_norm = stack.layers.norm
        return tape if final_norm is None else [*tape, Scale.of(final_norm, x_TM)]

    def _added(self, sublayer: Sublayer, x_TM: Tensor, tokens: Sequence[int], *, is_pre: bool) -> tuple[Tensor, Write]:
        """Compute the addition of a sublayer at the tokens, (T, M) float64, and the write of it."""
        where, bias, weight = sublayer.where, None, None
        if where is None:
            x = x_TM.to(self.dtype)
            added = sublayer.module(sublayer.norm(x) if is_pre else x).double()
            parts: tuple[Part, ...] = (Part("feed-forward", None, sublayer.layer),)
            values = added[:, None]
        else:
            heads, output = sublayer.module.num_heads, sublayer.module.output
            values = self._heads(where, tokens)
            added = apply_linear(output, values.to(self.dtype).flatten(1)).double()
            parts = tuple(Part("head", where.kind, where.layer, h) for h in range(heads))
            weight = output.weight.double().T.unflatten(0, (heads, -1))
            bias = None if output.bias is None else output.bias.double()
        norm = None
        if sublayer.output_norm is not None:
            norm = Scale.of(sublayer.output_norm, added)
            added = norm.apply(added)
        return added, Write(parts, values, weight, bias, norm)

    def _heads(self, where: AttentionId, tokens: Sequence[int]) -> Tensor:
        """Compute the outputs of all heads at the tokens, (T, H, E) float64."""
        m, value_GNE = self.map(where), self.values(where)
        heads, _, keys = m.shape
        step = max(1, BYTES // max(1, heads * keys * m.dtype.itemsize))
        results = []
        for first in range(0, len(tokens), step):
            weights_HTN = m[:, list(tokens[first : first + step])]
            grouped = weights_HTN.unflatten(0, (len(value_GNE), -1))  # (G, H / G, T, N)
            results.append((grouped @ value_GNE.to(grouped.dtype)[:, None]).flatten(0, 1).transpose(0, 1).double())
        return torch.cat(results)

    def _ids(self, kind: str) -> Tensor:
        """Return the token ids of the row, (N,)."""
        rows = self.recording.token_ids(kind)
        if rows is None:
            raise ValueError(
                f"{NAME}: the token ids of the {kind} are unknown, as in a recording from a file; record the text again"
            )
        return torch.tensor(rows[self.row])


def _projection(attention: MultiHeadAttention, name: str, head: int) -> tuple[Tensor, Tensor | None, nn.RMSNorm | None]:
    """Return the projection of a query head's operand: weight (D, M), bias (D,), and the norm of the result."""
    linear: nn.Linear = getattr(attention, name)
    width = attention.d_v if name == "value" else attention.d_k
    at = head if name == "query" else head * attention.num_kv_heads // attention.num_heads
    rows = slice(at * width, (at + 1) * width)
    bias = None if linear.bias is None else linear.bias[rows].detach().double()
    norm = None if name == "value" else getattr(attention, f"{name}_norm")
    return linear.weight[rows].detach().double(), bias, norm


_NAMES = ("token", "type", "position", "head", "feed-forward", "bias")


def _order(part: Part) -> tuple[int, int, int, int]:
    """Return the sort key of a part: embeddings first, then layers in order, then constants."""
    rank = _NAMES.index(part.name)
    if part.layer is None:
        return (0 if part.name != "bias" else 2, 0, rank, 0)
    return (1, part.layer, rank + (part.kind == "cross"), 0 if part.head is None else part.head)


def _row(x: Any, row: int) -> Tensor:
    result: Tensor = x.to_list()[row] if isinstance(x, Ragged) else x[row]
    return result
