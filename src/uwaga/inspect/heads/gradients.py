"""Gradient x attention and its rollout, computed block by block from Q, K, V and the output's gradient.

    A_bar = E_h (grad_A * A)^+            Chefer, Gur and Wolf, "Generic Attention-model Explainability for Interpreting Bi-Modal
    R <- R + A_bar R,   R = I at first    and Encoder-Decoder Transformers", 2021, equations 5 to 10

With o_i = sum_j a_ij v_j the gradient of a result with respect to a weight is grad_a_ij = grad_o_i . v_j, so that nothing of size
Q x K is stored.

Letters: B sequences, H query heads, G key/value heads, Q queries, K keys, C queries of a block, E value width, N packed tokens,
R ragged rows.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from uwaga._base.arguments import check
from uwaga._base.tracing import without_autocast
from uwaga.inspect.heads.rollout import (
    PerToken,
    check_layers,
    for_each_head,
    layers_of,
    mean_of_heads,
    one_hot,
    times_mean,
)
from uwaga.maps.base import DerivedMap, count_heads, packed
from uwaga.maps.engines import tiles
from uwaga.maps.map import AttentionMap
from uwaga.maps.spec import Selection
from uwaga.nn.operand import detached, map_values, values_of
from uwaga.ops.attention.call import compute_dtype
from uwaga.ops.mask_program import CallPart, keys_seen, select
from uwaga.ops.ragged import Operand, Ragged

# Products of single entries are computed on this grid, so that an entry has the same bits whatever is read with it.
_GRID_ROWS, _GRID_KEYS = 32, 512
# For sums over whole maps: the number of queries whose weights are read at once, and the number of keys of one product.
_ROWS, _KEYS = 512, 4096
_MASK_KEYS = 512  # the keys of a block that is skipped if the mask hides all of it


class GradientMap(DerivedMap):
    """Compute a_ij * grad_a_ij of a map when read; with positive=True the positive part (Chefer et al. 2021, equation 5).

    Args:
        map: an AttentionMap (..., H, Q, K), or a ragged one.
        value: (..., G, K, E), or Ragged (N, G, E): what was passed to attention.
        grad_output: the gradient of a result with respect to the heads' outputs before W_O, (..., H, Q, E) or Ragged (N, H, E).
        positive: replace negative products by 0, as the paper does.

    Raises:
        ValueError: a value or gradient of another shape, or on another device.

    >>> x = torch.eye(2)
    >>> m = GradientMap(AttentionMap(x, x, scale=1.0), x, torch.tensor([[1.0, -1.0], [0.0, 1.0]]))
    >>> m.to_dense()
    tensor([[0.7311, 0.0000],
            [0.0000, 0.7311]])
    """

    __slots__ = ("grad_output", "positive", "value")

    def __init__(self, map: AttentionMap, value: Operand, grad_output: Operand, *, positive: bool = True) -> None:
        self.map, self.positive = map, positive
        self.value, self.grad_output = detached(value), detached(grad_output)
        _check(map, self.value, self.grad_output)

    def describe(self) -> str:
        return f"{self.map.describe()}, times its gradient{', positive part' if self.positive else ''}"

    def read(self, selection: Selection, keys: Tensor) -> Tensor:
        weights_BHQK = self.map.read(selection, keys)
        if not weights_BHQK.numel():
            return weights_BHQK
        return self._times_gradient(weights_BHQK, self._products(selection, keys))

    def parts(self) -> "Sequence[GradientMap] | None":
        parts = self.map.parts()
        if parts is None:
            return None
        values, grads = (_of_sequences(x, len(parts), -2) for x in (self.value, self.grad_output))
        return [
            GradientMap(part, value, grad, positive=self.positive)  # type: ignore[arg-type]
            for part, value, grad in zip(parts, values, grads, strict=True)
        ]

    def received(self, weights: Operand | None = None) -> Operand:
        """Compute sum_i w_i m_ij, (..., H, K) or Ragged (N, H), exactly in O(Q + K) memory.

        Rows of weight 0 are not computed.

        Args:
            weights: one per query, (..., H, Q) or broadcasting to it, or Ragged (N, H) or (N,); None: ones.
        """
        return self._weighted_sums(weights, of_keys=True)

    def row_sums(self, weights: Operand | None = None) -> Operand:
        """Compute sum_j m_ij w_j, (..., H, Q) or Ragged (N, H), exactly in O(Q + K) memory.

        With ones, it is the relevance of each query for the result.

        Args:
            weights: one per key, (..., H, K) or broadcasting to it, or Ragged (N, H) or (N,); None: ones.
        """
        return self._weighted_sums(weights, of_keys=False)

    def _weighted_sums(self, weights: Operand | None, *, of_keys: bool) -> Operand:
        """Compute `received` (of_keys) or `row_sums` of a dense map, or of each sequence of a ragged map."""
        parts = self.parts()
        if parts is not None:
            of_parts = _of_sequences(weights, len(parts), -1)
            sums = [part._weighted_sums(w, of_keys=of_keys) for part, w in zip(parts, of_parts, strict=True)]
            return packed(self, sums)  # type: ignore[arg-type]
        sequences, heads, queries, keys = self._sizes()
        count, others = (keys, queries) if of_keys else (queries, keys)
        weights = torch.ones((), device=self.device) if weights is None else values_of(weights)
        w_BHN = weights.to(self.dtype).expand(*self.shape[:-2], others).reshape(sequences, heads, others)
        sums_BHM = torch.zeros((sequences, heads, count), dtype=self.dtype, device=self.device)
        every = torch.arange(queries, device=self.device)
        with torch.no_grad(), without_autocast(self.device):
            for b, h in product(range(sequences), range(heads)):
                for rows, columns, part_CK in self._blocks(b, h, w_BHN[b, h].nonzero()[:, 0] if of_keys else every):
                    if of_keys:
                        sums_BHM[b, h, columns] += w_BHN[b, h, rows] @ part_CK
                    else:
                        sums_BHM[b, h, rows] += part_CK @ w_BHN[b, h, columns]
        return sums_BHM.reshape(*self.shape[:-2], count)

    def _blocks(self, b: int, h: int, queries: Tensor) -> Iterator[tuple[Tensor, slice, Tensor]]:
        """Yield some of these ascending queries, a slice of keys, and one head's entries there; blocks without a visible key are left out."""
        keys = self.shape[-1]
        value_KE, grad_QE = self._value(b, h), self._grad(b, h)
        is_finite = bool(value_KE.isfinite().all() & grad_QE.isfinite().all())
        for rows in queries.split(_ROWS):
            first, last = self._visible(b, int(rows[0]), int(rows[-1]) + 1, keys) if len(rows) else (0, 0)
            if first == last:
                continue
            at = torch.arange(first, last, device=self.device)
            weights_CK = self.map.read(Selection((b,), (h,), rows), at)[0, 0]
            grad_CE = grad_QE.index_select(0, rows)
            for low in range(first, last, _KEYS):
                columns = slice(low, min(low + _KEYS, last))
                products_CK = grad_CE @ value_KE[columns].mT
                part_CK = weights_CK[:, low - first : low - first + _KEYS]
                yield rows, columns, self._times_gradient(part_CK, products_CK, is_finite=is_finite)

    def _visible(self, b: int, low: int, high: int, keys: int) -> tuple[int, int]:
        """Return the range of key blocks that queries low to high - 1 may see."""
        assert isinstance(self.map, AttentionMap)
        call = self.map._call
        program, sizes = call.options.mask_program, (call.query.shape[2], keys)
        of_sequence = select(program, call.mask_tensors, CallPart(slice(b, b + 1)))
        first, last = keys_seen(program, of_sequence, sizes, (low, high))
        return first // _MASK_KEYS * _MASK_KEYS, min(-(-last // _MASK_KEYS) * _MASK_KEYS, keys)

    def _times_gradient(self, weights: Tensor, products: Tensor, *, is_finite: bool = False) -> Tensor:
        """Multiply `products` in place, with 0 for a weight of 0. is_finite: no value or gradient is NaN or infinite."""
        if self.positive:
            products.relu_()
        products.mul_(weights)
        return products if is_finite else products.masked_fill_(weights == 0, 0.0)

    def _products(self, selection: Selection, keys: Tensor) -> Tensor:
        """Compute grad_o_i . v_j of a rectangle."""
        _, _, queries, count = self._sizes()
        rows_n, columns_n = tiles.blocks(selection.queries, _GRID_ROWS, queries), tiles.blocks(keys, _GRID_KEYS, count)
        grids = []
        for b, h in product(selection.sequences, selection.heads):
            grad, value = self._grad(b, h).index_select(0, rows_n), self._value(b, h).index_select(0, columns_n)
            with without_autocast(self.device):
                keys_n = value.split(_GRID_KEYS)
                grid = torch.cat([torch.cat([x @ y.mT for y in keys_n], -1) for x in grad.split(_GRID_ROWS)])
            at, on = torch.searchsorted(rows_n, selection.queries), torch.searchsorted(columns_n, keys)
            grids.append(grid.index_select(0, at).index_select(1, on))
        return torch.stack(grids).unflatten(0, (len(selection.sequences), len(selection.heads)))

    def _sizes(self) -> tuple[int, int, int, int]:
        """Return B, H, Q and K."""
        return math.prod(self.shape[:-3]), count_heads(self), *self.shape[-2:]

    def _value(self, b: int, h: int) -> Tensor:
        """Return the values (K, E) of one query head."""
        value, (sequences, heads, _, _) = values_of(self.value), self._sizes()
        groups = value.shape[-3] if value.dim() > 2 else 1
        values = value.reshape(sequences, groups, *value.shape[-2:])
        return values[b, h * groups // heads].to(compute_dtype(value.dtype))

    def _grad(self, b: int, h: int) -> Tensor:
        """Return the gradients (Q, E) of one head."""
        grads = values_of(self.grad_output)
        return grads.reshape(*self._sizes()[:3], grads.shape[-1])[b, h].to(compute_dtype(grads.dtype))


def gradient_rollout(maps: Mapping[int, GradientMap] | Sequence[GradientMap], token: int | Tensor = -1) -> PerToken:
    """Compute the relevance of every input token for a result at one token, through all layers.

    The result is a row of R = (I + A_bar_L) ... (I + A_bar_1) (Chefer et al. 2021, equations 5 and 6), computed as
    L products of a vector and a matrix: O(N) memory.

    Args:
        maps: the gradient maps of self-attention of all layers, from the first to the last, of one result.
        token: the token whose representation the result was computed from; a negative one counts from the end. Or one for each sequence.

    Returns:
        (..., N), or Ragged (N,). It includes the token's own residual path: subtract 1 there for the relevance by attention only.

    Raises:
        ValueError: no maps, or maps that are not square or of different tokens.
        IndexError: a token that a sequence does not have.
    """
    layers = layers_of(maps)
    check_layers("gradient_rollout", layers)
    row = one_hot("gradient_rollout", layers[-1], token)
    return map_values(torch.add, row, _times_relevance(row, layers))


def cross_gradient_rollout(
    encoder: Mapping[int, GradientMap] | Sequence[GradientMap],
    decoder: Mapping[int, GradientMap] | Sequence[GradientMap],
    cross: Mapping[int, GradientMap] | Sequence[GradientMap],
    token: int | Tensor = -1,
) -> PerToken:
    """Compute the relevance of every encoder token for a result at one decoder token.

    Chefer et al. 2021, equations 5 to 10:

        R_qq <- R_qq + A_bar_qq R_qq,  R_qk <- R_qk + A_bar_qq R_qk            in each layer of the decoder: self-attention,
        R_qk <- R_qk + norm(R_qq)^T A_bar_qk norm(R_kk)                        then cross-attention; R_kk is that of the encoder
        norm(R) = (R - I) / its row sums + I

    Only one row of R_qk is computed, so every product is of a vector and a map, and memory is O(N). A decoder of L layers takes L products
    with its cross maps and about L^2 / 2 with its self-attention. Rows of R - I that are 0 stay 0 in norm.

    Args:
        encoder, decoder, cross: the gradient maps of all layers of each kind, from the first to the last, of one result; `cross` and
            `decoder` have the same length.
        token: the decoder's token whose representation the result was computed from, as in `gradient_rollout`.

    Returns:
        (..., K), or Ragged (K,): for each token of the encoder.

    Raises:
        ValueError: no maps, or maps that do not fit each other.
        IndexError: a token that a sequence does not have.
    """
    name = "cross_gradient_rollout"
    encoder, decoder, cross = map(layers_of, (encoder, decoder, cross))
    check_layers(f"{name}: encoder", encoder)
    check_layers(f"{name}: decoder", decoder)
    _check_cross(name, encoder[0], decoder[0], cross, len(decoder))
    row = one_hot(name, decoder[-1], token)
    result: PerToken | None = None
    for layer in reversed(range(len(decoder))):
        added = times_mean(_normalized_times(decoder[: layer + 1], row), cross[layer])
        result = added if result is None else map_values(torch.add, result, added)
        row = map_values(torch.add, row, times_mean(row, decoder[layer]))
    assert result is not None
    return _times_normalized(result, encoder)


def _check_cross(name: str, encoder: GradientMap, decoder: GradientMap, cross: list[GradientMap], count: int) -> None:
    sizes = [(q[-1], k[-1]) for q, k in zip(decoder.shapes, encoder.shapes, strict=False)]
    fits = len(encoder.shapes) == len(decoder.shapes) and all([s[-2:] for s in m.shapes] == sizes for m in cross)
    if len(cross) != count or not fits:
        shapes = ", ".join(str(m.shape) for m in cross) or "none"
        raise ValueError(
            f"{name}: cross must be {count} maps from the decoder's tokens {decoder.shape} to the encoder's {encoder.shape}, not {shapes}"
        )


def _normalized_times(layers: list[GradientMap], column: PerToken) -> PerToken:
    """Compute norm(R) c, with R of these layers."""
    ones = map_values(torch.ones_like, column)
    return map_values(
        lambda c, rc, r1: _divided(rc, r1) + c, column, _relevance_times(layers, column), _relevance_times(layers, ones)
    )


def _times_normalized(row: PerToken, layers: list[GradientMap]) -> PerToken:
    """Compute r norm(R)."""
    sums = _relevance_times(layers, map_values(torch.ones_like, row))
    return map_values(torch.add, row, _times_relevance(map_values(_divided, row, sums), layers))


def _divided(x: Tensor, by: Tensor) -> Tensor:
    """Divide x by the row sums; 0 if a row sum is 0."""
    return torch.where(by == 0, 0.0, x / by)


def _times_relevance(row: PerToken, layers: list[GradientMap]) -> PerToken:
    """Compute row (R - I), R = (I + A_bar_L) ... (I + A_bar_1). Next to I, small relevances would be rounded away."""
    result = map_values(torch.zeros_like, row)
    for m in reversed(layers):
        result = map_values(torch.add, result, times_mean(map_values(torch.add, row, result), m))
    return result


def _relevance_times(layers: list[GradientMap], column: PerToken) -> PerToken:
    """Compute (R - I) column."""
    result = map_values(torch.zeros_like, column)
    for m in layers:
        read = m.row_sums(for_each_head(m, map_values(torch.add, column, result)))
        result = map_values(torch.add, result, mean_of_heads(m, read))
    return result


def _of_sequences(x: Operand | None, count: int, axis: int) -> list[Any]:
    """Split Ragged values (N, ...) by sequence, with tokens at the axis; x None gives None for each sequence."""
    if x is None:
        return [None] * count
    assert isinstance(x, Ragged)
    return [part.movedim(0, axis) for part in x.to_list()]


def _check(m: AttentionMap, value: Operand, grad_output: Operand) -> None:
    check(
        {isinstance(x, Ragged) for x in (value, grad_output)} == {m.parts() is not None},
        "GradientMap: value and gradient must be ragged if the map is, and dense if it is dense",
    )
    values, grads = values_of(value), values_of(grad_output)
    if isinstance(value, Ragged) and isinstance(grad_output, Ragged):
        lengths = [x.lengths.tolist() for x in (grad_output, value)]
        fits = lengths == [[shape[axis] for shape in m.shapes] for axis in (-2, -1)]
        fits = fits and grads.shape[1:-1] == m.shape[1:-2]
    else:
        fits = tuple(grads.shape[:-1]) == m.shape[:-1] and tuple(values.shape[:-3]) == m.shape[:-3]
        fits = fits and values.dim() == grads.dim() and values.shape[-2] == m.shape[-1]
        fits = fits and (values.dim() < 3 or m.shape[-3] % values.shape[-3] == 0)
    check(
        fits and values.shape[-1] == grads.shape[-1],
        f"GradientMap: value and gradient of the output must be (..., G, K, E) and (..., H, Q, E) for the map {m.shape}, not {tuple(values.shape)} and {tuple(grads.shape)}",
    )
    check(
        values.device == m.device and grads.device == m.device,
        f"GradientMap: the map is on {m.device}, value and gradient on {values.device} and {grads.device}",
    )
