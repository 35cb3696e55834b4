"""Masks of the passes of one text as the mask of the whole text: what a pass said of distances, and of its tokens.

Letters: B batch, Q queries, K keys.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from uwaga.ops.mask_program import Start
from uwaga.ops.masks import Both, Causal, Documents, Either, KeyLengths, Mask, Window


class Visible(NamedTuple):
    """What the queries of one pass see: keys of their own id, at the distances of all bands."""

    bands: frozenset[Mask]  # without a start
    key_ids: Tensor | None = None  # (B, K); None: all 1
    query_ids: Tensor | None = None  # (B, Q)


def start_of(mask: Mask | Tensor | None) -> Start:
    """Where the mask says that the first query stands; None: it says nothing."""
    if isinstance(mask, Both | Either):
        left = start_of(mask.left)
        return start_of(mask.right) if left is None else left
    return mask.start if isinstance(mask, Causal | Window) else None


def visible(mask: Mask | Tensor | None, batch: int, queries: int, keys: int) -> Visible | None:
    """The mask of a padded pass, or None where it can not be said so."""
    bands, tokens = set(), []
    for atom in _atoms(mask):
        band = _without_start(atom)
        if band is not None:
            bands.add(band)
        elif isinstance(atom, KeyLengths) and atom.lengths.numel() == batch:
            j_K = torch.arange(keys, device=atom.lengths.device)
            tokens.append((j_K < atom.lengths.reshape(-1, 1), atom.lengths.new_ones(batch, queries)))
        elif isinstance(atom, Documents):
            asked = atom.ids[..., keys - queries :] if atom.query_ids is None else atom.query_ids
            tokens.append((atom.ids, asked))
        else:
            return None
    if not tokens:
        return Visible(frozenset(bands))
    # Two rules at once: lengths of what a cache holds beside documents cannot be, and others are not told apart here.
    if len(tokens) > 1:
        return None
    key_ids, query_ids = (x.long().expand(batch, -1) for x in tokens[0])
    return Visible(frozenset(bands), key_ids, query_ids)


def only_bands(mask: Mask | Tensor | None) -> Visible | None:
    """The same of a ragged pass, where ids of tokens have no place."""
    atoms = _atoms(mask)
    bands = frozenset(band for atom in atoms if (band := _without_start(atom)) is not None)
    return Visible(bands) if all(_without_start(atom) is not None for atom in atoms) else None


def whole(bands: frozenset[Mask], key_ids: Tensor | None, query_ids: Tensor | None) -> Mask | None:
    """The mask of all passes, whose last query meets the last key; ids (B, K) and (B, Q), or packed (N,) each."""
    found: list[Mask] = sorted(bands, key=repr)
    if key_ids is not None and query_ids is not None and not (bool((key_ids == 1).all() & (query_ids == 1).all())):
        found.append(Documents(key_ids, query_ids=query_ids))
    if not found:
        return None
    mask = found[0]
    for other in found[1:]:
        mask = mask & other
    return mask


def _atoms(mask: Mask | Tensor | None) -> list[Mask | Tensor]:
    """The masks that are joined by `and`."""
    if isinstance(mask, Both):
        return _atoms(mask.left) + _atoms(mask.right)
    return [] if mask is None else [mask]


def _without_start(mask: Mask | Tensor) -> Mask | None:
    """The mask where it speaks of distances alone, else None."""
    if isinstance(mask, Causal | Window):
        return replace(mask, start=None)
    if isinstance(mask, Both | Either):
        left, right = _without_start(mask.left), _without_start(mask.right)
        return None if left is None or right is None else replace(mask, left=left, right=right)
    return None
