"""Segments of a soft database: immutable safetensors files of rows, mapped into memory.

    keys      (n, H, D)
    values    (n, H, E), absent if the values are the keys
    ids       (n,) int64, strictly rising, absent if they are consecutive
    offsets   (n+1,) int64, rising, if a row has a vector for each of some tokens: keys are then (N, D), and rows have neither
              values, centres nor radii
    centres   (c, H, D) float32: of every CHUNK rows a point, for bounds of their scores
    radii     (c, H) float32: no key of the chunk is farther from its centre

A checksum is the SHA-256 of one part of a file: the header, the bounds, and each chunk of rows (ids, keys, values), in this order,
so that damage can be told by rows.

Letters: n rows, N tokens, c chunks, H heads, D key width, E value width.
"""

import hashlib
import re
import secrets
import stat
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
from annotated_types import Ge, Le
from torch import Tensor

from uwaga._base import durable, safetensors_files, untrusted
from uwaga._base.errors import CheckpointError, SoftDatabaseError
from uwaga._base.options import Integer, Switch, options
from uwaga._base.terminal import printable

CHUNK = 1024  # rows of a checksum and a bound
TOKEN_CHUNK = 64  # rows of a checksum if they have vectors of tokens
_FORMAT = "uwaga.memory "  # and the version; the name that the package had when the first files were written
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
NAMES = re.compile(r"[0-9]{12}-[0-9a-f]{16}\.safetensors")
VERSION = 1  # of the files of a database: catalog and segments
MOST_IDS = 10**12  # ids are below: a name has 12 digits for one
_DIGEST = 32


_Width = Annotated[Integer, Ge(1), Le(2**20)]


@options
class StoreSchema:
    """The layout that all rows of a database share."""

    heads: _Width
    key_width: _Width
    value_width: _Width | None  # None: the values are the keys
    dtype: Literal["float32", "bfloat16", "float16"]
    tokens: Switch = False  # whether a row has a key for each token of a text


class Entry(NamedTuple):
    """The description of a segment in the database."""

    first_id: int
    last_id: int
    rows: int
    file: str
    checksums: bytes

    def among(self, ids: np.ndarray) -> np.ndarray:
        """Return the ids that are between its first and last."""
        return ids[(ids >= self.first_id) & (ids <= self.last_id)]

    @property
    def place(self) -> str:
        return f"rows {self.first_id} to {self.last_id}"


class SegmentFile(NamedTuple):
    """A segment that is mapped into memory."""

    entry: Entry
    keys: Tensor  # (n, H, D)
    values: Tensor  # (n, H, E); the keys if they are the values
    ids: np.ndarray | None  # (n,) int64; None: consecutive
    centres: Tensor  # (c, H, D) float32
    radii: Tensor  # (c, H) float32
    path: Path = Path()
    size: int = 0  # bytes of the file when it was opened
    offsets: Tensor | None = None  # (n+1,) int64 if a row has several keys, (N, D)

    @property
    def nbytes(self) -> int:
        """Return the bytes of keys and values."""
        return self.keys.nbytes + (self.values.nbytes if self.values is not self.keys else 0)

    def row_of(self, ids: np.ndarray) -> np.ndarray:
        """Return the rows of the ids that are in this segment; `ids` is rising."""
        ids = self.entry.among(ids)
        if self.ids is None:
            return ids - self.entry.first_id
        rows = np.searchsorted(self.ids, ids)
        return rows[self.ids[rows] == ids]


class StoredRow(NamedTuple):
    """A stored row."""

    id: int
    key: Tensor  # (D,), or (H, D) with several heads, in the dtype of the database
    value: Tensor  # (E,), or (H, E)
    record: Mapping[str, str | int | float]


class StoredTokens(NamedTuple):
    """A stored row that has vectors of tokens."""

    id: int
    tokens: Tensor  # (n, D), in the dtype of the database
    record: Mapping[str, str | int | float]


class Damage(NamedTuple):
    """A damaged part of a database."""

    file: str  # its name in the folder of the database
    first_id: int | None  # the rows that it concerns; None: all that the database describes
    last_id: int | None
    reason: str

    def __str__(self) -> str:
        rows = "" if self.first_id is None else f": rows {self.first_id} to {self.last_id}"
        return f"{self.file}{rows}: {self.reason}"


def new_name(first_id: int) -> str:
    """Return a name that no segment has had."""
    return f"{first_id:012d}-{secrets.token_hex(8)}.safetensors"


