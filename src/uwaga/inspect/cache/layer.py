"""The input of a policy: one attention layer over one text.

Letters: H query heads, G key/value heads, N tokens, P tokens of the prompt, C queries of a block, U keys of a block, D width.
"""

from functools import cached_property

import torch
from torch import Tensor

from uwaga.maps.engines import tiles
from uwaga.maps.map import AttentionMap
from uwaga.nn.operand import values_of
from uwaga.ops.attention.call import Call
from uwaga.ops.mask_program import Memo, keys_seen

_INFINITY = float("inf")
_NUMBERS = 1 << 21  # the most weights of a block of queries; some copies of a block exist at once
MOST_ROWS = 64  # the most queries of a block


class CacheLayer:
    """Read exact weights and scores of one causal self-attention over one text, a block of queries at a time.

    Args:
        weights: the map (H, N, N) of the text.
        prompt: P, the number of tokens that are read before anything is forgotten.
        number: the number of the layer in the model, from 0.
        layers: the number of layers of the model.
        head_numbers: the numbers of the map's heads in the layer; None: the map has all heads.

    Attributes:
        map, prompt, number, layers, head_numbers: the arguments.
        heads, key_heads, tokens: H, G and N.
        device, dtype: device and dtype of weights and scores; float32, or float64 for float64.
        query, key: (H, N, D) and (G, N, D), after rotary positions. Query head h reads key head h // (H / G).
        scale: the factor of products of queries and keys.
        sinks: (H,) learned sinks, terms of the softmax's denominator; None without sinks.
    """

    def __init__(
        self,
        weights: AttentionMap,
        prompt: int,
        *,
        number: int = 0,
        layers: int = 1,
        head_numbers: list[int] | None = None,
    ) -> None:
        self.map, self.prompt, self.number, self.layers = weights, prompt, number, layers
        self.head_numbers = head_numbers
        self._call: Call = weights._call  # one sequence, with a batch dimension of 1
        self.query, self.key = self._call.query[0], self._call.key[0]
        self.heads, (self.key_heads, self.tokens, _) = len(self.query), self.key.shape
        self.device, self.dtype = weights.device, weights.dtype
        self.scale, self.sinks = self._call.options.scale, self._call.sinks
        # The last block is kept, as several policies read it.
        self._seen: tuple[Tensor, int, int, Tensor] | None = None

    def weights(self, head: int, rows: Tensor, end: int) -> Tensor:
        """Return the weights (C, end) of ascending queries on the keys before `end`."""
        block: Tensor = self.map[head, rows, :end]
        return block

    def visible(self, head: int, rows: Tensor, end: int) -> Tensor:
        """Return which keys before `end` the model's own mask shows to these queries, (C, end) bool."""
        if self._seen is None or self._seen[0] is not rows or self._seen[1:3] != (head, end):
            bits = tiles.seen(self._calls[head], rows, torch.arange(end, device=self.device))[0, 0]
            self._seen = (rows, head, end, bits)
        return self._seen[3]

    def sees_later(self) -> int | None:
        """Return the first query that sees a later key in any head; None if all are causal."""
        program, tensors, tokens = self._call.options.mask_program, self._call.mask_tensors, self.tokens
        memory: Memo = {}
        for rows in torch.arange(tokens, device=self.device).split(height(max(tokens, 1))):
            first, last = int(rows[0]), int(rows[-1])
            end = keys_seen(program, tensors, (tokens, tokens), (first, last + 1), memory)[1]
            keys = torch.arange(first + 1, max(end, first + 1), device=self.device)
            is_later_C = (tiles.seen(self._call, rows, keys)[0] & (keys > rows[:, None])).any(0).any(-1)
            if bool(is_later_C.any()):
                return int(rows[is_later_C][0])
        return None

    def scores(self, head: int, rows: Tensor, keys: Tensor) -> Tensor:
        """Compute the scores (C, U) before softmax of ascending queries and keys; -inf if a key is hidden. O(C U D) time."""
        call = self._calls[head]
        query_CD = call.query[0, 0].index_select(0, rows).to(self.dtype)
        key_UD = call.key[0, 0].index_select(0, keys).to(self.dtype)
        scores = tiles.finish(call, (query_CD @ key_UD.mT)[None, None], rows, keys)
        return torch.where(tiles.seen(call, rows, keys), scores, -_INFINITY)[0, 0]

    def learned_sink(self, head: int, rows: Tensor) -> Tensor:
        """Return the share of the learned sink in the rows of some queries, (C,); 0 without sinks."""
        if self.sinks is None:
            return torch.zeros(len(rows), dtype=self.dtype, device=self.device)
        return self._learned_sink[head, rows]

    @cached_property
    def received_from_prompt(self) -> Tensor:
        """The sum of the weights that each token of the prompt receives from the prompt's queries, (H, P)."""
        weights = torch.zeros(self.tokens, dtype=self.dtype, device=self.device)
        weights[: self.prompt] = 1.0
        return values_of(self.map.received(weights=weights))[:, : self.prompt]

    @cached_property
    def received(self) -> Tensor:
        """The sum of the weights that each key receives from all queries, (H, N)."""
        return values_of(self.map.received())

    @cached_property
    def by_distance(self) -> Tensor:
        """The sums (H, N) of the slashes of the map: entry d sums the weights of all queries i on keys i - d."""
        return values_of(self.map.diagonal_sums())[:, : self.tokens].flip(-1)

    @cached_property
    def _learned_sink(self) -> Tensor:
        return values_of(self.map.sink().learned)

    @cached_property
    def _calls(self) -> list[Call]:
        """The call of each head by itself, with its key head."""
        return [tiles.select_heads(self._call, (0,), (head,)) for head in range(self.heads)]


def height(width: int) -> int:
    """Return the number of queries of a block if each query takes `width` numbers."""
    return max(min(MOST_ROWS, _NUMBERS // width), 1)


def softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Return the softmax of scores (..., U), -inf for hidden keys; 0 in a row without a key. `sinks` broadcasts to (..., 1)."""
    is_empty = (scores == -_INFINITY).all(-1, keepdim=True)
    if sinks is not None:
        scores = torch.cat((scores, sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)), -1)
    weights = scores.softmax(-1).masked_fill(is_empty, 0.0)
    return weights if sinks is None else weights[..., :-1]
