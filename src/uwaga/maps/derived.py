"""Maps that are computed from other maps: differences, subsets of tokens, tokens merged into words.

Letters: S sequences, H query heads, Q and K queries and keys, W words.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from uwaga._base.arguments import check, integer
from uwaga.maps.base import DerivedMap, Shape, WeightMap, check_nesting, count_heads, expand, packed
from uwaga.maps.map import TopK
from uwaga.maps.spec import Selection
from uwaga.ops.ragged import Ragged

_MAX_WEIGHTS = 1 << 22  # the most weights that are read at once
# The tokens of words: a word id per token (None for a special token), or (start, stop) pairs.
Words = Sequence[int | None] | Sequence[tuple[int, int]]


class DifferenceMap(DerivedMap):
    """Compute the difference of two maps, left - right, when read: two layers, or a model before and after an edit.

    Args:
        left: any map.
        right: a map of the same shape, on the same device. The dtype is float64 if either is.

    Raises:
        ValueError: maps of different shapes, or on different devices.
    """

    __slots__ = ("right",)

    def __init__(self, left: WeightMap, right: WeightMap) -> None:
        left, right = (check_nesting("DifferenceMap", m) for m in (left, right))
        if left.shapes != right.shapes:
            shapes = (left.shape, right.shape) if left.shape != right.shape else (left.shapes, right.shapes)
            raise ValueError(f"DifferenceMap: the maps differ in shape: {shapes[0]} and {shapes[1]}")
        check(
            left.device == right.device,
            f"DifferenceMap: the maps are on different devices: {left.device} and {right.device}",
        )
        self.map, self.right = left, right

    @property
    def left(self) -> WeightMap:
        return self.map

    @property
    def nesting(self) -> int:
        return 1 + max(self.left.nesting, self.right.nesting)

    @property
    def dtype(self) -> torch.dtype:
        return torch.promote_types(self.left.dtype, self.right.dtype)

    def describe(self) -> str:
        return f"{self.left.describe()} minus {self.right.describe()}"

    def read(self, selection: Selection, keys: Tensor) -> Tensor:
        return self.left.read(selection, keys) - self.right.read(selection, keys)

    def parts(self) -> "Sequence[DifferenceMap] | None":
        left, right = self.left.parts(), self.right.parts()
        if left is None or right is None:
            return None
        return [DifferenceMap(one, other) for one, other in zip(left, right, strict=True)]

    def topk(self, k: int) -> TopK:
        """Find the k differences of each query that are largest in size, with their signs and keys; equal sizes by position.

        (..., H, Q, k), or Ragged (N, H, k); 0 and position -1 if there are fewer than k keys. All weights are read once,
        block by block. Raises ValueError: k below 1.
        """
        k = integer(k, "DifferenceMap.topk: k", 1)
        parts = self.parts()
        if parts is None:
            return TopK(*self._top(k))
        weights, positions = zip(*(part._top(k) for part in parts), strict=True) if parts else ((), ())
        return TopK(packed(self, weights, -2, k), packed(self, positions, -2, k, dtype=torch.int64))

    def total_variation(self) -> Tensor | Ragged:
        """Compute sum_j |left_ij - right_ij| / 2, the total variation distance of rows that sum to 1.

        The result is (..., H, Q), or Ragged (N, H). All weights are read once, block by block.
        """
        parts = self.parts()
        if parts is None:
            return self._total_variation()
        return packed(self, [part._total_variation() for part in parts])

    def _total_variation(self) -> Tensor:
        """Compute `total_variation` of a dense map."""
        sums = [block.abs().double().sum(-1) / 2 for block in self._rows()]
        result = torch.cat(sums, -1) if sums else torch.zeros(self.shape[:-1], device=self.device)
        return result.reshape(self.shape[:-1]).to(self.dtype)

    def _rows(self) -> Iterator[Tensor]:
        """Read the rows (S, H, n, K) of a dense map, block by block."""
        sequences, heads = (tuple(range(n)) for n in (math.prod(self.shape[:-3]), count_heads(self)))
        queries, keys = (torch.arange(n, device=self.device) for n in self.shape[-2:])
        height = max(_MAX_WEIGHTS // max(len(sequences) * len(heads) * len(keys), 1), 1)
        for rows in queries.split(height) if len(queries) else ():
            yield self.read(Selection(sequences, heads, rows), keys)

    def _top(self, k: int) -> tuple[Tensor, Tensor]:
        """Compute `topk` of a dense map."""
        blocks: list[tuple[Tensor, Tensor]] = []
        for block in self._rows():
            order = block.abs().sort(dim=-1, descending=True, stable=True).indices[..., :k]
            blocks.append((block.gather(-1, order), order))
        shape = (*self.shape[:-1], min(k, self.shape[-1]))
        if not blocks or 0 in shape:
            blocks = [(torch.zeros(shape, dtype=self.dtype, device=self.device),) * 2]
        weights, positions = (torch.cat(parts, -2).reshape(shape) for parts in zip(*blocks, strict=True))
        missing = (0, k - shape[-1])
        pad = torch.nn.functional.pad
        return pad(weights, missing), pad(positions.long(), missing, value=-1)


class SubsetMap(DerivedMap):
    """Compute the weights between some of the tokens, with every row divided by its sum, as if there were no other keys.

    It shows a head's weights on the words of a text if most weight is on [SEP] or on the first token (Xiao et al., "Efficient
    Streaming Language Models with Attention Sinks", 2023). A row without weight on the kept keys is 0. The sums of rows are
    computed when the rows are first read, and stored: O(Q) memory.

    Args:
        map: any dense map; for a ragged map use m[r].
        queries: ascending, unique positions of the kept queries.
        keys: positions of the kept keys; None: the positions in `queries`.

    Raises:
        ValueError: a ragged map.
        IndexError: a position that is out of range.
    """

    __slots__ = ("_is_summed", "_keys", "_queries", "_sums")

    def __init__(self, map: WeightMap, queries: Sequence[int], keys: Sequence[int] | None = None) -> None:
        if map.parts() is not None:
            raise ValueError("SubsetMap: a ragged map has other tokens in each sequence; use SubsetMap(m[r], ...)")
        kept = (list(queries), list(queries if keys is None else keys))
        rows, columns = expand(kept, map.shape[-2:], ["queries", "keys"], "SubsetMap")
        self.map = check_nesting(type(self).__name__, map)
        self._queries, self._keys = (x.unique.to(map.device) for x in (rows, columns))
        sizes = (math.prod(map.shape[:-3]), count_heads(map), len(self._queries))
        self._sums = torch.zeros(sizes, dtype=torch.float64, device=map.device)
        self._is_summed = torch.zeros(sizes, dtype=torch.bool, device=map.device)

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.map.shape[:-2], len(self._queries), len(self._keys))

    def describe(self) -> str:
        return f"{self.map.describe()}, some tokens kept"

    def read(self, selection: Selection, keys: Tensor) -> Tensor:
        sums_SHQ = self._sums_of(selection)[..., None]
        of_map = selection._replace(queries=self._queries[selection.queries])
        weights = self.map.read(of_map, self._keys[keys]).double()
        return torch.where(sums_SHQ == 0, 0.0, weights / torch.where(sums_SHQ == 0, 1.0, sums_SHQ)).to(self.dtype)

    def parts(self) -> None:
        return None

    def _sums_of(self, selection: Selection) -> Tensor:
        """Return the sums of the weights on the kept keys, (sequences, heads, queries) float64."""
        s, h = (torch.tensor(x, device=self.device) for x in selection[:2])
        is_known = self._is_summed[s[:, None, None], h[:, None], selection.queries].flatten(0, 1).all(0)
        height = max(_MAX_WEIGHTS // max(len(self._keys) * len(s) * len(h), 1), 1)
        for queries in selection.queries[~is_known].split(height):
            if len(queries):
                block = self.map.read(selection._replace(queries=self._queries[queries]), self._keys)
                place = (s[:, None, None], h[:, None], queries)
                self._sums[place], self._is_summed[place] = block.double().sum(-1), True
        return self._sums[s[:, None, None], h[:, None], selection.queries]


class _Tokens(NamedTuple):
    """Hold the tokens of some words, one word after the other."""

    positions: Tensor  # (n,) int64
    word: Tensor  # (n,) int64: the index of its word
    lengths: Tensor  # (W,) int64: the number of tokens of each word

    @staticmethod
    def of(spans: Sequence[tuple[int, int]], device: torch.device) -> "_Tokens":
        starts, stops = torch.tensor(spans, dtype=torch.int64, device=device).reshape(-1, 2).unbind(1)
        lengths = stops - starts
        word = torch.repeat_interleave(torch.arange(len(spans), device=device), lengths)
        first = lengths.cumsum(0) - lengths
        return _Tokens(torch.arange(len(word), device=device) - first[word] + starts[word], word, lengths)


class WordMap(DerivedMap):
    """Compute the weights between words: sums over the tokens of the key's word, means over the tokens of the query's word.

    Clark et al., "What Does BERT Look At? An Analysis of BERT's Attention" (2019), section 4. Rows that sum to 1 still do. Each special
    token stays a word of its own. Nothing is normalised.

    Args:
        map: any map.
        words: the words of the queries in every sequence of a batch: `word_ids()` of a tokenizer's encoding, or (start, stop) pairs;
            see `word_spans`. For a ragged map, a list of these per sequence.
        key_words: the words of the keys; None: the same as `words`.

    Attributes:
        spans, key_spans: the tokens [start, stop) of each word of the queries and of the keys; None for a ragged map.

    Raises:
        ValueError: words that do not fit the tokens, or not one list of words per sequence.
    """

    __slots__ = ("_parts", "key_spans", "spans")

    def __init__(
        self, map: WeightMap, words: Words | Sequence[Words], key_words: Words | Sequence[Words] | None = None
    ) -> None:
        self.map = check_nesting(type(self).__name__, map)
        self.spans: list[tuple[int, int]] | None = None
        self.key_spans: list[tuple[int, int]] | None = None
        self._parts: list[WordMap] | None = None
        parts = map.parts()
        key_words = words if key_words is None else key_words
        if parts is None:  # the map decides which of the two types of `words` is meant
            queries, keys = map.shape[-2:]
            self.spans = word_spans(cast("Words", words), queries)
            self.key_spans = word_spans(cast("Words", key_words), keys)
            return
        for lists in (words, key_words):
            check(
                len(lists) == len(parts),
                f"WordMap: a ragged map of {len(parts)} sequences needs one list of words per sequence, not {len(lists)}",
            )
        per_sequence = zip(parts, cast("Sequence[Words]", words), cast("Sequence[Words]", key_words), strict=True)
        self._parts = [WordMap(*part) for part in per_sequence]

    @property
    def shape(self) -> Shape:
        if self.spans is None or self.key_spans is None:
            return self.map.shape
        return (*self.map.shape[:-2], len(self.spans), len(self.key_spans))

    def describe(self) -> str:
        return f"{self.map.describe()}, merged into words"

    def read(self, selection: Selection, keys: Tensor) -> Tensor:
        assert self.spans is not None
        assert self.key_spans is not None
        columns = _Tokens.of([self.key_spans[j] for j in keys.tolist()], self.device)
        spans = [self.spans[i] for i in selection.queries.tolist()]
        widest = len(columns.positions) * len(selection.sequences) * len(selection.heads)
        blocks = [
            self._merge(selection._replace(queries=rows.positions), rows, columns)
            for rows in _blocks(spans, max(_MAX_WEIGHTS // max(widest, 1), 1), self.device)
        ]
        return torch.cat(blocks, dim=2)

    def parts(self) -> Sequence[WeightMap] | None:
        return self._parts

    def _merge(self, selection: Selection, rows: _Tokens, columns: _Tokens) -> Tensor:
        """Compute the weights between the words of the rows and of the columns, (S, H, W, W)."""
        # Summed in float64, and by index_add rather than a matrix product, so that a NaN stays in its word.
        weights_SHQK = self.map.read(selection, columns.positions).double()
        sums_SHQW = _sum_words(weights_SHQK, 3, columns)
        return (_sum_words(sums_SHQW, 2, rows) / rows.lengths[:, None]).to(self.dtype)


def _sum_words(weights: Tensor, dimension: int, tokens: _Tokens) -> Tensor:
    """Sum the weights over the tokens of each word along a dimension."""
    shape = list(weights.shape)
    shape[dimension] = len(tokens.lengths)
    return weights.new_zeros(shape).index_add_(dimension, tokens.word, weights)


def _blocks(spans: Sequence[tuple[int, int]], max_tokens: int, device: torch.device) -> Iterator[_Tokens]:
    """Yield blocks of consecutive words with at most `max_tokens` tokens, and at least one word."""
    block: list[tuple[int, int]] = []
    for span in spans:
        if block and sum(stop - start for start, stop in (*block, span)) > max_tokens:
            yield _Tokens.of(block, device)
            block = []
        block.append(span)
    yield _Tokens.of(block, device)


def word_spans(words: Words, tokens: int) -> list[tuple[int, int]]:
    """Return the tokens [start, stop) of every word, from the `word_ids()` of Hugging Face's tokenizers.

    Consecutive tokens with the same id are one word. A special token, whose id is None, is a word of its own, so that rows
    sum to 1. Ids may start again from 0, as in a pair of texts. Pairs (start, stop) are returned unchanged; they must be
    ascending without overlap, and may leave tokens out.

    Raises:
        ValueError: not one id per token, or spans that overlap, descend or go beyond the tokens.

    >>> word_spans([None, 0, 1, 1, 2, None], 6)
    [(0, 1), (1, 2), (2, 4), (4, 5), (5, 6)]
    """
    if all(word is None or isinstance(word, int) for word in words):
        check(
            len(words) == tokens,
            f"WordMap: there must be one word id for each of the {tokens} tokens, not {len(words)}",
        )
        starts = [i for i, word in enumerate(words) if i == 0 or word is None or word != words[i - 1]]
        return list(zip(starts, [*starts, tokens][1:], strict=True))
    spans = [(int(start), int(stop)) for start, stop in cast("Sequence[tuple[int, int]]", words)]
    edges = [edge for span in spans for edge in span]
    if not all(start < stop for start, stop in spans) or edges != sorted(edges) or edges[0] < 0 or edges[-1] > tokens:
        raise ValueError(f"WordMap: spans must be ascending, without overlap, within the {tokens} tokens: {spans}")
    return spans


def word_labels(tokens: Sequence[str], words: Words) -> list[str]:
    """Return a label for each word: its tokens as one string, without the tokenizer's marks for continuations and spaces.

    >>> word_labels(["[CLS]", "un", "##seen", "Ġtoken"], [None, 0, 0, 1])
    ['[CLS]', 'unseen', 'token']
    """
    spans = word_spans(words, len(tokens))
    joined = ["".join(token.removeprefix("##") for token in tokens[start:stop]) for start, stop in spans]
    return [word.replace("Ġ", " ").replace("▁", " ").strip() for word in joined]