def write(path: Path, ids: np.ndarray, keys: Tensor, values: Tensor | None, offsets: Tensor | None) -> Entry:
    """Write a segment: complete, under its name and on the disk at return. Raises OSError. keys: (n, H, D), with values
    (n, H, E) or None; with offsets (n+1,) from 0 to N they are (N, D)."""
    first, last = int(ids[0]), int(ids[-1])
    rows = {"keys": keys.contiguous()}
    if values is not None:
        rows["values"] = values.contiguous()
    if offsets is not None:
        rows["offsets"] = offsets.contiguous()
    if last - first + 1 != len(ids):
        rows["ids"] = torch.from_numpy(np.ascontiguousarray(ids))
    chunks, bounds = _chunks(len(ids), rows), dict[str, Tensor]()
    if offsets is None:
        bounds = {"centres": torch.empty(chunks, *keys.shape[1:]), "radii": torch.empty(chunks, keys.shape[1])}
    header, places = safetensors_files.layout(
        {name: (tuple(x.shape), x.dtype) for name, x in (rows | bounds).items()}, {"format": f"{_FORMAT}{VERSION}"}
    )

    digests: list[bytes] = []
    with durable.atomic_create(path) as file:
        file.write(header)
        for number in range(chunks):
            parts = _chunk(rows, number)
            if bounds:
                bounds["centres"][number], bounds["radii"][number] = bound(keys[parts["keys"]])
            for name, part in parts.items():
                file.seek(places[name] + part.start * rows[name][0].nbytes)
                file.write(_bytes(rows[name][part]))
            digests.append(_digest(*(rows[name][part] for name, part in parts.items())))
        for name, x in bounds.items():
            file.seek(places[name])
            file.write(_bytes(x))
    checksums = b"".join([hashlib.sha256(header).digest(), _digest(*bounds.values()), *digests])
    return Entry(first, last, len(ids), path.name, checksums)


def bound(chunk: Tensor) -> tuple[Tensor, Tensor]:
    """Return the centre (H, D) and radius (H,) of keys (n, H, D); the radius is rounded up."""
    # A square of a difference is wrong by a few roundings, and the sum of D by at most D more.
    above = np.float32(1 + (chunk.shape[2] + 8) * 2.0**-23)
    exact = chunk.float().numpy()
    centre = exact.mean(0)
    difference = exact - centre
    radius = np.sqrt(np.einsum("nhd,nhd->nh", difference, difference).max(0)) * above
    return torch.from_numpy(centre), torch.from_numpy(radius)


def open_segment(folder: Path, entry: Entry, schema: StoreSchema) -> SegmentFile:
    """Map a segment into memory. Raises SoftDatabaseError, which names the file and its rows."""
    path = folder / entry.file
    place = f"{path} ({entry.place})"
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise SoftDatabaseError(f"{place}: is a symbolic link or not a regular file, which no segment is")
        file = safetensors_files.open_file(path)
    except FileNotFoundError as error:
        raise SoftDatabaseError(f"{place}: there is no such file") from error
    except OSError as error:
        raise SoftDatabaseError(f"{place}: cannot be read: {error.strerror or error}") from error
    except CheckpointError as error:
        raise SoftDatabaseError(f"{place}: is damaged: {error}") from error
    written = file.metadata.get("format", "")
    if written != f"{_FORMAT}{VERSION}":
        raise SoftDatabaseError(
            f"{place}: has the format {printable(written[:40])!r}, and this uwaga reads {_FORMAT}{VERSION}"
        )
    by_name = {name: (stored.shape, stored.dtype) for name, stored in file.stored.items()}
    tokens = by_name.get("keys", ((0,), ""))[0][0] if schema.tokens else 0
    expected = _expected(entry, schema, tokens)
    checksums = _DIGEST * (2 + _chunks(entry.rows, expected))
    if by_name != expected or len(entry.checksums) != checksums:
        raise SoftDatabaseError(f"{place}: its tensors, or their checksums, are not those that the catalog describes")
    keys = file.get("keys")
    ids = file.get("ids").numpy() if "ids" in expected else None
    if ids is not None and not (ids[0] == entry.first_id and ids[-1] == entry.last_id and (np.diff(ids) > 0).all()):
        raise SoftDatabaseError(f"{place}: is damaged: its ids do not rise from the first to the last")
    if schema.tokens:
        offsets = file.get("offsets")
        if not (offsets[0] == 0 and offsets[-1] == tokens and bool((offsets.diff() > 0).all())):
            raise SoftDatabaseError(f"{place}: is damaged: its offsets do not rise from 0 to {tokens}")
        empty = torch.zeros(0)
        return SegmentFile(entry, keys, keys, ids, empty, empty, path, status.st_size, offsets)
    values = file.get("values") if "values" in expected else keys
    return SegmentFile(entry, keys, values, ids, file.get("centres"), file.get("radii"), path, status.st_size)


