"""Statistics of every head as one table. Letters: H heads, Q queries, K keys, N packed tokens."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import torch
from torch import Tensor

from uwaga._base import renamed
from uwaga.maps.interpretability import head_scores
from uwaga.maps.interpretability.head_scores import PerQuery, per_head
from uwaga.maps.map import AttentionMap
from uwaga.ops.ragged import Ragged


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTable:
    """Statistics of heads, with a row per layer and head; `pandas.DataFrame(table.columns)` is the same as a data frame.

    >>> table = HeadTable(columns={"layer": [0, 0], "head": [0, 1], "entropy": [1.25, 0.5]})
    >>> print(table)
    layer  head  entropy
        0     0   1.2500
        0     1   0.5000
    >>> table.sorted("entropy").rows[0]
    {'layer': 0, 'head': 1, 'entropy': 0.5}
    """

    columns: dict[str, list]  # of equal lengths: "layer", "head", then the statistics

    @property
    def rows(self) -> list[dict[str, object]]:
        """One dict per head."""
        return [dict(zip(self.columns, row, strict=True)) for row in zip(*self.columns.values(), strict=True)]

    @property
    def layers(self) -> list[Hashable]:
        """The layers, in the order of the table."""
        return list(dict.fromkeys(self.columns["layer"]))

    def matrix(self, statistic: str) -> Tensor:
        """(layers, heads) float64; NaN where a layer has no such head. Raises ValueError for an unknown column."""
        values = self._column(statistic)
        sizes = (len(self.layers), max(self.columns["head"], default=-1) + 1)
        matrix = torch.full(sizes, torch.nan, dtype=torch.float64, device="cpu")
        row_of = {layer: row for row, layer in enumerate(self.layers)}
        for layer, head, value in zip(self.columns["layer"], self.columns["head"], values, strict=True):
            matrix[row_of[layer], head] = value
        return matrix

    @renamed.parameters(falling="descending")
    def sorted(self, statistic: str, *, descending: bool = False) -> "HeadTable":
        """The rows sorted by one column, ascending or descending; NaN last. Raises ValueError for an unknown column."""
        values = self._column(statistic)
        missing = [row for row, value in enumerate(values) if value != value]
        order = sorted(set(range(len(values))) - set(missing), key=values.__getitem__, reverse=descending) + missing
        return HeadTable(columns={name: [column[row] for row in order] for name, column in self.columns.items()})

    def __len__(self) -> int:
        return len(self.columns["layer"])

    def __str__(self) -> str:
        cells = self._text()
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        return "\n".join("  ".join(f"{cell:>{n}}" for cell, n in zip(row, widths, strict=True)) for row in cells)

    def _repr_html_(self) -> str:
        head, *body = ([escape(cell) for cell in row] for row in self._text())
        lines = ["<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in body]
        top = "".join(f"<th>{cell}</th>" for cell in head)
        return f"<table><thead><tr>{top}</tr></thead><tbody>{''.join(lines)}</tbody></table>"

    def _text(self) -> list[list[str]]:
        """The column names, then the cells of the rows."""
        return [list(self.columns), *([_cell(value) for value in row.values()] for row in self.rows)]

    def _column(self, name: str) -> list:
        if name not in self.columns:
            raise ValueError(f"HeadTable: there is no column {name!r}: choose one of {', '.join(self.columns)}")
        return self.columns[name]


def _cell(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


@torch.no_grad()
def head_table(
    maps: AttentionMap | Sequence[AttentionMap] | Mapping[Hashable, AttentionMap],
    tokens: Tensor | Ragged | None = None,
) -> HeadTable:
    """Statistics of every head of one or several layers, a row per head.

    Each value is the mean over all queries, of all sequences, that see a key. Padding counts as queries if a mask hides its
    keys only: use Ragged instead of a padded batch. The columns:

        entropy             -sum_j a_ij log a_ij, in nats
        normalized_entropy  entropy over the log of the number of visible keys: 0 for one key, 1 for equal weights
        peak                the largest weight
        distance            sum_j a_ij |j - p|, in tokens, where p is the query's position among the keys
        support             1 / sum_j a_ij^2, the effective number of keys (Hill number of order 2)
        sink                the weight on the first key (Xiao et al., "Efficient Streaming Language Models with Attention
                            Sinks", 2023)
        learned_sink        the share of a learned sink, 0 without one
        previous_token      see the function; the mean is over the queries that have such a key
        duplicate_token     likewise; only with tokens
        induction           likewise; only with tokens

    Args:
        maps: one map; or several, as a sequence (layers 0, 1, ...) or as a mapping from layer to map.
        tokens: token ids, as for `duplicate_token`; the same for all layers.

    Returns:
        The table. A mean over no queries is NaN.
    """
    if isinstance(maps, AttentionMap):
        maps = [maps]
    layers = maps if isinstance(maps, Mapping) else dict(enumerate(maps))
    columns: dict[str, list] = {"layer": [], "head": []}
    for layer, m in layers.items():
        found = _statistics(m, tokens)
        heads = len(found["entropy"])
        columns["layer"] += [layer] * heads
        columns["head"] += range(heads)
        for name, values_H in found.items():
            columns.setdefault(name, []).extend(values_H.tolist())
    return HeadTable(columns=columns)


def _statistics(m: AttentionMap, tokens: Tensor | Ragged | None) -> dict[str, Tensor]:
    """(H,) each."""
    m.prepare(entropy=True, support=True, distance=True, topk=1)  # one pass for all statistics of rows
    sink = m.sink()
    per_query: dict[str, PerQuery] = {
        "entropy": m.entropy(),
        "normalized_entropy": m.entropy(normalize=True),
        "peak": m.peak().weight,
        "distance": m.distance(),
        "support": m.support(order=2),
        "sink": sink.first_key,
        "learned_sink": sink.learned,
    }
    counted = head_scores.has_visible_key(m)
    found = {name: per_head(values, counted) for name, values in per_query.items()}
    found["previous_token"] = head_scores.previous_token(m)
    if tokens is not None:
        found |= {
            "duplicate_token": head_scores.duplicate_token(m, tokens),
            "induction": head_scores.induction(m, tokens),
        }
    return found
