"""One layer's parts of a cache: the tokens so far, and what a decoder looks at.

Letters: R rows, G key/value heads, Q new tokens, K tokens of the longest row, D key width, E value width, N packed tokens.
"""

import torch
from torch import Tensor

from uwaga.nn.carry import contents
from uwaga.nn.held import Held
from uwaga.nn.room import Room, check_pair, check_rows
from uwaga.ops.ragged import Operand, Ragged


class SelfSlot:
    """Keys and values of the tokens so far, in room that doubles when it is full.

    Rows may differ in length: a batch of ragged prompts is kept without padding on the left, and what stands behind a row's
    end is never seen. `start` is where the next token stands: a number where all rows agree, else (R,) int64.

    Args:
        capacity: tokens per row to make room for at once, where the caller knows how many there will be.
    """

    def __init__(self, capacity: int = 0) -> None:
        self.start: int | Tensor = 0
        self._longest, self._capacity = 0, capacity
        self._room: Room | None = None

    @property
    def is_empty(self) -> bool:
        return self._longest == 0

    @property
    def lengths(self) -> Tensor:
        """(R,) int64: the tokens of each row; (0,) before the first append."""
        if self._room is None:
            return torch.zeros(0, dtype=torch.int64)
        return self._room.key.new_zeros(len(self._room.key), dtype=torch.int64) + self.start

    def append(self, key: Operand, value: Operand) -> Held:
        """Keep the new tokens behind each row; all keys and values of the rows.

        Args:
            key: (R, G, Q, D), or Ragged with values (N, G, D); copied.
            value: (R, G, Q, E), or Ragged with values (N, G, E) over the same rows.

        Returns:
            Padded: views of the room. Ragged: what was given, where the slot was empty; else all tokens packed, a copy.

        Raises:
            ShapeError: another number of rows or heads, or other widths, than those that are kept.
            ValueError: another dtype or device; keys or values that need a gradient, which writing in place would break.
        """
        check_pair(key, value)
        if self._room is not None:
            self._room.check(key, value)
        if isinstance(key, Ragged) and isinstance(value, Ragged):
            return self._append_packed(key, value)
        assert isinstance(key, Tensor)
        assert isinstance(value, Tensor)
        return self._append_padded(key, value)

    def _append_padded(self, key_RGQD: Tensor, value_RGQE: Tensor) -> Held:
        before, added = self.start, key_RGQD.shape[2]
        room = self._write(key_RGQD, value_RGQE, self._longest + added)
        self.start = after = before + added
        key_RGKD, value_RGKE = (kept[:, : self._longest].transpose(1, 2) for kept in room)
        if isinstance(before, Tensor) and isinstance(after, Tensor):
            return Held(key_RGKD, value_RGKE, before, after)
        return Held(key_RGKD, value_RGKE)

    def _append_packed(self, key: Ragged, value: Ragged) -> Held:
        before, was_empty = self.start, self.is_empty
        lengths_R = key.lengths + before
        room = self._write(key, value, int(lengths_R.max()) if len(key) else 0)
        agree = isinstance(before, int) and key.values.shape[0] == len(key) * key.max_length
        self.start = before + key.max_length if agree else lengths_R
        if was_empty:
            return Held(key, value)
        keys, values = (Ragged.from_padded(kept[:, : self._longest], lengths_R) for kept in room)
        return Held(keys, keys.with_values(values.values))

    def _write(self, key: Operand, value: Operand, longest: int) -> Room:
        """The room, with the new tokens in it."""
        room = self._room
        if room is None:
            room = Room.of(key, value, len(key), max(longest, self._capacity))
        elif longest > room.tokens:
            room = room.grown(max(longest, 2 * room.tokens), self._longest)
        room.write(key, value, self.start)
        self._room, self._longest = room, longest
        return room

    def rewind(self, length: int | Tensor) -> None:
        """Forget the tokens from `length` on, of every row or with one number per row, (R,).

        Raises:
            ValueError: a length below 0 or beyond what a row holds.
        """
        kept_R = self.lengths
        wanted_R = torch.zeros_like(kept_R) + length
        if bool(((wanted_R < 0) | (wanted_R > kept_R)).any()):
            listed = length.tolist() if isinstance(length, Tensor) else length
            raise ValueError(f"KeyValueCache: rows of {kept_R.tolist()} tokens cannot be rewound to {listed}")
        self.start = wanted_R if isinstance(length, Tensor) else length
        self._longest = int(wanted_R.max()) if len(wanted_R) else 0

    def reorder(self, rows: Tensor) -> None:
        """Row r becomes what row rows[r] is: rows, (any,) int64, may be left out and repeated, as beams are.

        Raises:
            ValueError: a row that there is not.
        """
        check_rows(rows, len(self.lengths))
        if self._room is None:
            return
        self._room = self._room.taken(rows)
        if isinstance(self.start, Tensor):
            self.start = self.start[rows]
            self._longest = int(self.start.max()) if len(rows) else 0


class CrossSlot:
    """Keys and values of what a decoder looks at: computed for the first token, and read by all others."""

    def __init__(self) -> None:
        self.held: Held | None = None

    def fill(self, key: Operand, value: Operand) -> Held:
        """Keep both, as they are: (R, G, K, D) and (R, G, K, E), or Ragged with values (N, G, D) and (N, G, E).

        Raises:
            ValueError: the slot is filled already.
        """
        if self.held is not None:
            raise ValueError("KeyValueCache: cross-attention's keys are kept already; a new memory needs a new cache")
        self.held = Held(key, value)
        return self.held

    def reorder(self, rows: Tensor) -> None:
        """As SelfSlot's; a mask over the keys is the caller's to reorder."""
        if self.held is not None:
            check_rows(rows, len(self.held.key))
            key, value = _taken(self.held.key, rows), _taken(self.held.value, rows)
            # One object says where rows are, so that attention need not compare two.
            self.held = Held(key, key.with_values(contents(value)) if isinstance(key, Ragged) else value)


def _taken(x: Operand, rows: Tensor) -> Operand:
    if not isinstance(x, Ragged):
        return x.index_select(0, rows)
    sequences = x.to_list()
    return Ragged.from_list([sequences[row] for row in rows.tolist()])
