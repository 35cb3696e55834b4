"""Files of vectors, as `uwaga encode` writes them: shards in a folder beside the parquet file, which are joined to it when all are finished.

    vectors.parquet.parts/.uwaga              marks the folder as made by uwaga, so that it may be removed
    vectors.parquet.parts/lock                held while a command writes here
    vectors.parquet.parts/settings.json       what the vectors depend on besides the documents
    vectors.parquet.parts/DIGEST.arrow        a shard, named by the digest of its documents, which its metadata has too
    vectors.parquet.parts/DIGEST.sha256       its size in bytes and its SHA-256, written after it: the shard is finished
    vectors.parquet                           all shards in the documents' order, when all are finished; the folder is removed then
    vectors.parquet.skipped.jsonl             documents that were left out: a line of place and reason for each

Each of these files is written atomically. A shard depends on its documents and the settings alone, whoever computes it and how often, so that
the file has the same bytes by any number of processes and however often the work was interrupted; documents that are added or mended
leave the shards of the others as they are. The settings may change as messages advise: overflow from "error" to another, and to
skip_invalid. Documents that have vectors have the same ones then, and shards that left documents out are encoded again. Whenever a shard is read, to resume or to join, its bytes are compared with its SHA-256.
One without a SHA-256 is not finished. Shards of versions that numbered them are encoded again.
"""

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
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
_AGAIN = "remove it, and run the command again"
_OTHER_OUTPUT = "give the same options, or another output file, or move the file away"
_NOT_OURS = "exists already and was not made by uwaga encode; give another output file, or move it away"
_NUMPY = b"\x93NUMPY"
_LOCK, _SETTINGS, _WHOLE = "lock", "settings.json", "whole.parquet"
_NAMES = re.compile(rf"{re.escape(_LOCK)}|{re.escape(_SETTINGS)}|{re.escape(_WHOLE)}|[0-9a-f]{{8,64}}\.(arrow|sha256)")


class VectorsError(ValueError):
    """Existing vectors were made with other options or from other documents, or vectors cannot be written."""


class Shard(NamedTuple):
    """A shard that is finished."""

    digest: str  # of its documents
    documents: int
    rows: int = 0  # in a finished file
    skipped: int = 0  # of its documents, those that were left out of a finished file


