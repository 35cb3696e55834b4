"""Tokens merged into words. Letters: S sequences, H query heads, Q and K queries and keys (tokens), W words."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from uwaga.maps.base import WeightMap
from uwaga.maps.derived import DerivedMap
from uwaga.maps.spans import Words, word_spans
from uwaga.maps.spec import Selection

_BLOCK = 1 << 22  # weights between tokens that are held at once


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
