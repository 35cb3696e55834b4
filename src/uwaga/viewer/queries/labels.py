"""Labels of every head of a layer, as `uwaga.inspect.head_labels` gives them, over the items that are shown; for long texts from a sample of
the queries. Beside them what other sentences tell of the model's heads.
"""

import math
import time
from collections.abc import Iterator
from typing import Any, cast

import torch

from uwaga.inspect.heads.labels import LEAST, HeadLabel, LabelShares, sampled_rows
from uwaga.viewer.messages import Reply
from uwaga.viewer.queries.heads import DIFFERENCE, Axis, HeadResolver, LayerSelection

_BLOCK = 1 << 20  # weights of a block
_ROWS = 256  # queries that are read


class Labels:
    """The labels of the heads of one layer."""

    def __init__(self, resolver: HeadResolver, selection: LayerSelection) -> None:
        self._resolver, self._selection = resolver, selection
        self._heads = resolver.heads(selection.side, selection.name)
        queries, keys = resolver.axes(selection)
        ids = {label: number for number, label in enumerate(dict.fromkeys((*queries.labels, *keys.labels)))}
        self._query_ids, self._key_ids = (
            torch.tensor([ids[label] for label in axis.labels], dtype=torch.int64) for axis in (queries, keys)
        )
        self._query_specials, self._sinks = _specials(queries), _specials(keys)
        if selection.name[0] == "decoder" and len(keys) > 1:
            self._sinks[0] = True
        self._queries = len(queries)
        self._rows = sampled_rows(len(queries), _ROWS)
        self._found: list[HeadLabel] = []
        self._coreference: dict[int, dict[str, Any]] = {}
        self._steps = self._work()
        self.complete = 0.0  # the completed fraction

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return 32 * (len(self._query_ids) + len(self._key_ids))

    def advance(self, until: float) -> None:
        """Compute until `time.monotonic()` reaches `until`, at least one step."""
        for complete in self._steps:
            self.complete = complete
            if time.monotonic() >= until:
                return
        self.complete = 1.0

    def reply(self) -> Reply:
        """A label per head, none before all are computed; `sampled` is the number of queries where not all were read."""
        meta = {
            "labels": [
                {**_described(each), "coreference": self._coreference.get(head)}
                for head, each in enumerate(self._found)
            ],
            "complete": self.complete,
            "sampled": len(self._rows) if len(self._rows) < self._queries else None,
        }
        return Reply(meta=meta)

    def _work(self) -> Iterator[float]:
        """Rows of all heads at once: a step for each head would be a thousand small ones for a short text."""
        views = [self._resolver.head_view(self._selection, head) for head in range(self._heads)]
        shares = LabelShares(
            self._heads, self._selection.name[0], self._query_ids, self._key_ids, self._query_specials, self._sinks
        )
        height = max(_BLOCK // max(len(self._key_ids) * self._heads, 1), 1)
        for at in range(0, len(self._rows), height):
            if at:
                yield at / len(self._rows)
            rows = self._rows[at : at + height]
            shares.add(rows, torch.stack([view.read(rows, slice(None)) for view in views]))
        self._coreference = self._heads_that_follow_a_pronoun()
        self._found = shares.labels()
        yield 1.0

    def _heads_that_follow_a_pronoun(self) -> dict[int, dict[str, Any]]:
        coreference = self._resolver.side(self._selection.side).coreference
        if coreference is None or self._selection.side == DIFFERENCE:
            return {}
        return {
            row["head"]: {name: row[name] for name in ("shift", "right", "wrong", "of")}
            for row in cast("list[dict[str, Any]]", coreference().rows)
            if row["label"] and (row["kind"], row["layer"]) == self._selection.name
        }


def _specials(axis: Axis) -> torch.Tensor:
    result = torch.zeros(len(axis), dtype=torch.bool)
    result[axis.specials] = True
    return result


def _described(label: HeadLabel) -> dict[str, Any]:
    """As JSON, which has no NaN."""
    return {
        "label": label.label,
        "share": None if math.isnan(label.share) else label.share,
        "least": LEAST.get(label.label),
        "queries": label.queries,
        "of": label.of,
        "sink": label.sink,
        "by_position": None if math.isnan(label.by_position) else label.by_position,
        "key": label.key,
    }
