"""Label each head by its behaviour in a text: previous, next, self, induction, duplicate, broad, ahead, back, gathers.

Previous-token, duplicate-token and induction heads follow Olsson et al., "In-context Learning and Induction Heads" (2022). Weight on
special tokens and, in a decoder, on the first token is removed first, as attention sinks (Xiao et al., "Efficient Streaming Language
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

# The least mean share of the weight off the sinks for each label; for "broad", the least share of the maximum entropy. The first label
# that fits is used.
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
MIN_QUERIES = 5  # the least number of queries with at least this share
COMMON = 0.5  # a label of more than this fraction of the heads of a kind describes none of them,
MIN_HEADS = 4  # if there are at least this many heads
_MAX_QUERIES = 512
_BLOCK = 1 << 22  # the number of weights that are read at once


class HeadLabel(NamedTuple):
    """Hold the label of one head with its evidence.

    label: a key of LEAST, or "" if none fits.
    share: the mean share of the pattern over the queries that could have it; NaN without a label.
    queries, of: the number of queries with at least LEAST[label], and the number that could have it.
    sink: the share of all weight on sinks.
    by_position: the part of the variance of the weights off the sinks that the distance explains (adjusted R^2): near 1 for a
        head that attends to positions, near 0 for one that attends to content; NaN in cross-attention.
    key: the key with the most weight over all queries.
    """

    label: str
    share: float
    queries: int
    of: int
    sink: float
    by_position: float
    key: int


class LabelShares:
    """Add up the shares of H heads on the patterns, row by row.

    Args:
        heads: H.
        kind: "encoder", "decoder" or "cross".
        query_tokens, key_tokens: (Q,) and (K,) int64, equal for equal tokens.
        query_specials: (Q,) bool: special tokens, which are no queries.
        sinks: (K,) bool: keys whose weight is removed.
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
        """Add the weights of the queries `rows`."""
        for number, row in enumerate(rows):
            self._add_row(row, weights_HnK[:, number].double().nan_to_num(0.0))

    def labels(self) -> list[HeadLabel]:
        """Return one label for each head, from the rows so far."""
        most = self._columns[0].max(1)
        gathered_H = self._columns[1].gather(1, most.indices[:, None])[:, 0]
        # In a decoder the first queries have few other keys.
        gathered_H = torch.where(gathered_H > self._asked / 2, gathered_H, 0.0)
        sums = self._sums | {"gathers": torch.stack((most.values, self._asked, gathered_H))}
        sink_H = torch.where(self._all > 0, self._in_sinks / self._all, 0.0)
        by_position_H = self._by_position()
        results = []
        for head in range(len(self._all)):
            label, share, reached, of = "", math.nan, 0, 0
            for name, least in LEAST.items():
                total, counted, enough = sums[name][:, head].tolist()
                if enough >= MIN_QUERIES and total / counted >= least:
                    label, share, reached, of = name, total / counted, int(enough), int(counted)
                    break
            evidence = float(sink_H[head]), float(by_position_H[head]), int(most.indices[head])
            results.append(HeadLabel(label, share, reached, of, *evidence))
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
        """Return `HeadLabel.by_position` of each head, (H,)."""
        count_HD, sum_HD = self._distances
        places_H, number_H = (count_HD > 0).sum(1), count_HD.sum(1)
        left_H = self._squares - (sum_HD.square() / count_HD.clamp_min(1)).sum(1)
        total_H = self._squares - sum_HD.sum(1).square() / number_H.clamp_min(1)
        ratio_H = (left_H / (number_H - places_H)) / (total_H / (number_H - 1))
        has_ratio = (number_H > places_H) & (total_H > 1e-12)
        return torch.where(has_ratio, (1 - ratio_H).clamp(0.0, 1.0), torch.nan)


def common_labels(labels: Sequence[str]) -> set[str]:
    """Return the labels that more than COMMON of the heads have."""
    counts = Counter(label for label in labels if label)
    return {label for label, count in counts.items() if len(labels) >= MIN_HEADS and count > COMMON * len(labels)}


@torch.no_grad()
def head_labels(recording: Recording, *, row: int = 0, specials: Collection[str] | None = None) -> HeadTable:
    """Label each head of a recording by its behaviour in the text, with the evidence.

    Weight on sinks is removed first: on special tokens, and in a decoder on the first token. Special tokens are no queries. For a query i
    with weights a_ij off the sinks, the share of a set S of keys is sum_{j in S} a_ij / sum_j a_ij. A head gets the first label whose mean
    share, over the queries that could have it, is at least `least`, if at least five queries reach it:

        previous    0.5   j = i - 1
        next        0.5   j = i + 1, in an encoder
        self        0.5   j = i
        induction   0.3   the keys after earlier copies of the token of i
        duplicate   0.3   the other copies of the token of i
        broad       0.85  entropy of the shares, as a part of its maximum
        ahead       0.8   j > i, in an encoder
        back        0.8   j < i, in an encoder
        gathers     0.4   one key for all queries, and more than half of them reach it

    If more than half of at least four heads of a kind of attention have the same label, it is replaced by "". Texts of more than 512 tokens
    are read at 512 evenly spread queries: O(512 K) time per head.

    Args:
        recording: a recording of one or several texts, with tokens, whose strings are compared.
        row: the index of the text.
        specials: the strings of special tokens; None: strings in brackets such as [CLS], </s> and <|endoftext|>.

    Returns:
        Columns kind, layer, head, label; share (the mean, NaN without a label), least, queries and of (the queries that reach it, and all);
        sink (the share of all weight on sinks), by_position (adjusted R^2 of the weights off the sinks by distance).

    Raises:
        ValueError: a recording without tokens; a row that does not exist.
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
    """Return all queries, or `most` evenly spread ones."""
    count = min(queries, most)
    return [int((number + 0.5) * queries / count) for number in range(count)]


def _special(token: str, specials: Collection[str] | None) -> bool:
    return SPECIAL_TOKEN.fullmatch(token) is not None if specials is None else token in specials
