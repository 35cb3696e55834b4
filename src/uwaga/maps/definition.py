"""Every statistic of a dense call as it is defined, tile by tile: what the reference engine is made of.

Functions and results as in spec.py; letters too, and C queries of a tile.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from uwaga._base.tracing import without_autocast
from uwaga.maps import tiles
from uwaga.maps.cells import MassCells, MaxCells
from uwaga.maps.narrow import narrow
from uwaga.maps.spec import Normalizer, Rows, RowsWanted, Selection
from uwaga.maps.tiles import Tile
from uwaga.ops.attention.call import START_LAST, START_VALUE, Call, compute_dtype
from uwaga.ops.attention.reference import mix
from uwaga.ops.mask_program import visible


def rows(call: Call, wanted: RowsWanted) -> Rows:
    """All rows, or the tiles that hold the selected ones."""
    height, selection = tiles.height(call), wanted.selection
    if selection is None:
        return join([_row_tile(call, tile, wanted) for tile in tiles.tiles(call, height)])
    part, queries = narrow(call, selection.sequences, selection.heads), selection.queries
    some = join([_row_tile(part, tile, wanted) for tile in tiles.tiles(part, height, tiles.starts(queries, height))])
    places = tiles.blocks(queries, height, call.query.shape[2])
    return _each(lambda x: _place(x, call, selection, places), some)


def join(parts: Sequence[Rows]) -> Rows:
    """Rows that follow each other."""
    return _each(lambda *x: torch.cat(x, dim=2), *parts)


def mass(call: Call, normalizer: Normalizer, program: tuple[int, ...], tensors: tuple[Tensor, ...]) -> Tensor:
    queries, keys = call.query.shape[2], call.key.shape[2]
    found = []
    for tile, weights_BHCK in _weighed(call, normalizer):
        second_BHCK = visible(program, tensors, queries, keys, call.query.device, tile.rows)
        found.append(torch.where(second_BHCK, weights_BHCK, 0.0).sum(-1))
    return torch.cat(found, dim=2)


def received(call: Call, normalizer: Normalizer, row_weights: Tensor | None) -> Tensor:
    batch, heads, _, _ = call.query.shape
    # Summed in float64: a key may receive from a hundred thousand queries.
    sums_BHK = call.query.new_zeros((batch, heads, call.key.shape[2]), dtype=torch.float64)
    for tile, weights_BHCK in _weighed(call, normalizer):
        if row_weights is not None:
            w_BHC1 = row_weights[:, :, tile.rows, None]
            weights_BHCK = torch.where(w_BHC1 == 0, 0.0, w_BHC1 * weights_BHCK)
        sums_BHK += weights_BHCK.sum(-2, dtype=torch.float64)
    return sums_BHK.to(normalizer.sum.dtype)


def pool(
    call: Call, normalizer: Normalizer, how: str, query_edges: Tensor, key_edges: Tensor
) -> tuple[Tensor, Tensor | None]:
    kind = {"mass": MassCells, "max": MaxCells}[how]
    cells = kind(call.query.shape[1], query_edges, key_edges, call.key.shape[2])
    for tile, weights_BHCK in _weighed(call, normalizer):
        cells.add(tile, weights_BHCK)
    return cells.finish(normalizer.sum.dtype)


def weights(call: Call, normalizer: Normalizer, selection: Selection, keys: Tensor) -> Tensor:
    some = _pick(normalizer, selection)
    found = [some.sum.new_empty((*some.sum.shape[:2], 0, len(keys)))]
    for inside, tile in _selected(call, selection, keys):
        found.append(tiles.weights(tile, Normalizer(*(x[:, :, inside] for x in some))))
    return torch.cat(found, dim=2)


def scores(call: Call, selection: Selection, keys: Tensor) -> Tensor:
    """(sequences, heads, queries, keys) of the selection: what softmax is taken of, -inf where a key is hidden."""
    none = torch.empty(len(selection.sequences), len(selection.heads), 0, len(keys), device=keys.device)
    found = [tile.scores.masked_fill(~tile.visible, -torch.inf) for _, tile in _selected(call, selection, keys)]
    return torch.cat([none.to(compute_dtype(call.query.dtype)), *found], dim=2)


def _selected(call: Call, selection: Selection, keys: Tensor) -> Iterator[tuple[Tensor, Tile]]:
    """The selected rows of each tile that holds some, with the wanted keys as columns; and which of them these are."""
    height, part = tiles.height(call), narrow(call, selection.sequences, selection.heads)
    prepared = tiles.prepare(part, keys)
    columns = torch.searchsorted(prepared.columns, keys)
    for start in tiles.starts(selection.queries, height):
        rows = torch.arange(start, min(start + height, call.query.shape[2]), device=keys.device)
        tile = tiles.tile(part, prepared, rows)
        inside = (selection.queries >= start) & (selection.queries < start + height)
        places = selection.queries[inside] - start
        found, seen = (x[:, :, places][..., columns] for x in (tile.scores, tile.visible))
        yield inside, Tile(selection.queries[inside], found, seen)


def _each(function: Callable[..., Tensor], *parts: Rows) -> Rows:
    """A function over the tensors of a field that are there, for every field."""
    normalizers, *others = zip(*parts, strict=True)
    normalizer = Normalizer(*(function(*x) for x in zip(*normalizers, strict=True)))
    return Rows(normalizer, *(None if x[0] is None else function(*x) for x in others))


def _place(x: Tensor, call: Call, selection: Selection, places: Tensor) -> Tensor:
    """The selected rows among all of them."""
    whole = x.new_zeros((*call.query.shape[:3], *x.shape[3:]))
    sequences, heads = (torch.tensor(numbers, device=x.device) for numbers in selection[:2])
    whole[sequences[:, None, None], heads[:, None], places] = x
    return whole


def _pick(normalizer: Normalizer, selection: Selection) -> Normalizer:
    sequences, heads = list(selection.sequences), list(selection.heads)
    return Normalizer(*(x[sequences][:, heads][:, :, selection.queries] for x in normalizer))


def _weighed(call: Call, normalizer: Normalizer) -> Iterator[tuple[Tile, Tensor]]:
    """Every tile with its weights."""
    for tile in tiles.tiles(call, tiles.height(call)):
        yield tile, tiles.weights(tile, Normalizer(*(x[:, :, tile.rows] for x in normalizer)))


def _row_tile(call: Call, tile: Tile, wanted: RowsWanted) -> Rows:
    normalizer = tiles.normalizer(call, tile)
    weights_BHCK = tiles.weights(tile, normalizer)
    top = _top(tile, weights_BHCK, wanted.top) if wanted.top else (None, None)
    return Rows(
        normalizer=normalizer,
        output=_output(call, tile, weights_BHCK) if wanted.output else None,
        entropy=_entropy(weights_BHCK) if wanted.entropy else None,
        squares=weights_BHCK.square().sum(-1) if wanted.squares else None,
        distance=None if wanted.distance is None else _distance(call, tile, weights_BHCK, wanted.distance),
        top_weights=top[0],
        top_positions=top[1],
    )


def _output(call: Call, tile: Tile, weights_BHCK: Tensor) -> Tensor:
    value_BHKE = call.value.to(weights_BHCK.dtype).repeat_interleave(call.heads_per_key_head, dim=1)
    with without_autocast(value_BHKE.device):
        return mix(weights_BHCK, value_BHKE, tile.visible).to(call.query.dtype)


def _entropy(weights_BHCK: Tensor) -> Tensor:
    # A weight of 0 has no part in it, in derivatives neither: that of x log x is infinite there.
    return torch.special.entr(torch.where(weights_BHCK == 0, 1.0, weights_BHCK)).sum(-1)


def _distance(call: Call, tile: Tile, weights_BHCK: Tensor, start: tuple[int, int, Tensor | None]) -> Tensor:
    mode, value, starts = start
    first = {START_LAST: call.key.shape[2] - call.query.shape[2], START_VALUE: value}.get(mode)
    first_B111 = starts[:, None, None, None] if first is None else first
    distance_BHCK = torch.arange(call.key.shape[2], device=tile.rows.device) - tile.rows[:, None] - first_B111
    return (weights_BHCK * distance_BHCK.abs()).sum(-1)


def _top(tile: Tile, weights_BHCK: Tensor, k: int) -> tuple[Tensor, Tensor]:
    # A stable sort, since torch.topk takes equal weights in no order; hidden keys come behind visible ones of weight 0.
    order_BHCK, j_BHCK = torch.where(tile.visible, weights_BHCK, -1.0).sort(dim=-1, descending=True, stable=True)
    order_BHCk, j_BHCk = order_BHCK[..., :k], j_BHCK[..., :k]
    missing = (0, k - order_BHCk.shape[-1])
    order_BHCk = torch.nn.functional.pad(order_BHCk, missing, value=-1.0)
    j_BHCk = torch.nn.functional.pad(j_BHCk, missing, value=-1)
    is_none = order_BHCk == -1.0
    return torch.where(is_none, 0.0, order_BHCk), torch.where(is_none, -1, j_BHCk)
