"""What each head does in a text, in one word with its evidence: previous, next, self, induction, duplicate, broad, ahead, back, gathers.

Previous-token, duplicate-token and induction heads are those of Olsson et al., "In-context Learning and Induction Heads" (2022); weight
on special tokens and, in a decoder, on the first token is taken out first, as attention sinks (Xiao et al., "Efficient Streaming Language
Models with Attention Sinks", 2023; Clark et al., "What Does BERT Look At?", 2019).

Letters: H heads, Q queries, K keys, n rows that are read at once.
"""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from uwaga._base.arguments import check, integer
from uwaga.inspect.heads.table import HeadTable
from uwaga.inspect.recordings.recording import Recording
from uwaga.maps.base import WeightMap
from uwaga.models.tokenizers.token_text import SPECIAL_TOKEN
from uwaga.nn.attention_id import KINDS, AttentionId

# The least mean share of the weight off the sinks that gives a head its label; that of "broad" is of the maximum of the entropy. The
# first that fits is taken.
LEAST = {
    "previous": 0.5,
    "next": 0.5,
    "self": 0.5,
    "induction": 0.3,
    "duplicate": 0.3,
    "broad": 0.85,
    "ahead": 0.8,
    "back": 0.8,
    "gathers": 0.4,
}
MIN_QUERIES = 5  # that give at least this share each: what rests on fewer names nothing
COMMON = 0.5  # the fraction of the heads of a kind above which a label says nothing of one of them,
MIN_HEADS = 4  # if there are at least so many
_MAX_QUERIES = 512
_BLOCK = 1 << 22  # weights that are read at once


class HeadLabel(NamedTuple):
    """The label of one head with its evidence.

    label: a key of LEAST, or "" where none fits.
    share: the mean share of it, over the queries that could have one; NaN without a label.
    queries, of: how many queries give at least LEAST[label], of how many that could.
    sink: the share of all weight on sinks.
    by_position: how much of the variance of the weights off the sinks the distance from query to key explains alone (adjusted R^2):
        near 1 for a head that looks at positions, near 0 for one that looks at content; NaN in cross-attention.
    key: the key that has the most weight over all queries.
    """

    label: str
    share: float
    queries: int
    of: int
    sink: float
    by_position: float
    key: int


