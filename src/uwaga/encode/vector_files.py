"""Files of vectors, as `uwaga encode` writes them: shards in a folder next to the parquet file, which is joined from them at the end.

    vectors.parquet.parts/.uwaga              marks the folder as made by uwaga, so that it may be removed
    vectors.parquet.parts/lock                locked while a command writes here
    vectors.parquet.parts/settings.json       what the vectors depend on, without the documents
    vectors.parquet.parts/DIGEST.arrow        a shard, named by the digest of its documents, which its metadata has too
    vectors.parquet.parts/DIGEST.sha256       the shard's size in bytes and its SHA-256; the shard is finished when this exists
    vectors.parquet                           all shards in the documents' order; the folder is removed then
    vectors.parquet.skipped.jsonl             documents that were left out: a line of place and reason for each

Each of these files is written atomically. A shard depends only on its documents and the settings, so that the file has the same bytes after
any interruptions and with any number of processes. Documents that are added or changed leave the shards of other documents as they are.

The settings may change as messages advise: overflow from "error" to another value, and to skip_invalid. Vectors stay the same then, and
shards that left documents out are encoded again. Each time a shard is read, its bytes are compared with its SHA-256. Shards of versions that
numbered them are encoded again.
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

_ROWS = 16_384  # rows of a row group at least, since smaller groups are slow to read
_KEY = b"uwaga"
_NO_SHARD = "is damaged: its metadata has no digest and number of documents"
_AGAIN = "remove it, and run the command again"
_OTHER_OUTPUT = "give the same options, or another output file, or move the file away"
_NOT_OURS = "exists already and was not made by uwaga encode; give another output file, or move it away"
_LOCK, _SETTINGS, _WHOLE = "lock", "settings.json", "whole.parquet"
_NAMES = re.compile(rf"{re.escape(_LOCK)}|{re.escape(_SETTINGS)}|{re.escape(_WHOLE)}|[0-9a-f]{{8,64}}\.(arrow|sha256)")


class VectorsError(ValueError):
    """Vectors cannot be written, or existing ones have other options or documents."""


class Shard(NamedTuple):
    """A shard that is finished."""

    digest: str  # of its documents
    documents: int
    rows: int = 0  # in a finished file
    skipped: int = 0  # of its documents, those that were left out of a finished file


class VectorFile:
    """A parquet file of vectors, written shard by shard in any order, and resumed.

    Args:
        path: path of the parquet file.
        settings: what the vectors depend on, without the documents; values of JSON by name.

    Raises:
        VectorsError: vectors with other settings exist, another command is writing, or the folder cannot be used.
    """

    def __init__(self, path: Path, settings: Mapping[str, object]) -> None:
        self.path, self._settings = path, dict(settings)
        self._folder = path.with_name(path.name + ".parts")
        self.skipped_path = path.with_name(path.name + ".skipped.jsonl")
        self.order: list[Shard] = []  # the shards in the documents' order
        self._left_out: dict[int, Sequence[tuple[str, str]]] = {}  # places and reasons, by the shard's index in `order`
        self._rows: dict[str, int] = {}  # rows of the finished shards, by digest
        self._replaces = False  # a finished file
        self._lock = ExitStack()
        self._is_removed = False

    def finished(self) -> tuple[str, list[Shard] | None, bool] | None:
        """Return what a finished file was made of, or None if there is no file. Raises VectorsError.

        The result is the digest of the documents, the shards (None if the file's version did not list them), and whether the settings are
        the same.
        """
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
        """Lock the folder. Raises VectorsError, CheckpointError, OSError.

        earlier: the shards of a finished file, whose vectors are used and which is replaced; None if there is no file.
        """
        with ExitStack() as held:
            try:
                durable.ensure_marked_folder(self._folder)
                held.enter_context(durable.file_lock(self._folder / _LOCK, wait=False))
            except BlockingIOError as error:
                raise VectorsError(f"{self._folder} is locked: another uwaga encode is writing there") from error
            except durable.PathConflictError as error:
                raise VectorsError(f"{error.filename} {error.strerror}") from error
            self._replaces = earlier is not None
            self._resume()
            for shard, table in _finished_shards(self.path, earlier or ()):
                if not os.path.lexists(_checksum_path(self._shard(shard))):
                    self._write(shard, table)
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
        elif not self._replaces and os.path.lexists(self.skipped_path):
            raise VectorsError(f"{self.skipped_path} exists already: move it away, or give another output file")
        with atomic_replace(settings) as file:
            file.write(json.dumps(self._settings, sort_keys=True, indent=2).encode())

    def _forget_left_out(self) -> None:
        """Mark the shards that left documents out as not finished. Raises VectorsError."""
        for path in self._folder.glob("*.arrow"):
            checksum = _checksum_path(path)
            if os.path.lexists(checksum) and (_metadata(self._read(path).schema) or {}).get("skipped"):
                durable.remove_files(self._folder, [checksum.name])

    def _has_shards(self) -> bool:
        return next(self._folder.glob("*.arrow"), None) is not None

    def expect(self, shard: Shard) -> None:
        """Add the next shard of the documents' order."""
        self.order.append(shard)

    def stored(self, shard: Shard) -> list[tuple[int, str]] | None:
        """Return number and reason of documents that a shard left out; None: not finished.

        Raises VectorsError: the shard is damaged.
        """
        from uwaga._base.options import Count, ListOf, OptionError, Text, read

        path = self._shard(shard)
        if not path.exists() or not os.path.lexists(_checksum_path(path)):
            return None
        table = self._read(path)
        match _metadata(table.schema):
            case {"digest": shard.digest, "documents": shard.documents, **others}:
                with suppress(OptionError):
                    skipped: list[tuple[int, str]] = read(ListOf[tuple[Count, Text]], others.get("skipped", []))
                    if all(number < shard.documents for number, _ in skipped):
                        self._rows[shard.digest] = len(table)
                        return skipped
        raise VectorsError(f"{path} {_NO_SHARD}; {_AGAIN}")

    def add(
        self, shard: Shard, columns: Mapping[str, Any], vectors: Any, skipped: Sequence[tuple[int, str]] = ()
    ) -> None:
        """Write a shard, in which `document` counts from 0. skipped: as `stored`. Raises OSError."""
        import pyarrow as pa

        flat = pa.array(vectors.reshape(-1))
        self._write(
            shard, pa.table({**columns, "vector": pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])}), skipped
        )

    def _write(self, shard: Shard, table: "pyarrow.Table", skipped: Sequence[tuple[int, str]] = ()) -> None:
        import pyarrow as pa

        described = {"digest": shard.digest, "documents": shard.documents}
        described |= {"skipped": list(skipped)} if skipped else {}
        table = table.replace_schema_metadata({_KEY: json.dumps(described)})
        self._rows[shard.digest] = len(table)
        path, content = self._shard(shard), pa.BufferOutputStream()
        with pa.ipc.new_file(content, table.schema) as writer:
            writer.write_table(table)
        written = content.getvalue()
        if path.exists():  # a kill between the two writes must not leave a shard with the checksum of another
            durable.remove_files(self._folder, [_checksum_path(path).name])
        with atomic_replace(path) as file:
            file.write(written)
        with atomic_replace(_checksum_path(path)) as file:
            file.write(f"{len(written)} {hashlib.sha256(written).hexdigest()}\n".encode())

    def leave_out(self, number: int, skipped: Sequence[tuple[str, str]]) -> None:
        """Record place and reason of documents that a shard left out, by its number in `order`."""
        self._left_out[number] = skipped

    def finish(self) -> Iterator["pyarrow.Table"]:
        """Join the shards to the parquet file, and yield row groups. Raises OSError, VectorsError."""
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
        if self._replaces:
            durable.replace_file(joined, self.path)
        else:
            durable.rename_noreplace(joined, self.path)
        durable.fsync(self.path.parent)
        self._remove()

    def leave(self) -> None:
        """Unlock the folder, and remove it if it has no finished shard."""
        if not self._is_removed and not self._has_shards():
            self._remove()
        self._unlock()

    def clear(self) -> None:
        """Remove the folder of a finished file, if uwaga made it and no other command is writing."""
        if os.path.lexists(self._folder) and durable.is_uwaga_folder(self._folder):
            if not any(self._folder.iterdir()):
                # A removal was interrupted at its last step. A lock would make the folder look like one that uwaga did not make.
                self._remove()
                return
            with suppress(BlockingIOError):
                self._lock.enter_context(durable.file_lock(self._folder / _LOCK, wait=False))
                self._remove()
            self._unlock()

    def _remove(self) -> None:
        with suppress(OSError):  # a folder that remains does no harm
            self._is_removed = True
            durable.remove_folder(self._folder, _NAMES)

    def _unlock(self) -> None:
        self._lock.close()
        # On Windows the lock is a file that exists until it is closed, and longer if another command has opened it.
        if self._is_removed and sys.platform == "win32":
            with suppress(OSError):
                durable.remove_folder(self._folder, re.compile(re.escape(_LOCK)))

    def _first_with_rows(self) -> "pyarrow.Table":
        """Return the first table that has rows. Raises VectorsError: all documents were left out."""
        result = next((table for table in self._tables() if len(table)), None)
        if result is None:
            count = sum(shard.documents for shard in self.order)
            skipped = next(iter(self._left_out.values()), [])
            reason = "; the first, {}: {}".format(*skipped[0]) if skipped else ""
            raise VectorsError(f"none of {count:,} documents can be encoded{reason}")
        return result

    def _write_skipped(self) -> None:
        """Write the list of documents that were left out, if there are any."""
        entries = [entry for number in sorted(self._left_out) for entry in self._left_out[number]]
        if not entries and not (self._replaces and os.path.lexists(self.skipped_path)):
            return
        with atomic_replace(self.skipped_path) as file:
            for entry in entries:
                file.write((json.dumps(dict(zip(("place", "reason"), entry, strict=True))) + "\n").encode())

    def _tables(self) -> Iterator["pyarrow.Table"]:
        """Yield the table of each shard, in order; `document` counts within the shard."""
        for shard in self.order:
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
        """Raise VectorsError if settings differ, with their values and what to do."""
        may_change = {"skip_invalid"} if theirs.get("skip_invalid") is None else set()
        if theirs.get("overflow") == "error":
            may_change |= {"overflow", "overlap"}
        names = (name for name in {**self._settings, **theirs} if name not in may_change)
        differing = [name for name in names if theirs.get(name) != self._settings.get(name)]
        if differing:
            lines = (f"\n  {name}: {theirs.get(name)!r} there, {self._settings.get(name)!r} now" for name in differing)
            raise VectorsError(f"{place} {what}:" + "".join(lines) + f"\n{way_out}")


