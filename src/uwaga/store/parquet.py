"""Rows of a soft database to and from Parquet.

id        int64
key       a list of H D float32, which holds every number of the database exactly
value     a list of H E float32, where the values are not the keys
tokens    of a TokenDatabase, in place of them: a list of vectors, lists of D float32
record    the record as a JSON object
"""

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
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


def export(path: Path, rows: Iterable[StoredRow], schema: StoreSchema) -> None:
    """See `SoftDatabase.export`. Raises SoftDatabaseError."""
    import pyarrow as pa

    columns = [("id", pa.int64()), ("key", pa.list_(pa.float32(), schema.heads * schema.key_width))]
    if schema.value_width is not None:
        columns.append(("value", pa.list_(pa.float32(), schema.heads * schema.value_width)))
    _export(path, rows, pa.schema([*columns, (_RECORD, pa.string())]), _table)


def export_tokens(path: Path, rows: Iterable[StoredTokens], width: int) -> None:
    """See `TokenDatabase.export`. Raises SoftDatabaseError."""
    import pyarrow as pa

    vectors = pa.list_(pa.list_(pa.float32(), width))
    _export(path, rows, pa.schema([("id", pa.int64()), ("tokens", vectors), (_RECORD, pa.string())]), _token_table)


def _export(path: Path, rows: Iterable[Any], schema: Any, table: Callable[[list[Any], Any], Any]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with durable.atomic_replace(path) as file, parquet.ParquetWriter(file, schema) as writer:
            left = iter(rows)
            while part := list(islice(left, _AT_ONCE)):
                writer.write_table(table(part, schema))
    except (OSError, pa.ArrowException) as error:
        raise SoftDatabaseError(f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}") from error


def read(
    path: Path, schema: StoreSchema, key: str, value: str
) -> Iterator[tuple[Tensor, Tensor | None, list[dict[str, Any]]]]:
    """Keys, values and records of each 4,096 rows. See `SoftDatabase.append_parquet`. Raises DataError."""
    vectors = {key: schema.key_width} | ({} if schema.value_width is None else {value: schema.value_width})
    rows = _checked(*_rows_and_fields(path, vectors, ("id", "value"), _AT_ONCE), vectors, schema.heads)
    while part := list(islice(rows, _AT_ONCE)):
        parts = {name: torch.from_numpy(np.stack([vector[name] for vector, _ in part])) for name in vectors}
        tensors = {name: _rows(parts[name], schema.heads) for name in vectors}
        yield tensors[key], tensors.get(value), [record for _, record in part]


def read_tokens(path: Path, width: int, tokens: str) -> Iterator[tuple[Ragged, list[dict[str, Any]]]]:
    """Vectors of tokens and records of each 256 rows. See `TokenDatabase.append_parquet`. Raises DataError."""
    rows, fields = _rows_and_fields(path, (tokens,), ("id",), _TOKEN_ROWS_AT_ONCE)
    while part := list(islice(rows, _TOKEN_ROWS_AT_ONCE)):
        texts = [_tokens_of(place, tokens, row[tokens], width) for place, row in part]
        yield Ragged.from_list(texts), [_record(place, row, fields) for place, row in part]


def _rows_and_fields(
    path: Path, vectors: Collection[str], left_out: Collection[str], at_once: int
) -> tuple[Iterator[tuple[str, dict[str, object]]], list[str]]:
    """The rows of a file with columns of vectors, each with its place, and which other columns are fields of records. Raises DataError."""
    names = untrusted.ParquetRows(path, ()).names
    for name in vectors:
        if name not in names:
            raise DataError(f"{path}: there is no column {printable(name)}")
    fields = [name for name in names if name not in {*vectors, *left_out, _RECORD}]
    wanted = [*vectors, *fields, *([_RECORD] if _RECORD in names else [])]
    return untrusted.ParquetRows(path, wanted).rows(at_once), fields


def _tokens_of(place: str, name: str, vectors: object, width: int) -> Tensor:
    """(n, D) of the tokens of a row. Raises DataError."""
    if not isinstance(vectors, list) or not vectors or not all(_is_vector(each, width) for each in vectors):
        raise DataError(
            f"{place}: {printable(name)} must be a list of vectors, one at least, each a list of {width} numbers"
        )
    return torch.from_numpy(_float32(place, name, vectors))


def _float32(place: str, name: str, numbers: list[Any]) -> np.ndarray:
    with np.errstate(over="ignore"):
        result = np.array(numbers, np.float64).astype(np.float32)
    if not np.isfinite(result).all():
        raise DataError(f"{place}: {printable(name)} has a number that is NaN or infinite as float32")
    return result


def _rows(vectors: Tensor, heads: int) -> Tensor:
    return vectors if heads == 1 else vectors.unflatten(1, (heads, -1))


def _checked(
    rows: Iterator[tuple[str, dict[str, object]]], fields: list[str], vectors: Mapping[str, int], heads: int
) -> Iterator[tuple[dict[str, np.ndarray], dict[str, Any]]]:
    """The vectors and the record of each row. Raises DataError."""
    for place, row in rows:
        results = {}
        for name, width in vectors.items():
            numbers = row[name]
            if not _is_vector(numbers, heads * width):
                raise DataError(f"{place}: {printable(name)} must be a list of {heads * width} numbers")
            results[name] = _float32(place, name, numbers)
        yield results, _record(place, row, fields)


def _is_vector(value: object, width: int) -> TypeGuard[list[Any]]:
    return isinstance(value, list) and len(value) == width and all(isinstance(x, int | float) for x in value)


def _record(place: str, row: Mapping[str, object], fields: list[str]) -> dict[str, Any]:
    """These columns, and over them the record's own."""
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


def _table(rows: list[StoredRow], schema: Any) -> Any:
    import pyarrow as pa

    columns = {"id": pa.array([row.id for row in rows]), _RECORD: [json.dumps(row.record) for row in rows]}
    for name in ("key", "value"):
        if name in schema.names:
            flat = torch.stack([getattr(row, name) for row in rows]).float().flatten()
            columns[name] = pa.FixedSizeListArray.from_arrays(pa.array(flat.numpy()), schema.field(name).type.list_size)
    return pa.table([columns[name] for name in schema.names], schema=schema)


def _token_table(rows: list[StoredTokens], schema: Any) -> Any:
    import pyarrow as pa

    offsets = np.cumsum([0, *(len(row.tokens) for row in rows)]).astype(np.int32)
    flat = torch.cat([row.tokens for row in rows]).float().flatten()
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(flat.numpy()), rows[0].tokens.shape[1])
    columns = [pa.array([row.id for row in rows]), pa.ListArray.from_arrays(pa.array(offsets), vectors)]
    return pa.table([*columns, [json.dumps(row.record) for row in rows]], schema=schema)
