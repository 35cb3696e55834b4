"""What the model makes of prepared texts, step by step.

Letters: N packed tokens, S sequences (documents, or windows of long ones), R rows of the result, M model width.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from uwaga.models.text.packing import steps
from uwaga.models.text.pipeline import prepared
from uwaga.models.text.pooling import mean_rows, pool, unit
from uwaga.models.text.prepare import Prepared, Preparer
from uwaga.models.text.progress import Meter
from uwaga.models.text.report import Report
from uwaga.nn.evaluating import evaluating
from uwaga.ops.ragged import Ragged
from uwaga.ops.validation import is_integer


class Encoded(NamedTuple):
    """Vectors of a group of texts, and what their rows are."""

    vectors: np.ndarray  # (R, M) float32
    report: Report


class States(NamedTuple):
    """Hidden states of a group of texts, and what their rows are."""

    values: Tensor  # (N, M) in the model's dtype
    report: Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One way of reading texts."""

    model: nn.Module
    preparer: Preparer
    tokens_per_batch: int  # tokens of a step, about
    pooling: tuple[str, ...] = ()
    normalize: bool = False

    def __post_init__(self) -> None:
        if not is_integer(self.tokens_per_batch) or self.tokens_per_batch < 1:
            raise ValueError(f"TextEncoder: tokens_per_batch must be at least 1 token, not {self.tokens_per_batch!r}")
        if not isinstance(self.normalize, bool):
            raise ValueError(f"TextEncoder: normalize must be True, False or None, not {self.normalize!r}")

    def vectors(self, groups: Iterable[Sequence[str]], meter: Meter) -> Iterator[Encoded]:
        """A group's vectors have the same bits whatever came before it."""
        for part in prepared(groups, self.preparer):
            pooled_SM = torch.cat([pool(hidden, self.pooling) for hidden in self._steps(part, meter)])
            vectors_RM = mean_rows(pooled_SM, torch.from_numpy(part.counts).to(pooled_SM.device))
            vectors_RM = unit(vectors_RM) if self.normalize else vectors_RM
            yield Encoded(vectors_RM.cpu().numpy(), part.report)

    def states(self, groups: Iterable[Sequence[str]], meter: Meter) -> Iterator[States]:
        """The hidden states of all tokens, special ones included."""
        for part in prepared(groups, self.preparer):
            yield States(torch.cat([hidden.values for hidden in self._steps(part, meter)]), part.report)

    def _steps(self, part: Prepared, meter: Meter) -> Iterator[Ragged]:
        device = next(self.model.parameters()).device
        ids, offsets = torch.from_numpy(part.ids), torch.from_numpy(part.offsets)
        for step in steps(np.diff(part.offsets), self.tokens_per_batch):
            first, last = part.offsets[step.start], part.offsets[step.stop]
            own_offsets = offsets[step.start : step.stop + 1] - first
            with evaluating(self.model):  # not around the yield: a generator would lend it to its caller
                hidden = self.model(
                    Ragged(ids[first:last].to(device), own_offsets.to(device)), outputs=()
                ).last_hidden_state
            meter.read(int(last - first), part.documents_within(step.stop))
            yield hidden