class LabelShares:
    """The shares of H heads on the patterns, added up row by row.

    Args:
        heads: H.
        kind: "encoder", "decoder" or "cross".
        query_tokens, key_tokens: (Q,) and (K,) int64, equal for equal tokens.
        query_specials: (Q,) bool: special tokens, which ask for nothing.
        sinks: (K,) bool: keys whose weight is taken out.
    """

    def __init__(
        self, heads: int, kind: str, query_tokens: Tensor, key_tokens: Tensor, query_specials: Tensor, sinks: Tensor
    ) -> None:
        self._kind, self._tokens, self._keys = kind, query_tokens, key_tokens
        self._specials, self._sinks = query_specials, sinks
        self._sums = {
            name: torch.zeros(3, heads, dtype=torch.float64) for name in LEAST
        }  # of shares, queries, and those that fit
        # For each key over all queries: the sum of shares, and how many queries give the share that "gathers" needs.
        self._columns = torch.zeros(2, heads, len(key_tokens), dtype=torch.float64)
        self._all, self._in_sinks, self._asked = (torch.zeros(heads, dtype=torch.float64) for _ in range(3))
        # By distance from query to key: the number of weights, their sum, and over all the sum of squares.
        self._distances = torch.zeros(2, heads, len(query_tokens) + len(key_tokens), dtype=torch.float64)
        self._squares = torch.zeros(heads, dtype=torch.float64)

    def add(self, rows: Sequence[int], weights_HnK: Tensor) -> None:
        """The weights of the queries `rows`."""
        for number, row in enumerate(rows):
            self._add_row(row, weights_HnK[:, number].double().nan_to_num(0.0))

    def labels(self) -> list[HeadLabel]:
        """One for each head, from the rows so far."""
        results = []
        most = self._columns[0].max(1)
        gathered = self._columns[1].gather(1, most.indices[:, None])[:, 0]
        gathers = most.values / self._asked
        by_position = self._by_position()
        for head in range(len(self._all)):
            label, share, fits, could = "", float("nan"), 0, 0
            for name, least in LEAST.items():
                if name == "gathers":
                    total, of, reached = float(gathers[head]), int(self._asked[head]), int(gathered[head])
                    # In a decoder the first queries have few other keys.
                    reached = reached if reached > of / 2 else 0
                else:
                    sums, counts, enough = (float(x) for x in self._sums[name][:, head])
                    total, of, reached = (sums / counts if counts else 0.0), int(counts), int(enough)
                if reached >= MIN_QUERIES and total >= least:
                    label, share, fits, could = name, total, reached, of
                    break
            results.append(
                HeadLabel(
                    label=label,
                    share=share,
                    queries=fits,
                    of=could,
                    sink=float(self._in_sinks[head] / self._all[head]) if self._all[head] > 0 else 0.0,
                    by_position=float(by_position[head]),
                    key=int(most.indices[head]),
                )
            )
        return results

    def _add_row(self, row: int, weights_HK: Tensor) -> None:
        self._all += weights_HK.sum(1)
        self._in_sinks += weights_HK[:, self._sinks].sum(1)
        off_HK = weights_HK.masked_fill(self._sinks, 0.0)
        total_H = off_HK.sum(1)
        asks = total_H > 0
        if bool(self._specials[row]) or not bool(asks.any()):
            return
        share_HK = off_HK / total_H.clamp_min(torch.finfo(torch.float64).tiny)[:, None]
        visible = ~self._sinks
        if self._kind == "decoder":
            visible = visible & (torch.arange(off_HK.shape[1]) <= row)
        num_visible = int(visible.sum())
        self._asked += asks
        self._columns[0] += share_HK
        self._columns[1] += share_HK >= LEAST["gathers"]
        entropy_H = torch.special.entr(share_HK).sum(1)
        if num_visible > 1:
            self._add("broad", entropy_H / math.log(num_visible), asks)
        if self._kind == "cross":
            return
        keys = share_HK.shape[1]
        start = len(self._tokens) - 1 - row  # so that equal distances are at equal places
        self._distances[0, :, start : start + keys] += visible * asks[:, None]
        self._distances[1, :, start : start + keys] += share_HK
        self._squares += share_HK.square().sum(1)
        if row > 0:
            self._add("previous", share_HK[:, row - 1], asks)
        if self._kind == "encoder" and row < keys - 1:
            self._add("next", share_HK[:, row + 1], asks)
        self._add("self", share_HK[:, row], asks)
        same = self._keys == self._tokens[row]
        same[row] = False
        if bool(same.any()):
            self._add("duplicate", share_HK[:, same].sum(1), asks)
        # The token after an earlier copy, unless that is the query itself.
        after = same[: max(row - 1, 0)].nonzero().squeeze(-1) + 1
        if len(after):
            self._add("induction", share_HK[:, after].sum(1), asks)
        if self._kind == "encoder":
            ahead_H = share_HK[:, row + 1 :].sum(1)
            self._add("ahead", ahead_H, asks)
            self._add("back", 1 - ahead_H - share_HK[:, row], asks)

    def _add(self, name: str, share_H: Tensor, counted_H: Tensor) -> None:
        share_H = torch.where(counted_H, share_H, 0.0)
        self._sums[name] += torch.stack((share_H, counted_H.double(), (counted_H & (share_H >= LEAST[name])).double()))

    def _by_position(self) -> Tensor:
        """(H,); see HeadLabel."""
        count_HD, sum_HD = self._distances
        places_H, number_H = (count_HD > 0).sum(1), count_HD.sum(1)
        left_H = self._squares - (sum_HD.square() / count_HD.clamp_min(1)).sum(1)
        total_H = self._squares - sum_HD.sum(1).square() / number_H.clamp_min(1)
        ratio_H = (left_H / (number_H - places_H)) / (total_H / (number_H - 1))
        has_ratio = (number_H > places_H) & (total_H > 1e-12)
        return torch.where(has_ratio, (1 - ratio_H).clamp(0.0, 1.0), torch.nan)


def common_labels(labels: Sequence[str]) -> set[str]:
    """Those that more than COMMON of the heads have: they say nothing of one head."""
    counts = Counter(label for label in labels if label)
    return {label for label, count in counts.items() if len(labels) >= MIN_HEADS and count > COMMON * len(labels)}


