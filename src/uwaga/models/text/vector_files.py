"""Files of vectors, as `uwaga encode` writes them: shards in a folder beside the parquet file, which are joined to it when all are finished.

    vectors.parquet.parts/.uwaga              marks the folder as made by uwaga, so that it may be removed
    vectors.parquet.parts/lock                held while a command writes here
    vectors.parquet.parts/settings.json       what the vectors depend on besides the documents
    vectors.parquet.parts/00000000.arrow      a shard, and in its metadata the digest of its documents
    vectors.parquet.parts/00000000.sha256     its size in bytes and its SHA-256, written after it: the shard is finished
    vectors.parquet                           all shards, when all are finished; the folder is removed then
    vectors.parquet.skipped.jsonl             documents that were left out: a line of place and reason for each

Each of these files is written atomically. A shard depends on its documents and the settings alone, so that the file has the
same bytes however often the work was interrupted. Whenever a shard is read, to resume or to join, its bytes are compared with its
SHA-256. One without a SHA-256 is not finished: it and those after it are encoded again. So are those of folders from before there were
any.
"""

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from uwaga._base import durable, untrusted
from uwaga._base.durable import atomic_replace

if TYPE_CHECKING:
    import pyarrow

# Shards are joined to row groups of at least so many rows: smaller ones are slow to read.
_ROWS = 16_384
_KEY = b"uwaga"
_NO_SHARD = "is damaged: its metadata has no digest and number of documents"
_OTHER_OUTPUT = "give the same options, or another output file, or move the file away"
_NOT_OURS = "exists already and was not made by uwaga encode; give another output file, or move it away"
_NUMPY = b"\x93NUMPY"
_LOCK, _SETTINGS, _WHOLE = "lock", "settings.json", "whole.parquet"
_NAMES = re.compile(rf"{re.escape(_LOCK)}|{re.escape(_SETTINGS)}|{re.escape(_WHOLE)}|[0-9]{{8}}\.(arrow|sha256)")


class VectorsError(ValueError):
    """Existing vectors were made with other options or from other documents, or vectors cannot be written."""


class Shard(NamedTuple):
    """A finished shard."""

    digest: str  # of its documents
    documents: int


class Skipped(NamedTuple):
    """A document that was left out."""

    place: str
    reason: str


