"""Statistics of every head as one table. Letters: H heads, Q queries, K keys, N packed tokens."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from uwaga._base import install
from uwaga._base.arguments import check, choice
from uwaga.inspect.heads import scores
from uwaga.inspect.recordings.recording import Recording
from uwaga.maps.derived import DifferenceMap
from uwaga.maps.map import AttentionMap
from uwaga.maps.per_head import PerQuery, has_visible_key, per_head
from uwaga.nn.attention_id import AttentionId
from uwaga.nn.operand import map_values
from uwaga.ops.ragged import Ragged

if TYPE_CHECKING:
    from pandas import DataFrame

_NAMES_OF_HEADS = ("kind", "layer", "head")
_OF_ONE_TEXT = ("distance", "previous_token", "duplicate_token", "induction")  # not of cross-attention


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTable:
    """Hold statistics of heads, a row per layer and head, or per kind, layer and head of a recording.

    >>> table = HeadTable(columns={"layer": [0, 0], "head": [0, 1], "entropy": [1.25, 0.5]})
    >>> print(table)
    layer  head  entropy
        0     0   1.2500
        0     1   0.5000
    >>> table.sorted("entropy").rows[0]
    {'layer': 0, 'head': 1, 'entropy': 0.5}
    """

    columns: dict[str, list]  # equally long lists: "kind" for a recording, "layer", "head", then the statistics

    @staticmethod
    def of_rows(rows: Sequence[Mapping[str, object]], names: Sequence[str] = ()) -> "HeadTable":
        """Return the table of these rows, with the columns `names` first; NaN if a row lacks a column."""
        every = dict.fromkeys((*names, *(name for row in rows for name in row)))
        return HeadTable(columns={name: [row.get(name, math.nan) for row in rows] for name in every})

    @property
    def rows(self) -> list[dict[str, object]]:
        """One dict per head."""
        return [dict(zip(self.columns, row, strict=True)) for row in zip(*self.columns.values(), strict=True)]

    @property
    def layers(self) -> list[Hashable]:
        """The layers in the order of the table; for a recording (kind, layer)."""
        return list(dict.fromkeys(self._layer_of_rows()))

    def matrix(self, statistic: str) -> Tensor:
        """Return a column as (layers, heads) float64, NaN for missing heads. Raises ValueError: an unknown column."""
        values = self._column(statistic)
        sizes = (len(self.layers), max(self.columns["head"], default=-1) + 1)
        matrix = torch.full(sizes, torch.nan, dtype=torch.float64, device="cpu")
        row_of = {layer: row for row, layer in enumerate(self.layers)}
        for layer, head, value in zip(self._layer_of_rows(), self.columns["head"], values, strict=True):
            matrix[row_of[layer], head] = value
        return matrix

    def sorted(self, statistic: str, *, descending: bool = False) -> "HeadTable":
        """Return the table sorted by one column, with NaN last. Raises ValueError: an unknown column."""
        values = self._column(statistic)
        missing = [row for row, value in enumerate(values) if value != value]
        order = sorted(set(range(len(values))) - set(missing), key=values.__getitem__, reverse=descending) + missing
        return HeadTable(columns={name: [column[row] for row in order] for name, column in self.columns.items()})

    def to_pandas(self) -> "DataFrame":
        """Return the table as a data frame of pandas. Raises ModuleNotFoundError: pandas is not installed."""
        rule = "HeadTable.to_pandas needs pandas, which is not installed: pip install pandas"
        table: DataFrame = install.optional("pandas", "pandas", rule).DataFrame(self.columns)
        return table

    def _layer_of_rows(self) -> list[Hashable]:
        layers = self.columns["layer"]
        return list(zip(self.columns["kind"], layers, strict=True)) if "kind" in self.columns else layers

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
        """Return the column names, then the cells of the rows."""
        cells = ([f"{x:.4f}" if isinstance(x, float) else str(x) for x in row.values()] for row in self.rows)
        return [list(self.columns), *cells]

    def _column(self, name: str) -> list:
        choice(name, "HeadTable: a column", self.columns)
        return self.columns[name]


@torch.no_grad()
def head_table(
    maps: AttentionMap | Sequence[AttentionMap] | Mapping[Hashable, AttentionMap] | Recording,
    tokens: Tensor | Ragged | None = None,
) -> HeadTable:
    """Compute statistics of every head of maps or of a recording, a row per head.

    Each value is the mean over all queries, of all sequences, that see a key. Padding counts as queries if a mask hides its
    keys only: use Ragged instead of a padded batch. The columns:

        entropy             -sum_j a_ij log a_ij, in nats
        normalized_entropy  entropy over the log of the number of visible keys: 0 for one key, 1 for equal weights
        peak                the largest weight
        distance            sum_j a_ij |j - p|, in tokens, where p is the query's position among the keys
        effective_count     1 / sum_j a_ij^2, the effective number of keys (Hill number of order 2)
        sink                the weight on the first key (Xiao et al., "Efficient Streaming Language Models with Attention
                            Sinks", 2023)
        learned_sink        the share of a learned sink, 0 without one
        previous_token      see the function; the mean is over the queries with such a key
        duplicate_token     as for previous_token; only with tokens
        induction           as for previous_token; only with tokens

    Args:
        maps: one map, a sequence of maps (layers 0, 1, ...), a mapping from layer to map, or a recording, whose table has a column for
            the kind. Cross-attention has no distance and no earlier tokens: NaN.
        tokens: token ids of all layers, as for `duplicate_token`. None for a recording: its token strings are compared.

    Returns:
        The table. A mean over no queries is NaN. Heads have their numbers in the model, also if `watch(heads=...)` picked some.
    """
    rows: list[dict[str, object]] = []
    for layer, (m, tokens_of_layer) in _layers(maps, tokens, "head_table").items():
        by_name = {name: values_H.tolist() for name, values_H in _statistics(m, tokens_of_layer).items()}
        where: dict[str, object] = {"layer": layer}
        heads: Sequence[int] | None = None
        if isinstance(maps, Recording) and isinstance(layer, tuple):
            where = {"kind": layer[0], "layer": layer[1]}
            heads = maps.picked_heads(AttentionId(*layer))
            if layer[0] == "cross":
                by_name = {name: values for name, values in by_name.items() if name not in _OF_ONE_TEXT}
        count = len(by_name["entropy"])
        for head, *values in zip(heads or range(count), *by_name.values(), strict=True):
            rows.append(where | {"head": head} | dict(zip(by_name, values, strict=True)))
    return HeadTable.of_rows(rows, () if rows else ("layer", "head"))


@torch.no_grad()
def head_changes(
    before: Recording | Mapping[Hashable, AttentionMap], after: Recording | Mapping[Hashable, AttentionMap]
) -> HeadTable:
    """Compute how much each head changed between two recordings, the largest change first.

    The recordings, or maps, have the same number of tokens: two checkpoints over one text, two texts of one model, or a text with
    and without an edit.

    total_variation is the mean over the queries of half of sum_j |after_ij - before_ij|: 0 if all weights are equal, 1 if no query has
    weight on a key that it had weight on before. The mean is over queries that see a key before or after. The other columns are the
    columns of `head_table`, after minus before.

    Raises:
        ValueError: the recordings have different layers, heads or numbers of tokens.
    """
    first, second = (_layers(maps, None, "head_changes") for maps in (before, after))
    if first.keys() != second.keys():
        only = next(iter(first.keys() ^ second.keys()))
        raise ValueError(f"head_changes: only one recording has {_name(only)}")
    tables = head_table(before), head_table(after)
    shared = [name for name in tables[0].columns if name in tables[1].columns]
    columns = {name: tables[0].columns[name] for name in shared if name in _NAMES_OF_HEADS}
    columns["total_variation"] = []
    for layer, (left, _) in first.items():
        right = second[layer][0]
        if left.shapes != right.shapes:
            sizes = f"{left.shape} before and {right.shape} after"
            raise ValueError(
                f"head_changes: {_name(layer)} has the shape {sizes}; compare the same number of tokens and heads"
            )
        seen = map_values(torch.logical_or, has_visible_key(left), has_visible_key(right))
        columns["total_variation"] += per_head(DifferenceMap(right, left).total_variation(), seen).tolist()
    check(
        tables[0].columns["head"] == tables[1].columns["head"],
        "head_changes: the recordings have different heads; pass watch the same heads=",
    )
    for name in shared:
        if name not in _NAMES_OF_HEADS:
            pairs = zip(tables[0].columns[name], tables[1].columns[name], strict=True)
            columns[name] = [later - earlier for earlier, later in pairs]
    return HeadTable(columns=columns).sorted("total_variation", descending=True)


def _layers(
    maps: AttentionMap | Sequence[AttentionMap] | Mapping[Hashable, AttentionMap] | Recording,
    tokens: Tensor | Ragged | None,
    operation: str,
) -> dict[Hashable, tuple[AttentionMap, Tensor | Ragged | None]]:
    """Return the maps by layer, with the ids of their keys' tokens."""
    if not isinstance(maps, Recording):
        several = [maps] if isinstance(maps, AttentionMap) else maps
        by_layer = several if isinstance(several, Mapping) else dict(enumerate(several))
        return {layer: (m, tokens) for layer, m in by_layer.items()}
    check(tokens is None, f"{operation}: a recording has tokens of its own; tokens= is for maps")
    strings = maps.tokens
    results: dict[Hashable, tuple[AttentionMap, Tensor | Ragged | None]] = {}
    for (kind, layer), m in maps.maps.items():
        results[kind, layer] = (m, None if kind == "cross" else _ids(strings.get(kind), m))
    return results


def _ids(rows: list[list[str]] | None, m: AttentionMap) -> Tensor | Ragged | None:
    """Number the tokens, equal for equal strings; None without one token per key, or with more queries than keys."""
    if rows is None or any(q > k for q, k in (shape[-2:] for shape in m.shapes)):
        return None
    numbers: dict[str, int] = {}
    ids = [torch.tensor([numbers.setdefault(token, len(numbers)) for token in row], device=m.device) for row in rows]
    if m.parts() is not None:
        fits = [len(row) for row in rows] == [shape[-1] for shape in m.shapes]
        return Ragged.from_list(ids) if fits else None
    if len(m.shape) > 4 or {len(row) for row in rows} != {m.shape[-1]}:
        return None
    return torch.stack(ids) if len(m.shape) == 4 else ids[0]


def _name(layer: object) -> str:
    return " ".join(map(str, layer)) if isinstance(layer, tuple) else f"layer {layer}"


def _statistics(m: AttentionMap, tokens: Tensor | Ragged | None) -> dict[str, Tensor]:
    """Compute the statistics of a layer, (H,) each."""
    m.prepare(entropy=True, effective_count=True, distance=True, topk=1)  # one pass for all statistics of rows
    sink = m.sink()
    per_query: dict[str, PerQuery] = {
        "entropy": m.entropy(),
        "normalized_entropy": m.entropy(normalize=True),
        "peak": m.peak().weight,
        "distance": m.distance(),
        "effective_count": m.effective_count(),
        "sink": sink.first_key,
        "learned_sink": sink.learned,
    }
    counted = has_visible_key(m)
    by_name = {name: per_head(values, counted) for name, values in per_query.items()}
    by_name["previous_token"] = scores.previous_token(m)
    if tokens is not None:
        by_name["duplicate_token"] = scores.duplicate_token(m, tokens)
        by_name["induction"] = scores.induction(m, tokens)
    return by_name