class VectorFile:
    """A parquet file of vectors that is written shard by shard, in any order, and resumed where that was interrupted.

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
        self.order: list[Shard] = []  # that of the documents
        self._left_out: dict[int, Sequence[tuple[str, str]]] = {}  # places and reasons, by the shard's number in it
        self._rows: dict[str, int] = {}  # of the shards that are finished, by digest
        self._earlier: _Earlier | None = None
        self._lock = ExitStack()
        self._is_removed = False

    def finished(self) -> tuple[str, list[Shard] | None, bool] | None:
        """The documents that a finished file was made of, or None if there is no file. Raises VectorsError.

        Returns their digest, the shards (None if the file's version did not list them), and whether the settings are the same."""
        from pyarrow import ArrowException, parquet

        from uwaga._base.options import Count, ListOf, OptionError, Text, read

        if not os.path.lexists(self.path):
            return None
        try:
            with untrusted.open_regular(self.path) as raw:  # pyarrow takes no name that is not UTF-8
                schema = parquet.read_schema(raw)
            match _metadata(schema):
                case {"settings": dict(settings), "digest": str(digest), **others}:
                    self._compare(settings, self.path, "exists already and was made with other options", _OTHER_OUTPUT)
                    shards = read(ListOf[tuple[Text, Count, Count, Count]] | None, others.get("shards"))
                    return digest, shards and [Shard(*row) for row in shards], settings == self._settings
        except (OSError, ArrowException, OptionError) as error:
            raise VectorsError(f"{self.path} {_NOT_OURS}") from error
        raise VectorsError(f"{self.path} {_NOT_OURS}")

    def begin(self, earlier: Sequence[Shard] | None = None) -> None:
        """Lock the folder. earlier: the shards of the finished file, which is replaced and whose vectors are taken; None: there is no file.
        Raises VectorsError, CheckpointError, OSError."""
        with ExitStack() as held:
            try:
                durable.ensure_marked_folder(self._folder)
                held.enter_context(durable.file_lock(self._folder / _LOCK, wait=False))
            except BlockingIOError as error:
                raise VectorsError(f"{self._folder} is locked: another uwaga encode is writing there") from error
            except durable.PathConflictError as error:
                raise VectorsError(f"{error.filename} {error.strerror}") from error
            if earlier is not None:
                self._earlier = _Earlier(self.path, earlier)
            self._resume()
            self._lock = held.pop_all()

    def _resume(self) -> None:
        settings = self._folder / _SETTINGS
        if self._has_shards():
            way_out = f"give the same options, another output file, or remove {self._folder} to begin again"
            theirs = untrusted.read_json(settings)
            self._compare(theirs, self._folder, "was begun with other options", way_out)
            if theirs == self._settings:
                return
            self._forget_left_out()
        elif self._earlier is None and os.path.lexists(self.skipped_path):
            raise VectorsError(f"{self.skipped_path} exists already: move it away, or give another output file")
        with atomic_replace(settings) as file:
            file.write(json.dumps(self._settings, sort_keys=True, indent=2).encode())

    def _forget_left_out(self) -> None:
        """Shards that left documents out are not finished any more. Raises VectorsError."""
        for path in self._folder.glob("*.arrow"):
            checksum = _checksum_path(path)
            if os.path.lexists(checksum) and (_metadata(self._read(path).schema) or {}).get("skipped"):
                durable.remove_files(self._folder, [checksum.name])

    def _has_shards(self) -> bool:
        return next(self._folder.glob("*.arrow"), None) is not None

    def expect(self, shard: Shard) -> None:
        """The next shard of the documents' order."""
        self.order.append(shard)

    def stored(self, shard: Shard) -> list[tuple[int, str]] | None:
        """The documents that a finished shard left out, by number and reason; None if the shard is not finished. Raises VectorsError: the
        shard is damaged."""
        if self._earlier is not None and shard.digest in self._earlier.places:
            self._rows[shard.digest] = self._earlier.places[shard.digest][1]
            return []
        path = self._shard(shard)
        if not path.exists() or not os.path.lexists(_checksum_path(path)):
            return None
        table = self._read(path)
        skipped = _skipped(_metadata(table.schema), shard)
        if skipped is None:
            raise VectorsError(f"{path} {_NO_SHARD}; {_AGAIN}")
        self._rows[shard.digest] = len(table)
        return skipped

    def add(
        self, shard: Shard, columns: Mapping[str, Any], vectors: Any, skipped: Sequence[tuple[int, str]] = ()
    ) -> None:
        """Write a shard. columns: `document` counts within it. skipped: as `stored` has them. Raises OSError."""
        import pyarrow as pa

        flat = pa.array(vectors.reshape(-1))
        table = pa.table({**columns, "vector": pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])})
        described = {"digest": shard.digest, "documents": shard.documents}
        described |= {"skipped": list(skipped)} if skipped else {}
        table = table.replace_schema_metadata({_KEY: json.dumps(described)})
        self._rows[shard.digest] = len(table)
        path, content = self._shard(shard), pa.BufferOutputStream()
        with pa.ipc.new_file(content, table.schema) as writer:
            writer.write_table(table)
        written = content.getvalue()
        if path.exists():  # or a kill between the two would leave a shard that its checksum does not fit
            durable.remove_files(self._folder, [_checksum_path(path).name])
        with atomic_replace(path) as file:
            file.write(written)
        with atomic_replace(_checksum_path(path)) as file:
            file.write(f"{len(written)} {hashlib.sha256(written).hexdigest()}\n".encode())

    def leave_out(self, number: int, skipped: Sequence[tuple[str, str]]) -> None:
        """List documents of a shard, by its number in the order, as left out: their places, and why."""
        self._left_out[number] = skipped

    def finish(self) -> Iterator["pyarrow.Table"]:
        """Join the shards to the parquet file; yields its row groups as they are written. Raises OSError, VectorsError."""
        from pyarrow import parquet

        first = self._first_with_rows()
        self._write_skipped()
        shards = [
            shard._replace(rows=self._rows[shard.digest], skipped=len(self._left_out.get(number, ())))
            for number, shard in enumerate(self.order)
        ]
        described = {"settings": self._settings, "digest": digest_of_shards(self.order), "shards": shards}
        schema = first.schema.with_metadata({_KEY: json.dumps(described, sort_keys=True)})
        joined = self._folder / _WHOLE
        with atomic_replace(joined) as file, parquet.ParquetWriter(
            file, schema, compression="none", use_dictionary=False, write_page_checksum=True
        ) as writer:  # fmt: skip
            for group in self._row_groups():
                writer.write_table(group.replace_schema_metadata(schema.metadata), row_group_size=len(group))
                yield group
        if self._earlier is None:
            durable.rename_noreplace(joined, self.path)
        else:
            self._earlier.close()
            durable.replace_file(joined, self.path)
        durable.fsync(self.path.parent)
        self._remove()

    def leave(self) -> None:
        """Unlock the folder; without a finished shard it is removed."""
        if self._earlier is not None:
            self._earlier.close()
        if not self._is_removed and not self._has_shards():
            self._remove()
        self._unlock()

    def clear(self) -> None:
        """Remove the folder of a finished file, if uwaga made it and no other command is writing."""
        if os.path.lexists(self._folder) and durable.is_uwaga_folder(self._folder):
            if not any(self._folder.iterdir()):
                # A removal was interrupted at its last step. A lock in a folder without a mark would make it a stranger's.
                self._remove()
                return
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
        result = next((table for table in self._tables() if len(table)), None)
        if result is None:
            count = sum(shard.documents for shard in self.order)
            skipped = next(iter(self._left_out.values()), [])
            reason = "; the first, {}: {}".format(*skipped[0]) if skipped else ""
            raise VectorsError(f"none of {count:,} documents can be encoded{reason}")
        return result

    def _write_skipped(self) -> None:
        """The list of all documents that were left out, if there are any."""
        entries = [entry for number in sorted(self._left_out) for entry in self._left_out[number]]
        if not entries and not (self._earlier is not None and os.path.lexists(self.skipped_path)):
            return
        with atomic_replace(self.skipped_path) as file:
            for entry in entries:
                file.write((json.dumps(dict(zip(("place", "reason"), entry, strict=True))) + "\n").encode())

    def _tables(self) -> Iterator["pyarrow.Table"]:
        """The table of each shard, in order; `document` counts within the shard."""
        for shard in self.order:
            if self._earlier is not None and shard.digest in self._earlier.places:
                yield self._earlier.table(shard.digest)
            else:
                yield self._read(self._shard(shard))

    def _row_groups(self) -> Iterator["pyarrow.Table"]:
        import pyarrow as pa
        import pyarrow.compute as pc

        waiting: list[pa.Table] = []
        first, last = 0, len(self.order) - 1
        for place, table in enumerate(self._tables()):
            if len(table):  # without rows, it may lack the column of ids
                numbers = pc.add(table["document"], pa.scalar(first, pa.int64()))
                table = table.set_column(table.schema.get_field_index("document"), "document", numbers)
                waiting.append(table.replace_schema_metadata(None))
            first += self.order[place].documents
            if sum(map(len, waiting)) >= _ROWS or (place == last and waiting):
                yield pa.concat_tables(waiting).combine_chunks()
                waiting = []

    def _read(self, path: Path) -> "pyarrow.Table":
        import pyarrow as pa

        try:
            with pa.ipc.open_file(_checked(path)) as reader:
                return reader.read_all()
        except (pa.ArrowException, OSError, ValueError) as error:
            raise VectorsError(f"{path} is damaged: {error}; {_AGAIN}") from error

    def _shard(self, shard: Shard) -> Path:
        return self._folder / f"{shard.digest}.arrow"

    def _compare(self, theirs: Mapping[str, object], place: Path, what: str, way_out: str) -> None:
        """Raises VectorsError, which lists the settings that differ, and says what can be done."""
        may_change = {"skip_invalid"} if theirs.get("skip_invalid") is None else set()
        if theirs.get("overflow") == "error":
            may_change |= {"overflow", "overlap"}
        names = (name for name in {**self._settings, **theirs} if name not in may_change)
        differing = [name for name in names if theirs.get(name) != self._settings.get(name)]
        if differing:
            lines = (f"\n  {name}: {theirs.get(name)!r} there, {self._settings.get(name)!r} now" for name in differing)
            raise VectorsError(f"{place} {what}:" + "".join(lines) + f"\n{way_out}")


