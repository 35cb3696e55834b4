"""Running the model over tokenised texts. Letters: N packed tokens, S sequences (texts, or windows of long ones), R rows of the result, M model width."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
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

    vectors: np.ndarray  # (R, M) float32
    report: Report
    invalid: tuple[DocumentError, ...] = ()  # texts that were left out


class EncodedTokens(NamedTuple):
    """The vectors of the tokens of a group of texts, and the parts of texts that they were computed from."""

    values: Tensor  # (N, M): in the model's dtype, or float32 after a head
    lengths: np.ndarray  # (R,) int64: vectors of each row
    report: Report
    invalid: tuple[DocumentError, ...] = ()  # texts that were left out


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
    pooling: tuple[str, ...] = ()  # keys of POOLING
    head: nn.Module = field(default_factory=nn.Identity)  # what the pooled states go through, row by row
    embedding_dim: int = 0  # the length of a vector, at most that of the head's output
    normalize: str | None = None  # to length 1, "before" or "after" vectors are cut to embedding_dim
    token_head: nn.Module | None = None  # what the states of tokens go through, one by one
    selection: TokenSelection | None = None  # of tokens that have vectors; None: all

    def __post_init__(self) -> None:
        if not is_integer(self.tokens_per_batch) or self.tokens_per_batch < 1:
            raise ValueError(f"TextEncoder: tokens_per_batch must be at least 1 token, not {self.tokens_per_batch!r}")

    def vectors(self, groups: Iterable[Sequence[str | TokenizedText]], meter: Meter) -> Iterator[Encoded]:
        """The vectors of each group, with the same bits whatever groups came before it."""
        for group in self.preprocessor.tokenized(groups):
            if not len(group.ids):  # every text of it was left out
                yield Encoded(np.zeros((0, self.embedding_dim), np.float32), group.report, group.invalid)
                continue
            skipped_S = torch.from_numpy(group.skipped) if group.skipped.any() else None
            only = self._only(skipped_S)
            skipped_S = None if only else skipped_S
            pooled_SM = torch.cat(
                [self._pooled(hidden, batch, skipped_S) for batch, hidden in self._hidden_states(group, meter, only)]
            )
            counts_R = torch.from_numpy(group.sequences_per_row).to(pooled_SM.device)
            yield self._encoded(group, mean_rows(pooled_SM, counts_R))

    def _only(self, skipped_S: Tensor | None) -> str | None:
        """Which token's state is all that is pooled of each sequence, so that the last layer need compute no other; None: several."""
        if self.model.config.has_both:
            return None
        first, last = self.pooling == ("cls",) and skipped_S is None, self.pooling == ("lasttoken",)
        return "first" if first else "last" if last else None

    @torch.no_grad()
    def _pooled(self, hidden: Ragged, batch: slice, skipped_S: Tensor | None) -> Tensor:
        own_S = None if skipped_S is None else skipped_S[batch].to(hidden.values.device)
        result: Tensor = self.head(pool(hidden, self.pooling, own_S))
        return result

    def span_vectors(self, groups: Iterable[Sequence[str | TokenizedText]], meter: Meter) -> Iterator[Encoded]:
        """The vectors of the spans of each group, R of them: as `vectors`. Beside a batch, the states of one text are in memory."""
        for group in self.preprocessor.tokenized(groups):
            if not len(group.ids):
                yield Encoded(np.zeros((0, self.embedding_dim), np.float32), group.report, group.invalid)
                continue
            pooled_RM = torch.cat(list(self._pooled_spans(group, meter)))
            yield self._encoded(group, pooled_RM)

    @torch.no_grad()
    def _pooled_spans(self, group: TokenizedGroup, meter: Meter) -> Iterator[Tensor]:
        """Of the spans of those texts that are finished with a batch, after each."""
        assert group.spans is not None
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
            pooled: Tensor = self.head(
                pool(Ragged(states_NM[own], torch.from_numpy(offsets).to(states_NM.device)), self.pooling)
            )
            yield pooled
            begin = int(group.offsets[ends_R[rows - 1]])
            first, held, done = begin, [states_NM[begin - first :].clone()], rows

    def _finished(self, vectors_RM: Tensor) -> Tensor:
        """The vectors cut to embedding_dim, and scaled to length 1 where it is wanted."""
        vectors_RM = normalize(vectors_RM, dim=-1) if self.normalize == "before" else vectors_RM
        cut_RM = vectors_RM[:, : self.embedding_dim].contiguous()
        return normalize(cut_RM, dim=-1) if self.normalize == "after" else cut_RM

    def _encoded(self, group: TokenizedGroup, pooled_RM: Tensor) -> Encoded:
        vectors_RM = self._finished(pooled_RM).cpu()
        if is_finite(vectors_RM):
            return Encoded(vectors_RM.numpy(), group.report, group.invalid)
        kept_R, report, invalid = self._finite_rows(group, vectors_RM.isfinite().all(1).numpy())
        return Encoded(vectors_RM.numpy()[kept_R], report, invalid)

    def _finite_rows(
        self, group: TokenizedGroup, is_finite_R: np.ndarray
    ) -> tuple[np.ndarray, Report, tuple[DocumentError, ...]]:
        """(R,) bool, the rows of texts whose vectors are all finite; their report; and the texts that were left out. Raises DocumentError
        unless such texts are left out."""
        numbers = np.unique(group.report.document[~is_finite_R])
        reason = not_finite("vector", next(self.model.parameters()).dtype)
        errors = [DocumentError(number, reason) for number in numbers.tolist()]
        if not self.preprocessor.skip_invalid:
            raise errors[0]
        kept_R = ~np.isin(group.report.document, numbers)
        invalid = sorted([*group.invalid, *errors], key=lambda each: each.document)
        return kept_R, group.report.rows(kept_R), tuple(invalid)

    def token_vectors(self, groups: Iterable[Sequence[str]], meter: Meter) -> Iterator[EncodedTokens]:
        """The vectors of the tokens of each group that are selected, special ones included."""
        for group in self.preprocessor.tokenized(groups):
            if not len(group.ids):  # every text of it was left out
                yield EncodedTokens(
                    torch.zeros(0, self.embedding_dim), np.zeros(0, np.int64), group.report, group.invalid
                )
                continue
            parts, lengths = list[Tensor](), [np.zeros(0, np.int64)]
            ids_N, selection = torch.from_numpy(group.ids), self.selection
            kept_N = None if selection is None else selection(ids_N).numpy()
            for batch, hidden in self._hidden_states(group, meter):
                offsets = group.offsets[batch.start : batch.stop + 1]
                values_NM, counts_S = hidden.values, np.diff(offsets)
                if kept_N is not None:
                    own_N = kept_N[offsets[0] : offsets[-1]]
                    values_NM = values_NM[torch.from_numpy(own_N).to(values_NM.device)]
                    counts_S = np.add.reduceat(own_N.astype(np.int64), offsets[:-1] - offsets[0])
                parts.append(self._finished_tokens(values_NM))
                lengths.append(counts_S)
            yield self._encoded_tokens(group, torch.cat(parts), np.concatenate(lengths))

    def _encoded_tokens(self, group: TokenizedGroup, values_NM: Tensor, lengths: np.ndarray) -> EncodedTokens:
        if is_finite(values_NM):
            return EncodedTokens(values_NM, lengths, group.report, group.invalid)
        is_bad_N = (~values_NM.isfinite().all(1)).cpu().numpy()
        row_N = np.repeat(np.arange(len(lengths)), lengths)
        kept_R, report, invalid = self._finite_rows(group, np.bincount(row_N, is_bad_N, len(lengths)) == 0)
        kept_N = torch.from_numpy(kept_R[row_N]).to(values_NM.device)
        return EncodedTokens(values_NM[kept_N], lengths[kept_R], report, invalid)

    @torch.no_grad()
    def _finished_tokens(self, values_NM: Tensor) -> Tensor:
        if self.token_head is not None:
            values_NM = self.token_head(values_NM.float())
        return values_NM if self.normalize is None else normalize(values_NM.float(), dim=-1)

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