def _finished_shards(path: Path, shards: Sequence[Shard]) -> "Iterator[tuple[Shard, pyarrow.Table]]":
    """Yield the shards of a finished file that left no documents out; `document` counts within each. Raises VectorsError."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import parquet

    if not shards:
        return
    try:
        with untrusted.open_regular(path) as raw, parquet.ParquetFile(raw, page_checksum_verification=True) as file:
            schema, first = file.schema_arrow, 0
            match _metadata(schema), file.metadata.num_rows:
                case {"shards": rows}, count if rows == [list(shard) for shard in shards]:
                    is_same = count == sum(shard.rows for shard in shards)
                case _:
                    is_same = False
            if not is_same:
                raise VectorsError(
                    f"{path} was changed meanwhile, or is damaged: run the command again, or move the file away"
                )
            groups, held = map(file.read_row_group, range(file.num_row_groups)), schema.empty_table()
            for shard in shards:
                while len(held) < shard.rows:
                    held = pa.concat_tables([held, next(groups)])
                table, held = held.slice(0, shard.rows), held.slice(shard.rows)
                # Without what Parquet adds to a schema, so that the new file has the bytes of vectors that were encoded now.
                columns = {name: table[name].combine_chunks() for name in table.column_names}
                columns["vector"] = pa.FixedSizeListArray.from_arrays(columns["vector"].flatten(), _width(path, schema))
                columns["document"] = pc.subtract(columns["document"], pa.scalar(first, pa.int64()))
                first += shard.documents
                if not shard.skipped:
                    yield shard, pa.table(columns)
    except VectorsError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, StopIteration) as error:
        raise VectorsError(f"{path} is damaged: {error}; move it away, and run the command again") from error


def _checksum_path(shard: Path) -> Path:
    return shard.with_suffix(".sha256")


def _checked(shard: Path) -> bytes:
    """Read the bytes of a shard. Raises OSError; ValueError: they have another SHA-256."""
    match = re.fullmatch(rb"([0-9]{1,15}) ([0-9a-f]{64})\n", untrusted.read_file(_checksum_path(shard), 81))
    if match is None:
        raise ValueError(f"{_checksum_path(shard).name} has no size and SHA-256")
    content = untrusted.read_file(shard, int(match[1]))
    if hashlib.sha256(content).hexdigest().encode() != match[2]:
        raise ValueError("its SHA-256 is another than when it was written")
    return content


def check_output(path: Path) -> None:
    """Raise VectorsError if a name does not end in .parquet, or its folder does not exist."""
    wrong = "" if path.parent.is_dir() else f"there is no folder {path.parent}"
    if path.suffix != ".parquet":
        wrong = "the name must end in .parquet"
    if wrong:
        raise VectorsError(f"{path}: {wrong}")


def _width(path: Path, schema: "pyarrow.Schema") -> int:
    """Return the width of the column of vectors. Raises VectorsError."""
    import pyarrow as pa

    index = schema.get_field_index("vector")
    result = schema.field(index).type if index >= 0 else None
    if not isinstance(result, pa.FixedSizeListType) or not pa.types.is_float32(result.value_type):
        raise VectorsError(f"{path}: the column 'vector' must hold lists of float32, not {result}")
    return int(result.list_size)


def _metadata(schema: "pyarrow.Schema") -> Any:
    """Return our metadata of a file; None if it has no such metadata, or if that is not JSON."""
    try:
        return untrusted.parse_json((schema.metadata or {})[_KEY])
    except (KeyError, ValueError, RecursionError):
        return None


def digest_of_shards(shards: Sequence[Shard]) -> str:
    """Compute the digest of all documents from the digests of the shards."""
    return hashlib.sha256("".join(shard.digest for shard in shards).encode()).hexdigest()