class _Earlier:
    """The shards of a finished file, which has these now too, but those that left documents out. Raises VectorsError."""

    def __init__(self, path: Path, shards: Sequence[Shard]) -> None:
        from pyarrow import parquet

        self._path = path
        self.places: dict[str, tuple[int, int, int]] = {}  # first row, rows and first document, by digest
        row = document = 0
        for shard in shards:
            if not shard.skipped:
                self.places.setdefault(shard.digest, (row, shard.rows, document))
            row, document = row + shard.rows, document + shard.documents
        self._held: tuple[int, pyarrow.Table] | None = None  # the row group that was read last
        self._open = ExitStack()
        with self._reading():
            raw = self._open.enter_context(untrusted.open_regular(path))
            self._file = parquet.ParquetFile(raw, page_checksum_verification=True)
        match _metadata(self._file.schema_arrow):
            case {"shards": rows} if rows == [list(shard) for shard in shards] and self._file.metadata.num_rows == row:
                return
        self.close()
        raise VectorsError(f"{path} was changed meanwhile, or is damaged: run the command again, or move the file away")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        from pyarrow import ArrowException

        try:
            yield
        except VectorsError:
            raise
        except (ArrowException, OSError, ValueError, KeyError) as error:
            raise VectorsError(f"{self._path} is damaged: {error}; move it away, and run the command again") from error

    def table(self, digest: str) -> "pyarrow.Table":
        """The table of one shard; `document` counts within the shard."""
        import pyarrow as pa
        import pyarrow.compute as pc

        start, rows, document = self.places[digest]
        parts, first = [], 0
        with self._reading():
            for number in range(self._file.metadata.num_row_groups):
                count = self._file.metadata.row_group(number).num_rows
                if first < start + rows and start < first + count:
                    low, high = max(start, first), min(start + rows, first + count)
                    parts.append(self._row_group(number).slice(low - first, high - low))
                first += count
            table = pa.concat_tables(parts) if parts else self._row_group(0).slice(0, 0)
            # Without what Parquet adds to a schema: the file that is written is that of vectors that were encoded just now.
            columns = {name: table[name].combine_chunks() for name in table.column_names}
            width = _width(self._path, table.schema)
            columns["vector"] = pa.FixedSizeListArray.from_arrays(columns["vector"].flatten(), width)
            columns["document"] = pc.subtract(columns["document"], pa.scalar(document, pa.int64()))
            return pa.table(columns)

    def _row_group(self, number: int) -> "pyarrow.Table":
        if self._held is None or self._held[0] != number:
            self._held = (number, self._file.read_row_group(number))
        return self._held[1]

    def close(self) -> None:
        self._held = None
        self._file.close()
        self._open.close()


