"""Check the arguments of `AttentionMap.of_paged`, and turn them into operands of a ragged call.

Letters: R requests, H query heads, G key/value heads, P blocks of the cache, S tokens of a block, T blocks of the longest request, N packed
tokens, D query/key width.
"""

import torch
from torch import Tensor

from uwaga._base.arguments import check
from uwaga._base.shapes import NamedShape, bind, shape_error
from uwaga.ops.attention.call import Call, KeyPages
from uwaga.ops.ragged import Operand, Ragged
from uwaga.ops.validation import check_integers, check_tensor, invalid

_NAME = "AttentionMap.of_paged"


def operands(
    query: Operand, key_cache: Tensor, block_table: Tensor, lengths: Tensor
) -> tuple[Ragged, Ragged, KeyPages]:
    """Return the queries, keys of the right shape whose memory is a single NaN, and the pages of the keys.

    Raises:
        ShapeError, ValueError: as `AttentionMap.of_paged`.
    """
    queries = _queries(query)
    _check_kinds(queries.values, key_cache, block_table, lengths)
    _check_shapes(queries, key_cache, block_table, lengths)
    blocks, size = key_cache.shape[:2]
    columns = block_table.shape[1]
    table_RT, lengths_R = block_table.long().contiguous(), lengths.long()
    if bool((bad := (lengths_R < 0) | (lengths_R > columns * size)).any()):
        r = int(bad.nonzero()[0])
        raise ValueError(
            f"{_NAME}: request {r} has {int(lengths_R[r])} keys, and its {columns} blocks of {size} hold 0 to {columns * size}"
        )
    is_read_RT = torch.arange(columns, device=table_RT.device) * size < lengths_R[:, None]
    if bool((bad := is_read_RT & ((table_RT < 0) | (table_RT >= blocks))).any()):
        r, t = bad.nonzero()[0].tolist()
        raise ValueError(
            f"{_NAME}: block {t} of request {r} is number {int(table_RT[r, t])}, and the cache has blocks 0 to {blocks - 1}"
        )
    offsets = torch.cat((lengths_R.new_zeros(1), lengths_R.cumsum(0)))
    # A reader of these keys in place of the pages would get NaN.
    memory = torch.full((), float("nan"), dtype=key_cache.dtype, device=key_cache.device)
    keys = Ragged(memory.expand(int(offsets[-1]), *key_cache.shape[2:]), offsets)
    table_RT = torch.where(is_read_RT, table_RT, 0)
    return queries, keys, KeyPages(key_cache.detach().transpose(1, 2), table_RT)


def check_no_gradients(call: Call, key_cache: Tensor) -> None:
    """Raise ValueError if autograd would record the map, as the gradient of a page would mix several requests."""
    operands_by_name = {"query": call.query, "bias": call.bias, "relative bias": call.relative, "sinks": call.sinks}
    operands_by_name |= {"key_cache": key_cache}
    for name, x in operands_by_name.items():
        if torch.is_grad_enabled() and x is not None and x.requires_grad:
            raise ValueError(
                f"{_NAME}: {name} requires a gradient, and maps of pages have no gradients; pass {name}.detach()"
            )


def read_keys(key: Operand, call: Call) -> Operand:
    """Return the keys of a map; keys in pages are copied to the shape of `key`."""
    if call.key_pages is None:
        return key
    if not isinstance(key, Ragged):
        keys_BGKD = call.key_pages.read(torch.arange(call.key.shape[2], device=call.key.device))
        return keys_BGKD.reshape(key.shape)
    table, rows = call.key_pages.table, []
    for row, length in enumerate(key.lengths.tolist()):
        one = call.key_pages._replace(table=table[row : row + 1])
        rows.append(one.read(torch.arange(length, device=table.device))[0].transpose(0, 1))
    return key.with_values(torch.cat([call.key.new_empty(0, *key.values.shape[1:]), *rows]))


def _queries(query: Operand) -> Ragged:
    """Return the queries as Ragged (N, H, D)."""
    values = query.values if isinstance(query, Ragged) else query
    if not isinstance(values, Tensor) or values.dim() != 3:
        kind = f"{tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise invalid(_NAME, "query", "Ragged with values (N, H, D), or a tensor (R, H, D)", kind)
    if isinstance(query, Ragged):
        return query
    return Ragged(query, torch.arange(len(query) + 1, device=query.device), max_length=1)


def _check_kinds(query: Tensor, key_cache: Tensor, block_table: Tensor, lengths: Tensor) -> None:
    """Raise ValueError unless each is a tensor with a fitting dtype and device."""
    for name, x, dimensions in (("key_cache", key_cache, 4), ("block_table", block_table, 2), ("lengths", lengths, 1)):
        if check_tensor(_NAME, name, x).dim() != dimensions:
            raise invalid(_NAME, name, f"of {dimensions} dimensions", f"{tuple(x.shape)}")
        check(
            x.device == query.device,
            f"{_NAME}: {name} must be on {query.device}, as the query is, not on {x.device}",
        )
    check_integers(_NAME, "block_table", block_table)
    check_integers(_NAME, "lengths", lengths)
    if key_cache.dtype != query.dtype:
        raise invalid(_NAME, "key_cache", f"{query.dtype}, as the query is", key_cache.dtype)


def _check_shapes(query: Ragged, key_cache: Tensor, block_table: Tensor, lengths: Tensor) -> None:
    """Raise ShapeError or ValueError unless the sizes fit together."""
    shapes = [
        NamedShape.of("query", query.values.shape, "N H D"),
        NamedShape.of("query.lengths", (len(query),), "R"),
        NamedShape.of("key_cache", key_cache.shape, "P S G D"),
        NamedShape.of("block_table", block_table.shape, "R T"),
        NamedShape.of("lengths", lengths.shape, "R"),
    ]
    bind(_NAME, shapes)
    heads, (_, size, groups, width) = query.values.shape[1], key_cache.shape
    if not (size and groups and width) or heads % groups:
        rule = "a block must hold at least one token, and H must be a multiple of G"
        raise shape_error(_NAME, rule, [shapes[0], shapes[2]], "key_cache", "does not fit")
