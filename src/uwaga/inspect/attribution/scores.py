"""Scores of a head as sums of what pairs of parts of the model contribute to them, and where the parts came from.

Letters: C scores, P parts of the query, S parts of the key, D query/key width, E value width, N tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from uwaga.inspect.attribution.reading import NAME, Operand, Reader
from uwaga.inspect.attribution.streams import Part
from uwaga.maps.base import integer
from uwaga.nn.attention_id import AttentionId

_SIDES = ("query", "key")


class Share(NamedTuple):
    """What a pair of parts contributes to a score: that of the query's residual stream times that of the key's."""

    query: Part
    key: Part
    share: float

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"query": self.query._asdict(), "key": self.key._asdict(), "share": self.share}


class Source(NamedTuple):
    """A token from which a head has brought a part of a share.

    token: its position among the keys of that head.
    weight: the head's weight on it.
    share: of the score.
    parts: what that token's residual stream held, the strongest first, with the share of each.
    """

    token: int
    weight: float
    share: float
    parts: tuple[tuple[Part, float], ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        parts = [{"part": part._asdict(), "share": share} for part, share in self.parts]
        return {"token": self.token, "weight": self.weight, "share": self.share, "parts": parts}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoreAttribution:
    """Scores of one head, each the sum of the contributions of all pairs of parts:

        scores[c] = sum over p, s of query[c, p] . key[c, s] * scale + distance[c]

    With `than` each is the difference of two scores of one query, and so are its contributions.

    There may be several scores, as the strongest of a head or a row: `attribution[c]` is one of them, and iteration gives each.
    `shares` and `top` of several are their mean.
    """

    kind: str
    layer: int
    head: int
    row: int
    cells: tuple[tuple[int, int], ...]  # C of (query, key)
    than: (
        tuple[int, ...] | None
    )  # C keys whose scores are subtracted: then all below is of the difference, but `weights`
    scores: Tensor  # (C,) float64: q . k * scale + distance of the recorded queries and keys, before a softcap
    weights: Tensor  # (C,): the attention weights
    query_parts: tuple[Part, ...]  # P
    key_parts: tuple[Part, ...]  # S
    query: Tensor  # (C, P, D) float64: the query as a sum of parts, normed and rotated
    key: Tensor  # (C, S, D)
    scale: float
    distance: Tensor  # (C,): the bias of the score, as of ALiBi or T5, which no pair contributes
    rounding: Tensor  # (C,): `bound`
    reader: Reader  # of the recording, for `back`

    def __len__(self) -> int:
        return len(self.cells)

    def __getitem__(self, c: int) -> "ScoreAttribution":
        """One of the scores."""
        c = index(c, len(self), "score", f"scores are 0 to {len(self) - 1}")
        at = slice(c, c + 1)
        return replace(
            self,
            cells=self.cells[at],
            than=None if self.than is None else self.than[at],
            scores=self.scores[at],
            weights=self.weights[at],
            query=self.query[at],
            key=self.key[at],
            distance=self.distance[at],
            rounding=self.rounding[at],
        )

    def __iter__(self) -> Iterator["ScoreAttribution"]:
        return (self[c] for c in range(len(self)))

    def __repr__(self) -> str:
        at = ", ".join(f"({i}, {j})" for i, j in self.cells[:3]) + (", ..." if len(self) > 3 else "")
        pairs = f"{len(self.query_parts)} x {len(self.key_parts)} parts"
        scores = "scores" if self.than is None else "differences of scores"
        return f"ScoreAttribution({self.kind} {self.layer}.{self.head}; {pairs} of {len(self)} {scores} at {at})"

    def shares(self) -> Tensor:
        """(P, S) float64: the contribution of each pair; of several scores the mean."""
        return torch.einsum("cpd,csd->ps", self.query, self.key) * (self.scale / len(self))

    def total(self) -> Tensor:
        """(C,) float64: the sum of all contributions; equal to `scores` up to the rounding of the model's own arithmetic."""
        return (self.query.sum(1) * self.key.sum(1)).sum(-1) * self.scale + self.distance

    def bound(self) -> Tensor:
        """(C,) float64: how far rounding may take `total` from `scores`: |dq| |k| + |q| |dk| + |dq| |dk| of a query and a key that lie no
        farther from the recorded ones than `score_attribution` allows (`Reader.rounding`), times the scale."""
        return self.rounding

    def top(self, k: int = 10) -> list[Share]:
        """The k pairs whose contributions are largest, of either sign; of several scores by their mean.

        A bias by distance is among them, with the part "distance" on both sides.
        """
        k = positive("top: k", k)
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
        """(N,) float64: the share of a head's output, at this score's query or key, by the token that the head brought it from.

        One step back: a head's output is sum_t a_it v_t W_O, and so is its share of a score. The sum over tokens is the share of the part.

        Args:
            part: a head, one of `query_parts` or `key_parts`.
            side: "query" or "key": whose residual stream it wrote into.
            other: a part of the other side: the share of the pair. None: of the part and all of the other side.

        Raises:
            ValueError: several scores, a part that is no head or is not there, or an unknown side.
        """
        return _Back(self, part, side, other).shares()

    def back(self, part: Part, side: str, other: Part | None = None, *, top: int = 5, parts: int = 3) -> list[Source]:
        """The tokens that `sources` finds strongest, and what their residual streams held where the head read them.

        Args:
            part, side, other: as in `sources`.
            top: how many tokens.
            parts: how many parts of each token's share; the shares of all of them sum to it.

        Raises:
            ValueError: as `sources`.
        """
        top, parts = positive("back: top", top), positive("back: parts", parts)
        return _Back(self, part, side, other).strongest(top, parts)

    def to_dict(self, top: int = 10) -> dict[str, Any]:
        """For JSON: where, the scores with their weights, and the `top` strongest pairs."""
        than = [None] * len(self) if self.than is None else self.than
        scores = zip(self.cells, than, self.scores.tolist(), self.weights.tolist(), self.total().tolist(), strict=True)
        return {
            "kind": self.kind,
            "layer": self.layer,
            "head": self.head,
            "row": self.row,
            "scores": [
                {"query": i, "key": j, "than": other, "score": score, "weight": weight, "total": total}
                for (i, j), other, score, weight, total in scores
            ],
            "shares": [each.to_dict() for each in self.top(top)],
        }


