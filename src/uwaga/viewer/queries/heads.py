"""Resolves the names in a request to the matrix of one head: sides, axes of tokens or words, and heads of a view.

Letters: H query heads, Q queries, K keys, I items (tokens or words) along an axis.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from uwaga.maps.base import WeightMap
from uwaga.maps.derived import DifferenceMap, SubsetMap, WordMap
from uwaga.maps.map import AttentionMap
from uwaga.models.tokenizers.token_text import TokenText, join_tokens, word_ranges
from uwaga.viewer.messages import RequestError
from uwaga.viewer.request_table import Shown, in_range, one_of
from uwaga.viewer.shown import AXES, MapName, Side, View

DIFFERENCE = "difference"  # the id of the side that shows the first side minus the second
# The decoder's axis in cross-attention: each row is named by the token that is written there, the next one.
WRITTEN = "written"
_MAX_HEAD_VIEWS = 256  # heads whose normalizers are cached, O(Q) numbers each
_MAX_LAYERS = 1 << 20
_STEP = 1 << 23  # weights per step, as many as a map's engine computes in a few hundredths of a second
# Approximate measured cost of a weight that is read through a map without an engine, relative to one that an engine pools.
_READ_COST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """The I items along an axis: the tokens or words of one text, with or without special tokens.

    unknown: items with a token for what the vocabulary lacks.
    spans: (I, 2) int32, the token range [start, stop) of each item.
    kept: the tokens that are not hidden; None where none is hidden.
    breaks: newlines before an item that no item stands for, where there are any.
    words: for each item its range [start, stop) among the kept tokens; None where items are tokens.
    """

    labels: list[str]
    no_space_before: list[bool]
    specials: list[int]
    unknown: list[int]
    spans: NDArray[np.int32]
    kept: list[int] | None
    words: list[tuple[int, int]] | None
    breaks: Mapping[int, int]

    @classmethod
    def of(cls, tokens: TokenText, *, merge: str, specials: str, names: TokenText | None = None) -> "Axis":
        """Return the items of a text; a text of special tokens alone keeps them.

        names: tokens that name the items in place of those of the text.
        """
        hides = specials == "hide" and any(tokens.special) and not all(tokens.special)
        kept = [at for at, special in enumerate(tokens.special) if not special] if hides else None
        read, shown = (text if kept is None else text.select(kept) for text in (tokens, names or tokens))
        if merge == "words":
            read = read._replace(starts=[begins or at == 0 for at, begins in enumerate(read.starts)])
        words = word_ranges(read) if merge == "words" else None
        items = [(at, at + 1) for at in range(len(read.labels))] if words is None else words
        position = list(range(len(tokens.labels))) if kept is None else kept
        spans = np.array([(position[start], position[stop - 1] + 1) for start, stop in items], np.int32)
        return cls(
            labels=shown.labels if words is None else [join_tokens(shown, *word) for word in words],
            # A space that is a token of its own ends the word before, whose name leaves it out.
            no_space_before=[
                shown.no_space_before[start] and not (words and start and shown.labels[start - 1].endswith(" "))
                for start, _ in items
            ],
            specials=[at for at, (start, _) in enumerate(items) if shown.special[start]],
            unknown=[at for at, (start, stop) in enumerate(items) if any(shown.unknown[start:stop])],
            spans=spans.reshape(-1, 2),
            kept=kept,
            words=words,
            breaks={at: shown.breaks[start] for at, (start, _) in enumerate(items) if start in shown.breaks},
        )

    def beside(self, other: "Axis") -> "Axis":
        """Return this axis with the labels of both, "it | that", where they differ.

        An axis whose items have other tokens is returned as it is.
        """
        if not np.array_equal(self.spans, other.spans) or self.labels == other.labels:
            return self
        pairs = list(zip(self.labels, other.labels, strict=True))
        differs = [one != two for one, two in pairs]
        no_space_before = zip(self.no_space_before, other.no_space_before, differs, strict=True)
        return dataclasses.replace(
            self,
            labels=[one if one == two else f"{one} | {two}" for one, two in pairs],
            no_space_before=[one and two and not differ for one, two, differ in no_space_before],
        )

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, kw_only=True)
class HeadView:
    """The matrix (Q, K) of one head, whatever kind of map it comes from.

    map: (Q, K), or (H, Q, K) of which `index` selects the head.
    """

    map: WeightMap
    index: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, int]:
        """Return Q and K."""
        queries, keys = self.map.shape[-2:]
        return int(queries), int(keys)

    @property
    def attention(self) -> AttentionMap | None:
        """Return the map if it is plain attention, whose engine pools; None for a derived map."""
        return self.map if isinstance(self.map, AttentionMap) and not self.index else None

    @cached_property
    def cost(self) -> NDArray[np.int64]:
        """Compute (Q+1,): the cost of all rows before each row, in weights of plain attention."""
        return np.concatenate([[0], np.cumsum(_row_costs(self.map))])

    def stop(self, first: int, last: int) -> int:
        """Return the row before which a step stops: after `first`, at most `last`."""
        end = int(np.searchsorted(self.cost, self.cost[first] + _STEP, "right")) - 1
        return min(max(end, first + 1), last)

    def steps(self, rows: NDArray[np.int64]) -> Iterator[slice]:
        """Yield rows in slices, each of which is read in one step."""
        cost = np.concatenate([[0], np.cumsum(np.diff(self.cost)[rows])])
        first = 0
        while first < len(rows):
            last = max(int(np.searchsorted(cost, cost[first] + _STEP, "right")) - 1, first + 1)
            yield slice(first, last)
            first = last

    def read(self, rows: slice | Sequence[int], columns: slice | Sequence[int]) -> Tensor:
        """Return (rows, columns) float32 on the CPU; float64 is rounded."""
        result = self.map[(*self.index, rows, columns)]
        assert isinstance(result, Tensor)
        return result.detach().to("cpu", torch.float32)


class LayerSelection(NamedTuple):
    """A layer of a side, and how its axes are shown, as a request names them."""

    side: str
    name: MapName
    merge: str
    specials: str


class HeadResolver:
    """Resolves the names in requests to sides, axes and heads of a view."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._axes: dict[tuple[str, str, str, str], Axis] = {}
        self._head_views: dict[tuple[LayerSelection, int], HeadView] = {}  # the most recently used one last

    @property
    def ids(self) -> list[str]:
        """Return the ids of the sides, and of their difference if they have maps of the same shape."""
        results = [str(number) for number in range(len(self.view.sides))]
        return [*results, DIFFERENCE] if self.maps(DIFFERENCE) else results

    def maps(self, side: str) -> dict[MapName, WeightMap]:
        """Return maps by kind and layer; of the difference those of one shape in both sides."""
        sides = self.view.sides
        if side != DIFFERENCE:
            return dict(sides[int(side)].maps)
        if len(sides) < 2:
            return {}
        first, second = sides[0].maps, sides[1].maps
        return {name: m for name, m in first.items() if name in second and second[name].shape == m.shape}

    def side(self, side: str) -> Side:
        """Return the side with an id; for the difference the first one, whose tokens are shown."""
        return self.view.sides[0 if side == DIFFERENCE else int(side)]

    def selection(
        self, side: str, kind: str, layer: int, merge: str = "tokens", specials: str = "show"
    ) -> LayerSelection:
        """Return the layer and the axes that a request names. Raises RequestError: no such layer."""
        if not self.view.sides:
            raise RequestError("this view has no maps, only the lesson")
        one_of("side", side, self.ids)
        name = kind, in_range("layer", layer, 0, _MAX_LAYERS)
        if name not in self.maps(side):
            raise RequestError(f"there is no {kind} layer {layer} on side {side}")
        return LayerSelection(side, name, merge, specials)

    def select(self, head: int, **shown: Unpack[Shown]) -> tuple[LayerSelection, "HeadView"]:
        """Return a layer and the matrix of a head. Raises RequestError: no such layer or head."""
        selection = self.selection(**shown)
        in_range("head", head, 0, self.heads(selection.side, selection.name))
        return selection, self.head_view(selection, head)

    def heads(self, side: str, name: MapName) -> int:
        """Return H."""
        shape = self.maps(side)[name].shape
        return int(shape[0]) if len(shape) > 2 else 1

    def sees(self, side: str, name: MapName) -> list[int | None] | None:
        """Return how many tokens before and after a query sees, None for any; None without a band."""
        sides = range(len(self.view.sides)) if side == DIFFERENCE else [int(side)]
        bands = [_band(self.view.sides[number].maps[name]) for number in sides]
        return bands[0] if all(band == bands[0] for band in bands) else None

    def head_view(self, selection: LayerSelection, head: int) -> HeadView:
        """Return the matrix of one head, from a cache, which keeps the normalizers of its rows."""
        view = self._head_views.pop((selection, head), None)
        self._head_views[selection, head] = view or self._make_head_view(selection, head)
        if len(self._head_views) > _MAX_HEAD_VIEWS:
            del self._head_views[next(iter(self._head_views))]
        return self._head_views[selection, head]

    def axes(self, selection: LayerSelection) -> tuple[Axis, Axis]:
        """Return the axes of the queries and of the keys."""
        queries, keys = AXES[selection.name[0]]
        how = selection.merge, selection.specials
        return self.axis(selection.side, queries, *how), self.axis(selection.side, keys, *how)

    def stacks(self, side: str) -> list[str]:
        """Return the stacks of a side, and WRITTEN if it has a decoder with cross-attention."""
        shown = self.side(side)
        return [*shown.stacks, *([WRITTEN] if shown.writes else [])]

    def axis(self, side: str, stack: str, merge: str, specials: str) -> Axis:
        """Return the items along an axis; those of the difference are named by both texts."""
        key = (side, stack, merge, specials)
        if key not in self._axes:
            if side == DIFFERENCE:
                first, second = (self.axis(str(number), stack, merge, specials) for number in range(2))
                self._axes[key] = first.beside(second)
            else:
                tokens = self.view.sides[int(side)].token_text("decoder" if stack == WRITTEN else stack)
                names = tokens_after(tokens) if stack == WRITTEN else None
                self._axes[key] = Axis.of(tokens, merge=merge, specials=specials, names=names)
        return self._axes[key]

    def _make_head_view(self, selection: LayerSelection, head: int) -> HeadView:
        if selection.side != DIFFERENCE:
            return _side_view(self.side(selection.side), selection.name, head, *self.axes(selection))
        both = [selection._replace(side=str(number)) for number in range(2)]
        axes = [self.axes(side_selection) for side_selection in both]
        for one, other in zip(*axes, strict=True):
            if not np.array_equal(one.spans, other.spans):
                rule = "the two texts differ in their words or special tokens"
                raise RequestError(f"{rule}: compare them token by token, with special tokens shown")
        first, second = (
            _side_view(self.side(side_selection.side), side_selection.name, head, *axes[0]) for side_selection in both
        )
        assert first.index == second.index
        return HeadView(map=DifferenceMap(first.map, second.map), index=first.index)


