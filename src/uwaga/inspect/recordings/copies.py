"""Copy the operands of attention: selected heads, in one dtype, each tensor once.

Letters: B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width, L distances, N packed tokens.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from uwaga._base.arguments import integer
from uwaga.maps.base import format_bytes
from uwaga.maps.map import MapOptions
from uwaga.ops.biases import AlibiBias, DistanceBias, RelativeBias
from uwaga.ops.mask_program import Start
from uwaga.ops.masks import Mask
from uwaga.ops.ragged import Operand, Ragged

_ROWS = 64  # compared at a time, so that the comparison takes less memory than the bias


@dataclass(frozen=True, slots=True, eq=False)
class VectorBias(DistanceBias):
    """Hold a bias values[h, j - p - lowest] for all distances j - p of visible keys in a pass."""

    values: Tensor  # (H, L)
    lowest: int  # the distance of values[:, 0]
    _: KW_ONLY
    start: Start = None

    def heads(self) -> int:
        return self.values.shape[0]

    def parameter(self) -> Tensor:
        return self.values

    def vector(self, distance_L: Tensor) -> Tensor:
        return self.values[:, (distance_L - self.lowest).clamp(0, self.values.shape[1] - 1)]

    @property
    def highest(self) -> int:
        return self.lowest + self.values.shape[1] - 1

    def joined(self, other: "VectorBias") -> "VectorBias | None":
        """Join two biases; None if they differ at a distance, or if distances between them are missing."""
        low, high = max(self.lowest, other.lowest), min(self.highest, other.highest)
        if high < low - 1 or not torch.equal(self._between(low, high), other._between(low, high)):
            return None
        first, last = (self, other) if self.lowest <= other.lowest else (other, self)
        longest = first if first.highest >= last.highest else last
        tail = longest._between(first.highest + 1, longest.highest)
        return replace(first, values=torch.cat((first.values, tail), 1))

    def _between(self, low: int, high: int) -> Tensor:
        return self.values[:, low - self.lowest : max(high + 1 - self.lowest, low - self.lowest)]


def by_distance(bias: Tensor, heads: int) -> VectorBias | None:
    """Return the vector of a dense bias (1, H, Q, K); None if the bias depends on more than the distance.

    The last query is at the last key. A bias (1, 1, Q, K) that all H heads share gives None.
    """
    if bias.dim() != 4 or bias.shape[:2] != (1, heads) or 0 in bias.shape:
        return None
    bias_HQK = bias[0]
    queries, keys = bias_HQK.shape[1:]
    # The last row, then the last column upwards: from the lowest distance to the highest.
    vector_HL = torch.cat((bias_HQK[:, -1], bias_HQK[:, :-1, -1].flip(-1)), -1)
    windows_HQK = vector_HL.unfold(-1, keys, 1)  # the last query's first
    for low in range(0, queries, _ROWS):
        rows = bias_HQK.narrow(1, low, min(_ROWS, queries - low)).flip(1)
        if not torch.equal(windows_HQK.narrow(1, queries - low - rows.shape[1], rows.shape[1]), rows):
            return None
    return VectorBias(vector_HL, 1 - keys)


class Copier:
    """Copy the operands of the passes through one stack, and count their bytes.

    A tensor that several layers of a pass share is copied once. A GPU copies to pinned memory of the host on a separate stream while the
    model goes on computing; the copies may be incomplete until `wait` returns.

    Args:
        dtype: the dtype of the copies of operands; None for their own.
        device: the device of the copies; None for that of each operand.
        max_bytes: the most bytes that all stacks may keep; None for no limit.
        taken: the bytes that each stack keeps, by its kind; all stacks of a recording share this dict.
        kind: the kind of this stack.
        when_full: called before the error for more than max_bytes is raised.

    Raises:
        ValueError: max_bytes is neither None nor an integer of at least 1.
    """

    def __init__(
        self,
        dtype: torch.dtype | None,
        device: torch.device | None,
        max_bytes: int | None,
        taken: dict[str, int],
        kind: str,
        when_full: Callable[[], None],
    ) -> None:
        if max_bytes is not None:
            integer(max_bytes, "watch: max_bytes", 1, 1 << 62)
        self._dtype, self._device, self._max_bytes, self._when_full = dtype, device, max_bytes, when_full
        self._taken, self._kind = taken, kind
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._running: list[torch.cuda.Event] = []
        self.forget()

    def forget(self) -> None:
        """Set the count of this stack to zero."""
        self._taken[self._kind] = 0
        self.end_pass()

    def end_pass(self) -> None:
        """Release the model's own tensors."""
        self._made: dict[tuple[int, tuple[int, ...] | None], tuple[object, object]] = {}
        # By address. The tensors are referenced, so that no other tensor gets their addresses.
        self._counted: dict[int, Tensor] = {}

    def wait(self) -> None:
        """Wait until all copies are complete."""
        for done in self._running:
            done.synchronize()
        self._running.clear()

    def _take(self, size: int) -> None:
        """Count bytes that are about to be kept. Raises ValueError: more than max_bytes."""
        total = sum(self._taken.values()) + size
        if self._max_bytes is not None and total > self._max_bytes:
            self._when_full()
            raise ValueError(
                f"watch: the recording would keep {total} bytes ({format_bytes(total)}), more than "
                f"max_bytes={self._max_bytes}; record fewer layers, kinds or heads, or with dtype=torch.bfloat16"
            )
        self._taken[self._kind] += size

    def operand(self, x: Operand, heads: list[int] | None) -> Operand:
        """Copy some heads of (..., H, Q, D), or Ragged (N, H, D). Raises ValueError: more than max_bytes."""
        values, axis = (x.values, 1) if isinstance(x, Ragged) else (x, -3)
        numbers = values.numel() if heads is None else values.numel() // max(values.shape[axis], 1) * len(heads)
        self._take(numbers * (self._dtype or values.dtype).itemsize)
        if not isinstance(x, Ragged):
            return self._moved(_copied(x, -3, heads, self._dtype))
        offsets = self._once(x.offsets, None, lambda: x.offsets.clone())
        self.count(offsets)
        return Ragged(self._moved(_copied(x.values, 1, heads, self._dtype)), offsets, max_length=x.max_length)

    def count(self, kept: object) -> None:
        """Count the tensors of a copied object, each once. Raises ValueError: more than max_bytes."""
        for x in tensors(kept):
            storage = x.untyped_storage()
            if storage.data_ptr() not in self._counted:
                self._counted[storage.data_ptr()] = x
                self._take(storage.nbytes())

    def _moved(self, x: Tensor) -> Tensor:
        """Move a tensor that nothing else writes into to the device of the copies."""
        if self._device is None or self._device.type != "cpu" or not x.is_cuda:
            return x if self._device is None else x.to(self._device)
        if x.device not in self._streams:
            self._streams[x.device] = torch.cuda.Stream(x.device)
        stream = self._streams[x.device]
        host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
        stream.wait_stream(torch.cuda.current_stream(x.device))
        with torch.cuda.stream(stream):
            host.copy_(x, non_blocking=True)
            done = torch.cuda.Event()
            done.record(stream)
        x.record_stream(stream)  # PyTorch reuses its memory only after the copy is complete.
        self._running.append(done)
        return host

    def _placed(self, x: Any) -> Any:
        """Move a mask, a bias, or a tensor of one to the device of the copies, and wait until it is complete."""
        if self._device is None or x is None:
            return x
        return x.to(self._device) if isinstance(x, Tensor) else _replaced(x, Tensor, self._placed)

    def options(self, options: Mapping[str, Any], heads: list[int] | None, count: int) -> MapOptions:
        """Copy the options for some of `count` heads."""
        mask, bias, sinks = options["mask"], options["bias"], options["sinks"]
        return MapOptions(
            mask=self._mask(mask, heads),
            bias=self._bias(bias, heads, count),
            scale=options["scale"],
            softcap=options["softcap"],
            sinks=None if sinks is None else self._placed(_copied(sinks, -1, heads, None)),
        )

    def _mask(self, mask: Mask | Tensor | None, heads: list[int] | None) -> Mask | Tensor | None:
        if isinstance(mask, Tensor):
            return self._once(mask, heads, lambda: _of_scores(mask, heads))
        return _replaced(mask, Mask | Tensor, lambda part: self._mask(part, heads))

    def _bias(
        self, bias: DistanceBias | Tensor | None, heads: list[int] | None, count: int
    ) -> DistanceBias | Tensor | None:
        # Attention takes a bias in the dtype of the query or in float32.
        dtype = None if self._dtype is None else torch.float32
        return None if bias is None else self._once(bias, heads, lambda: _copied_bias(bias, heads, count, dtype))

    def _once(self, x: object, heads: list[int] | None, make: Callable[[], Any]) -> Any:
        # The original is referenced during the pass, so that no other object gets its id.
        name = (id(x), None if heads is None else tuple(heads))
        if name not in self._made:
            self._made[name] = (x, self._placed(make()))
        return self._made[name][1]


