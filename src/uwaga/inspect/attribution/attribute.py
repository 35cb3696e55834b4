"""uwaga.inspect.score_attribution: a head's scores as sums of contributions of pairs of parts, and the sources of the parts.

Letters: C scores, P parts of the query, S parts of the key, Q queries, K keys, D query/key width, E value width, N tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from uwaga._base.arguments import check, choice, integer
from uwaga.inspect.attribution.streams import NAME, Finish, Part, Reader, StreamStack, stacks
from uwaga.inspect.recordings.recording import Recording
from uwaga.integrations.transformers.inside import outermost
from uwaga.maps.engines import tiles
from uwaga.maps.map import AttentionMap
from uwaga.models.attention_layers import name_of
from uwaga.models.checkpoints import load_save
from uwaga.models.families import model_types
from uwaga.models.transformer import Transformer
from uwaga.nn.attention_id import AttentionId, describe_layers
from uwaga.nn.operand import values_of
from uwaga.ops.attention.call import Call, compute_dtype

_CELLS = 256  # the number of cells whose queries and keys are read at once, as an outer product
_SIDES = ("query", "key")


class Share(NamedTuple):
    """Hold the contribution of a part of the query's residual stream with a part of the key's to a score."""

    query: Part
    key: Part
    share: float


class Source(NamedTuple):
    """Hold a token from which a head has brought a part of a share.

    token: its position among the keys of that head.
    weight: the head's weight on the token.
    share: the token's share of the score.
    parts: the strongest parts of that token's residual stream with their shares.
    """

    token: int
    weight: float
    share: float
    parts: tuple[tuple[Part, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoreAttribution:
    """Hold scores of one head, each the sum of the contributions of all pairs of parts:

        scores[c] = sum over p, s of query[c, p] . key[c, s] * scale + distance[c]

    With `than`, scores and contributions are differences of two scores of one query. `attribution[c]` is one of several scores, and
    iteration gives each score. `shares` and `top` of several scores are means.
    """

    kind: str
    layer: int
    head: int
    row: int
    cells: tuple[tuple[int, int], ...]  # C of (query, key)
    # C keys whose scores are subtracted; then all fields below except `weights` belong to the difference.
    than: tuple[int, ...] | None
    scores: Tensor  # (C,) float64: q . k * scale + distance of the recorded queries and keys, before a softcap
    weights: Tensor  # (C,): the attention weights
    query_parts: tuple[Part, ...]  # P
    key_parts: tuple[Part, ...]  # S
    query: Tensor  # (C, P, D) float64: the query as a sum of parts, normed and rotated
    key: Tensor  # (C, S, D)
    scale: float
    distance: Tensor  # (C,): the bias of the score, such as ALiBi's or T5's, which no pair contributes
    rounding: Tensor  # (C,): `bound`
    reader: Reader  # reads the recording for `back`

    def __len__(self) -> int:
        return len(self.cells)

    def __getitem__(self, c: int) -> "ScoreAttribution":
        """Return score c."""
        c = _index(c, len(self), "a score")
        per_score = ("cells", "scores", "weights", "query", "key", "distance", "rounding")
        one: dict[str, Any] = {name: getattr(self, name)[c : c + 1] for name in per_score}
        return replace(self, than=None if self.than is None else self.than[c : c + 1], **one)

    def __iter__(self) -> Iterator["ScoreAttribution"]:
        return (self[c] for c in range(len(self)))

    def __repr__(self) -> str:
        at = ", ".join(f"({i}, {j})" for i, j in self.cells[:3]) + (", ..." if len(self) > 3 else "")
        pairs = f"{len(self.query_parts)} x {len(self.key_parts)} parts"
        scores = "scores" if self.than is None else "differences of scores"
        return f"ScoreAttribution({self.kind} {self.layer}.{self.head}; {pairs} of {len(self)} {scores} at {at})"

    def shares(self) -> Tensor:
        """Return the contribution (P, S) of each pair in float64; the mean if there are several scores."""
        return torch.einsum("cpd,csd->ps", self.query, self.key) * (self.scale / len(self))

    def total(self) -> Tensor:
        """Return the sum (C,) of all contributions in float64; it equals `scores` up to the rounding of the model."""
        return (self.query.sum(1) * self.key.sum(1)).sum(-1) * self.scale + self.distance

    def bound(self) -> Tensor:
        """Return the bound (C,) in float64 of |total - scores| by rounding.

        It is |dq| |k| + |q| |dk| + |dq| |dk| times the scale, for a query and a key as far from the recorded ones as `score_attribution`
        allows.
        """
        return self.rounding

    def top(self, k: int = 10) -> list[Share]:
        """Return the k pairs with the largest contributions, of either sign; means if there are several scores.

        A bias by distance is one of the pairs, with the part "distance" on both sides.
        """
        k = integer(k, f"{NAME}: top: k", 1)
        shares = self.shares()
        flat = torch.cat((shares.flatten(), self.distance.mean()[None]))
        results = []
        for at in flat.abs().argsort(descending=True, stable=True)[: min(k, len(flat))].tolist():
            if at == shares.numel():
                if bool(self.distance.any()):
                    results.append(Share(_DISTANCE, _DISTANCE, float(flat[at])))
                continue
            p, s = divmod(at, shares.shape[1])
            results.append(Share(self.query_parts[p], self.key_parts[s], float(flat[at])))
        return results

    def sources(self, part: Part, side: str, other: Part | None = None) -> Tensor:
        """Split the share of a head's output by the token that the head brought it from, (N,) in float64.

        A head's output is sum_t a_it v_t W_O, and its share of a score is a sum over the same tokens t.

        Args:
            part: a head, one of `query_parts` or `key_parts`.
            side: "query" or "key", the residual stream that the head wrote into.
            other: a part of the other side, for the share of the pair; None: all parts of the other side.

        Raises:
            ValueError: several scores, a part that is not a head or does not exist, or an unknown side.
        """
        return _back(self, part, side, other)[0]

    def back(self, part: Part, side: str, other: Part | None = None, *, top: int = 5, parts: int = 3) -> list[Source]:
        """Return the strongest tokens of `sources`, with the parts of their residual streams.

        Args:
            part, side, other: as in `sources`.
            top: the number of tokens.
            parts: the number of parts of each token; the shares of all parts sum to the token's share.

        Raises:
            ValueError: as `sources`.
        """
        top, parts = integer(top, f"{NAME}: back: top", 1), integer(parts, f"{NAME}: back: parts", 1)
        shares, weights_N, share_of = _back(self, part, side, other)
        tokens = shares.abs().argsort(descending=True, stable=True)[:top]
        where, head = part.attention_head()
        value = self.reader.operand(where, "value", head, tokens.tolist())
        results = []
        for n, token in enumerate(tokens.tolist()):
            of_parts = share_of(value.values[n], tokens[n : n + 1].expand(len(value.parts)))
            order = of_parts.abs().argsort(descending=True, stable=True)[:parts].tolist()
            held = tuple((value.parts[p], float(of_parts[p])) for p in order)
            results.append(Source(token, float(weights_N[token]), float(shares[token]), held))
        return results


_DISTANCE = Part("distance")


@torch.no_grad()
def _back(
    of: ScoreAttribution, part: Part, side: str, other: Part | None
) -> tuple[Tensor, Tensor, Callable[[Tensor, Tensor], Tensor]]:
    """Return shares (N,) and weights (N,) of the tokens that a head read, and a function for shares (n,) of values (n, E) at tokens (n,)."""
    check(len(of) == 1, f"{NAME}: back needs one score, and there are {len(of)}; take one of them by its index")
    choice(side, f"{NAME}: side", _SIDES)
    sides = {"query": (of.query_parts, of.query[0]), "key": (of.key_parts, of.key[0])}
    other_parts, other_PD = sides[_SIDES[1 - _SIDES.index(side)]]
    for named, parts, name in ((part, sides[side][0], side), (other, other_parts, "other side")):
        if named is not None and named not in parts:
            raise ValueError(f"{NAME}: {named} is not a part of the {name}; there are {', '.join(map(str, parts))}")
    check(part.name == "head", f"{NAME}: {part} brought nothing from other tokens; only heads do")
    # The share of x is <finish(x), u_D>.
    u_D = (other_PD.sum(0) if other is None else other_PD[other_parts.index(other)]) * of.scale
    tokens = [of.cells[0][_SIDES.index(side)]]
    if side == "key" and of.than is not None:
        tokens.append(of.than[0])
    # For each token that reads: the head's weights (N,), the map (E, D) of what it brings, and the steps after the map.
    readers: list[tuple[Tensor, Tensor, Finish]] = []
    for token in tokens:
        weights_N, reached, finish = of.reader.sources(AttentionId(of.kind, of.layer), side, of.head, token, part)
        readers.append((weights_N, reached.map_nWD[reached.write.parts.index(part)] * reached.factor_T, finish))

    def share_of(x_nE: Tensor, at: Tensor) -> Tensor:
        first, *others = (
            weights_N[at] * (finish((x_nE @ map_ED)[None])[0] @ u_D) for weights_N, map_ED, finish in readers
        )
        return first - others[0] if others else first

    source, head = part.attention_head()
    value_GNE = of.reader.values(source)
    value_NE = value_GNE[head * len(value_GNE) // of.reader.map(source).shape[0]]
    every = torch.arange(len(value_NE)).split(2**14)
    return torch.cat([share_of(value_NE[at].double(), at) for at in every]), readers[0][0], share_of


class UnknownFamilyError(ValueError):
    """Report a model whose parts are not known."""


@torch.no_grad()
def score_attribution(
    model: nn.Module,
    recording: Recording,
    layer: int,
    head: int,
    i: int | Sequence[int] | None = None,
    j: int | Sequence[int] | None = None,
    *,
    than: int | Sequence[int] | None = None,
    kind: str | None = None,
    row: int = 0,
    most: int = 100,
    token_types: Any = None,
) -> ScoreAttribution:
    """Split a score s_ij = q_i . k_j * scale into the contributions of all pairs of parts.

        with uwaga.watch(model, values=True) as recording:
            model(ids)
        why = score_attribution(model, recording, 1, 2, i=40, j=17)
        why.top(3)                                      # [Share(query=Part("token"), key=Part("head", "decoder", 0, 1), share=5.1), ...]
        why.back(why.top(1)[0].key, "key")              # the tokens from which that head brought it

    The query and the key are linear maps of residual streams, and a residual stream is the sum of the embeddings, every earlier head
    through W_O, every earlier feed-forward layer, and constants. A norm is a linear map once its mean and scale are fixed at a token
    (Elhage et al., "A Mathematical Framework for Transformer Circuits", 2021). So the contributions sum to the score up to rounding,
    without gradients, approximation or training. A norm's scale depends on all parts: to measure the score without a part, use
    `activation_patching`.

    A contribution that is equal for all keys does not change the weights, since softmax ignores a constant. With `than`, the difference of
    the scores of two keys is split, and such contributions cancel.

    Only the feed-forward layers below run, at the tokens of the scores: O(N) for each score and head below.

    Args:
        model: of uwaga.models, or of transformers of a family that `uwaga.models.load` knows, in evaluation mode.
        recording: from `uwaga.watch(model, values=True)` outside of `uwaga.edit`, not from a file.
        layer, head: the layer and the head of the score, from 0.
        i, j: the query and the key; negative numbers count from the end. Lists, arrays or tensors of as many of each give several scores.
            If one is None, the `most` largest weights of the row or column; if both are None, of the head.
        than: another key, or one for each score: s_ij - s_i,than is split in place of s_ij.
        kind: "encoder", "decoder" or "cross"; None: the decoder's self-attention if there is a decoder, else the encoder's.
        row: the row of the batch.
        most: the most scores if i or j is None; fewer if fewer keys are seen.
        token_types: the types of the tokens that BERT was given, (R, N) or Ragged (N,); None: all 0.

    Raises:
        ValueError: another family of models, a model in training mode or on another device than the CPU; a layer, head, row, query or key
            that does not exist, or a key that the mask hides from the query; a recording that lacks values, layers, heads or token
            ids; a recording of another model or text, whose queries and keys are farther from the sums of their parts than
            rounding allows. In half precision rounding allows 5 to 20 per cent of them, and more with many layers, so a smaller difference
            is not found (compare `bound` with the score). Positions other than 0, 1, ... (`position_ids` of a text that is padded on
            the left) and rotary scaling that changes with the length are not supported, and look like another model.
    """
    ours = _of_this_package(model)
    check(isinstance(recording, Recording), f"{NAME}: needs a recording, as uwaga.watch(model, values=True) makes it")
    parts = stacks(ours)
    where = _where(parts, kind, layer, model)
    check(
        where in recording.maps,
        f"{NAME}: the recording has no {where}; there are {describe_layers(recording.maps)}",
    )
    shape = recording.maps[where].shape
    rows = shape[0] if len(shape) == 4 else 1  # (H, Q, K) is of one text
    row = _index(row, rows, "row")
    # Norms of transformers compute in float32 whatever they are given.
    finest = torch.float64 if ours is model else torch.float32
    reader = Reader(parts, next(ours.parameters()).dtype, recording, row, token_types, finest)
    head = _index(head, reader.attention(where).num_heads, "head")
    m = reader.map(where, head)
    cells = _cells(m, i, j, most)
    return _attribution(reader, where, head, cells, _than(than, len(cells), m.shape[1]), m)


def _attribution(
    reader: Reader, where: AttentionId, head: int, cells: list[tuple[int, int]], than: list[int] | None, m: AttentionMap
) -> ScoreAttribution:
    of_query, of_key = [i for i, _ in cells], [j for _, j in cells]
    queries, keys = sorted(set(of_query)), sorted({*of_key, *(than or ())})
    if where.kind != "cross":  # both are tokens of one text, which is read once
        queries = keys = sorted({*queries, *keys})
    query, key = reader.operand(where, "query", head, queries), reader.operand(where, "key", head, keys)
    call = m._call
    query_T, key_T = reader.check(where, query, call.query[0, 0]), reader.check(where, key, call.key[0, 0])
    scale = float(call.options.scale)
    at_query, at_key = [queries.index(i) for i in of_query], [keys.index(j) for j in of_key]
    distance, k_CD = _distances(call, cells), call.key[0, 0, of_key].double()
    q_CPD, k_CSD, rounding_C = query.values[at_query], key.values[at_key], key_T[at_key]
    if than is not None:
        at_than = [keys.index(j) for j in than]
        distance = distance - _distances(call, list(zip(of_query, than, strict=True)))
        k_CD = k_CD - call.key[0, 0, than].double()
        k_CSD, rounding_C = k_CSD - key.values[at_than], rounding_C + key_T[at_than]
    norm_C, of_query_C = k_CSD.sum(1).norm(dim=-1), query_T[at_query]
    return ScoreAttribution(
        kind=where.kind,
        layer=where.layer,
        head=head,
        row=reader.row,
        cells=tuple(cells),
        than=None if than is None else tuple(than),
        scores=(call.query[0, 0, of_query].double() * k_CD).sum(-1) * scale + distance,
        weights=_weights(m, cells),
        query_parts=query.parts,
        key_parts=key.parts,
        query=q_CPD,
        key=k_CSD,
        scale=scale,
        distance=distance,
        rounding=(of_query_C * (norm_C + rounding_C) + q_CPD.sum(1).norm(dim=-1) * rounding_C) * abs(scale),
        reader=reader,
    )


def _numbers(x: Any) -> list[Any] | None:
    """Return several numbers as a list; None if x is one number."""
    x = x.tolist() if hasattr(x, "tolist") else x
    return list(x) if isinstance(x, Sequence) and not isinstance(x, str) else None


def _than(than: Any, count: int, keys: int) -> list[int] | None:
    if than is None:
        return None
    several = _numbers(than)
    several = [than] * count if several is None else several
    check(len(several) == count, f"{NAME}: than must be one key, or one for each of {count} scores, not {len(several)}")
    return [_index(key, keys, "a key") for key in several]


def _cells(m: AttentionMap, i: Any, j: Any, most: int) -> list[tuple[int, int]]:
    """Return the requested queries and keys, or those of the `most` largest weights."""
    queries, keys = m.shape
    if i is not None and j is not None:
        of_i, of_j = ([x] if (several := _numbers(x)) is None else several for x in (i, j))
        check(
            len(of_i) == len(of_j) and of_i,
            f"{NAME}: i and j must have the same length, at least 1, not {len(of_i)} and {len(of_j)}",
        )
        return [(_index(a, queries, "i"), _index(b, keys, "j")) for a, b in zip(of_i, of_j, strict=True)]
    most = integer(most, f"{NAME}: most", 1)
    for name, position in (("i", i), ("j", j)):
        check(_numbers(position) is None, f"{NAME}: if {name} is a list, the other must be a list too")
    if i is not None:
        i = _index(i, queries, "i")
        found = [(weight, i, key) for weight, key in _largest(m[i], most)]
    elif j is not None:
        j = _index(j, keys, "j")
        found = [(weight, query, j) for weight, query in _largest(m[:, j], most)]
    else:
        found = _strongest(m, most)
    strongest = sorted(found, key=lambda cell: (-cell[0], *cell[1:]))[:most]  # equal weights by position
    result = [(query, key) for weight, query, key in strongest if weight > 0]
    check(result, f"{NAME}: the queries see no key")
    return result


def _largest(x: Tensor, most: int) -> list[tuple[float, int]]:
    """Return the `most` largest numbers of a tensor, and their positions in the flattened tensor."""
    numbers, at = x.flatten().topk(min(most, x.numel()))
    return list(zip(numbers.tolist(), at.tolist(), strict=True))


def _strongest(m: AttentionMap, most: int) -> list[tuple[float, int, int]]:
    """Return the `most` largest weights of a head as (weight, query, key), without a matrix Q x K."""
    count = min(most, m.shape[1])
    weights_Qk, keys_Qk = map(values_of, m.topk(count))
    return [(weight, n // count, int(keys_Qk.flatten()[n])) for weight, n in _largest(weights_Qk, most)]


def _distances(call: Call, cells: list[tuple[int, int]]) -> Tensor:
    """Compute the biases (C,) of the scores in float64, as scores of a query of zeros. Raises ValueError: a hidden key."""
    results = []
    for first in range(0, len(cells), _CELLS):
        queries, keys = zip(*cells[first : first + _CELLS], strict=True)
        every_query, at_query = torch.tensor(queries).unique(return_inverse=True)
        every_key, at_key = torch.tensor(keys).unique(return_inverse=True)
        products = torch.zeros(1, 1, len(every_query), len(every_key), dtype=compute_dtype(call.query.dtype))
        scores, seen = tiles.finish(call, products, every_query, every_key), tiles.seen(call, every_query, every_key)
        results.append(scores.masked_fill(~seen, -torch.inf)[0, 0, at_query, at_key].double())
    result = torch.cat(results)
    for n in (result == -float("inf")).nonzero().flatten().tolist():
        raise ValueError(f"{NAME}: the mask hides key {cells[n][1]} from query {cells[n][0]}, so there is no score")
    return result


def _weights(m: AttentionMap, cells: list[tuple[int, int]]) -> Tensor:
    """Read the weights of the cells, (C,)."""
    results = []
    for first in range(0, len(cells), _CELLS):
        queries, keys = (list(x) for x in zip(*cells[first : first + _CELLS], strict=True))
        results.append(m[queries, keys].diagonal())
    return torch.cat(results)


def _of_this_package(model: nn.Module) -> Transformer:
    """Return the model, or for a model of transformers the model of this package with the same weights."""
    check(
        not model.training,
        f"{NAME}: {name_of(model)} is in training mode, in which dropout changes what it computes; call model.eval()",
    )
    device = next((x.device for x in model.parameters()), torch.device("cpu"))
    check(
        device.type == "cpu",
        f"{NAME}: the model must be on the CPU, not on {device}; record it with watch(..., device='cpu')",
    )
    if isinstance(model, Transformer):
        return model
    found = outermost(model)
    if len(found) == 1 and (ours := load_save.of_transformers(found[0][1])) is not None:
        return ours
    raise UnknownFamilyError(
        f"{NAME}: {name_of(model)} is of an unknown family; supported are uwaga.models.Transformer, and of transformers: "
        f"{', '.join(model_types())}"
    )


def _where(parts: dict[str, StreamStack], kind: str | None, layer: int, model: nn.Module) -> AttentionId:
    existing = [sub.where for stack in parts.values() for sub in stack.sublayers if sub.where is not None]
    kind = kind if kind is not None else "decoder" if "decoder" in parts else "encoder"
    where = AttentionId(kind, integer(layer, f"{NAME}: layer"))
    if where not in existing:
        layers = describe_layers(existing)
        raise ValueError(f"{NAME}: {name_of(model)} has no layer {where.layer} of kind {kind!r}; there are {layers}")
    return where


def _index(value: Any, length: int, name: str) -> int:
    """Return a position from the front; a negative one counts from the end."""
    return integer(value, f"{NAME}: {name}", -length, length - 1) % length
