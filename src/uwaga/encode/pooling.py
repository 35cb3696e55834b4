"""Pooling of hidden states to one vector for each sequence, as in sentence-transformers (Reimers and Gurevych, "Sentence-BERT", 2019;
"weightedmean": Muennighoff, "SGPT", 2022).

Letters: N packed tokens, S sequences, R rows of the result, M model width.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from uwaga.ops.ragged import Ragged


def pool(hidden: Ragged, modes: Sequence[str], skipped_S: Tensor | None = None) -> Tensor:
    """(S, M) float32, or (S, M * modes): each sequence by itself, with the same bits in any batch.

    hidden: values (N, M); no sequence may be empty. modes: keys of POOLING. skipped_S: (S,) tokens at the start of each sequence
    that are not pooled, those of a prompt; less than its tokens. The others keep their positions.
    """
    first_S = torch.ones_like(hidden.lengths)
    if skipped_S is not None and bool(skipped_S.any()):
        first_S = first_S + skipped_S
        position_N = _counted(hidden, torch.ones_like(hidden.lengths))
        kept_N = position_N >= first_S.repeat_interleave(hidden.lengths)
        offsets = torch.cat((hidden.offsets[:1], (hidden.lengths - skipped_S).cumsum(0)))
        hidden = Ragged(hidden.values[kept_N], offsets)
    hidden = hidden.with_values(hidden.values.float())
    return torch.cat([POOLING[mode](hidden, first_S) for mode in modes], dim=-1)


def mean_rows(vectors_SM: Tensor, counts_R: Tensor) -> Tensor:
    """(R, M): the means of the first counts_R[0] vectors, of the next counts_R[1], and so on."""
    offsets = torch.cat((counts_R.new_zeros(1), counts_R.cumsum(0)))
    return _reduce(Ragged(vectors_SM, offsets), "mean")


def _reduce(hidden: Ragged, mode: str, weights_N: Tensor | None = None) -> Tensor:
    # The fastest of PyTorch's sums over segments: 0.09 ms for 2048 x 384, where segment_reduce takes 1.1 ms.
    every_N = torch.arange(hidden.values.shape[0], device=hidden.values.device)
    return embedding_bag(
        every_N, hidden.values, hidden.offsets, mode=mode, per_sample_weights=weights_N, include_last_offset=True
    )


def _counted(hidden: Ragged, first_S: Tensor) -> Tensor:
    """(N,): first_S, first_S + 1, ... for the tokens of each sequence."""
    token_N = torch.arange(hidden.values.shape[0], device=hidden.values.device)
    return token_N - (hidden.offsets[:-1] - first_S).repeat_interleave(hidden.lengths)


def _mean_sqrt_len(hidden: Ragged, _: Tensor) -> Tensor:
    return _reduce(hidden, "sum") / hidden.lengths[:, None].float().sqrt()


def _weighted_mean(hidden: Ragged, first_S: Tensor) -> Tensor:
    sums_S = hidden.lengths * (2 * first_S + hidden.lengths - 1) / 2
    return _reduce(hidden, "sum", _counted(hidden, first_S).float()) / sums_S[:, None]


# By mode, from the hidden states and the positions of their first tokens (S,), counted from 1.
POOLING: dict[str, Callable[[Ragged, Tensor], Tensor]] = {
    "cls": lambda hidden, _: hidden.values[hidden.offsets[:-1]],
    "max": lambda hidden, _: _reduce(hidden, "max"),
    "mean": lambda hidden, _: _reduce(hidden, "mean"),
    "mean_sqrt_len_tokens": _mean_sqrt_len,
    "weightedmean": _weighted_mean,
    "lasttoken": lambda hidden, _: hidden.values[hidden.offsets[1:] - 1],
}
# Those of which a span of a text has one: they read all its tokens, and no positions.
SPAN_POOLING = ("mean", "max", "mean_sqrt_len_tokens")
