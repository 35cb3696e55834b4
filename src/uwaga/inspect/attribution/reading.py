"""The parts of a head's queries, keys and values at some tokens of a recorded text, computed on demand.

Of attention the recording has everything: a head's output at a token is its row of the map times the values. What else a token has
written is a function of that token alone, and is computed again: its embeddings, and the feed-forward layers below. So nothing is kept for
texts of any length but queries, keys and values, and T tokens cost O(T N) for each head below, and no pass through the model.

Letters: T tokens, N tokens of the text, M model width, H query heads, G key/value heads, D query/key width, E value width, P parts.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from uwaga.inspect.attribution.streams import Part, Reached, Scale, Stack, Sublayer, Tape, Write, reach, stacks, stream
from uwaga.inspect.recordings.recording import Recording
from uwaga.maps.map import AttentionMap
from uwaga.models.transformer import Transformer
from uwaga.nn import MultiHeadAttention
from uwaga.nn.attention_id import AttentionId, describe_layers
from uwaga.nn.operand import values_of
from uwaga.nn.plain_modules import apply_linear
from uwaga.nn.positions import Rotation
from uwaga.ops.ragged import Ragged

NAME = "score_attribution"
_REACHED = 3  # operands of which `sources` keeps the maps: a query, a key and the other key
BYTES = 2**26  # of weights that are read at once


class Operand(NamedTuple):
    """The queries, keys or values of a head at some tokens, as sums of parts."""

    name: str  # "query", "key" or "value"
    tokens: list[int]
    parts: tuple[Part, ...]
    values: Tensor  # (T, P, D) float64
    sizes: Tensor  # (T,): the norm of the operand if no two terms of its sums had opposite signs
    finish: "Finish"  # what happens to each part after its projection
    steps: int  # of the stream: writes, norms and maps


class Finish(NamedTuple):
    """The norm of a head's queries or keys at its measured scale, and their rotation."""

    weight_TD: Tensor | None
    rotation: Rotation | None

    def __call__(self, x_TPD: Tensor) -> Tensor:
        """(T, P, D)."""
        x = x_TPD if self.weight_TD is None else x_TPD * self.weight_TD[:, None]
        return x if self.rotation is None else self.rotation.rotate(x)

    def norm_of(self, sizes_TD: Tensor) -> Tensor:
        """(T,): the norm of vectors of these sizes, which a rotation keeps but for the scale of its cosines and sines."""
        sizes = sizes_TD if self.weight_TD is None else sizes_TD * self.weight_TD.abs()
        scale = 1.0 if self.rotation is None else max(1.0, float(self.rotation.cos.hypot(self.rotation.sin).amax()))
        return torch.linalg.vector_norm(sizes, dim=-1) * scale