_DISTANCE = Part("distance")


class _Back:
    """One step back from a head's output at the query or the key of a score."""

    def __init__(self, of: ScoreAttribution, part: Part, side: str, other: Part | None) -> None:
        if len(of) != 1:
            raise ValueError(f"{NAME}: back is of one score, and there are {len(of)}; take one of them by its index")
        if side not in _SIDES:
            raise ValueError(f"{NAME}: side must be 'query' or 'key', not {side!r}")
        sides = {"query": (of.query_parts, of.query[0]), "key": (of.key_parts, of.key[0])}
        own_parts, _ = sides[side]
        other_parts, other_PD = sides[_SIDES[1 - _SIDES.index(side)]]
        for each, known, name in ((part, own_parts, side), (other, other_parts, "other side")):
            if each is not None and each not in known:
                raise ValueError(f"{NAME}: {each} is no part of the {name}; there are {', '.join(map(str, known))}")
        if part.name != "head":
            raise ValueError(f"{NAME}: {part} has brought nothing from other tokens: only heads have")
        # The share of x is <finish(x), u_D>.
        self.u_D = (other_PD.sum(0) if other is None else other_PD[other_parts.index(other)]) * of.scale
        reader = self.reader = of.reader
        where = AttentionId(of.kind, of.layer)
        assert part.kind is not None
        assert part.layer is not None
        assert part.head is not None
        self.source, self.head = AttentionId(part.kind, part.layer), part.head
        tokens = [of.cells[0][_SIDES.index(side)]]
        if side == "key" and of.than is not None:
            tokens.append(of.than[0])
        self.readers = [_Brought(reader, where, side, of.head, token, part) for token in tokens]

    def share_of(self, x_NE: Tensor, tokens: Tensor) -> Tensor:
        """(n,): what values at tokens (n,) contribute by the weights on these."""
        first, *others = (each.share_of(x_NE, tokens, self.u_D) for each in self.readers)
        return first - others[0] if others else first

    @torch.no_grad()
    def shares(self) -> Tensor:
        """(N,)."""
        value_GNE = self.reader.values(self.source)
        value_NE = value_GNE[self.head * len(value_GNE) // self.reader.map(self.source).shape[0]]
        every = torch.arange(len(value_NE)).split(2**14)
        return torch.cat([self.share_of(value_NE[tokens].double(), tokens) for tokens in every])

    @torch.no_grad()
    def strongest(self, top: int, parts: int) -> list[Source]:
        """The `top` tokens, each with its `parts` strongest parts."""
        shares = self.shares()
        tokens = shares.abs().argsort(descending=True, stable=True)[:top]
        value: Operand = self.reader.operand(self.source, "value", self.head, tokens.tolist())
        results = []
        for n, token in enumerate(tokens.tolist()):
            of_parts = self.share_of(value.values[n], tokens[n : n + 1].expand(len(value.parts)))
            order = of_parts.abs().argsort(descending=True, stable=True)[:parts].tolist()
            held = tuple((value.parts[p], float(of_parts[p])) for p in order)
            results.append(Source(token, float(self.readers[0].weights_N[token]), float(shares[token]), held))
        return results


class _Brought:
    """How what a head brings to one token reaches an operand."""

    def __init__(self, reader: Reader, where: AttentionId, side: str, head: int, token: int, part: Part) -> None:
        self.weights_N, reached, self.finish = reader.sources(where, side, head, token, part)
        assert reached.map_nWD is not None
        self.map_ED = reached.map_nWD[reached.write.parts.index(part)] * reached.factor_T

    def share_of(self, x_nE: Tensor, tokens: Tensor, u_D: Tensor) -> Tensor:
        """(n,): of values at tokens, the share along u."""
        return self.weights_N[tokens] * (self.finish((x_nE @ self.map_ED)[None])[0] @ u_D)


def index(value: Any, length: int, name: str, known: str) -> int:
    """A position, from the end where it is negative."""
    at = integer(value, f"{NAME}: {name}")
    if not -length <= at < length:
        raise ValueError(f"{NAME}: there is no {name} {at}; {known}")
    return at % length


def positive(name: str, value: Any) -> int:
    if (result := integer(value, f"{NAME}: {name}")) < 1:
        raise ValueError(f"{NAME}: {name} must be an integer of at least 1, not {result}")
    return result
