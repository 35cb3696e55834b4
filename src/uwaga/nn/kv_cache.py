"""The key/value cache of a model: buffers that grow, views of what they hold, and one cache per layer.

Letters: R rows (sequences), T tokens that a buffer has capacity for, G key/value heads, Q new tokens, K tokens of the longest
row, D key width, E value width, N packed tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from uwaga._base.shapes import NamedShape, bind, shape_error
from uwaga._base.terminal import short
from uwaga._base.tracing import is_readable
from uwaga.nn.operand import values_of
from uwaga.nn.positions import token_positions
from uwaga.ops.biases import AlibiBias, DistanceBias, RelativeBias
from uwaga.ops.masks import Both, Causal, Documents, Either, KeyLengths, Mask, Window, as_mask
from uwaga.ops.ragged import Operand, Ragged


class KeyValueCache:
    """Keep the keys and values of every layer (after Shazeer, "Fast Transformer Decoding", 2019, section 2.4).

        cache = KeyValueCache(num_layers=12)
        decoder(prompts, mask=Causal(), cache=cache)            # Ragged prompts, without padding
        decoder(next_tokens, mask=Causal(), cache=cache)        # padded (R, 1, M), or Ragged with any number per row

    Masks and biases are those of the new tokens over all keys; Causal() and Window take rows of different lengths into account.
    A dense mask or bias has as many keys as the longest row.

    Args:
        num_layers: the number of layers.
        capacity: tokens per row to allocate at first; 0 allocates as many as the first append needs. A full buffer doubles.
    """

    def __init__(self, num_layers: int, *, capacity: int = 0) -> None:
        self._layers = tuple(LayerCache(SelfAttentionCache(capacity), CrossAttentionCache()) for _ in range(num_layers))

    def __repr__(self) -> str:
        start = self.start.tolist() if isinstance(self.start, Tensor) else self.start
        return f"KeyValueCache({len(self)} layers, start={short(start)})"

    def __getitem__(self, layer: int) -> "LayerCache":
        return self._layers[layer]

    def __iter__(self) -> "Iterator[LayerCache]":
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)

    @property
    def start(self) -> int | Tensor:
        """Return the position of the next token: an int if all rows have the same length, else (R,) int64.

        Read it only between forward passes: during a pass, some layers have the new tokens already and others do not.
        """
        return self._layers[0].attention.start

    @property
    def lengths(self) -> Tensor:
        """Return the number of tokens of each row, (R,) int64; (0,) while the cache is empty."""
        return self._layers[0].attention.lengths

    def rewind(self, length: int | Tensor) -> None:
        """Drop the tokens from position `length` on in every layer; `length` is one number, or one per row, (R,).

        Raises:
            ValueError: a length below 0 or beyond what a row holds.
        """
        for layer in self._layers:
            layer.attention.rewind(length)

    def reorder(self, rows: Tensor) -> None:
        """Let row r become the former row rows[r] in every layer, in cross-attention too.

        Args:
            rows: 1-d int64 of any length; rows may be left out or repeated, as in a beam search.

        Raises:
            ValueError: a row that does not exist.
        """
        for layer in self._layers:
            layer.attention.reorder(rows)
            layer.cross_attention.reorder(rows)


class LayerCache(NamedTuple):
    """The caches of one layer."""

    attention: "SelfAttentionCache"
    cross_attention: "CrossAttentionCache"


class SelfAttentionCache:
    """Keys and values of the tokens so far, in a buffer that doubles when it is full.

    Rows may differ in length: a batch of ragged prompts is stored without padding on the left, and positions beyond a
    row's end are masked out. `start` is the position of the next token: an int where all rows agree, else (R,) int64.

    Args:
        capacity: tokens per row to allocate at once, where the caller knows how many there will be.
    """

    def __init__(self, capacity: int = 0) -> None:
        self.start: int | Tensor = 0
        self._longest, self._capacity = 0, capacity
        # Keys (R, T, G, D) and values (R, T, G, E), not initialised beyond a row's end. Tokens come before heads, so that a token is contiguous,
        # and a buffer without its row dimension is a packed batch.
        self._buffers: list[Tensor] = []

    @property
    def is_empty(self) -> bool:
        return self._longest == 0

    @property
    def lengths(self) -> Tensor:
        """Return the number of tokens of each row, (R,) int64; (0,) before the first append."""
        if not self._buffers:
            return torch.zeros(0, dtype=torch.int64)
        key = self._buffers[0]
        return key.new_zeros(len(key), dtype=torch.int64) + self.start

    def append(self, key: Operand, value: Operand) -> "KVView":
        """Append new tokens to each row, and return all keys and values of the rows.

        Args:
            key: (R, G, Q, D), or Ragged with values (N, G, D); copied.
            value: (R, G, Q, E), or Ragged with values (N, G, E) over the same rows.

        Returns:
            Padded: views of the buffer. Ragged: the arguments themselves if the cache was empty; else a packed copy.

        Raises:
            ShapeError: other numbers of rows or heads, or other widths, than those in the cache.
            ValueError: another dtype or device; keys or values that require a gradient, which writing in place would break.
        """
        _check_pair(key, value)
        _check_fit(self._buffers, key, value)
        before, was_empty = self.start, self.is_empty
        if isinstance(key, Ragged):
            lengths_R = key.lengths + before
            self._write(key, value, int(lengths_R.max()) if len(key) else 0)
            agree = isinstance(before, int) and key.values.shape[0] == len(key) * key.max_length
            self.start = before + key.max_length if agree else lengths_R
            if was_empty:
                return KVView(key, value)
            keys, values = (Ragged.from_padded(stored[:, : self._longest], lengths_R) for stored in self._buffers)
            return KVView(keys, keys.with_values(values.values))
        added = key.shape[2]
        self._write(key, value, self._longest + added)
        self.start = before + added
        key_RGKD, value_RGKE = (stored[:, : self._longest].transpose(1, 2) for stored in self._buffers)
        if isinstance(before, Tensor):
            return KVView(key_RGKD, value_RGKE, before, before + added)
        return KVView(key_RGKD, value_RGKE)

    def _write(self, key: Operand, value: Operand, longest: int) -> None:
        """Write new tokens behind those of each row, in buffers that are grown if need be."""
        new, rows, start, buffers = (_tokens_first(key), _tokens_first(value)), len(key), self.start, self._buffers
        if not buffers or longest > buffers[0].shape[1]:
            room = max(longest, 2 * buffers[0].shape[1] if buffers else self._capacity)
            self._buffers = [x.new_empty(rows, room, *x.shape[-2:]) for x in new]
            for stored, old in zip(self._buffers, buffers, strict=False):  # at first there are no old ones
                stored[:, : self._longest] = old[:, : self._longest]
        self._longest = longest
        if isinstance(start, int) and not isinstance(key, Ragged):
            for stored, x in zip(self._buffers, new, strict=True):
                stored[:, start : start + x.shape[1]] = x
            return
        # The buffer as one packed batch: row r begins at r * T.
        first_R = torch.arange(rows, device=new[0].device) * self._buffers[0].shape[1] + start
        if isinstance(key, Ragged):
            index = token_positions("KeyValueCache", key, first_R)
        else:
            index = first_R[:, None] + torch.arange(key.shape[2], device=first_R.device)
        for stored, x in zip(self._buffers, new, strict=True):
            stored.flatten(0, 1).index_copy_(0, index.flatten(), x.flatten(0, -3))

    def rewind(self, length: int | Tensor) -> None:
        """Drop the tokens from position `length` on, of every row or with one number per row, (R,).

        Raises:
            ValueError: a length below 0 or beyond what a row holds.
        """
        lengths_R = self.lengths
        target_R = torch.zeros_like(lengths_R) + length
        if bool(((target_R < 0) | (target_R > lengths_R)).any()):
            target = length.tolist() if isinstance(length, Tensor) else length
            raise ValueError(f"KeyValueCache: rows of {lengths_R.tolist()} tokens cannot be rewound to {target}")
        self.start = target_R if isinstance(length, Tensor) else length
        self._longest = int(target_R.max()) if len(target_R) else 0

    def reorder(self, rows: Tensor) -> None:
        """Replace the rows by the rows at these indices, 1-d int64 of any length. A row may be left out or repeated, as in a beam search.

        Raises:
            ValueError: a row that does not exist.
        """
        _check_rows(rows, len(self.lengths))
        self._buffers = [x.index_select(0, rows) for x in self._buffers]
        if isinstance(self.start, Tensor):
            self.start = self.start[rows]
            self._longest = int(self.start.max()) if len(rows) else 0


class CrossAttentionCache:
    """Keys and values of the memory: computed for the first token of the decoder, and read for all others."""

    def __init__(self) -> None:
        self.view: KVView | None = None

    def fill(self, key: Operand, value: Operand) -> "KVView":
        """Store both, without a copy: (R, G, K, D) and (R, G, K, E), or Ragged with values (N, G, D) and (N, G, E).

        Raises:
            ValueError: the cache is filled already.
        """
        if self.view is not None:
            raise ValueError(
                "KeyValueCache: cross-attention's keys are in the cache already; use a new cache for a new memory"
            )
        self.view = KVView(key, value)
        return self.view

    def reorder(self, rows: Tensor) -> None:
        """Reorder the rows, as in SelfAttentionCache.reorder. The caller must reorder a mask over the keys."""
        if self.view is not None:
            _check_rows(rows, len(self.view.key))
            key, value = _select(self.view.key, rows), _select(self.view.value, rows)
            # Key and value share one offsets tensor, so that attention need not compare two.
            self.view = KVView(key, key.with_values(values_of(value)) if isinstance(key, Ragged) else value)


class KVView(NamedTuple):
    """All keys and values of a layer after an append, padded or Ragged as the new ones are; where padded rows differ in length,
    also the position of the first new token of each row, and the row's number of keys."""

    key: Operand  # (R, G, K, D), a view; Ragged (N, G, D)
    value: Operand  # (R, G, K, E), a view; Ragged (N, G, E)
    start_R: Tensor | None = None
    lengths_R: Tensor | None = None

    def mask(self, mask: Mask | Tensor | None) -> Mask | Tensor | None:
        """Return the mask of the new tokens over these keys, from a mask that assumes rows of one length."""
        assert self.lengths_R is not None
        assert self.start_R is not None
        inside = KeyLengths(self.lengths_R)
        return inside if mask is None else inside & _mask_with_start(mask, self.start_R)

    def bias(self, bias: DistanceBias | Tensor | None) -> DistanceBias | Tensor | None:
        """Return the bias of the new tokens over these keys, from a bias that assumes rows of one length; a tensor unchanged."""
        if isinstance(bias, AlibiBias | RelativeBias) and bias.start is None:
            return replace(bias, start=self.start_R)
        return bias


