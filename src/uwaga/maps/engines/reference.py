"""The weights and their statistics as they are defined, in plain PyTorch: any dtype, any device, O(rows * K) memory.

The public functions are those of spec.py; a ragged call is computed sequence by sequence.

Letters: B sequences, H query heads, C queries of a tile, K keys, I row ranges, J column ranges; else as in spec.py.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from uwaga._base.tracing import without_autocast
from uwaga.maps.engines import tiles
from uwaga.maps.engines.tiles import Tile
from uwaga.maps.spec import Normalizer, RowStatistics, RowStatisticsRequest, Selection
from uwaga.ops.attention.call import Call, compute_dtype
from uwaga.ops.attention.reference import mix
from uwaga.ops.attention.sequences import split
from uwaga.ops.mask_program import START_LAST, START_VALUE, MaskProgram, visible

_INFINITY = float("inf")


def refusal(call: Call) -> None:
    """None: this engine serves every call."""
    return


def rows(call: Call, request: RowStatisticsRequest) -> RowStatistics:
    if call.query_offsets is None:
        return _dense_rows(call, request)
    tiles.check_lengths()
    parts = [_dense_rows(part, _of_sequence(request, at)) for at, part in enumerate(split(call))]
    return _join_rows([_dense_rows(*_empty_sequence(call, request)), *parts])


def mass(call: Call, normalizer: Normalizer, program: MaskProgram, tensors: tuple[Tensor, ...]) -> Tensor:
    if call.query_offsets is None:
        return _dense_mass(call, normalizer, program, tensors)
    second = replace(call, mask_tensors=tensors, options=replace(call.options, mask_program=program))
    parts = zip(_split(call, normalizer), split(second), strict=True)
    results = [_dense_mass(part, softmax, program, other.mask_tensors) for (part, softmax), other in parts]
    return torch.cat([normalizer.sum[:, :, :0], *results], dim=2)


def received(call: Call, normalizer: Normalizer, row_weights: Tensor | None) -> Tensor:
    if call.query_offsets is None:
        return _dense_received(call, normalizer, row_weights)
    of_sequences: Sequence[Tensor | None] = [None] * call.sequences
    if row_weights is not None:
        of_sequences = row_weights.split(call.query_offsets.diff().tolist(), dim=2)
    results = [
        _dense_received(*part, weights) for part, weights in zip(_split(call, normalizer), of_sequences, strict=True)
    ]
    return torch.cat([normalizer.sum[:, :, :0], *results], dim=2)


def diagonal_sums(call: Call, normalizer: Normalizer) -> Tensor:
    read = ((tile.rows, weights) for tile, weights in _tiles_and_weights(call, normalizer))
    return tiles.diagonal_sums(call, read).to(normalizer.sum.dtype)


def pool(
    call: Call, normalizer: Normalizer, pooling: str, query_edges: Tensor, key_edges: Tensor
) -> tuple[Tensor, Tensor | None]:
    if call.query_offsets is None:
        return _dense_pool(call, normalizer, pooling, query_edges, key_edges)
    parts = enumerate(_split(call, normalizer))
    results = [_dense_pool(*part, pooling, query_edges[at, None], key_edges[at, None]) for at, part in parts]
    sizes = (call.query.shape[1], query_edges.shape[1] - 1, key_edges.shape[1] - 1)
    cells = torch.cat([normalizer.sum.new_zeros((0, *sizes)), *(cells for cells, _ in results)])
    if pooling == "sum":
        return cells, None
    positions = [x for _, x in results if x is not None]
    return cells, torch.cat([query_edges.new_zeros((0, *sizes, 2)), *positions])


def _of_sequence(request: RowStatisticsRequest, at: int) -> RowStatisticsRequest:
    """The same for one sequence of a ragged call."""
    if request.distance is None:
        return request
    mode, value, starts = request.distance
    if starts is None:
        return request
    return replace(request, distance=(mode, value, starts[at : at + 1]))


def _empty_sequence(call: Call, request: RowStatisticsRequest) -> tuple[Call, RowStatisticsRequest]:
    """A sequence without queries and keys, which gives the results of a batch without sequences their shape and dtype."""
    plain = replace(call.options, mask_program=())
    call = replace(call, query=call.query[:, :, :0], key=call.key[:, :, :0], value=call.value[:, :, :0], options=plain)
    call = replace(call, relative=None, bias=None, query_offsets=None, key_offsets=None)
    call = replace(call, mask_tensors=())
    return call, request if request.distance is None else replace(request, distance=(START_VALUE, 0, None))


def _split(call: Call, normalizer: Normalizer) -> list[tuple[Call, Normalizer]]:
    """The sequences of a ragged call, each with its part of the normalizer."""
    tiles.check_lengths()
    assert call.query_offsets is not None
    lengths = call.query_offsets.diff().tolist()
    softmax = zip(*(x.split(lengths, dim=2) for x in normalizer), strict=True)
    return [(part, Normalizer(*x)) for part, x in zip(split(call), softmax, strict=True)]


def _dense_rows(call: Call, request: RowStatisticsRequest) -> RowStatistics:
    """`rows` of a dense call: all tiles, or those with selected rows."""
    height, selection = tiles.height(call), request.selection
    if selection is None:
        return _join_rows([_row_tile(call, tile, request) for tile in tiles.tiles(call, height)])
    part, queries = tiles.select_heads(call, selection.sequences, selection.heads), selection.queries
    some = _join_rows(
        [_row_tile(part, tile, request) for tile in tiles.tiles(part, height, tiles.starts(queries, height))]
    )
    places = tiles.blocks(queries, height, call.query.shape[2])
    return each_field(lambda x: _place(x, call, selection, places), some)


def _join_rows(parts: Sequence[RowStatistics]) -> RowStatistics:
    """The rows of consecutive parts."""
    return each_field(lambda *x: torch.cat(x, dim=2), *parts)


def _dense_mass(call: Call, normalizer: Normalizer, program: MaskProgram, tensors: tuple[Tensor, ...]) -> Tensor:
    queries, keys = call.query.shape[2], call.key.shape[2]
    results = []
    for tile, weights_BHCK in _tiles_and_weights(call, normalizer):
        second_BHCK = visible(program, tensors, queries, keys, call.query.device, tile.rows)
        results.append(torch.where(second_BHCK, weights_BHCK, 0.0).sum(-1))
    return torch.cat(results, dim=2)


def _dense_received(call: Call, normalizer: Normalizer, row_weights: Tensor | None) -> Tensor:
    batch, heads, _, _ = call.query.shape
    # Summed in float64: a key may receive from a hundred thousand queries.
    sums_BHK = call.query.new_zeros((batch, heads, call.key.shape[2]), dtype=torch.float64)
    for tile, weights_BHCK in _tiles_and_weights(call, normalizer):
        if row_weights is not None:
            w_BHC1 = row_weights[:, :, tile.rows, None]
            weights_BHCK = torch.where(w_BHC1 == 0, 0.0, w_BHC1 * weights_BHCK)
        sums_BHK += weights_BHCK.sum(-2, dtype=torch.float64)
    return sums_BHK.to(normalizer.sum.dtype)


def _dense_pool(
    call: Call, normalizer: Normalizer, pooling: str, query_edges: Tensor, key_edges: Tensor
) -> tuple[Tensor, Tensor | None]:
    kind = MassCells if pooling == "sum" else MaxCells
    cells: MassCells | MaxCells = kind(call.query.shape[1], query_edges, key_edges, call.key.shape[2])
    for tile, weights_BHCK in _tiles_and_weights(call, normalizer):
        cells.add(tile, weights_BHCK)
    return cells.finish(normalizer.sum.dtype)


def weights(call: Call, normalizer: Normalizer, selection: Selection, keys: Tensor) -> Tensor:
    some = _pick(normalizer, selection)
    results = [some.sum.new_empty((*some.sum.shape[:2], 0, len(keys)))]
    for inside, tile in _selected(call, selection, keys):
        results.append(tiles.weights(tile, Normalizer(*(x[:, :, inside] for x in some))))
    return torch.cat(results, dim=2)


def scores(call: Call, selection: Selection, keys: Tensor) -> Tensor:
    """(sequences, heads, queries, keys): the scores s_ij of the selected rows, -inf where a key is hidden."""
    none = torch.empty(len(selection.sequences), len(selection.heads), 0, len(keys), device=keys.device)
    results = [tile.scores.masked_fill(~tile.visible, -torch.inf) for _, tile in _selected(call, selection, keys)]
    return torch.cat([none.to(compute_dtype(call.query.dtype)), *results], dim=2)


def _selected(call: Call, selection: Selection, keys: Tensor) -> Iterator[tuple[Tensor, Tile]]:
    """For each tile with selected rows: which of the selected queries it holds, and the tile of these and the given keys."""
    height, part = tiles.height(call), tiles.select_heads(call, selection.sequences, selection.heads)
    prepared = tiles.prepare(part, keys)
    assert prepared.columns is not None
    columns = torch.searchsorted(prepared.columns, keys)
    for start in tiles.starts(selection.queries, height):
        rows = torch.arange(start, min(start + height, call.query.shape[2]), device=keys.device)
        tile = tiles.tile(part, prepared, rows)
        inside = (selection.queries >= start) & (selection.queries < start + height)
        places = selection.queries[inside] - start
        result, seen = (x[:, :, places][..., columns] for x in (tile.scores, tile.visible))
        yield inside, Tile(selection.queries[inside], result, seen)


def each_field(function: Callable[..., Tensor], *parts: RowStatistics) -> RowStatistics:
    """The function applied to every field that is not None."""
    normalizers, *others = zip(*parts, strict=True)
    normalizer = Normalizer(*(function(*x) for x in zip(*normalizers, strict=True)))
    return RowStatistics(normalizer, *(None if x[0] is None else function(*x) for x in others))


def _place(x: Tensor, call: Call, selection: Selection, places: Tensor) -> Tensor:
    """The selected rows at their places among all rows; zeros elsewhere."""
    whole = x.new_zeros((*call.query.shape[:3], *x.shape[3:]))
    sequences, heads = (torch.tensor(numbers, device=x.device) for numbers in selection[:2])
    whole[sequences[:, None, None], heads[:, None], places] = x
    return whole


def _pick(normalizer: Normalizer, selection: Selection) -> Normalizer:
    """The normalizer of the selected rows."""
    sequences, heads = list(selection.sequences), list(selection.heads)
    return Normalizer(*(x[sequences][:, heads][:, :, selection.queries] for x in normalizer))


def _tiles_and_weights(call: Call, normalizer: Normalizer) -> Iterator[tuple[Tile, Tensor]]:
    """Every tile with its weights."""
    for tile in tiles.tiles(call, tiles.height(call)):
        yield tile, tiles.weights(tile, Normalizer(*(x[:, :, tile.rows] for x in normalizer)))


def _row_tile(call: Call, tile: Tile, request: RowStatisticsRequest) -> RowStatistics:
    normalizer = tiles.normalizer(call, tile)
    weights_BHCK = tiles.weights(tile, normalizer)
    top = _top(tile, weights_BHCK, request.top) if request.top else (None, None)
    return RowStatistics(
        normalizer=normalizer,
        output=_output(call, tile, weights_BHCK) if request.output else None,
        entropy=_entropy(weights_BHCK) if request.entropy else None,
        squares=weights_BHCK.square().sum(-1) if request.squares else None,
        distance=None if request.distance is None else _distance(call, tile, weights_BHCK, request.distance),
        top_weights=top[0],
        top_positions=top[1],
    )


def _output(call: Call, tile: Tile, weights_BHCK: Tensor) -> Tensor:
    value_BHKE = call.value.to(weights_BHCK.dtype).repeat_interleave(call.heads_per_key_head, dim=1)
    with without_autocast(value_BHKE.device):
        return mix(weights_BHCK, value_BHKE, tile.visible).to(call.query.dtype)


def _entropy(weights_BHCK: Tensor) -> Tensor:
    # A weight of 0 adds nothing, nor to derivatives: that of x log x is infinite at 0.
    return torch.special.entr(torch.where(weights_BHCK == 0, 1.0, weights_BHCK)).sum(-1)


def _distance(call: Call, tile: Tile, weights_BHCK: Tensor, start: tuple[int, int, Tensor | None]) -> Tensor:
    mode, value, starts = start
    firsts: dict[int, int | Tensor] = {START_LAST: call.key.shape[2] - call.query.shape[2], START_VALUE: value}
    first = firsts.get(mode)
    if first is None:
        assert starts is not None
        first = starts[:, None, None, None]
    distance_BHCK = torch.arange(call.key.shape[2], device=tile.rows.device) - tile.rows[:, None] - first
    return (weights_BHCK * distance_BHCK.abs()).sum(-1)


def _top(tile: Tile, weights_BHCK: Tensor, k: int) -> tuple[Tensor, Tensor]:
    # A stable sort, since torch.topk gives equal weights in any order; hidden keys come after visible ones of weight 0.
    order_BHCK, j_BHCK = torch.where(tile.visible, weights_BHCK, -1.0).sort(dim=-1, descending=True, stable=True)
    order_BHCk, j_BHCk = order_BHCK[..., :k], j_BHCK[..., :k]
    missing = (0, k - order_BHCk.shape[-1])
    order_BHCk = torch.nn.functional.pad(order_BHCk, missing, value=-1.0)
    j_BHCk = torch.nn.functional.pad(j_BHCk, missing, value=-1)
    is_none = order_BHCk == -1.0
    return torch.where(is_none, 0.0, order_BHCk), torch.where(is_none, -1, j_BHCk)


def _ranges(edges_BI: Tensor, positions: Tensor) -> Tensor:
    """(B, n): the range r of each position, edges[b, r] <= position < edges[b, r + 1]; the number of ranges for positions
    outside all of them."""
    count = edges_BI.shape[1] - 1
    result = torch.searchsorted(edges_BI, positions.expand(len(edges_BI), -1).contiguous(), right=True) - 1
    return torch.where(result < 0, count, result)


class MassCells:
    """Pooling by mass: the sum over the keys of a cell, the mean over the queries of its row range."""

    def __init__(self, heads: int, row_edges_BI: Tensor, column_edges_BJ: Tensor, keys: int) -> None:
        self._rows = row_edges_BI
        self._columns = column_edges_BJ.shape[1] - 1
        j_K = torch.arange(keys, device=column_edges_BJ.device)
        self._of_key = _ranges(column_edges_BJ, j_K)[:, None, None]
        sizes = (len(row_edges_BI), heads, row_edges_BI.shape[1], self._columns)
        # Summed in float64: a row range may hold a hundred thousand queries.
        self._sums = torch.zeros(sizes, dtype=torch.float64, device=row_edges_BI.device)

    def add(self, tile: Tile, weights_BHCK: Tensor) -> None:
        batch, heads, height, _ = weights_BHCK.shape
        per_row = weights_BHCK.new_zeros((batch, heads, height, self._columns + 1), dtype=torch.float64)
        per_row.scatter_add_(-1, self._of_key.expand(weights_BHCK.shape), weights_BHCK.double())
        per_row = per_row[..., : self._columns]
        of_row = _ranges(self._rows, tile.rows)[:, None, :, None].expand(per_row.shape)
        self._sums.scatter_add_(2, of_row, per_row)

    def finish(self, dtype: torch.dtype) -> tuple[Tensor, None]:
        queries_BI = self._rows.diff().clamp(min=1)
        return (self._sums[:, :, :-1] / queries_BI[:, None, :, None]).to(dtype), None


class MaxCells:
    """Pooling by maximum: the largest weight of a cell and its position; of equal ones the smallest query, then key. NaN
    counts as the largest."""

    def __init__(self, heads: int, row_edges_BI: Tensor, column_edges_BJ: Tensor, keys: int) -> None:
        self._rows = row_edges_BI
        self._columns = column_edges_BJ.shape[1] - 1
        self._j_K = torch.arange(keys, device=column_edges_BJ.device)
        self._of_key = _ranges(column_edges_BJ, self._j_K)[:, None, None]
        sizes = (len(row_edges_BI), heads, row_edges_BI.shape[1], self._columns)
        self._best = torch.full(sizes, -1.0, dtype=torch.float64, device=row_edges_BI.device)  # -1: nothing visible
        self._positions = torch.full((*sizes, 2), -1, device=row_edges_BI.device)

    def add(self, tile: Tile, weights_BHCK: Tensor) -> None:
        order_BHCK = torch.where(tile.visible, weights_BHCK.double().nan_to_num(nan=_INFINITY), -1.0)
        of_key = self._of_key.expand(order_BHCK.shape)
        j_BHCK = self._j_K.expand(order_BHCK.shape)
        best_BHCJ, key_BHCJ = _largest(order_BHCK, j_BHCK, of_key, -1, self._columns + 1)
        best_BHCJ, key_BHCJ = best_BHCJ[..., :-1], key_BHCJ[..., :-1]

        of_row = _ranges(self._rows, tile.rows)[:, None, :, None].expand(best_BHCJ.shape)
        i_BHCJ = torch.arange(len(tile.rows), device=of_row.device)[:, None].expand(best_BHCJ.shape)
        best_BHIJ, i_BHIJ = _largest(best_BHCJ, i_BHCJ, of_row, 2, self._best.shape[2])
        key_BHIJ = key_BHCJ.gather(2, i_BHIJ) if len(tile.rows) else i_BHIJ
        is_new = best_BHIJ > self._best  # of equal ones that of the earlier tile stays: its query is smaller
        result = torch.stack((i_BHIJ + tile.rows[:1].sum(), key_BHIJ), dim=-1)
        self._positions = torch.where(is_new[..., None], result, self._positions)
        self._best = torch.where(is_new, best_BHIJ, self._best)

    def finish(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        best = torch.where(self._best == _INFINITY, torch.nan, self._best.clamp(min=0.0))
        return best[:, :, :-1].to(dtype), self._positions[:, :, :-1]


def _largest(values: Tensor, positions: Tensor, group: Tensor, dimension: int, groups: int) -> tuple[Tensor, Tensor]:
    """The largest value of each group along a dimension and its first position; -1 and 0 for an empty group."""
    sizes = list(values.shape)
    sizes[dimension] = groups
    best = values.new_full(sizes, -1.0).scatter_reduce(dimension, group, values, "amax")
    none = torch.iinfo(torch.int64).max
    held = torch.where((values >= 0) & (values == best.gather(dimension, group)), positions, none)
    first = positions.new_full(sizes, none).scatter_reduce(dimension, group, held, "amin")
    return best, torch.where(first == none, 0, first)
