"""The interface of an engine of maps: its functions, their arguments and results.

Letters: B sequences, H query heads, G key/value heads, Q queries, K keys, E value width, N packed tokens, R ragged rows.

The weights are those of ops/attention/reference.py, without dropout:

    s_ij = softcap(q_i . k_j * scale) + relative + bias
    a_ij = exp(s_ij) / (sum_j exp(s_ij) + exp(sink)), over the keys j that query i sees; 0 elsewhere

An engine is a module with the functions below. `call` is a lowered call of ops/attention/call.py whose value has E = 0,
except where an output is asked for; a ragged call has B = 1 and the tokens of all sequences as Q and K.

    refusal(call) -> str | None
        None, or why it cannot serve this call, as the end of the sentence "engine 'x' cannot serve this map: ...".
    rows(call, request: RowStatisticsRequest) -> RowStatistics
        statistics of every row, in one pass over the weights.
    mass(call, normalizer, program, tensors) -> (B, H, Q)
        sum_j a_ij over the keys that a second mask program (ops/mask_program.py) also lets query i see.
    received(call, normalizer, row_weights) -> (B, H, K)
        sum_i w_i a_ij; row_weights (B, H, Q) in the dtype of the arithmetic, or None for ones. Rows with w_i = 0 are left
        out, even if they hold NaN.
    diagonal_sums(call, normalizer) -> (B, H, Q+K-1)
        of a dense call: entry n is the sum of all weights with j - i = n - (Q - 1).
    pool(call, normalizer, pooling, query_edges, key_edges) -> cells (S, H, rows, cols), positions (S, H, rows, cols, 2) | None
        with S = call.sequences and edges (S, rows+1) and (S, cols+1) int64, in ascending order (not
        strictly) within each sequence, which need neither start at 0 nor end at Q or K.
        pooling="sum": the sum over the keys of a cell, and the mean over all queries of its row range (0 for none).
        pooling="max": the largest weight of the cell and its (query, key), of equal ones the smallest query, then key;
        0 and (-1, -1) where no key is visible.
    weights(call, normalizer, selection, keys) -> (sequences, heads, queries, keys) of the selection
        of a dense call; keys are rising unique int64. A weight has the same bits in whatever rectangle it is read.

Results are float32 (float64 for float64); positions are int64, counted within each sequence. No result
depends on what a hidden key holds, NaN and infinity included; a visible NaN gives NaN.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class Normalizer(NamedTuple):
    """The softmax denominators of the rows: a_ij = exp(s_ij - maximum_i) / sum_i."""

    maximum: Tensor  # (B, H, Q) float32 (float64 for float64); finite where no key is visible
    sum: Tensor  # (B, H, Q), with the sink's term; 0 where there is neither a visible key nor a sink: all weights are 0


class Selection(NamedTuple):
    """Some rows of a dense call: each of the queries in each of the sequences and heads."""

    sequences: tuple[int, ...]  # ascending, unique
    heads: tuple[int, ...]  # ascending, unique
    queries: Tensor  # (n,) int64 on the call's device, ascending, unique


@dataclass(frozen=True, slots=True, kw_only=True)
class RowStatisticsRequest:
    """What one pass over the rows computes beside the normalizer."""

    output: bool = False
    entropy: bool = False
    squares: bool = False
    # The positions of the queries among the keys, from resolve_start of ops/mask_program.py; None: no distances.
    distance: tuple[int, int, Tensor | None] | None = None
    top: int = 0  # how many of the largest weights
    selection: Selection | None = None  # computes these rows only; the results of others are undefined


class RowStatistics(NamedTuple):
    """The results of a pass; None for those that were not wanted.

    entropy_i = -sum_j a_ij log a_ij, squares_i = sum_j a_ij^2 and distance_i = sum_j a_ij |j - (i + start)| are sums over
    keys, without a term for a sink; 0 log 0 is 0.
    """

    normalizer: Normalizer
    output: Tensor | None = None  # (B, H, Q, E) in the query's dtype
    entropy: Tensor | None = None  # (B, H, Q)
    squares: Tensor | None = None  # (B, H, Q)
    distance: Tensor | None = None  # (B, H, Q)
    top_weights: Tensor | None = None  # (B, H, Q, k), the largest in descending order, equal ones by position
    top_positions: Tensor | None = None  # (B, H, Q, k) int64; -1, and weight 0, where fewer than k keys are visible
