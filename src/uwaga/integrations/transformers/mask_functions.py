"""Convert transformers' mask functions, closures over (batch, head, query, key), to the masks of this package.

transformers composes masks of a few functions of masking_utils. Each is recognised by its qualified name, and its numbers and
tensors are read from its closure. Any other function is user code, and UnknownMaskError is raised.

Letters: B batch, Q queries, K keys.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_, or_
from typing import Any

import torch
from torch import Tensor

from uwaga.ops.mask_program import Start
from uwaga.ops.masks import Both, Causal, Documents, Mask, Window

_NOWHERE_Q, _NOWHERE_K = -2, -1  # ids of queries and keys that belong to no document; they are never equal


class UnknownMaskError(Exception):
    """A mask function that is not one of transformers' own."""


class EmptyWindowError(ValueError):
    """A sliding window in which a token does not see even itself."""

    def __init__(self, sliding_window: int) -> None:
        super().__init__(
            f"attn_implementation='uwaga': sliding_window={sliding_window} hides every key from its query; set it to 1 or more, or to "
            "None for no window"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskRegion:
    """The queries and keys of the whole sequence that a mask is for."""

    queries: int
    keys: int
    query_offset: int = 0
    key_offset: int = 0
    positions: Tensor | None = None  # (B, Q) inside a packed document, where these stand for the indices; Q = K there
    relative: bool = False  # the queries are the last of the keys, whatever their number
    starts: Tensor | None = None  # (B,) positions of the first queries among their keys; they override the offsets

    @property
    def start(self) -> Start:
        if self.starts is not None:
            return self.starts
        return None if self.relative else self.query_offset - self.key_offset

    @property
    def query_indices(self) -> slice:
        return slice(self.query_offset, self.query_offset + self.queries)

    @property
    def key_indices(self) -> slice:
        return slice(self.key_offset, self.key_offset + self.keys)


def read(function: Callable, region: MaskRegion) -> Mask | None:
    """Return the mask, or None where every query sees every key. Raises UnknownMaskError."""
    reader = _READERS.get(getattr(function, "__qualname__", ""))
    if reader is None or function.__module__ != "transformers.masking_utils":
        raise UnknownMaskError(repr(function))
    try:
        return reader(_closure(function), region)
    except KeyError as missing:  # another version of transformers has other names of variables
        raise UnknownMaskError(f"{function!r} without {missing}") from missing


def packed_documents(function: Callable) -> tuple[Tensor, Callable] | None:
    """Return, for the mask function of packed sequences, the document of each token, (B, N), and the mask function inside each."""
    if function.__qualname__ != "and_masks.<locals>.and_mask":
        return None
    parts = {part.__qualname__: _closure(part) for part in _closure(function)["mask_functions"]}
    if set(parts) != {_PACKED, _REMAPPED}:
        return None
    return parts[_PACKED]["packed_sequence_mask"], parts[_REMAPPED]["mask_function"]


def documents_of_positions(position_ids: Tensor) -> Tensor | None:
    """Return the document of each token, (B, N), if positions (B, N) count up by 1 and start again at 0.

    The result is None if they jump otherwise, or if each row is one document.
    """
    begins = position_ids[:, 1:] != position_ids[:, :-1] + 1
    if not bool(begins.any()) or bool((begins & (position_ids[:, 1:] != 0)).any()):
        return None
    return torch.nn.functional.pad(begins, (1, 0)).cumsum(-1)


def has_documents(position_ids: Tensor, tokens: Tensor | None) -> bool:
    """Return whether a row of positions (B, N) counts from 0 more than once, among tokens (B, N; None: all) that are not padding.

    `generate` goes on after padding on the right, with a padding token as position 0.
    """
    begins = (position_ids[:, :-1] == 0) & (position_ids[:, 1:] == 1)
    if tokens is not None and tokens.shape == position_ids.shape:
        begins = begins & tokens[:, :-1]
    return bool((begins.sum(-1) > 1).any())


def depends_on_distance_alone(mask: Mask | None) -> bool:
    """Return whether the mask depends on the distance of query and key alone, so that it is the same in any segment of a sequence."""
    if isinstance(mask, Both):
        return depends_on_distance_alone(mask.left) and depends_on_distance_alone(mask.right)
    return mask is None or isinstance(mask, Causal | Window)


def reach(sliding_window: int) -> int:
    """Return the largest distance of a key that a query sees: transformers counts the query too. Raises EmptyWindowError."""
    if sliding_window < 1:
        raise EmptyWindowError(sliding_window)
    return sliding_window - 1


def _closure(function: Callable) -> dict[str, Any]:
    cells = function.__closure__ or ()
    return dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in cells), strict=True))