def _skipped(described: object, shard: Shard) -> list[tuple[int, str]] | None:
    """Return the documents that a shard's metadata lists as left out; None if the metadata is invalid or of another shard."""
    from uwaga._base.options import Count, ListOf, OptionError, Text, read

    match described:
        case {"digest": shard.digest, "documents": shard.documents, **others}:
            with suppress(OptionError):
                skipped: list[tuple[int, str]] = read(ListOf[tuple[Count, Text]], others.get("skipped", []))
                return skipped if all(number < shard.documents for number, _ in skipped) else None
    return None


def _checksum_path(shard: Path) -> Path:
    return shard.with_suffix(".sha256")


def _checked(shard: Path) -> bytes:
    """The bytes of a shard. Raises OSError, and ValueError if they are not those of its SHA-256."""
    match = re.fullmatch(rb"([0-9]{1,15}) ([0-9a-f]{64})\n", untrusted.read_file(_checksum_path(shard), 81))
    if match is None:
        raise ValueError(f"{_checksum_path(shard).name} has no size and SHA-256")
    content = untrusted.read_file(shard, int(match[1]))
    if hashlib.sha256(content).hexdigest().encode() != match[2]:
        raise ValueError("its SHA-256 is another than when it was written")
    return content


def check_output(path: Path, suffix: str) -> None:
    """Raises VectorsError: a name with another ending, or no folder."""
    wrong = "" if path.parent.is_dir() else f"there is no folder {path.parent}"
    if path.suffix != suffix:
        wrong = f"the name must end in {suffix}"
    if wrong:
        raise VectorsError(f"{path}: {wrong}")


def check_numpy(path: Path) -> None:
    """Raises VectorsError: as `check_output`, or a file that is no array of vectors."""
    check_output(path, ".npy")
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
        with untrusted.open_regular(vectors) as raw, parquet.ParquetFile(raw) as file, atomic_replace(path) as out:
            rows, width = file.metadata.num_rows, _width(vectors, file.schema_arrow)
            if (
                4 * rows * width > os.fstat(raw.fileno()).st_size
            ):  # they are stored as they are: this is no file of ours
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
    """The width of the column of vectors. Raises VectorsError."""
    import pyarrow as pa

    index = schema.get_field_index("vector")
    result = schema.field(index).type if index >= 0 else None
    if not isinstance(result, pa.FixedSizeListType) or not pa.types.is_float32(result.value_type):
        raise VectorsError(f"{path}: the column 'vector' must hold lists of float32, not {result}")
    return int(result.list_size)


def _metadata(schema: "pyarrow.Schema") -> Any:
    """Our metadata of a file; None if it has none, or if it is not JSON."""
    try:
        return untrusted.parse_json((schema.metadata or {})[_KEY])
    except (KeyError, ValueError, RecursionError):
        return None


def digest_of_shards(shards: Sequence[Shard]) -> str:
    """The digest of all documents, from those of the shards."""
    return hashlib.sha256("".join(shard.digest for shard in shards).encode()).hexdigest()