@torch.no_grad()
def head_labels(recording: Recording, *, row: int = 0, specials: Collection[str] | None = None) -> HeadTable:
    """Label each head of a recording by what it does in its text, with the evidence.

    Weight on sinks is taken out first: on special tokens, and in a decoder on the first token. Special tokens are no queries. Of a query i with
    the weights a_ij off the sinks, the share of a set S of keys is sum_{j in S} a_ij / sum_j a_ij. A label is given where the
    mean share, over the queries that could have one, is at least `least`, and at least five queries reach it each. The first that fits:

        previous    0.5   j = i - 1
        next        0.5   j = i + 1, in an encoder
        self        0.5   j = i
        induction   0.3   the keys after earlier copies of the token of i
        duplicate   0.3   the other copies of the token of i
        broad       0.85  entropy of the shares, of its maximum
        ahead       0.8   j > i, in an encoder
        back        0.8   j < i, in an encoder
        gathers     0.4   one key for all queries, and more than half of them reach it

    A label that more than half of the heads of a kind of attention have, of at least four, names none of them: "". Texts of more than 512 tokens are read
    at 512 queries, evenly spread. O(512 K) time per head.

    Args:
        recording: a recording of one or several texts, with tokens, since strings are compared.
        row: the index of the text.
        specials: the strings of special tokens; None: those in brackets such as [CLS], </s> and <|endoftext|>.

    Returns:
        Columns kind, layer, head, label; share (the mean one; NaN without a label), least, queries and of (how many reach it, of how many); sink
        (the share of all weight that is on sinks), by_position (adjusted R^2 of the weights off the sinks by distance alone).

    Raises:
        ValueError: a recording without tokens; a row that is not there.
    """
    tokens = recording.tokens
    rows: list[dict[str, Any]] = []
    for (kind, layer), m in recording.maps.items():
        queries, keys = (_row_of(tokens, stack, row) for stack in AttentionId(kind, layer).stacks)
        of_row = m.select(row) if len(m.shape) > 3 else m
        for head, found in enumerate(_labels_of(of_row, kind, queries, keys, specials)):
            where = {"kind": kind, "layer": layer, "head": head, "least": LEAST.get(found.label, math.nan)}
            rows.append(found._asdict() | where)
    for kind in KINDS:
        of_kind = [entry for entry in rows if entry["kind"] == kind]
        common = common_labels([entry["label"] for entry in of_kind])
        for entry in of_kind:
            if entry["label"] in common:
                entry |= {"label": "", "share": math.nan, "least": math.nan, "queries": 0, "of": 0}
    columns = ("kind", "layer", "head", "label", "share", "least", "queries", "of", "sink", "by_position")
    return HeadTable(columns={name: [entry[name] for entry in rows] for name in columns})


def _row_of(tokens: dict[str, list[list[str]]], stack: str, row: int) -> list[str]:
    check(
        stack in tokens,
        f"head_labels: the recording has no tokens of the {stack}; record them: uwaga.watch(model, tokenizer=...)",
    )
    return tokens[stack][integer(row, "head_labels: row", 0, len(tokens[stack]) - 1)]


def _labels_of(
    m: WeightMap, kind: str, queries: Sequence[str], keys: Sequence[str], specials: Collection[str] | None
) -> list[HeadLabel]:
    heads, num_queries, num_keys = (int(size) for size in m.shape)
    keys, queries = keys[:num_keys], queries[-num_queries:]
    ids = {token: number for number, token in enumerate(dict.fromkeys((*keys, *queries)))}
    is_special = [_special(token, specials) for token in keys]
    sinks = torch.tensor(is_special)
    if kind == "decoder" and len(keys) > 1:
        sinks[0] = True
    result = LabelShares(
        heads,
        kind,
        torch.tensor([ids[token] for token in queries]),
        torch.tensor([ids[token] for token in keys]),
        torch.tensor([_special(token, specials) for token in queries]),
        sinks,
    )
    rows = sampled_rows(num_queries)
    height = max(_BLOCK // max(num_keys * heads, 1), 1)
    for at in range(0, len(rows), height):
        part = rows[at : at + height]
        result.add(part, m[:, part, :].cpu())
    return result.labels()


def sampled_rows(queries: int, most: int = _MAX_QUERIES) -> list[int]:
    """All queries, or `most` of them, evenly spread."""
    count = min(queries, most)
    return [int((number + 0.5) * queries / count) for number in range(count)]


def _special(token: str, specials: Collection[str] | None) -> bool:
    return SPECIAL_TOKEN.fullmatch(token) is not None if specials is None else token in specials