def _mask_with_start(mask: Mask | Tensor, start_R: Tensor) -> Mask:
    """Return the mask with the row's start wherever it has none: by default masks align to the end of the longest row.

    Raises:
        ValueError: Documents without query_ids, which align to that end too.
    """
    mask = as_mask(mask)
    if isinstance(mask, Both | Either):
        return replace(mask, left=_mask_with_start(mask.left, start_R), right=_mask_with_start(mask.right, start_R))
    if isinstance(mask, Causal | Window):
        return replace(mask, start=start_R) if mask.start is None else mask
    if isinstance(mask, Documents) and mask.query_ids is None:
        raise ValueError("KeyValueCache: Documents over rows of different lengths needs query_ids")
    return mask


def _check_pair(key: Operand, value: Operand) -> None:
    """Raise ShapeError or ValueError unless key and value are of the same tokens and require no gradient."""
    if isinstance(key, Ragged) is not isinstance(value, Ragged):
        kinds = f"key is {type(key).__name__}, value is {type(value).__name__}"
        raise ValueError(f"KeyValueCache: key and value must both be Ragged or neither, but {kinds}")
    letters = ("N G D", "N G E") if isinstance(key, Ragged) else ("R G Q D", "R G Q E")
    named = zip(("key", "value"), (values_of(key), values_of(value)), letters, strict=True)
    bind("KeyValueCache", [NamedShape.of(name, x.shape, of) for name, x, of in named])
    if values_of(key).requires_grad or values_of(value).requires_grad:
        hint = "run under torch.no_grad() or torch.inference_mode()"
        raise ValueError(f"KeyValueCache: keys and values that require a gradient cannot be cached; {hint}")


