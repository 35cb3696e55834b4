"""Running the model over tokenised texts, and pooling hidden states to one vector for each sequence, as sentence-transformers does (Reimers
and Gurevych, "Sentence-BERT", 2019; "weightedmean": Muennighoff, "SGPT", 2022).

Letters: N packed tokens, S sequences (texts, or windows of long ones), R rows of the result, M model width.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, normalize

from uwaga.encode.preprocessing import Preprocessor, TokenizedGroup, TokenizedText
from uwaga.encode.progress import Listener, Progress, bar
from uwaga.encode.report import DocumentError, Report, not_finite
from uwaga.models.model import Model
from uwaga.nn.evaluation_mode import evaluation_mode
from uwaga.ops.ragged import Ragged

# Activations of so many tokens stay in the cache of the processor, and matrix products are large enough to be fast.
TOKENS_PER_BATCH = 2048
# DEFAULT_MMAP_THRESHOLD_MAX of glibc's malloc.c on 64 bits. Each larger block is mapped from the operating system.
_MMAP_THRESHOLD_MAX = 32 << 20
_PAGE_BYTES = 4096


class Encoded(NamedTuple):
    """The vectors of a group of texts, and the parts of texts that they were computed from."""

    values: Tensor  # (R, M) float32, on the CPU; of tokens (N, M), in the model's dtype, or float32 after a head
    lengths: np.ndarray | None  # (R,) int64: the vectors of each row, if they are vectors of tokens; None: one
    report: Report
    invalid: tuple[DocumentError, ...] = ()  # texts that were left out

    @property
    def vectors(self) -> np.ndarray:
        """(R, M) float32: `values`, of texts or spans."""
        result: np.ndarray = self.values.numpy()
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """The model with the options of one call of TextEncoder."""

    model: Model
    preprocessor: Preprocessor
    tokens_per_batch: int  # approximate
    empty: Tensor  # (0, M): what no texts give
    head: nn.Module | None  # what pooled states, or those of tokens, go through, row by row
    normalize: str | None  # to length 1, "before" or "after" vectors are cut to M numbers
    pooling: tuple[str, ...] | None  # keys of POOLING; None: each token has a vector
    selection: Callable[[Tensor], Tensor] | None  # (N,) bool of ids (N,): the tokens that have vectors; None: all

    def __call__(
        self,
        groups: Iterable[Sequence[str | TokenizedText]],
        progress: bool | Listener | None = None,
        total: int | None = None,
    ) -> Iterator[Encoded]:
        """Compute the vectors of each group. total: number of texts, for `progress`."""
        compute: Callable[..., tuple[Tensor, np.ndarray | None]] = self._tokens
        if self.pooling is not None:
            compute = self._texts if self.preprocessor.spans is None else self._spans
        with nullcontext(progress or None) if not progress or callable(progress) else bar(total) as listener:
            count = None if listener is None else _counter(listener, total)
            for group in self.preprocessor.tokenized(groups):
                if len(group.ids):
                    yield self._finite(group, *compute(group, count))
                else:  # all texts of the group were left out
                    lengths = np.zeros(0, np.int64) if self.pooling is None else None
                    yield Encoded(self.empty, lengths, group.report, group.invalid)

    def _texts(self, group: TokenizedGroup, count: "_Count | None") -> tuple[Tensor, None]:
        """Compute the vector of each text or window, (R, M)."""
        skipped_S = torch.from_numpy(group.skipped) if group.skipped.any() else None
        # If pooling reads one token of each sequence, the last layer computes no other.
        is_first = self.pooling == ("cls",) and skipped_S is None
        only = "first" if is_first else "last" if self.pooling == ("lasttoken",) else None
        only = None if self.model.config.has_both else only
        pooled = list[Tensor]()
        for batch, hidden in self._hidden_states(group, count, only):
            skipped = None if skipped_S is None or only else skipped_S[batch].to(hidden.values.device)
            pooled.append(self._pooled(hidden, skipped))
        pooled_SM = torch.cat(pooled)
        counts_R = torch.from_numpy(group.sequences_per_row).to(pooled_SM.device)
        return self._cut(mean_rows(pooled_SM, counts_R)), None

    @torch.no_grad()
    def _pooled(self, hidden: Ragged, skipped_S: Tensor | None = None) -> Tensor:
        assert self.pooling is not None
        assert self.head is not None
        result: Tensor = self.head(pool(hidden, self.pooling, skipped_S))
        return result

    def _spans(self, group: TokenizedGroup, count: "_Count | None") -> tuple[Tensor, None]:
        """Compute the vector of each span, (R, M), with the states of one text in memory."""
        pooled = list[Tensor]()
        ends_R, done = np.cumsum(group.sequences_per_row), 0  # the sequences after which a row's text is finished
        first, held = 0, list[Tensor]()  # the states of the tokens from this one on
        for batch, hidden in self._hidden_states(group, count):
            held.append(hidden.values)
            rows = int(np.searchsorted(ends_R, batch.stop, side="right"))
            if rows == done:
                continue
            states_NM = torch.cat(held)
            device, places = states_NM.device, group.spans[done:rows]
            offsets = torch.from_numpy(np.cumsum([0, *map(len, places)], dtype=np.int64)).to(device)
            of_spans = Ragged(states_NM[torch.from_numpy(np.concatenate(places) - first).to(device)], offsets)
            pooled.append(self._pooled(of_spans))
            begin = int(group.offsets[ends_R[rows - 1]])
            first, held, done = begin, [states_NM[begin - first :].clone()], rows
        return self._cut(torch.cat(pooled)), None

    def _cut(self, vectors_RM: Tensor) -> Tensor:
        """Cut vectors to M numbers, and scale them to length 1 as `normalize` says."""
        vectors_RM = normalize(vectors_RM, dim=-1) if self.normalize == "before" else vectors_RM
        cut_RM = vectors_RM[:, : self.empty.shape[1]].contiguous()
        return (normalize(cut_RM, dim=-1) if self.normalize == "after" else cut_RM).cpu()

    @torch.no_grad()
    def _tokens(self, group: TokenizedGroup, count: "_Count | None") -> tuple[Tensor, np.ndarray]:
        """Compute the vectors of selected tokens (N, M), and their number in each row (R,)."""
        parts, lengths = list[Tensor](), list[np.ndarray]()
        kept_N = None if self.selection is None else self.selection(torch.from_numpy(group.ids)).numpy()
        for batch, hidden in self._hidden_states(group, count):
            offsets = group.offsets[batch.start : batch.stop + 1]
            values_NM, counts_S = hidden.values, np.diff(offsets)
            if kept_N is not None:
                is_kept_N = kept_N[offsets[0] : offsets[-1]]
                values_NM = values_NM[torch.from_numpy(is_kept_N).to(values_NM.device)]
                counts_S = np.add.reduceat(is_kept_N.astype(np.int64), offsets[:-1] - offsets[0])
            if self.head is not None:
                values_NM = self.head(values_NM.float())
            parts.append(values_NM if self.normalize is None else normalize(values_NM.float(), dim=-1))
            lengths.append(counts_S)
        return torch.cat(parts), np.concatenate(lengths)

    def _finite(self, group: TokenizedGroup, values: Tensor, lengths: np.ndarray | None) -> Encoded:
        """Leave out texts whose vector is not finite. Raises DocumentError without skip_invalid."""
        if bool(values.isfinite().all()):
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
        invalid = sorted([*group.invalid, *errors], key=lambda error: error.document)
        kept = values[torch.from_numpy(kept_R[row_N]).to(values.device)]
        return Encoded(kept, None if lengths is None else lengths[kept_R], group.report.rows(kept_R), tuple(invalid))

    def _hidden_states(
        self, group: TokenizedGroup, count: "_Count | None", only: str | None = None
    ) -> Iterator[tuple[slice, Ragged]]:
        """Yield batches of sequences and hidden states, `only` of first or last tokens."""
        device = next(self.model.parameters()).device
        ids, offsets = torch.from_numpy(group.ids), torch.from_numpy(group.offsets)
        seen_S = None if group.seen is None else torch.from_numpy(group.seen)
        for batch in batches(np.diff(group.offsets), self.tokens_per_batch):
            first, last = group.offsets[batch.start], group.offsets[batch.stop]
            batch_offsets = offsets[batch.start : batch.stop + 1] - first
            with evaluation_mode(self.model):  # not around the yield: a generator would leave the caller in this state
                # Without max_length, Ragged would read it from a GPU and wait.
                longest = int(batch_offsets.diff().max())
                packed = Ragged(ids[first:last].to(device), batch_offsets.to(device), max_length=longest)
                options = {} if seen_S is None else {"key_lengths": seen_S[batch].to(device)}
                output = self.model(packed, outputs=(), **options, **({"only": only} if only else {}))
            # Of an encoder-decoder model, only the encoder has run.
            hidden = output.memory if output.last_hidden_state is None else output.last_hidden_state
            if count is not None:
                count(group, batch)
            yield batch, hidden


_Count = Callable[[TokenizedGroup, slice], None]


def _counter(listener: Listener, total: int | None) -> _Count:
    """Return a function that reports each computed batch of a group to a listener."""
    started, tokens = time.perf_counter(), 0

    def count(group: TokenizedGroup, batch: slice) -> None:
        nonlocal tokens
        tokens += int(group.offsets[batch.stop] - group.offsets[batch.start])
        # Texts before a finished one are finished, even if they were left out.
        rows = int(np.searchsorted(np.cumsum(group.sequences_per_row), batch.stop, side="right"))
        report, documents = group.report, group.first_document
        if rows:
            documents = int(report.document[rows - 1]) + int(report.is_last[rows - 1])
        listener(Progress(documents, tokens, time.perf_counter() - started, total))

    return count


def keep_freed_memory() -> None:
    """Let the C library's malloc keep freed blocks of up to 32 MB.

    glibc maps each block above a threshold and unmaps it when it is freed. Each page of an activation is then a page fault, which
    takes a fifth of the time of a model whose activations have 12 MB. The threshold rises to the size of the largest mapped block
    that was freed, up to a limit (mallopt(3), M_MMAP_THRESHOLD). So one block of nearly that size is allocated and freed, without
    touching its pages. Another C library ignores this.
    """
    torch.empty(_MMAP_THRESHOLD_MAX - 2 * _PAGE_BYTES, dtype=torch.uint8)


def pool(hidden: Ragged, modes: Sequence[str], skipped_S: Tensor | None = None) -> Tensor:
    """Pool each sequence to (S, M) float32, or (S, M * modes), with the same bits in any batch.

    Args:
        hidden: values (N, M); no sequence may be empty.
        modes: keys of POOLING.
        skipped_S: (S,) tokens of the prompt at the start of each sequence, fewer than its tokens, which are not pooled. The other tokens
            keep their positions.
    """
    if skipped_S is not None and bool(skipped_S.any()):
        kept_N = _positions(hidden, None) > skipped_S.repeat_interleave(hidden.lengths)
        offsets = torch.cat((hidden.offsets[:1], (hidden.lengths - skipped_S).cumsum(0)))
        hidden = Ragged(hidden.values[kept_N], offsets)
    else:
        skipped_S = None
    hidden = hidden.with_values(hidden.values.float())
    return torch.cat([POOLING[mode](hidden, skipped_S) for mode in modes], dim=-1)


def mean_rows(vectors_SM: Tensor, counts_R: Tensor) -> Tensor:
    """Compute means (R, M) of the first counts_R[0] vectors, the next counts_R[1], and so on."""
    return _reduce(vectors_SM, torch.cat((counts_R.new_zeros(1), counts_R.cumsum(0))), "mean")


def _reduce(values_NM: Tensor, offsets: Tensor, mode: str, weights_N: Tensor | None = None) -> Tensor:
    # PyTorch's fastest sum over segments: 0.09 ms for 2048 x 384, and segment_reduce takes 1.1 ms.
    every_N = torch.arange(values_NM.shape[0], device=values_NM.device)
    return embedding_bag(every_N, values_NM, offsets, mode=mode, per_sample_weights=weights_N, include_last_offset=True)


def _positions(hidden: Ragged, skipped_S: Tensor | None) -> Tensor:
    """Return the position of each token in its sequence (N,), from 1; skipped tokens count."""
    token_N = torch.arange(hidden.values.shape[0], device=hidden.values.device)
    before_S = hidden.offsets[:-1] - 1 if skipped_S is None else hidden.offsets[:-1] - 1 - skipped_S
    return token_N - before_S.repeat_interleave(hidden.lengths)


def _mean_sqrt_len(hidden: Ragged, _: Tensor | None) -> Tensor:
    return _reduce(hidden.values, hidden.offsets, "sum") / hidden.lengths[:, None].float().sqrt()


def _weighted_mean(hidden: Ragged, skipped_S: Tensor | None) -> Tensor:
    first = 1 if skipped_S is None else 1 + skipped_S
    sums_S = hidden.lengths * (2 * first + hidden.lengths - 1) / 2
    weights_N = _positions(hidden, skipped_S).float()
    return _reduce(hidden.values, hidden.offsets, "sum", weights_N) / sums_S[:, None]


# By mode: a function of the hidden states and of the tokens (S,) skipped at the start of each sequence, None if there are none.
POOLING: dict[str, Callable[[Ragged, Tensor | None], Tensor]] = {
    "cls": lambda hidden, _: hidden.values[hidden.offsets[:-1]],
    "max": lambda hidden, _: _reduce(hidden.values, hidden.offsets, "max"),
    "mean": lambda hidden, _: _reduce(hidden.values, hidden.offsets, "mean"),
    "mean_sqrt_len_tokens": _mean_sqrt_len,
    "weightedmean": _weighted_mean,
    "lasttoken": lambda hidden, _: hidden.values[hidden.offsets[1:] - 1],
}
# The modes that a span of a text has: they read all its tokens, and no positions.
SPAN_POOLING = ("mean", "max", "mean_sqrt_len_tokens")


def batches(lengths: Sequence[int] | np.ndarray, tokens_per_batch: int) -> list[slice]:
    """Divide sequences into batches of about equal sizes, of about `tokens_per_batch` tokens.

    Batches have equal shares of the tokens, so that no small one is left at the end. A batch has at most `tokens_per_batch`
    tokens and one more sequence.

    >>> batches([4, 4, 4, 4, 4], tokens_per_batch=10)
    [slice(0, 2, None), slice(2, 5, None)]
    """
    if not len(lengths):
        return []
    ends = np.cumsum(lengths)
    count = max(1, -(-int(ends[-1]) // tokens_per_batch))
    shares = np.linspace(0, ends[-1], count + 1)[1:-1]
    # The sequence in which a share ends goes to the batch that has more of it.
    middles = ends - np.asarray(lengths) / 2
    edges = sorted({0, len(lengths), *np.searchsorted(middles, shares).tolist()})
    return [slice(start, stop) for start, stop in pairwise(edges)]