def _replaced(x: Any, types: Any, change: Callable[[Any], Any]) -> Any:
    """Change the fields of a mask or a bias that have one of these types."""
    if not dataclasses.is_dataclass(x):
        return x
    parts = {field.name: getattr(x, field.name) for field in dataclasses.fields(x)}
    changed = {name: change(part) for name, part in parts.items() if isinstance(part, types)}
    return replace(x, **changed) if changed else x  # type: ignore[type-var]


def _copied(x: Tensor, axis: int, heads: list[int] | None, dtype: torch.dtype | None) -> Tensor:
    x = x.detach()
    if heads is None:
        return x.to(dtype or x.dtype, copy=True)
    return x.index_select(axis, torch.tensor(heads, device=x.device)).to(dtype or x.dtype)


def _of_scores(x: Tensor, heads: list[int] | None) -> Tensor:
    """Copy some heads of a tensor that broadcasts to the scores (..., H, Q, K)."""
    return _copied(x, -3, heads if x.dim() > 2 and x.shape[-3] > 1 else None, None)


def _copied_bias(
    bias: DistanceBias | Tensor, heads: list[int] | None, count: int, dtype: torch.dtype | None
) -> DistanceBias | Tensor | None:
    """Copy some of `count` heads of a bias; a dense bias becomes None if it is zero, and a vector if possible."""
    if isinstance(bias, AlibiBias):
        return replace(bias, slopes=_copied(bias.slopes, 0, heads, None))
    if isinstance(bias, RelativeBias):
        return replace(bias, table=_copied(bias.table, 1, heads, None))
    assert isinstance(bias, Tensor)
    if not bool(bias.any()):
        return None
    result = by_distance(bias.detach(), count)
    if result is not None:
        return replace(result, values=_copied(result.values, 0, heads, dtype))
    return _of_scores(bias, heads).to(dtype or bias.dtype)


def tensors(kept: object) -> Iterator[Tensor]:
    """Yield all tensors in operands, masks, biases, and lists and dicts of these."""
    if isinstance(kept, Tensor):
        yield kept
    elif isinstance(kept, Ragged):
        yield from (kept.values, kept.offsets)
    elif dataclasses.is_dataclass(kept):
        yield from tensors([getattr(kept, field.name) for field in dataclasses.fields(kept)])
    elif isinstance(kept, dict):
        yield from tensors(kept.values())
    elif isinstance(kept, Iterable) and not isinstance(kept, str):
        for part in kept:
            yield from tensors(part)
