"""Micro-batches: the numbers of their rows, and the tokens of these. Letters: N packed tokens, R rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from uwaga.ops.ragged import Ragged, part_of

IGNORED = -100  # the label of a token that is not scored, as in PyTorch


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """The row numbers of a micro-batch, without their tokens."""

    epoch: int
    rows: tuple[int, ...]
    number: int  # within its step


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows for a model, one after the other, without padding.

    Attributes:
        ids: (N,) int64, the input of the model or of its encoder.
        decoder_ids: (N',) int64, the input of the decoder of an encoder-decoder, in as many rows; else None.
        labels: (N,) int64, or (N',) where there are decoder_ids: the token to predict at each position; -100 is not scored.
        first_token: where ids begin in the whole batch, of which this is a part.
    """

    ids: Ragged
    decoder_ids: Ragged | None
    labels: Tensor
    first_token: int = 0

    def part(self, number: int, count: int) -> "Batch":
        """One of `count` parts: see `uwaga.ops.ragged.part_of`. Decoder rows are cut where their encoder rows are, in proportion."""
        ids = part_of(self.ids, number, count)
        other = None if self.decoder_ids is None else part_of(self.decoder_ids, number, count, like=self.ids)
        labelled = ids if other is None else other
        return Batch(
            ids=ids.rows,
            decoder_ids=None if other is None else other.rows,
            labels=self.labels[labelled.first_token :][: labelled.rows.values.shape[0]],
            first_token=ids.first_token,
        )

    @property
    def tokens(self) -> int:
        """The number of input tokens, of encoder and decoder together."""
        return self.ids.values.shape[0] + (0 if self.decoder_ids is None else self.decoder_ids.values.shape[0])

    @property
    def scored(self) -> int:
        """The number of labels that are scored."""
        return int((self.labels != IGNORED).sum())

    def to(self, device: torch.device | str) -> "Batch":
        """The same on a device."""
        other = None if self.decoder_ids is None else _moved(self.decoder_ids, device)
        return replace(self, ids=_moved(self.ids, device), decoder_ids=other, labels=moved(self.labels, device))


def ragged(rows: Sequence[np.ndarray]) -> Ragged:
    """(N,) int64"""
    lengths = [len(row) for row in rows]
    offsets = torch.from_numpy(np.concatenate(([0], np.cumsum(lengths))).astype(np.int64))
    return Ragged(torch.from_numpy(np.concatenate(rows).astype(np.int64)), offsets, max_length=max(lengths))


def labels(rows: Sequence[np.ndarray]) -> Tensor:
    """(N,) int64"""
    return torch.from_numpy(np.concatenate(rows).astype(np.int64))


def moved(x: Tensor, device: torch.device | str) -> Tensor:
    """A tensor on a device. To a GPU it goes through pinned memory, in the background of what the GPU still computes."""
    if torch.device(device).type != "cuda":
        return x.to(device)
    return x.pin_memory().to(device, non_blocking=True)


def _moved(rows: Ragged, device: torch.device | str) -> Ragged:
    values, offsets = moved(rows.values, device), moved(rows.offsets, device)
    return Ragged(values, offsets, max_length=rows.max_length, first=rows.first)