class VectorFile:
    """A parquet file of vectors that is written shard by shard, and resumed where that was interrupted.

    Args:
        path: of the parquet file.
        settings: what the vectors depend on besides the documents; values of JSON by name.

    Raises:
        VectorsError: vectors with other settings exist, another command is writing, or the folder cannot be used.
    """

    def __init__(self, path: Path, settings: Mapping[str, object]) -> None:
        self.path, self._settings = path, dict(settings)
        self._folder = path.with_name(path.name + ".parts")
        self.skipped_path = path.with_name(path.name + ".skipped.jsonl")
        self.finished: list[Shard] = []
        self._lock = ExitStack()
        self._is_removed = False

    def finished_digest(self) -> str | None:
        """The digest of the documents of a finished file; None where there is no file. Raises VectorsError."""
        from pyarrow import ArrowException, parquet

        if not os.path.lexists(self.path):
            return None
        try:
            untrusted.stat_regular(self.path)
            match _metadata(parquet.read_schema(self.path)):
                case {"settings": dict(settings), "digest": str(digest)}:
                    self._compare(settings, self.path, "exists already and was made with other options", _OTHER_OUTPUT)
                    return digest
        except (OSError, ArrowException) as error:
            raise VectorsError(f"{self.path} {_NOT_OURS}") from error
        raise VectorsError(f"{self.path} {_NOT_OURS}")

    def begin(self) -> None:
        """Lock the folder, and find the finished shards. Raises VectorsError, OSError."""
        try:
            durable.ensure_marked_folder(self._folder)
            self._lock.enter_context(durable.file_lock(self._folder / _LOCK, wait=False))
        except BlockingIOError as error:
            raise VectorsError(f"{self._folder} is locked: another uwaga encode is writing there") from error
        except durable.PathConflictError as error:
            raise VectorsError(f"{error.filename} {error.strerror}") from error
        try:
            self._resume()
        except BaseException:
            self._lock.close()
            raise

    def _resume(self) -> None:
        settings = self._folder / _SETTINGS
        if self._shard(0).exists():
            way_out = f"give the same options, another output file, or remove {self._folder} to begin again"
            self._compare(_settings(settings), self._folder, "was begun with other options", way_out)
        else:
            if os.path.lexists(self.skipped_path):
                raise VectorsError(f"{self.skipped_path} exists already: move it away, or give another output file")
            with atomic_replace(settings) as file:
                file.write(json.dumps(self._settings, sort_keys=True, indent=2).encode())
        while (path := self._shard(len(self.finished))).exists() and os.path.lexists(_checksum_path(path)):
            match _metadata(self._read(path).schema):
                case {"digest": str(digest), "documents": int(documents)} if documents > 0:
                    self.finished.append(Shard(digest, documents))
                case _:
                    raise VectorsError(
                        f"{path} {_NO_SHARD}; remove it and the shards after it, and run the command again"
                    )

    def add(self, shard: Shard, columns: Mapping[str, Any], vectors: Any, skipped: Sequence[Skipped] = ()) -> None:
        """Write the next shard, and which of its documents were left out. Raises OSError."""
        import pyarrow as pa

        flat = pa.array(vectors.reshape(-1))
        table = pa.table({**columns, "vector": pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])})
        described = shard._asdict() | ({"skipped": skipped} if skipped else {})
        table = table.replace_schema_metadata({_KEY: json.dumps(described)})
        path, content = self._shard(len(self.finished)), pa.BufferOutputStream()
        with pa.ipc.new_file(content, table.schema) as writer:
            writer.write_table(table)
        written = content.getvalue()
        with atomic_replace(path) as file:
            file.write(written)
        with atomic_replace(_checksum_path(path)) as file:
            file.write(f"{len(written)} {hashlib.sha256(written).hexdigest()}\n".encode())
        self.finished.append(shard)

    def finish(self) -> Iterator["pyarrow.Table"]:
        """Join the shards to the parquet file; yields its row groups as they are written. Raises OSError, VectorsError."""
        from pyarrow import parquet

        first = self._first_with_rows()
        self._write_skipped()
        described = json.dumps({"settings": self._settings, "digest": digest_of_shards(self.finished)}, sort_keys=True)
        schema = first.schema.with_metadata({_KEY: described})
        joined = self._folder / _WHOLE
        with atomic_replace(joined) as file, parquet.ParquetWriter(
            file, schema, compression="none", use_dictionary=False
        ) as writer:  # fmt: skip
            for group in self._row_groups():
                writer.write_table(group.replace_schema_metadata(schema.metadata), row_group_size=len(group))
                yield group
        durable.rename_noreplace(joined, self.path)
        durable.fsync(self.path.parent)
        self._remove()

    def leave(self) -> None:
        """Unlock the folder; without a finished shard it is removed."""
        if not self.finished:
            self._remove()
        self._unlock()

    def clear(self) -> None:
        """Remove the folder of a finished file, where uwaga made it and no other command is writing."""
        if os.path.lexists(self._folder) and durable.is_uwaga_folder(self._folder):
            with suppress(BlockingIOError):
                self._lock.enter_context(durable.file_lock(self._folder / _LOCK, wait=False))
                self._remove()
            self._unlock()

    def _remove(self) -> None:
        with suppress(OSError):  # a folder that is left does no harm
            self._is_removed = True
            durable.remove_folder(self._folder, _NAMES)

    def _unlock(self) -> None:
        self._lock.close()
        # On Windows the lock is a file that stays until it is closed, and then unless another command has opened it.
        if self._is_removed and sys.platform == "win32":
            with suppress(OSError):
                durable.remove_folder(self._folder, re.compile(re.escape(_LOCK)))

    def _first_with_rows(self) -> "pyarrow.Table":
        """Raises VectorsError: every document was left out."""
        tables = map(self._read, map(self._shard, range(len(self.finished))))
        result = next((table for table in tables if len(table)), None)
        if result is None:
            count = sum(shard.documents for shard in self.finished)
            skipped = self._skipped(0)
            reason = f"; the first, {skipped[0].place}: {skipped[0].reason}" if skipped else ""
            raise VectorsError(f"none of {count:,} documents can be encoded{reason}")
        return result

    def _skipped(self, index: int) -> list[Skipped]:
        """The documents of a shard that were left out."""
        match _metadata(self._read(self._shard(index)).schema):
            case {"skipped": list(entries)}:
                return [Skipped(str(place), str(reason)) for place, reason in entries]
        return []

    def _write_skipped(self) -> None:
        """The list of all documents that were left out, if there are any."""
        entries = (entry for index in range(len(self.finished)) for entry in self._skipped(index))
        if (first := next(entries, None)) is None:
            return
        with atomic_replace(self.skipped_path) as file:
            for entry in (first, *entries):
                file.write((json.dumps(entry._asdict()) + "\n").encode())

    def _row_groups(self) -> Iterator["pyarrow.Table"]:
        import pyarrow as pa

        waiting: list[pa.Table] = []
        for index in range(len(self.finished)):
            table = self._read(self._shard(index)).replace_schema_metadata(None)
            waiting += [table] if len(table) else []  # without rows, it may lack the column of ids
            if sum(map(len, waiting)) >= _ROWS or (index + 1 == len(self.finished) and waiting):
                yield pa.concat_tables(waiting).combine_chunks()
                waiting = []

    def _read(self, path: Path) -> "pyarrow.Table":
        import pyarrow as pa

        try:
            with pa.ipc.open_file(_checked(path)) as reader:
                return reader.read_all()
        except (pa.ArrowException, OSError, ValueError) as error:
            raise VectorsError(
                f"{path} is damaged: {error}; remove it and the shards after it, and run the command again"
            ) from error

    def _shard(self, index: int) -> Path:
        return self._folder / f"{index:08d}.arrow"

    def _compare(self, theirs: Mapping[str, object], place: Path, what: str, way_out: str) -> None:
        """Raises VectorsError, which lists the settings that differ, and says what can be done."""
        differing = [name for name in {**self._settings, **theirs} if theirs.get(name) != self._settings.get(name)]
        if differing:
            lines = (f"\n  {name}: {theirs.get(name)!r} there, {self._settings.get(name)!r} now" for name in differing)
            raise VectorsError(f"{place} {what}:" + "".join(lines) + f"\n{way_out}")


