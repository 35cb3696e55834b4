"""Labels of every head of a layer, as `uwaga.inspect.head_labels` gives them, over the items that are shown; for long texts from a sample of
the queries. With them come the strongest link of each head, and what other sentences tell of the model's heads.

A link is an exact weight between two words, off the sinks. A head has the name of one that follows a pronoun where the text has a pronoun
that looks at another word most.

Letters: H heads, Q queries, K keys, n rows that are read at once.
"""

from collections.abc import Iterator
from typing import Any, Unpack, cast

import torch

from uwaga.inspect.heads.labels import LabelShares, sampled_rows
from uwaga.viewer.messages import Reply, RequestError, finite
from uwaga.viewer.queries.heads import DIFFERENCE, WRITTEN, Axis, LayerSelection
from uwaga.viewer.queries.result import Computation, ViewResult
from uwaga.viewer.request_table import Shown, request
from uwaga.viewer.shown import Side

_BLOCK = 1 << 20  # weights of a block
_ROWS = 256  # queries that are read
# English, as the sentences are by which coreference is measured.
_PRONOUNS = {"he", "she", "it", "they", "him", "her", "them", "his", "hers", "its", "their", "theirs"}
_PRONOUNS |= {"himself", "herself", "itself", "themselves"}
_LEAST_OF_PRONOUN = 0.2  # the weight that a pronoun's largest link has at least if it tells what the pronoun means