def tokens_after(tokens: TokenText) -> TokenText:
    """Return for each token the one after it, which a decoder writes there; "…" at the end."""
    return TokenText(
        [*tokens.labels[1:], "…"],
        [*tokens.no_space_before[1:], False],
        [*tokens.special[1:], False],
        [*tokens.starts[1:], True],
        [*tokens.unknown[1:], False],
        {at - 1: lines for at, lines in tokens.breaks.items() if at},
    )


def _band(m: WeightMap) -> list[int | None] | None:
    """Return how many tokens before and after its own each query may look at.

    A number is None for any number, and the result is None if the visible keys are no such band, or the map has no
    scores. Read from the first row, the last one, and the one between them.
    """
    queries, keys = m.shape[-2:]
    if not isinstance(m, AttentionMap) or queries != keys or not keys:
        return None
    rows = sorted({0, keys // 2, keys - 1})
    seen = torch.as_tensor(m.scores[(*[0] * (len(m.shape) - 2), rows, slice(None))]).cpu() > -float("inf")
    if not bool(seen.any(-1).all()):
        return None
    firsts, lasts = (seen.int().argmax(-1)).tolist(), (keys - 1 - seen.flip(-1).int().argmax(-1)).tolist()
    before = None if firsts[-1] == 0 else keys - 1 - firsts[-1]
    after = None if lasts[0] == keys - 1 else lasts[0]
    j = torch.arange(keys) - torch.tensor(rows)[:, None]
    expected = (j >= -(keys if before is None else before)) & (j <= (keys if after is None else after))
    return [before, after] if torch.equal(seen, expected) else None


def _side_view(side: Side, name: MapName, head: int, query_axis: Axis, key_axis: Axis) -> HeadView:
    """Return a head of one side, with tokens hidden and merged as the axes say."""
    m = side.maps[name]
    if isinstance(m, AttentionMap) and len(m.shape) == 3:
        m = m.select(head)
    index = () if len(m.shape) == 2 else (head,)
    if query_axis.kept is not None or key_axis.kept is not None:
        queries, keys = m.shape[-2:]
        m = SubsetMap(m, query_axis.kept or range(queries), key_axis.kept or range(keys))
    if query_axis.words is not None and key_axis.words is not None:
        m = WordMap(m, query_axis.words, key_axis.words)
    return HeadView(map=m, index=index)


def _row_costs(m: WeightMap) -> NDArray[np.int64]:
    """Return (Q,) the cost of each row, over all its keys, in weights of plain attention."""
    queries, keys = (int(size or 0) for size in m.shape[-2:])
    if isinstance(m, DifferenceMap):
        return _row_costs(m.left) + _row_costs(m.right)
    if isinstance(m, SubsetMap):
        return np.full(queries, _READ_COST * int(_row_costs(m.map).max(initial=0)), np.int64)
    if isinstance(m, WordMap) and m.spans is not None:
        before = np.concatenate([[0], np.cumsum(_row_costs(m.map))])
        return np.array([before[stop] - before[start] for start, stop in m.spans], np.int64)
    return np.full(queries, keys if isinstance(m, AttentionMap) else _READ_COST * keys, np.int64)