def _checksum_path(shard: Path) -> Path:
    return shard.with_suffix(".sha256")


def _checked(shard: Path) -> bytes:
    """The bytes of a shard. Raises OSError, and ValueError where they are not those of its SHA-256."""
    match = re.fullmatch(rb"([0-9]{1,15}) ([0-9a-f]{64})\n", untrusted.read_file(_checksum_path(shard), 81))
    if match is None:
        raise ValueError(f"{_checksum_path(shard).name} has no size and SHA-256")
    content = untrusted.read_file(shard, int(match[1]))
    if hashlib.sha256(content).hexdigest().encode() != match[2]:
        raise ValueError("its SHA-256 is another than when it was written")
    return content


def check_numpy(path: Path) -> None:
    """Raises VectorsError: another ending, no folder, or a file that is no array of vectors."""
    if path.suffix != ".npy":
        raise VectorsError(f"{path}: the name must end in .npy")
    if not path.parent.is_dir():
        raise VectorsError(f"{path}: there is no folder {path.parent}")
    if os.path.lexists(path):
        try:
            with untrusted.open_regular(path) as file:
                is_ours = file.read(len(_NUMPY)) == _NUMPY
        except OSError as error:
            raise VectorsError(f"{path} cannot be read: {error.strerror}") from error
        if not is_ours:
            raise VectorsError(f"{path} exists already and is no NumPy array; give another file, or move it away")


def write_numpy(vectors: Path, path: Path) -> int:
    """The vectors of a finished file as a NumPy array (documents, width) of float32, row by row; returns the number of rows. Raises
    VectorsError."""
    from numpy.lib import format as numpy_format
    from pyarrow import ArrowException, parquet

    try:
        size = untrusted.stat_regular(vectors).st_size
        with parquet.ParquetFile(vectors) as file, atomic_replace(path) as out:
            rows, width = file.metadata.num_rows, _width(vectors, file.schema_arrow)
            if 4 * rows * width > size:  # they are stored as they are: this is no file of ours
                raise VectorsError(f"{vectors} is damaged: it is too small for {rows:,} vectors of {width:,} numbers")
            header = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
            numpy_format.write_array_header_1_0(out, header)
            for batch in file.iter_batches(batch_size=_ROWS, columns=["vector"]):
                numbers = batch.column(0).flatten().to_numpy(zero_copy_only=False).astype("<f4", copy=False)
                if len(numbers) != len(batch) * width:
                    raise VectorsError(f"{vectors} is damaged: a vector is missing")
                out.write(numbers.tobytes())
    except (ArrowException, OSError) as error:
        raise VectorsError(f"{vectors} cannot be written as {path}: {error}") from error
    return int(rows)


def _width(path: Path, schema: "pyarrow.Schema") -> int:
    """Of the column of vectors. Raises VectorsError."""
    import pyarrow as pa

    index = schema.get_field_index("vector")
    result = schema.field(index).type if index >= 0 else None
    if not isinstance(result, pa.FixedSizeListType) or not pa.types.is_float32(result.value_type):
        raise VectorsError(f"{path}: the column 'vector' must hold lists of float32, not {result}")
    return int(result.list_size)


def _metadata(schema: "pyarrow.Schema") -> Any:
    """Our metadata of a file; None where it has none, or where it is not JSON."""
    try:
        return untrusted.parse_json((schema.metadata or {})[_KEY])
    except (KeyError, ValueError, RecursionError):
        return None


def _settings(path: Path) -> dict[str, object]:
    """settings.json of a folder of shards. Raises VectorsError."""
    try:
        parsed = untrusted.parse_json(untrusted.read_file(path, untrusted.JSON_BYTES))
    except OSError as error:
        raise VectorsError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise VectorsError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise VectorsError(f"{path} must hold a JSON object, not {type(parsed).__name__}")
    return parsed


def digest_of_shards(shards: Sequence[Shard]) -> str:
    """The digest of all documents, from those of the shards."""
    return hashlib.sha256("".join(shard.digest for shard in shards).encode()).hexdigest()
