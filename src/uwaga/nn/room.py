"""The memory of a cache slot: keys and values of every row, with room behind them.

Letters: R rows, T tokens that there is room for, G key/value heads, Q new tokens, D key width, E value width.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from uwaga._base.shapes import NamedShape, bind, shape_error
from uwaga._base.tracing import is_readable
from uwaga.nn.carry import contents, places
from uwaga.ops.ragged import Operand, Ragged


class Room(NamedTuple):
    """Tokens before heads, so that a new token is one piece of memory and rows one after the other are packed rows."""

    key: Tensor  # (R, T, G, D); what stands behind a row's end is not initialised
    value: Tensor  # (R, T, G, E)

    @staticmethod
    def of(key: Operand, value: Operand, rows: int, tokens: int) -> "Room":
        """Empty, for keys and values such as these."""
        return Room(*(x.new_empty(rows, tokens, *x.shape[-2:]) for x in (_inside_tokens(key), _inside_tokens(value))))

    @property
    def tokens(self) -> int:
        return self.key.shape[1]

    def grown(self, tokens: int, used: int) -> "Room":
        """Room for so many tokens, with copies of the first `used`."""
        larger = Room(*(x.new_empty(len(x), tokens, *x.shape[-2:]) for x in self))
        for kept, x in zip(larger, self, strict=True):
            kept[:, :used] = x[:, :used]
        return larger

    def taken(self, rows: Tensor) -> "Room":
        """The listed rows, as often as they are listed."""
        return Room(*(x.index_select(0, rows) for x in self))

    def write(self, key: Operand, value: Operand, start: int | Tensor) -> None:
        """New tokens, padded or packed, behind the `start` first of every row; `start` may be one per row, (R,)."""
        if isinstance(start, int) and not isinstance(key, Ragged):
            for kept, x in self._pairs(key, value):
                kept[:, start : start + x.shape[1]] = x
            return
        first_R = self.first(start)
        if isinstance(key, Ragged):
            place = places("KeyValueCache", key, first_R)
        else:
            place = first_R[:, None] + torch.arange(key.shape[2], device=first_R.device)
        for kept, x in self._pairs(key, value):
            kept.flatten(0, 1).index_copy_(0, place.flatten(), x.flatten(0, -3))

    def first(self, start: int | Tensor) -> Tensor:
        """(R,): place `start` of every row, where all rows lie one after the other."""
        return torch.arange(len(self.key), device=self.key.device) * self.tokens + start

    def check(self, key: Operand, value: Operand) -> None:
        """ShapeError or ValueError unless new keys and values are as those that are kept."""
        new = ((len(key), _inside_tokens(key)), (len(value), _inside_tokens(value)))
        for name, kept, (rows, x), letters in zip(self._fields, self, new, ("R G D", "R G E"), strict=True):
            sizes, kept_sizes = (rows, *x.shape[-2:]), (len(kept), *kept.shape[-2:])
            if sizes != kept_sizes:
                shown = [NamedShape.of(f"kept {name}", kept_sizes, letters), NamedShape.of(name, sizes, letters)]
                rule = f"a new {name} must have the rows, heads and width of those that are kept"
                raise shape_error("KeyValueCache", rule, shown, name, "differs")
            if (kept.dtype, kept.device) != (x.dtype, x.device):
                kinds = f"{kept.dtype} on {kept.device}, not {x.dtype} on {x.device}"
                raise ValueError(f"KeyValueCache: a new {name} must be as those that are kept, {kinds}")

    def _pairs(self, key: Operand, value: Operand) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self, (_inside_tokens(key), _inside_tokens(value)), strict=True)


def check_pair(key: Operand, value: Operand) -> None:
    """ShapeError or ValueError unless a key and a value are of the same tokens, and can be kept."""
    if isinstance(key, Ragged) is not isinstance(value, Ragged):
        kinds = f"key is {type(key).__name__}, value is {type(value).__name__}"
        raise ValueError(f"KeyValueCache: key and value must both be Ragged or neither, but {kinds}")
    letters = ("N G D", "N G E") if isinstance(key, Ragged) else ("R G Q D", "R G Q E")
    named = zip(("key", "value"), (contents(key), contents(value)), letters, strict=True)
    bind("KeyValueCache", [NamedShape.of(name, x.shape, of) for name, x, of in named])
    if contents(key).requires_grad or contents(value).requires_grad:
        hint = "run under torch.no_grad() or torch.inference_mode()"
        raise ValueError(f"KeyValueCache: keys and values that need a gradient cannot be kept; {hint}")


def check_rows(rows: Tensor, count: int) -> None:
    """ValueError unless all rows are there, checked where reading them is free."""
    if is_readable(rows) and rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < count:
        raise ValueError(f"KeyValueCache: rows must lie between 0 and {count - 1}, not {rows.tolist()}")


def _inside_tokens(x: Operand) -> Tensor:
    """(R, Q, G, D), or packed (N, G, D)."""
    return contents(x) if isinstance(x, Ragged) else x.transpose(1, 2)