class Reader:
    """One row of a recording, with the model that was recorded.

    Args:
        model: with the weights of the recorded model.
        recording: with values, of all heads.
        row: of the recording.
        token_types: of all rows, (R, N) or Ragged (N,), or None: all 0.
        finest: the finest arithmetic that the recorded model may have used.
        ids: of the recorded rows, where the recording has none: (R, N), Ragged or lists; a tuple of the encoder's and the decoder's.

    Raises:
        ValueError: the recording lacks something that is needed; `operand` raises it too.
    """

    def __init__(
        self, model: Transformer, recording: Recording, row: int, token_types: Any, finest: torch.dtype, ids: Any = None
    ) -> None:
        self.stacks, self.recording, self.row = stacks(model), recording, row
        self.dtype = next(model.parameters()).dtype
        self._read_last: tuple[object, Tape] | None = None  # queries and keys of one text are of the same tape
        self._reached: dict[tuple[AttentionId, str, int, int], tuple[list[Reached], Finish]] = {}
        self._finest, self._given = finest, ids
        self._types = None if token_types is None else _row(token_types, row)

    @property
    def unit_roundoff(self) -> float:
        """Of the coarsest of the model's dtype, the recording's and the finest arithmetic."""
        recorded = [values_of(next(iter(self.recording.maps.values())).query).dtype]
        return max(torch.finfo(dtype).eps / 2 for dtype in (self.dtype, self._finest, *recorded))

    def rounding(self, where: AttentionId, operand: Operand) -> Tensor:
        """(T,) float64: how far rounding may take the recorded vectors of an operand from the sums of their parts.

        8 sqrt(n) u |x| of the n terms that all sums have, one after another, from the embeddings on, of the unit roundoff u of the model's
        arithmetic, and of the norm that the vector would have if no two terms had opposite signs (Higham and Mary, "A New Approach to
        Probabilistic Rounding Error Analysis", 2019, theorem 2.4, to first order: independent roundings exceed it once in 10^13). In half
        precision sums are taken to be float32's, and each step of the stream to be rounded when it is stored, by as much as its parts
        are large: 4 sqrt(steps) u times the root of the sum of their squares, where what was measured of real models is 0.4 to 2 u
        without sqrt(steps). What feed-forward layers and softmax make of a rounding below them is left out.
        """
        u = self.unit_roundoff
        of_sums = 8.0 * self._terms(where) ** 0.5 * min(u, torch.finfo(torch.float32).eps / 2) * operand.sizes
        return of_sums + 4.0 * operand.steps**0.5 * u * operand.values.square().sum((1, 2)).sqrt()

    def map(self, where: AttentionId, head: int | None = None) -> AttentionMap:
        """(H, Q, K) of the row, or (Q, K) of one of its heads."""
        if where not in self.recording.maps:
            raise ValueError(
                f"{NAME}: the recording has no {where.kind} {where.layer}, which wrote into what is asked for; there are "
                f"{describe_layers(self.recording.maps)}"
            )
        whole = self.recording.maps[where]
        heads = self._attention(where).num_heads
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
        """(G, N, E) of the row."""
        if where not in self.recording.values:
            raise ValueError(
                f"{NAME}: the recording has no values of {where}; uwaga.watch(model, values=True) keeps them"
            )
        value = self.recording.values[where]
        if isinstance(value, Ragged):
            return _row(value, self.row).transpose(0, 1)
        return value[self.row] if value.dim() == 4 else value

    @torch.no_grad()
    def operand(self, where: AttentionId, name: str, head: int, tokens: Sequence[int]) -> Operand:
        """The "query", "key" or "value" of a query head at some tokens, in float64."""
        attention = self._attention(where)
        weight_DM, bias_D, norm = _projection(attention, name, head)
        stack, tape = self.tape(where, name, tokens)
        parts: dict[Part, Tensor] = {}
        sizes_TD = torch.zeros(len(tokens), len(weight_DM), dtype=torch.float64)
        for reached in reach(tape, weight_DM, bias_D, len(tokens)):
            sizes_TD += _size(reached)
            for part, x_TD in _arrived(reached):
                parts[part] = parts[part] + x_TD if part in parts else x_TD
        x_TPD = torch.stack([parts[part] for part in sorted(parts, key=_order)], 1)
        finish = Finish(None, None)
        if name != "value":
            rotary = None if where.kind == "cross" else stack.rotary[where.layer]
            finish = Finish(_norm_weight(norm, x_TPD.sum(1)), None if rotary is None else _rotation(rotary, tokens))
        order, sizes_T = tuple(sorted(parts, key=_order)), finish.norm_of(sizes_TD)
        return Operand(name, list(tokens), order, finish(x_TPD), sizes_T, finish, len(tape))

    @torch.no_grad()
    def sources(
        self, where: AttentionId, name: str, head: int, token: int, part: Part
    ) -> tuple[Tensor, Reached, Finish]:
        """How one head's output at a token reaches an operand: its weights (N,), and the map from its (E,) as `Reached` and `Finish`."""
        assert part.kind is not None
        assert part.layer is not None
        asked = (where, name, head, token)
        if asked not in self._reached:  # the maps of all parts below are the work, and a score has many heads
            finish = self.operand(where, name, head, [token]).finish
            weight_DM, bias_D, _ = _projection(self._attention(where), name, head)
            _, tape = self.tape(where, name, [token])
            while len(self._reached) >= _REACHED:
                del self._reached[next(iter(self._reached))]
            self._reached[asked] = list(reach(tape, weight_DM, bias_D, 1)), finish
        every, finish = self._reached[asked]
        reached = next(each for each in every if part in each.write.parts)
        weights_N = self.map(AttentionId(part.kind, part.layer), part.head)[token]
        assert isinstance(weights_N, Tensor)
        return weights_N.double(), reached, finish

    def tape(self, where: AttentionId, name: str, tokens: Sequence[int]) -> tuple[Stack, Tape]:
        """What has happened to the stream that an operand reads, at some tokens, until it is read."""
        is_memory = where.kind == "cross" and name != "query"
        stack = self.stacks["encoder" if where.kind == "encoder" or is_memory else "decoder"]
        until = None if is_memory else where
        asked = (stack.kind, until, tuple(tokens))
        if self._read_last is None or self._read_last[0] != asked:
            self._read_last = (asked, self._read(stack, until, tokens))
        return stack, self._read_last[1]

    def _terms(self, where: AttentionId) -> int:
        """How many terms all sums have, one after another, from the embeddings to a score."""
        stacks_below = [self.stacks["encoder"]] if where.kind == "cross" else []
        total = 0
        for stack in (*stacks_below, self.stacks["encoder" if where.kind == "encoder" else "decoder"]):
            for sublayer in stack.sublayers:
                widths = [each.in_features for each in sublayer.module.modules() if isinstance(each, nn.Linear)]
                total += sum(widths) + (0 if sublayer.where is None else self.map(sublayer.where).shape[-1])
                if sublayer.where == where:
                    break
        return total

    def _read(self, stack: Stack, until: AttentionId | None, tokens: Sequence[int]) -> Tape:
        """Until an attention, or to the end with the final norm."""
        at_T = torch.tensor(tokens)
        tape = stack.embed(self._ids(stack.kind), at_T, self._types if stack.has_types else None)
        x_TM = stream(tape)
        for sublayer in stack.sublayers:
            if sublayer.where == until and until is not None:
                return (
                    tape
                    if not stack.is_pre or isinstance(sublayer.norm, nn.Identity)
                    else [*tape, Scale.of(sublayer.norm, x_TM)]
                )
            added_TM, write = self._added(sublayer, x_TM, tokens, is_pre=stack.is_pre)
            x_TM = x_TM + added_TM
            tape.append(write)
            if not stack.is_pre:
                scale = Scale.of(sublayer.norm, x_TM)
                tape.append(scale)
                x_TM = scale.apply(x_TM)
        return tape if stack.final_norm is None else [*tape, Scale.of(stack.final_norm, x_TM)]

    def _added(self, sublayer: Sublayer, x_TM: Tensor, tokens: Sequence[int], *, is_pre: bool) -> tuple[Tensor, Write]:
        """What a sublayer adds at the tokens, (T, M) float64, and the same as a write."""
        where, bias, weight = sublayer.where, None, None
        if where is None:
            given = x_TM.to(self.dtype)
            added = sublayer.module(sublayer.norm(given) if is_pre else given).double()
            parts: tuple[Part, ...] = (Part("feed-forward", None, sublayer.layer),)
            values = added[:, None]
        else:
            attention = sublayer.module
            values = self._heads(where, tokens)
            added = apply_linear(attention.output, values.to(self.dtype).flatten(1)).double()
            parts = tuple(Part("head", where.kind, where.layer, h) for h in range(attention.num_heads))
            weight = attention.output.weight.double().T.unflatten(0, (attention.num_heads, -1))
            bias = None if attention.output.bias is None else attention.output.bias.double()
        norm = None
        if sublayer.output_norm is not None:
            norm = Scale.of(sublayer.output_norm, added)
            added = norm.apply(added)
        return added, Write(parts, values, weight, bias, norm)

    def _heads(self, where: AttentionId, tokens: Sequence[int]) -> Tensor:
        """(T, H, E) float64: the outputs of all heads at the tokens."""
        m, value_GNE = self.map(where), self.values(where)
        heads, _, keys = m.shape
        step = max(1, BYTES // max(1, heads * keys * m.dtype.itemsize))
        results = []
        for first in range(0, len(tokens), step):
            weights_HTN = m[:, list(tokens[first : first + step])]
            assert isinstance(weights_HTN, Tensor)
            grouped = weights_HTN.unflatten(0, (len(value_GNE), -1))  # (G, H / G, T, N)
            results.append((grouped @ value_GNE.to(grouped.dtype)[:, None]).flatten(0, 1).transpose(0, 1).double())
        return torch.cat(results)

    def _ids(self, kind: str) -> Tensor:
        """(N,) the token ids of the row."""
        ids, given = self.recording.token_ids(kind), self._given
        own = None if ids is None else ids[self.row]
        if given is None and own is not None:
            return torch.tensor(own)
        if given is None:
            raise ValueError(
                f"{NAME}: the token ids of the {kind} are unknown, as of a recording that was read from a file: give ids"
            )
        if isinstance(given, tuple):
            given = given[kind == "decoder"]
        m = next(m for (name, _), m in self.recording.maps.items() if name == kind)
        is_one = len(m.shape) == 3 and torch.as_tensor(given).dim() == 1
        ids_N, tokens = (
            torch.as_tensor(given if is_one else _row(given, self.row)),
            (m.select(self.row) if len(m.shape) == 4 else m).shape[-1],
        )
        if ids_N.shape != (tokens,) or ids_N.dtype.is_floating_point or ids_N.dtype == torch.bool:
            shape = tuple(ids_N.shape)
            raise ValueError(f"{NAME}: ids of the {kind} must be {tokens} integers in row {self.row}, not {shape}")
        if own is not None and ids_N.tolist() != own:
            raise ValueError(f"{NAME}: ids of the {kind} are not those that the recording has in row {self.row}")
        return ids_N.long()

    def _attention(self, where: AttentionId) -> MultiHeadAttention:
        stack = self.stacks["encoder" if where.kind == "encoder" else "decoder"]
        result: MultiHeadAttention = next(each.module for each in stack.sublayers if each.where == where)
        return result


def _projection(attention: MultiHeadAttention, name: str, head: int) -> tuple[Tensor, Tensor | None, nn.RMSNorm | None]:
    """Of a query head's operand: the weight (D, M), the bias (D,), and the norm of the result."""
    linear: nn.Linear = getattr(attention, name)
    width = attention.d_v if name == "value" else attention.d_k
    at = head if name == "query" else head * attention.num_kv_heads // attention.num_heads
    rows = slice(at * width, (at + 1) * width)
    bias = None if linear.bias is None else linear.bias[rows].detach().double()
    norm: Any = None if name == "value" else getattr(attention, f"{name}_norm")
    return linear.weight[rows].detach().double(), bias, norm


def _norm_weight(norm: nn.RMSNorm | None, x_TD: Tensor) -> Tensor | None:
    if norm is None:
        return None
    scale = Scale.of(norm, x_TD)
    weight_TD = scale.factor_T[:, None].expand_as(x_TD)
    return weight_TD if scale.weight is None else weight_TD * scale.weight


def _rotation(rotary: Any, tokens: Sequence[int]) -> Rotation:
    at_T = torch.tensor(tokens)
    made = rotary(torch.zeros(len(tokens), 1, 1, dtype=torch.float64), start=at_T)
    return Rotation(made.cos[:, 0], made.sin[:, 0], made.is_interleaved)


def _arrived(reached: Reached) -> list[tuple[Part, Tensor]]:
    """What each part of a write gives, (T, D)."""
    if reached.constant_TD is not None:
        return [(reached.write.parts[0], reached.constant_TD)]
    assert reached.map_nWD is not None
    x_nTD = reached.write.values.transpose(0, 1) @ reached.map_nWD * reached.factor_T[:, None]
    return list(zip(reached.write.parts, x_nTD, strict=True))


def _size(reached: Reached) -> Tensor:
    """(T, D): the sum of the sizes of all terms."""
    if reached.constant_TD is not None:
        return reached.constant_TD.abs()
    assert reached.map_nWD is not None
    return (reached.write.values.transpose(0, 1).abs() @ reached.map_nWD.abs()).sum(0) * reached.factor_T[:, None]


_NAMES = ("token", "type", "position", "head", "feed-forward", "bias")


def _order(part: Part) -> tuple[int, int, int, int]:
    """Embeddings, then layer by layer, then constants."""
    rank = _NAMES.index(part.name)
    if part.layer is None:
        return (0 if part.name != "bias" else 2, 0, rank, 0)
    return (1, part.layer, rank + (part.kind == "cross"), 0 if part.head is None else part.head)


def _row(x: Any, row: int) -> Tensor:
    result: Tensor = x.to_list()[row] if isinstance(x, Ragged) else x[row]
    return result