def _check_fit(buffers: Sequence[Tensor], key: Operand, value: Operand) -> None:
    """Raise ShapeError or ValueError unless new keys and values fit those in the buffers; there may be none."""
    for name, stored, new, letters in zip(("key", "value"), buffers, (key, value), ("R G D", "R G E"), strict=False):
        x = _tokens_first(new)
        sizes, stored_sizes = (len(new), *x.shape[-2:]), (len(stored), *stored.shape[-2:])
        if sizes != stored_sizes:
            shown = [NamedShape.of(f"cached {name}", stored_sizes, letters), NamedShape.of(name, sizes, letters)]
            rule = f"a new {name} must have the rows, heads and width of the cached {name}"
            raise shape_error("KeyValueCache", rule, shown, name, "differs")
        if (stored.dtype, stored.device) != (x.dtype, x.device):
            kinds = f"{stored.dtype} on {stored.device}, not {x.dtype} on {x.device}"
            raise ValueError(f"KeyValueCache: a new {name} must have the dtype and device of the cache, {kinds}")


def _check_rows(rows: Tensor, count: int) -> None:
    """Raise ValueError unless all rows exist, checked if reading them costs no synchronization."""
    if is_readable(rows) and rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < count:
        raise ValueError(f"KeyValueCache: rows must lie between 0 and {count - 1}, not {rows.tolist()}")


def _select(x: Operand, rows: Tensor) -> Operand:
    """Return the listed rows, a copy."""
    if not isinstance(x, Ragged):
        return x.index_select(0, rows)
    sequences = x.to_list()
    return Ragged.from_list([sequences[row] for row in rows.tolist()])


def _tokens_first(x: Operand) -> Tensor:
    """Return (R, Q, G, D), or packed (N, G, D)."""
    return values_of(x) if isinstance(x, Ragged) else x.transpose(1, 2)