@request(saved=True)
def labels(result: ViewResult, **shown: Unpack[Shown]) -> Computation:
    """Say what the heads of a layer do, in a word each."""
    resolver = result.resolver
    selection = resolver.selection(**shown)
    if selection.side == DIFFERENCE:
        raise RequestError("side: heads are labelled in one text, not in a difference")
    side, kind = resolver.side(selection.side), selection.name[0]
    heads = resolver.heads(selection.side, selection.name)
    queries, keys = resolver.axes(selection)
    ids = {label: number for number, label in enumerate(dict.fromkeys((*queries.labels, *keys.labels)))}
    query_ids, key_ids = (
        torch.tensor([ids[label] for label in axis.labels], dtype=torch.int64) for axis in (queries, keys)
    )
    sinks = _specials(keys)
    if kind == "decoder" and len(keys) > 1 and keys.spans[0, 0] == 0:  # else it is left out
        sinks[0] = True
    rows = sampled_rows(len(queries), _ROWS)
    asking = queries
    if kind == "cross" and side.writes:
        # Rows are named by what is written there.
        asking = resolver.axis(selection.side, WRITTEN, selection.merge, selection.specials)
    links, of_pronouns = (
        _StrongestLinks(heads, asking, keys, sinks, is_self=kind != "cross", of_pronouns=only_pronouns)
        for only_pronouns in (False, True)
    )
    found: list[dict[str, Any]] = []

    def work() -> Iterator[float]:
        """Read rows of all heads at once: a step for each head would be a thousand small ones."""
        views = [resolver.head_view(selection, head) for head in range(heads)]
        shares = LabelShares(heads, kind, query_ids, key_ids, _specials(queries), sinks)
        height = max(_BLOCK // max(len(key_ids) * heads, 1), 1)
        for at in range(0, len(rows), height):
            if at:
                yield at / len(rows)
            block = rows[at : at + height]
            weights_HnK = torch.stack([view.read(block, slice(None)) for view in views])
            shares.add(block, weights_HnK)
            links.add(block, weights_HnK)
            of_pronouns.add(block, weights_HnK)
        follows = _heads_that_follow_a_pronoun(side, selection, of_pronouns.found)
        for head, label in enumerate(shares.labels()):
            numbers = {"share": finite(label.share), "by_position": finite(label.by_position)}
            more = {"link": links.found[head], "coreference": follows.get(head)}
            found.append({**label._asdict(), **numbers, **more})

    def reply(complete: float) -> Reply:
        """Return a label per head, or none before all are computed; a link is [query, key, weight]."""
        sampled = len(rows) if len(rows) < len(queries) else None
        return Reply(meta={"labels": list(found), "complete": complete, "sampled": sampled})

    return Computation(work(), reply, 32 * (len(query_ids) + len(key_ids)))


def _heads_that_follow_a_pronoun(
    side: Side, selection: LayerSelection, links: list[list[Any] | None]
) -> dict[int, dict[str, Any]]:
    if side.coreference is None:
        return {}
    return {
        row["head"]: {"link": link, **{name: row[name] for name in ("shift", "right", "wrong", "of")}}
        for row in cast("list[dict[str, Any]]", side.coreference().rows)
        if row["label"]
        and (row["kind"], row["layer"]) == selection.name
        and (link := links[row["head"]]) is not None
        and link[2] >= _LEAST_OF_PRONOUN
    }


class _StrongestLinks:
    """The largest weight of each head between two words at different places, the first of equal ones.

    Args:
        heads: H.
        queries, keys: the axes.
        sinks: (K,) bool: keys that are left out.
        is_self: whether both axes are one text, where a word that looks at itself has no link.
        of_pronouns: only links from a pronoun to what it looks at most, where that is neither itself nor a pronoun.
    """

    def __init__(
        self, heads: int, queries: Axis, keys: Axis, sinks: torch.Tensor, *, is_self: bool, of_pronouns: bool = False
    ) -> None:
        self.found: list[list[Any] | None] = [None] * heads
        self._is_self, self._of_pronouns = is_self, of_pronouns
        self._asks = _pronouns(queries) if of_pronouns else _words(queries)
        self._answers = _words(keys) & ~sinks
        self._no_answer = _pronouns(keys)

    def add(self, rows: list[int], weights_HnK: torch.Tensor) -> None:
        """Add rows of all heads."""
        asking = [at for at, row in enumerate(rows) if self._asks[row]]
        if not asking or not bool(self._answers.any()):
            return
        positions = torch.tensor([rows[at] for at in asking])
        shown_HnK = weights_HnK[:, asking].masked_fill(~self._answers, -1.0)
        if self._is_self and not self._of_pronouns:
            shown_HnK[:, torch.arange(len(asking)), positions] = -1.0
        most_Hn, keys_Hn = shown_HnK.max(-1)
        if self._of_pronouns:
            most_Hn = most_Hn.masked_fill(self._no_answer[keys_Hn] | (keys_Hn == positions), -1.0)
        most_H, at_H = most_Hn.max(-1)
        for head, (weight, at) in enumerate(zip(most_H.tolist(), at_H.tolist(), strict=True)):
            links = self.found[head]
            if weight > (0.0 if links is None else links[2]):
                self.found[head] = [rows[asking[at]], int(keys_Hn[head, at]), weight]


def _words(axis: Axis) -> torch.Tensor:
    """Return (I,) bool: items with a letter or a digit that are no special tokens."""
    result = torch.tensor([any(letter.isalnum() for letter in label) for label in axis.labels], dtype=torch.bool)
    return result & ~_specials(axis)


def _pronouns(axis: Axis) -> torch.Tensor:
    """Return (I,) bool: items that are a whole word, and a pronoun."""
    size = len(axis)
    continues = [
        joined and label[:1].isalnum() for joined, label in zip(axis.no_space_before, axis.labels, strict=True)
    ]
    return torch.tensor(
        [
            label.lower() in _PRONOUNS
            and not (at and continues[at] and axis.labels[at - 1][-1:].isalnum() and at - 1 not in axis.specials)
            and not (at + 1 < size and continues[at + 1] and at + 1 not in axis.specials)
            for at, label in enumerate(axis.labels)
        ],
        dtype=torch.bool,
    )


def _specials(axis: Axis) -> torch.Tensor:
    result = torch.zeros(len(axis), dtype=torch.bool)
    result[axis.specials] = True
    return result
