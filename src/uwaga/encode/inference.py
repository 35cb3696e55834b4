"""Running the model over tokenised texts. Letters: N packed tokens, S sequences (texts, or windows of long ones), R rows of the result, M model width."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from uwaga.encode.pooling import mean_rows, pool
from uwaga.encode.preprocessing import Preprocessor, TokenizedGroup, TokenizedText, batches
from uwaga.encode.progress import Meter
from uwaga.encode.report import DocumentError, Report, not_finite
from uwaga.models.checkpoints.state_dict_check import is_finite
from uwaga.models.model import Model
from uwaga.nn.evaluation_mode import evaluation_mode
from uwaga.ops.ragged import Ragged
from uwaga.ops.validation import is_integer

# DEFAULT_MMAP_THRESHOLD_MAX of glibc's malloc.c on 64 bits: larger blocks are always mapped anew.
_MMAP_THRESHOLD_MAX = 32 << 20
_PAGE_BYTES = 4096


class Encoded(NamedTuple):
    """The vectors of a group of texts, and the parts of texts that they were computed from."""

    values: Tensor  # (R, M) float32, on the CPU; of tokens (N, M), in the model's dtype, or float32 after a head
    lengths: np.ndarray | None  # of tokens (R,) int64: vectors of each row; None: one
    report: Report
    invalid: tuple[DocumentError, ...] = ()  # texts that were left out

    @property
    def vectors(self) -> np.ndarray:
        """(R, M) float32: `values`, of texts or spans."""
        result: np.ndarray = self.values.numpy()
        return result


class TokenSelection(NamedTuple):
    """The tokens whose vectors are the result: all but `without`, and of `only` where it is not empty."""

    without: tuple[int, ...] = ()
    only: tuple[int, ...] = ()

    def __call__(self, ids_N: Tensor) -> Tensor:
        """(N,) bool."""
        kept_N = torch.isin(ids_N, ids_N.new_tensor(self.without), invert=True)
        return kept_N & torch.isin(ids_N, ids_N.new_tensor(self.only)) if self.only else kept_N


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """The model with the options of one call of TextEncoder.

    Raises:
        ValueError: an option of a wrong type or value.
    """

    model: Model
    preprocessor: Preprocessor
    tokens_per_batch: int  # approximate
    empty: Tensor  # (0, M): what no texts give
    head: nn.Module | None  # what pooled states, or those of tokens, go through, row by row
    normalize: str | None  # to length 1, "before" or "after" vectors are cut to M numbers
    pooling: tuple[str, ...] | None  # keys of POOLING; None: each token has a vector
    selection: TokenSelection | None = None  # of tokens that have vectors; None: all

    def __post_init__(self) -> None:
        if not is_integer(self.tokens_per_batch) or self.tokens_per_batch < 1:
            raise ValueError(f"TextEncoder: tokens_per_batch must be at least 1 token, not {self.tokens_per_batch!r}")

    def __call__(self, groups: Iterable[Sequence[str | TokenizedText]], meter: Meter) -> Iterator[Encoded]:
        """The vectors of each group, with the same bits whatever groups came before it."""
        compute = (
            self._tokens if self.pooling is None else self._texts if self.preprocessor.spans is None else self._spans
        )
        for group in self.preprocessor.tokenized(groups):
            if len(group.ids):
                yield self._finite(group, *compute(group, meter))
            else:  # every text of it was left out
                lengths = np.zeros(0, np.int64) if self.pooling is None else None
                yield Encoded(self.empty, lengths, group.report, group.invalid)

    def _texts(self, group: TokenizedGroup, meter: Meter) -> tuple[Tensor, None]:
        """(R, M): of each text or window."""
        skipped_S = torch.from_numpy(group.skipped) if group.skipped.any() else None
        only = self._only(skipped_S)
        skipped_S = None if only else skipped_S
        pooled_SM = torch.cat(
            [self._pooled(hidden, batch, skipped_S) for batch, hidden in self._hidden_states(group, meter, only)]
        )
        counts_R = torch.from_numpy(group.sequences_per_row).to(pooled_SM.device)
        return self._cut(mean_rows(pooled_SM, counts_R)), None

    def _only(self, skipped_S: Tensor | None) -> str | None:
        """Which token's state is all that is pooled of each sequence, so that the last layer need compute no other; None: several."""
        if self.model.config.has_both:
            return None
        first, last = self.pooling == ("cls",) and skipped_S is None, self.pooling == ("lasttoken",)
        return "first" if first else "last" if last else None

    @torch.no_grad()
    def _pooled(self, hidden: Ragged, batch: slice, skipped_S: Tensor | None) -> Tensor:
        own_S = None if skipped_S is None else skipped_S[batch].to(hidden.values.device)
        assert self.pooling is not None
        assert self.head is not None
        result: Tensor = self.head(pool(hidden, self.pooling, own_S))
        return result

    def _spans(self, group: TokenizedGroup, meter: Meter) -> tuple[Tensor, None]:
        """(R, M): of each span. Besides a batch, the states of one text are in memory."""
        assert group.spans is not None
        pooled = list[Tensor]()
        ends_R, done = np.cumsum(group.sequences_per_row), 0  # the sequences after which a row's text is finished
        first, held = 0, list[Tensor]()  # the states of the tokens from this one on
        for batch, hidden in self._hidden_states(group, meter):
            held.append(hidden.values)
            rows = int(np.searchsorted(ends_R, batch.stop, side="right"))
            if rows == done:
                continue
            states_NM = torch.cat(held)
            tokens, offsets = group.spans.of_rows(done, rows)
            own = torch.from_numpy(tokens - first).to(states_NM.device)
            of_spans = Ragged(states_NM[own], torch.from_numpy(offsets).to(states_NM.device))
            pooled.append(self._pooled(of_spans, slice(None), None))
            begin = int(group.offsets[ends_R[rows - 1]])
            first, held, done = begin, [states_NM[begin - first :].clone()], rows
        return self._cut(torch.cat(pooled)), None

    def _cut(self, vectors_RM: Tensor) -> Tensor:
        """The vectors cut to M numbers, and scaled to length 1 where it is wanted."""
        vectors_RM = normalize(vectors_RM, dim=-1) if self.normalize == "before" else vectors_RM
        cut_RM = vectors_RM[:, : self.empty.shape[1]].contiguous()
        return (normalize(cut_RM, dim=-1) if self.normalize == "after" else cut_RM).cpu()

    @torch.no_grad()
    def _tokens(self, group: TokenizedGroup, meter: Meter) -> tuple[Tensor, np.ndarray]:
        """(N, M), and (R,): of the tokens that are selected, special ones included."""
        parts, lengths = list[Tensor](), list[np.ndarray]()
        kept_N = None if self.selection is None else self.selection(torch.from_numpy(group.ids)).numpy()
        for batch, hidden in self._hidden_states(group, meter):
            offsets = group.offsets[batch.start : batch.stop + 1]
            values_NM, counts_S = hidden.values, np.diff(offsets)
            if kept_N is not None:
                own_N = kept_N[offsets[0] : offsets[-1]]
                values_NM = values_NM[torch.from_numpy(own_N).to(values_NM.device)]
                counts_S = np.add.reduceat(own_N.astype(np.int64), offsets[:-1] - offsets[0])
            if self.head is not None:
                values_NM = self.head(values_NM.float())
            parts.append(values_NM if self.normalize is None else normalize(values_NM.float(), dim=-1))
            lengths.append(counts_S)
        return torch.cat(parts), np.concatenate(lengths)

    def _finite(self, group: TokenizedGroup, values: Tensor, lengths: np.ndarray | None) -> Encoded:
        """The vectors without those of texts that have one which is not finite. Raises DocumentError unless such texts are left out."""
        if is_finite(values):
            return Encoded(values, lengths, group.report, group.invalid)
        counts_R = np.ones(len(values), np.int64) if lengths is None else lengths
        row_N = np.repeat(np.arange(len(counts_R)), counts_R)
        is_bad_N = (~values.isfinite().all(1)).cpu().numpy()
        numbers = np.unique(group.report.document[row_N[is_bad_N]])
        reason = not_finite("vector", next(self.model.parameters()).dtype)
        errors = [DocumentError(number, reason) for number in numbers.tolist()]
        if not self.preprocessor.skip_invalid:
            raise errors[0]
        kept_R = ~np.isin(group.report.document, numbers)
        invalid = sorted([*group.invalid, *errors], key=lambda each: each.document)
        kept = values[torch.from_numpy(kept_R[row_N]).to(values.device)]
        return Encoded(kept, None if lengths is None else lengths[kept_R], group.report.rows(kept_R), tuple(invalid))

    def _hidden_states(
        self, group: TokenizedGroup, meter: Meter, only: str | None = None
    ) -> Iterator[tuple[slice, Ragged]]:
        """Batches of sequences, and their hidden states; with `only` those of their first or last tokens."""
        device = next(self.model.parameters()).device
        ids, offsets = torch.from_numpy(group.ids), torch.from_numpy(group.offsets)
        seen_S = None if group.seen is None else torch.from_numpy(group.seen)
        for batch in batches(np.diff(group.offsets), self.tokens_per_batch):
            first, last = group.offsets[batch.start], group.offsets[batch.stop]
            own_offsets = offsets[batch.start : batch.stop + 1] - first
            with evaluation_mode(self.model):  # not around the yield: a generator would leave the caller in this state
                # Told, the longest text need not be read from a GPU, which would wait for it.
                longest = int(own_offsets.diff().max())
                packed = Ragged(ids[first:last].to(device), own_offsets.to(device), max_length=longest)
                own = {} if seen_S is None else {"key_lengths": seen_S[batch].to(device)}
                hidden = _last_hidden_state(self.model, packed, **own, **({"only": only} if only else {}))
            meter.add(int(last - first), group.documents_within(batch.stop))
            yield batch, hidden


def _last_hidden_state(model: nn.Module, packed: Ragged, **options: Any) -> Ragged:
    """Of an encoder, or of the encoder of an encoder-decoder alone."""
    output = model(packed, outputs=(), **options)
    result: Ragged = output.memory if output.last_hidden_state is None else output.last_hidden_state
    return result


def keep_freed_memory() -> None:
    """Let the C library's malloc reuse freed blocks of up to 32 MB instead of returning them to the operating system.

    glibc maps every block above a threshold anew and unmaps it when it is freed: each page of an activation is then a page
    fault, which takes a fifth of the time of a model whose activations have some 12 MB. The threshold rises to the size of
    the largest mapped block that was ever freed, up to a limit (mallopt(3), M_MMAP_THRESHOLD). So one block as large as that
    is allocated and freed, without touching its pages. With another C library this does nothing.
    """
    torch.empty(_MMAP_THRESHOLD_MAX - 2 * _PAGE_BYTES, dtype=torch.uint8)
