"""Maps that are computed from other maps: differences, some tokens alone, tokens merged into words.

Letters: S sequences, H query heads, Q and K queries and keys, W words.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from uwaga.maps.base import WeightMap
from uwaga.maps.indexing import expand
from uwaga.maps.spec import Selection

_BLOCK = 1 << 22  # weights that are held at once
_BLOCK = 1 << 22  # weights between tokens that are held at once
# What says which tokens are a word: an id per token (None: a special token), or (start, stop) pairs.
Words = Sequence[int | None] | Sequence[tuple[int, int]]


class DerivedMap(WeightMap):
    """A map whose numbers are those of another kind and place: of `map`, which a subclass sets."""

    __slots__ = ("map",)

    map: WeightMap

    @property
    def dtype(self) -> torch.dtype:
        return self.map.dtype

    @property
    def device(self) -> torch.device:
        return self.map.device


class DifferenceMap(WeightMap):
    """left - right, computed when read; its rows sum to 0 where those of both sum to the same.

    Args:
        left: a map of any kind.
        right: a map of the same shape, on the same device. Float64 if one of them is.

    Raises:
        ValueError: maps of different shapes, or on different devices.
    """

    __slots__ = ("left", "right")

    def __init__(self, left: WeightMap, right: WeightMap) -> None:
        if left.shapes != right.shapes:
            shapes = (left.shape, right.shape) if left.shape != right.shape else (left.shapes, right.shapes)
            raise ValueError(f"DifferenceMap: the maps differ in shape: {shapes[0]} and {shapes[1]}")
        if left.device != right.device:
            raise ValueError(f"DifferenceMap: the maps are on different devices: {left.device} and {right.device}")
        self.left, self.right = left, right

    @property
    def shape(self) -> tuple[int | None, ...]:
        return self.left.shape

    @property
    def dtype(self) -> torch.dtype:
        return torch.promote_types(self.left.dtype, self.right.dtype)

    @property
    def device(self) -> torch.device:
        return self.left.device

    def describe(self) -> str:
        return f"{self.left.describe()} less {self.right.describe()}"

    def read(self, selection: Selection, keys: Tensor) -> Tensor:
        return self.left.read(selection, keys) - self.right.read(selection, keys)

    def parts(self) -> Sequence[WeightMap] | None:
        left, right = self.left.parts(), self.right.parts()
        if left is None or right is None:
            return None
        return [DifferenceMap(one, other) for one, other in zip(left, right, strict=True)]


class KeptMap(DerivedMap):
    """The weights between the tokens that are kept, every row divided by its sum: as if the others had never been keys.

    So it is read what a head does with the words of a text when most of its weight rests on [SEP], or on the first token
    (Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2023). A row whose kept keys have no weight
    is 0. Rows are added up when they are first read: O(Q) memory.

    Args:
        map: a dense map of any kind, of a ragged one take m[r].
        queries: the positions that are kept, rising and unique.
        keys: the same for the keys; None: as the queries.

    Raises:
        ValueError: a ragged map.
        IndexError: a position that is out of range.
    """

    __slots__ = ("_keys", "_known", "_queries", "_sums")

    def __init__(self, map: WeightMap, queries: Sequence[int], keys: Sequence[int] | None = None) -> None:
        if map.parts() is not None:
            raise ValueError("KeptMap: the sequences of a ragged map have each their own tokens: KeptMap(m[r], ...)")
        wanted = [list(queries), list(queries if keys is None else keys)]
        rows, columns = expand(tuple(wanted), map.shape[-2:], ["queries", "keys"], "KeptMap")
        self.map = map
        self._queries, self._keys = (x.unique.to(map.device) for x in (rows, columns))
        sizes = (torch.Size(map.shape[:-3]).numel(), map.shape[-3] if len(map.shape) > 2 else 1, len(self._queries))
        self._sums = torch.zeros(sizes, dtype=torch.float64, device=map.device)
        self._known = torch.zeros(sizes, dtype=torch.bool, device=map.device)

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
        """(sequences, heads, queries) float64: the weight on all kept keys."""
        s, h = (torch.tensor(x, device=self.device) for x in selection[:2])
        is_known = self._known[s[:, None, None], h[:, None], selection.queries].flatten(0, 1).all(0)
        height = max(_BLOCK // max(len(self._keys) * len(s) * len(h), 1), 1)
        for queries in selection.queries[~is_known].split(height):
            if len(queries):
                block = self.map.read(selection._replace(queries=self._queries[queries]), self._keys)
                place = (s[:, None, None], h[:, None], queries)
                self._sums[place], self._known[place] = block.double().sum(-1), True
        return self._sums[s[:, None, None], h[:, None], selection.queries]


class Members(NamedTuple):
    """The tokens of some words, one after the other."""

    tokens: Tensor  # (n,) int64
    word: Tensor  # (n,) int64: which of the words each belongs to
    lengths: Tensor  # (W,) tokens of each word

    @staticmethod
    def of(spans: Sequence[tuple[int, int]], device: torch.device) -> "Members":
        starts, stops = torch.tensor(spans, dtype=torch.int64, device=device).reshape(-1, 2).unbind(1)
        lengths = stops - starts
        word = torch.repeat_interleave(torch.arange(len(spans), device=device), lengths)
        first = lengths.cumsum(0) - lengths
        return Members(torch.arange(len(word), device=device) - first[word] + starts[word], word, lengths)


class WordMap(DerivedMap):
    """The weights between words: summed over the tokens of the key's word, averaged over those of the query's.

    Clark et al., "What Does BERT Look At? An Analysis of BERT's Attention" (2019), section 4: attention to a split word is
    the sum over its tokens, attention from it the mean. So rows that sum to 1 still do. Special tokens are kept, as
    words; no weight is normalised again.

    Args:
        map: a map of any kind.
        words: which queries are a word, the same in every sequence of a batch: what a tokenizer's `word_ids()` gives, or
            (start, stop) pairs; see `word_spans`. Of a ragged map a list of these, one per sequence.
        key_words: the same for the keys; None: as the queries.

    Raises:
        ValueError: words that do not fit the tokens, or not one list of words per sequence.
    """

    __slots__ = ("_key_spans", "_parts", "_spans")

    def __init__(
        self, map: WeightMap, words: Words | Sequence[Words], key_words: Words | Sequence[Words] | None = None
    ) -> None:
        self.map = map
        parts = map.parts()
        key_words = words if key_words is None else key_words
        if parts is None:
            queries, keys = map.shape[-2:]
            self._spans, self._key_spans = word_spans(words, queries), word_spans(key_words, keys)
            self._parts = None
            return
        for given in (words, key_words):
            if len(given) != len(parts):
                rule = f"a ragged map of {len(parts)} sequences needs as many lists of words, not {len(given)}"
                raise ValueError(f"WordMap: {rule}")
        self._spans = self._key_spans = None
        self._parts = [WordMap(*three) for three in zip(parts, words, key_words, strict=True)]

    @property
    def spans(self) -> list[tuple[int, int]] | None:
        """The tokens [start, stop) of each word along the queries; None of a ragged map, whose parts have each theirs."""
        return self._spans

    @property
    def key_spans(self) -> list[tuple[int, int]] | None:
        """The same along the keys."""
        return self._key_spans

    @property
    def shape(self) -> tuple[int | None, ...]:
        if self._spans is None:
            return self.map.shape
        return (*self.map.shape[:-2], len(self._spans), len(self._key_spans))

    def describe(self) -> str:
        return f"{self.map.describe()}, merged into words"

    def read(self, selection: Selection, keys: Tensor) -> Tensor:
        columns = Members.of([self._key_spans[j] for j in keys.tolist()], self.device)
        spans = [self._spans[i] for i in selection.queries.tolist()]
        widest = len(columns.tokens) * len(selection.sequences) * len(selection.heads)
        blocks = [
            self._merge(selection._replace(queries=rows.tokens), rows, columns)
            for rows in _blocks(spans, max(_BLOCK // max(widest, 1), 1), self.device)
        ]
        return torch.cat(blocks, dim=2)

    def parts(self) -> Sequence[WeightMap] | None:
        return self._parts

    def _merge(self, selection: Selection, rows: Members, columns: Members) -> Tensor:
        """(S, H, W, W) of the words in rows and columns."""
        # In float64, so that a sum is that of the weights, and added token by token: a nan stays in its word.
        weights_SHQK = self.map.read(selection, columns.tokens).double()
        sums_SHQW = _add(weights_SHQK, 3, columns)
        return (_add(sums_SHQW, 2, rows) / rows.lengths[:, None]).to(self.dtype)


def _add(weights: Tensor, dimension: int, members: Members) -> Tensor:
    shape = list(weights.shape)
    shape[dimension] = len(members.lengths)
    return weights.new_zeros(shape).index_add_(dimension, members.word, weights)


def _blocks(spans: Sequence[tuple[int, int]], most: int, device: torch.device) -> Iterator[Members]:
    """Neighbouring words with about `most` tokens at once; one word at least."""
    block: list[tuple[int, int]] = []
    for span in spans:
        if block and sum(stop - start for start, stop in (*block, span)) > most:
            yield Members.of(block, device)
            block = []
        block.append(span)
    yield Members.of(block, device)


def word_spans(words: Words, tokens: int) -> list[tuple[int, int]]:
    """The tokens [start, stop) of every word, from ids as Hugging Face's tokenizers give them by `word_ids()`.

    Neighbours with the same id are one word. A special token, None, is a word of its own: then all weight stays in the
    matrix and rows sum to 1. Ids may start again, as those of a pair of texts do. Pairs (start, stop) are taken as they
    are; they must rise and not overlap, and may leave tokens out.

    Raises:
        ValueError: not one id per token, or spans that overlap, fall or leave the tokens.

    >>> word_spans([None, 0, 1, 1, 2, None], 6)
    [(0, 1), (1, 2), (2, 4), (4, 5), (5, 6)]
    """
    if all(word is None or isinstance(word, int) for word in words):
        if len(words) != tokens:
            raise ValueError(f"WordMap: there must be one word id for each of the {tokens} tokens, not {len(words)}")
        starts = [i for i, word in enumerate(words) if i == 0 or word is None or word != words[i - 1]]
        return list(zip(starts, [*starts, tokens][1:], strict=True))
    spans = [(int(start), int(stop)) for start, stop in words]
    edges = [edge for span in spans for edge in span]
    if not all(start < stop for start, stop in spans) or edges != sorted(edges) or edges[0] < 0 or edges[-1] > tokens:
        raise ValueError(f"WordMap: spans must rise within the {tokens} tokens, without overlap: {spans}")
    return spans


def word_labels(tokens: Sequence[str], words: Words) -> list[str]:
    """A label per word, for figures: its tokens as one string, without the marks that stand for joints and spaces.

    >>> word_labels(["[CLS]", "un", "##seen", "Ġtoken"], [None, 0, 0, 1])
    ['[CLS]', 'unseen', 'token']
    """
    spans = word_spans(words, len(tokens))
    joined = ["".join(token.removeprefix("##") for token in tokens[start:stop]) for start, stop in spans]
    return [word.replace("Ġ", " ").replace("▁", " ").strip() for word in joined]
