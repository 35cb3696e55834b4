"""What an engine of the maps offers, and the values that it is asked with and answers with.

Letters: B sequences, H query heads, G key/value heads, Q queries, K keys, E value width, N packed tokens, R ragged rows.

The weights are those of ops/attention/reference.py, less dropout, which has no part in a map:

    s_ij = softcap(q_i . k_j * scale) + relative + bias
    a_ij = exp(s_ij) / (sum_j exp(s_ij) + exp(sink)), over the keys j that query i sees; 0 elsewhere

An engine is a module with the functions below. `call` is a lowered call of ops/attention/call.py whose value has E = 0,
except where an output is asked for; a ragged call has B = 1 and the tokens of all sequences as Q and K.

    refusal(call) -> str | None
        why it cannot serve this call, in words that end a sentence "engine 'x' cannot serve this map: ...".
    rows(call, wanted: RowsWanted) -> Rows
        one pass over the weights, each row by itself.
    mass(call, normalizer, program, tensors) -> (B, H, Q)
        sum_j a_ij over the keys that a second mask program (ops/mask_program.py) also lets query i see.
    received(call, normalizer, row_weights) -> (B, H, K)
        sum_i w_i a_ij; row_weights (B, H, Q) in the dtype of the arithmetic, or None for ones. Rows with w_i = 0 are not
        visited: a nan there does not matter.
    pool(call, normalizer, how, query_edges, key_edges) -> cells (S, H, rows, cols), positions (S, H, rows, cols, 2) | None
        with S = call.sequences and edges (S, rows+1) and (S, cols+1) int64, which rise (not strictly) within the
        positions of each sequence, and need neither start at 0 nor end at Q or K.
        how="mass": the sum over the keys of a cell, and the mean over all queries of its row range (0 for none).
        how="max": the largest weight of the cell and its (query, key), of equal ones the smallest query, then key;
        0 and (-1, -1) where nothing is visible.
    weights(call, normalizer, selection, keys) -> (sequences, heads, queries, keys) of the selection
        of a dense call; keys are rising unique int64. A weight has the same bits in whatever rectangle it is read.

Results are float32 (float64 for float64); positions are int64, counted within each sequence. What a hidden key holds is
never found in any result, nan and infinity included; a visible nan gives nan.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class Normalizer(NamedTuple):
    """All that a weight needs beside its query and key: a_ij = exp(s_ij - maximum_i) / sum_i."""

    maximum: Tensor  # (B, H, Q) float32 (float64 for float64); finite where no key is visible
    sum: (
        Tensor  # (B, H, Q), with the sink's share; 0 where there is neither a visible key nor a sink: all weights are 0
    )


class Selection(NamedTuple):
    """Some rows of a dense call: every one of the queries, in every one of the sequences and heads."""

    sequences: tuple[int, ...]  # rising, unique
    heads: tuple[int, ...]  # rising, unique
    queries: Tensor  # (n,) int64 on the call's device, rising, unique


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsWanted:
    """What one pass over the rows shall find, beside the normalizer."""

    output: bool = False
    entropy: bool = False
    squares: bool = False
    distance: tuple[int, int, Tensor | None] | None = None  # a start, as ops/mask_program.py's resolve_start gives it
    top: int = 0
    selection: Selection | None = None  # only these rows are computed; what the results hold elsewhere is undefined


class Rows(NamedTuple):
    """What a pass found; None where it was not asked for.

    entropy_i = -sum_j a_ij log a_ij, squares_i = sum_j a_ij^2 and distance_i = sum_j a_ij |j - (i + start)| are sums over
    keys: a sink's own share is no term, and 0 log 0 is 0.
    """

    normalizer: Normalizer
    output: Tensor | None = None  # (B, H, Q, E) in the query's dtype
    entropy: Tensor | None = None  # (B, H, Q)
    squares: Tensor | None = None  # (B, H, Q)
    distance: Tensor | None = None  # (B, H, Q)
    top_weights: Tensor | None = None  # (B, H, Q, k), the largest in falling order, equal ones by position
    top_positions: Tensor | None = (
        None  # (B, H, Q, k) int64; weight 0 and position -1 where fewer than k keys are visible
    )
