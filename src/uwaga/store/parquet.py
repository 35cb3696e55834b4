"""Rows of a soft database to and from Parquet.

id        int64
key       a list of H D float32, which holds every number of the database exactly
value     a list of H E float32, if the values are not the keys
tokens    of a TokenDatabase, in place of them: a list of vectors, lists of D float32
record    the record as a JSON object
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor

from uwaga._base import durable, untrusted
from uwaga._base.errors import DataError, SoftDatabaseError
from uwaga._base.terminal import printable
from uwaga.ops.ragged import Ragged
from uwaga.store.segments import StoredRow, StoredTokens, StoreSchema

_AT_ONCE = 4096  # rows of a row group
_TOKEN_ROWS_AT_ONCE = 256  # a row of them has some hundred vectors
_RECORD = "record"


def export(path: Path, rows: Iterable[StoredRow | StoredTokens], schema: StoreSchema) -> None:
    """Write all rows of a database to a Parquet file. Raises SoftDatabaseError."""
    import pyarrow as pa
    from pyarrow import parquet

    if schema.tokens:
        vectors = [("tokens", pa.list_(pa.list_(pa.float32(), schema.key_width)))]
    else:
        widths = {"key": schema.key_width} | ({} if schema.value_width is None else {"value": schema.value_width})
        vectors = [(name, pa.list_(pa.float32(), schema.heads * width)) for name, width in widths.items()]
    table_schema = pa.schema([("id", pa.int64()), *vectors, (_RECORD, pa.string())])
    try:
        with durable.atomic_replace(path) as file, parquet.ParquetWriter(file, table_schema) as writer:
            left = iter(rows)
            while part := list(islice(left, _AT_ONCE)):
                columns = [_vectors(part, name) for name, _ in vectors]
                numbers, records = [row.id for row in part], [json.dumps(row.record) for row in part]
                writer.write_table(pa.table([pa.array(numbers), *columns, records], schema=table_schema))
    except (OSError, pa.ArrowException) as error:
        raise SoftDatabaseError(f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}") from error


def _vectors(rows: list[Any], name: str) -> Any:
    """Return the column of a field of rows: a vector for each row, or for each of its tokens."""
    import pyarrow as pa

    tensors = [getattr(row, name) for row in rows]
    flat = (
        torch.cat([tensor.reshape(-1, tensor.shape[-1]) for tensor in tensors])
        if name == "tokens"
        else torch.stack(tensors).flatten(1)
    )
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(flat.float().flatten().numpy()), flat.shape[1])
    if name != "tokens":
        return vectors
    offsets = np.cumsum([0, *map(len, tensors)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), vectors)


def read(
    path: Path, schema: StoreSchema, names: Mapping[str, str]
) -> Iterator[tuple[dict[str, Tensor | Ragged], list[dict[str, Any]]]]:
    """Yield the vectors that `append` takes, by its arguments, and the records, of some rows at a time. names: of the
    column of each argument: "keys" and "values", or "tokens". Other columns are fields of the records. Raises
    DataError."""
    widths = {"keys": schema.key_width, "values": schema.value_width, "tokens": schema.key_width}
    columns_of = {argument: name for argument, name in names.items() if widths[argument] is not None}
    found, at_once = untrusted.ParquetRows(path, ()).names, _TOKEN_ROWS_AT_ONCE if schema.tokens else _AT_ONCE
    for name in columns_of.values():
        if name not in found:
            raise DataError(f"{path}: there is no column {printable(name)}")
    left_out = {"id", _RECORD, *columns_of.values(), *(() if schema.tokens else ("value",))}
    fields = [name for name in found if name not in left_out]
    columns = [*columns_of.values(), *fields, *([_RECORD] if _RECORD in found else [])]
    rows = untrusted.ParquetRows(path, columns).rows(at_once)
    while part := list(islice(rows, at_once)):
        vectors: dict[str, Tensor | Ragged] = {}
        for argument, name in columns_of.items():
            width = schema.heads * (widths[argument] or 0)
            tensors = [_numbers(place, name, row[name], width, several=schema.tokens) for place, row in part]
            if schema.tokens:
                vectors[argument] = Ragged.from_list(tensors)
            else:
                whole = torch.stack(tensors)
                vectors[argument] = whole if schema.heads == 1 else whole.unflatten(1, (schema.heads, -1))
        yield vectors, [_record(place, row, fields) for place, row in part]


def _numbers(place: str, name: str, value: object, width: int, *, several: bool) -> Tensor:
    """Return the vector of a row, (width,), or the vectors of its tokens, (n, width). Raises DataError."""
    is_good = _is_vector(value, width)
    if several:
        is_good = isinstance(value, list) and len(value) > 0 and all(_is_vector(vector, width) for vector in value)
    if not is_good:
        what = f"vectors, one at least, each a list of {width} numbers" if several else f"{width} numbers"
        raise DataError(f"{place}: {printable(name)} must be a list of {what}")
    with np.errstate(over="ignore"):
        result = np.array(value, np.float64).astype(np.float32)
    if not np.isfinite(result).all():
        raise DataError(f"{place}: {printable(name)} has a number that is NaN or infinite as float32")
    return torch.from_numpy(result)


def _is_vector(value: object, width: int) -> TypeGuard[list[Any]]:
    return isinstance(value, list) and len(value) == width and all(isinstance(x, int | float) for x in value)


def _record(place: str, row: Mapping[str, object], fields: list[str]) -> dict[str, Any]:
    """Return a record with these columns; fields of the record itself win."""
    values, text = {name: row[name] for name in fields}, row.get(_RECORD)
    if text is None:
        return values
    try:
        parsed = untrusted.parse_json(text, strict=False) if isinstance(text, str) else None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: {_RECORD} is not valid JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise DataError(f"{place}: {_RECORD} must hold a JSON object")
    if any(isinstance(value, float) and math.isnan(value) for value in parsed.values()):
        raise DataError(f"{place}: {_RECORD} has NaN")
    return values | parsed