def check(segment: SegmentFile) -> Iterator[Damage]:
    """Yield all damage of a segment: compare every byte with its checksum. The mapped bytes can be read after their file was removed."""
    entry = segment.entry
    with suppress(FileNotFoundError):
        if _header_digest(segment.path) != entry.checksums[:_DIGEST]:
            yield Damage(entry.file, entry.first_id, entry.last_id, "the header differs from its checksum")
    bounds = () if segment.offsets is not None else (segment.centres, segment.radii)
    if _digest(*bounds) != entry.checksums[_DIGEST : 2 * _DIGEST]:
        yield Damage(entry.file, entry.first_id, entry.last_id, "the bounds differ from their checksum")
    for rows in damaged_rows(segment):
        ends = np.array([rows.start, rows.stop - 1])
        first, last = (ends + entry.first_id if segment.ids is None else segment.ids[ends]).tolist()
        yield Damage(entry.file, first, last, "the rows differ from their checksum")


def damaged_rows(segment: SegmentFile) -> Iterator[range]:
    """Yield the rows of each chunk that differs from its checksum."""
    checksums, rows = segment.entry.checksums, segment.entry.rows
    tensors = {"keys": segment.keys}
    if segment.offsets is not None:
        tensors["offsets"] = segment.offsets
    if segment.values is not segment.keys:
        tensors["values"] = segment.values
    if segment.ids is not None:
        tensors["ids"] = torch.from_numpy(segment.ids)
    size = _chunk_rows(tensors)
    for number in range(_chunks(rows, tensors)):
        begin = _DIGEST * (2 + number)
        parts = _chunk(tensors, number)
        if _digest(*(tensors[name][part] for name, part in parts.items())) != checksums[begin : begin + _DIGEST]:
            yield range(number * size, min((number + 1) * size, rows))


def _chunk_rows(names: Container[str]) -> int:
    """Return the number of rows of a chunk, for a segment that has tensors of these names."""
    return TOKEN_CHUNK if "offsets" in names else CHUNK


def _chunks(rows: int, names: Container[str]) -> int:
    return -(-rows // _chunk_rows(names))


def _chunk(tensors: Mapping[str, Tensor], number: int) -> dict[str, slice]:
    """Return the part of each tensor that is in a chunk, in the order of its checksum."""
    size = _chunk_rows(tensors)
    rows = slice(number * size, (number + 1) * size)
    if "offsets" not in tensors:
        return {name: rows for name in ("ids", "keys", "values") if name in tensors}
    offsets = slice(rows.start, rows.stop + 1)
    inside = tensors["offsets"][offsets]
    parts = {"offsets": offsets, "keys": slice(int(inside[0]), int(inside[-1]))}
    return {"ids": rows} | parts if "ids" in tensors else parts


def _expected(entry: Entry, schema: StoreSchema, tokens: int) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return the shape and dtype of each tensor of a segment; `tokens` is the N of its keys."""
    rows, heads, width = entry.rows, schema.heads, schema.key_width
    if schema.tokens:
        expected = {"keys": ((tokens, width), schema.dtype), "offsets": ((rows + 1,), "I64")}
    else:
        chunks = _chunks(rows, ())
        expected = {"keys": ((rows, heads, width), schema.dtype)}
        expected |= {"centres": ((chunks, heads, width), "float32"), "radii": ((chunks, heads), "float32")}
    if schema.value_width is not None:
        expected["values"] = ((rows, heads, schema.value_width), schema.dtype)
    if entry.last_id - entry.first_id + 1 != rows:
        expected["ids"] = ((rows,), "I64")
    return expected


def _header_digest(path: Path) -> bytes:
    with untrusted.open_regular(path) as file:
        length = file.read(8)
        return hashlib.sha256(length + file.read(min(int.from_bytes(length, "little"), untrusted.JSON_BYTES))).digest()


def _digest(*tensors: Tensor) -> bytes:
    whole = hashlib.sha256()
    for tensor in tensors:
        whole.update(_bytes(tensor))
    return whole.digest()


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().data