def _all_of(variables: Mapping, region: MaskRegion) -> Mask | None:
    functions = variables["mask_functions"]
    remapped = [f for f in functions if f.__qualname__ == _REMAPPED]
    if remapped and not any(f.__qualname__ == _PACKED for f in functions):
        # A distance of positions is one of indices only inside a document.
        raise UnknownMaskError(repr(remapped[0]))
    parts = [_remapped(_closure(f), region) if f in remapped else read(f, region) for f in functions]
    seen = [part for part in parts if part is not None]
    return reduce(and_, seen) if seen else None


def _any_of(variables: Mapping, region: MaskRegion) -> Mask | None:
    parts = [read(f, region) for f in variables["mask_functions"]]
    seen = [part for part in parts if part is not None]
    return reduce(or_, seen) if len(seen) == len(parts) else None


def _remapped(variables: Mapping, region: MaskRegion) -> Mask | None:
    return read(variables["mask_function"], replace(region, positions=variables["position_ids"]))


def _chunks(variables: Mapping, region: MaskRegion) -> Mask | None:
    """Return the mask of each query's own chunk; the chunks of a sequence start after its padding on the left."""
    left_B1 = variables["left_padding"][:, None]
    if region.positions is None:
        whole = torch.arange(max(region.query_indices.stop, region.key_indices.stop), device=left_B1.device)[None]
    else:
        whole = region.positions
    chunks = (whole - left_B1) // variables["chunk_size"]
    return Documents(chunks[:, region.key_indices], query_ids=chunks[:, region.query_indices])


def _blocks(variables: Mapping, region: MaskRegion) -> Mask | None:
    """Return the mask of each query's own block; a negative number is not a block."""
    if region.positions is not None:
        raise UnknownMaskError("blocks of packed sequences")
    blocks = variables["block_sequence_ids"]
    keys, queries = blocks[:, region.key_indices], blocks[:, region.query_indices]
    return Documents(torch.where(keys < 0, _NOWHERE_K, keys), query_ids=torch.where(queries < 0, _NOWHERE_Q, queries))


_PACKED = "packed_sequence_mask_function.<locals>.inner_mask"
_REMAPPED = "remap_positions_for_packed_sequence.<locals>.inner_mask"
_READERS: Mapping[str, Callable[[Mapping, MaskRegion], Mask | None]] = {
    "and_masks.<locals>.and_mask": _all_of,
    "or_masks.<locals>.or_mask": _any_of,
    "bidirectional_mask_function": lambda variables, region: None,
    "causal_mask_function": lambda variables, region: Causal(start=region.start),
    "sliding_window_overlay.<locals>.inner_mask": (
        lambda variables, region: Window(reach(variables["sliding_window"]), None, start=region.start)
    ),
    "sliding_window_bidirectional_overlay.<locals>.inner_mask": (
        lambda variables, region: Window(variables["sliding_window"], variables["sliding_window"], start=region.start)
    ),
    "chunked_overlay.<locals>.inner_mask": _chunks,
    "blockwise_overlay.<locals>.inner_mask": _blocks,
    _PACKED: lambda variables, region: Documents(variables["packed_sequence_mask"]),
}
