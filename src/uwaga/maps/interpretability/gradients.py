"""Gradient x attention and its rollout: which weights a result rests on, computed block by block from Q, K, V and the output's gradient.

    A_bar = E_h (grad_A * A)^+            Chefer, Gur and Wolf, "Generic Attention-model Explainability for Interpreting Bi-Modal
    R <- R + A_bar R,   R = I at first    and Encoder-Decoder Transformers", 2021, equations 5 and 6

With o_i = sum_j a_ij v_j the gradient of a result with respect to a weight is grad_a_ij = grad_o_i . v_j, so that nothing of size
Q x K is stored.

Letters: B sequences, H query heads, G key/value heads, Q queries, K keys, C queries of a block, E value width, N packed tokens,
R ragged rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import torch
from torch import Tensor

from uwaga._base.tracing import without_autocast
from uwaga.maps.base import Shape
from uwaga.maps.derived import DerivedMap
from uwaga.maps.engines import tiles
from uwaga.maps.interpretability.rollout import PerToken, check_layers, one_hot
from uwaga.maps.map import AttentionMap
from uwaga.maps.spec import Selection
from uwaga.ops.attention.call import compute_dtype
from uwaga.ops.mask_program import Block, block
from uwaga.ops.ragged import Operand, Ragged
from uwaga.ops.score_shape import ScoreShape

# Products of single entries are computed on this grid, so that an entry has the same bits whatever is read with it.
_GRID_ROWS, _GRID_KEYS = 32, 512
# Of sums over whole maps: queries at a time, whose weights on all keys are read at once, and keys of one product.
_ROWS, _KEYS = 512, 4096
_MASK_KEYS = 512  # of the blocks that the mask may empty


class GradientMap(DerivedMap):
    """a_ij * grad_a_ij of a map, computed when read; with positive=True its positive part (Chefer et al. 2021, equation 5).

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
        self.value, self.grad_output = _detached(value), _detached(grad_output)
        _check(map, self.value, self.grad_output)

    @property
    def shape(self) -> Shape:
        return self.map.shape

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
        assert isinstance(self.value, Ragged)
        assert isinstance(self.grad_output, Ragged)
        per_sequence = zip(parts, self.value.to_list(), self.grad_output.to_list(), strict=True)
        return [
            GradientMap(part, value.movedim(0, -2), grad.movedim(0, -2), positive=self.positive)  # type: ignore[arg-type]
            for part, value, grad in per_sequence
        ]

    def received(self, weights: Operand | None = None) -> Operand:
        """sum_i w_i m_ij, (..., H, K) or Ragged (N, H): the product of row weights and the matrix. Exact, O(Q + K) memory; rows of
        weight 0 are not computed.

        Args:
            weights: one per query, (..., H, Q) or broadcasting to it, or Ragged (N, H) or (N,); None: ones.
        """
        parts = self.parts()
        if parts is None:
            assert weights is None or isinstance(weights, Tensor)
            return self._received(weights)
        assert isinstance(self.value, Ragged)
        assert weights is None or isinstance(weights, Ragged)
        rows = [None] * len(parts) if weights is None else [w.movedim(0, -1) for w in weights.to_list()]
        found = [part._received(row).movedim(-1, 0) for part, row in zip(parts, rows, strict=True)]
        return Ragged(torch.cat(found), self.value.offsets)

    def row_sums(self) -> Operand:
        """sum_j m_ij, (..., H, Q) or Ragged (N, H): what a result rests on through each query. Exact, O(Q + K) memory."""
        parts = self.parts()
        if parts is None:
            return self._row_sums()
        assert isinstance(self.grad_output, Ragged)
        return self.grad_output.with_values(torch.cat([part._row_sums().movedim(-1, 0) for part in parts]))

    def _received(self, weights: Tensor | None) -> Tensor:
        sequences, heads, queries, keys = self._sizes()
        found_BHK = torch.zeros((sequences, heads, keys), dtype=self.dtype, device=self.device)
        row_BHQ = None
        if weights is not None:
            row_BHQ = weights.to(self.dtype).expand(*self.shape[:-1]).reshape(sequences, heads, queries)
        with torch.no_grad():
            for b, h in product(range(sequences), range(heads)):
                chosen = None if row_BHQ is None else row_BHQ[b, h].nonzero().squeeze(-1)
                for rows, columns, part_CK in self._blocks(b, h, chosen):
                    row_C = part_CK.new_ones(len(rows)) if row_BHQ is None else row_BHQ[b, h, rows]
                    found_BHK[b, h, columns] += row_C @ part_CK
        return found_BHK.reshape(*self.shape[:-2], keys)

    def _row_sums(self) -> Tensor:
        sequences, heads, queries, _ = self._sizes()
        found_BHQ = torch.zeros((sequences, heads, queries), dtype=self.dtype, device=self.device)
        with torch.no_grad():
            for b, h in product(range(sequences), range(heads)):
                for rows, _, part_CK in self._blocks(b, h, None):
                    found_BHQ[b, h, rows] += part_CK.sum(-1)
        return found_BHQ.reshape(self.shape[:-1])

    def _blocks(self, b: int, h: int, chosen: Tensor | None) -> Iterator[tuple[Tensor, slice, Tensor]]:
        """Queries (C,), a slice of keys and the entries of one head there, without blocks that the mask empties.

        chosen: (n,) the queries that are wanted, ascending; None: all.
        """
        _, _, queries, keys = self._sizes()
        value_KE, grad_QE = self._value(b, h), self._grad(b, h)
        every = torch.arange(queries, device=self.device) if chosen is None else chosen
        is_finite = bool(value_KE.isfinite().all() & grad_QE.isfinite().all())
        for rows in every.split(_ROWS):
            if not len(rows):
                continue
            first, last = self._visible(b, h, int(rows[0]), int(rows[-1]) + 1, keys)
            if first == last:
                continue
            at = torch.arange(first, last, device=self.device)
            weights_CK = self.map.read(Selection((b,), (h,), rows), at)[0, 0]
            grad_CE = grad_QE.index_select(0, rows)
            for low in range(first, last, _KEYS):
                columns = slice(low, min(low + _KEYS, last))
                with without_autocast(self.device):
                    products_CK = grad_CE @ value_KE[columns].mT
                part_CK = weights_CK[:, low - first : low - first + _KEYS]
                yield rows, columns, self._times_gradient(part_CK, products_CK, is_finite=is_finite)

    def _visible(self, b: int, h: int, low: int, high: int, keys: int) -> tuple[int, int]:
        """The first key and the end of the blocks of keys that queries low to high - 1 may see."""
        assert isinstance(self.map, AttentionMap)
        call = self.map._call
        shape = ScoreShape(queries=call.query.shape[2], keys=keys)
        seen = [
            start
            for start in range(0, keys, _MASK_KEYS)
            if not call.options.mask_program
            or block(
                call.options.mask_program,
                call.mask_tensors,
                shape,
                (low, high),
                (start, min(start + _MASK_KEYS, keys)),
                b,
                h,
            )
            is not Block.EMPTY
        ]
        return (seen[0], min(seen[-1] + _MASK_KEYS, keys)) if seen else (0, 0)

    def _times_gradient(self, weights: Tensor, products: Tensor, *, is_finite: bool = False) -> Tensor:
        """The product, 0 where a weight is 0; `products` is overwritten. is_finite: no value or gradient is NaN or infinite."""
        if self.positive:
            products.relu_()
        products.mul_(weights)
        return products if is_finite else products.masked_fill_(weights == 0, 0.0)

    def _products(self, selection: Selection, keys: Tensor) -> Tensor:
        """grad_o_i . v_j of a rectangle."""
        _, _, queries, count = self._sizes()
        rows_n, columns_n = tiles.blocks(selection.queries, _GRID_ROWS, queries), tiles.blocks(keys, _GRID_KEYS, count)
        found = []
        for b, h in product(selection.sequences, selection.heads):
            grad, value = self._grad(b, h).index_select(0, rows_n), self._value(b, h).index_select(0, columns_n)
            with without_autocast(self.device):
                grid = torch.cat(
                    [
                        torch.cat([one @ other.mT for other in value.split(_GRID_KEYS)], -1)
                        for one in grad.split(_GRID_ROWS)
                    ]
                )
            at, on = torch.searchsorted(rows_n, selection.queries), torch.searchsorted(columns_n, keys)
            found.append(grid.index_select(0, at).index_select(1, on))
        return torch.stack(found).unflatten(0, (len(selection.sequences), len(selection.heads)))

    def _sizes(self) -> tuple[int, int, int, int]:
        """B, H, Q and K."""
        *leading, queries, keys = self.shape
        heads = leading.pop() if leading else 1
        return torch.Size(leading).numel(), heads, queries, keys

    def _value(self, b: int, h: int) -> Tensor:
        """(K, E) of one query head."""
        assert isinstance(self.value, Tensor)
        sequences, heads, _, _ = self._sizes()
        groups = self.value.shape[-3] if self.value.dim() > 2 else 1
        values = self.value.reshape(sequences, groups, *self.value.shape[-2:])
        return values[b, h * groups // heads].to(compute_dtype(self.value.dtype))

    def _grad(self, b: int, h: int) -> Tensor:
        """(Q, E) of one head."""
        assert isinstance(self.grad_output, Tensor)
        grads = self.grad_output.reshape(*self._sizes()[:3], self.grad_output.shape[-1])
        return grads[b, h].to(compute_dtype(grads.dtype))


def gradient_rollout(maps: Mapping[int, GradientMap] | Sequence[GradientMap], token: int | Tensor = -1) -> PerToken:
    """The relevance of every input token for a result at one token, through all layers: the row of R = (I + A_bar_L) ... (I + A_bar_1)
    (Chefer et al. 2021, equations 5 and 6), computed as L products of a vector and a matrix: O(N) memory.

    Args:
        maps: the gradient maps of self-attention of all layers, from the first to the last, of one result.
        token: the token whose representation the result was computed from, from the end where negative; or one for each sequence.

    Returns:
        (..., N), or Ragged (N,). The token's own residual path is part of it: subtract 1 there for what came by attention.

    Raises:
        ValueError: no maps, or maps that are not square or of different tokens.
        IndexError: a token that a sequence does not have.
    """
    layers = list(maps.values()) if isinstance(maps, Mapping) else list(maps)
    check_layers("gradient_rollout", layers)
    row = one_hot("gradient_rollout", layers[-1], token)
    for m in reversed(layers):
        if isinstance(row, Ragged):
            flat = Ragged(row.values[:, None].expand(-1, m.shape[1]), row.offsets) if len(m.shape) > 3 else row
            received = m.received(flat)
            assert isinstance(received, Ragged)
            added = received.values.mean(1) if received.values.dim() == 2 else received.values
            row = row.with_values(row.values + added)
        else:
            has_heads = len(m.shape) > 2
            received = m.received(row[..., None, :] if has_heads else row)
            assert isinstance(received, Tensor)
            row = row + (received.mean(-2) if has_heads else received)
    return row


def _detached(x: Operand) -> Operand:
    return x.with_values(x.values.detach()) if isinstance(x, Ragged) else x.detach()


def _check(m: AttentionMap, value: Operand, grad_output: Operand) -> None:
    if m.parts() is not None:
        if not isinstance(value, Ragged) or not isinstance(grad_output, Ragged):
            raise ValueError("GradientMap: a ragged map needs a ragged value and a ragged gradient")
        found = (value.lengths.tolist(), grad_output.lengths.tolist())
        wanted = ([shape[-1] for shape in m.shapes], [shape[-2] for shape in m.shapes])
        heads = (value.values.shape[1:-1], grad_output.values.shape[1:-1], m.shape[1:-2])
        fits = found == wanted and heads[1] == heads[2]
    elif isinstance(value, Ragged) or isinstance(grad_output, Ragged):
        raise ValueError("GradientMap: a dense map needs a dense value and a dense gradient")
    else:
        fits = tuple(grad_output.shape[:-1]) == m.shape[:-1] and tuple(value.shape[:-3]) == m.shape[:-3]
        fits = fits and value.dim() == grad_output.dim() and value.shape[-2] == m.shape[-1]
        fits = fits and (value.dim() < 3 or m.shape[-3] % value.shape[-3] == 0)
    values, grads = (x.values if isinstance(x, Ragged) else x for x in (value, grad_output))
    if not fits or values.shape[-1] != grads.shape[-1]:
        shapes = f"{tuple(values.shape)} and {tuple(grads.shape)}"
        raise ValueError(
            f"GradientMap: value and gradient of the output must be (..., G, K, E) and (..., H, Q, E) for the map {m.shape}, not {shapes}"
        )
    if values.device != m.device or grads.device != m.device:
        raise ValueError(
            f"GradientMap: the map is on {m.device}, value and gradient on {values.device} and {grads.device}"
        )
