"""Reading untrusted files: only regular ones are opened, and sizes are bounded. Every reader of the package goes through here.

Symbolic links are followed, but only to regular files: a named pipe would block, and a device may never end. Sizes are checked
before memory or time is spent. The limits:

    JSON_BYTES          config.json and all other small JSON, the header of a safetensors file, the pickle of torch.save
    JSON_CONTAINERS     objects and lists of such a JSON text; about 300 bytes each in memory
    JSON_VALUES         its values and keys, counted by commas and colons
    JSON_DEPTH          its nesting of objects and lists
    TOKENIZER_BYTES     tokenizer.json; the largest ones in use have about 35 million
    TOKENIZER_CONTAINERS, TOKENIZER_VALUES      of it, as of other JSON
    TOKENIZER_IDS       its ids, since tables with an entry for each are allocated; the largest vocabularies in use have 262,144
    TOML_BYTES          a configuration of training
    TOML_KEY_PARTS      parts of a dotted key; tomllib's time is quadratic in their number
    LINE_BYTES          a line of text, or a whole text
    DECOMPRESSION_RATIO      decompressed bytes per byte of gzip or parquet, beyond the first LINE_BYTES of a file

Tensors need no limit of their own: their sizes are compared with the size of the file (`uwaga._base.safetensors_files`,
`uwaga.models.checkpoints.torch_files`) and their shapes with what config.json describes, before anything is allocated.
"""

import errno
import gzip
import hashlib
import json
import math
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar, cast

from uwaga._base.arguments import check
from uwaga._base.errors import CheckpointError, DataError
from uwaga._base.terminal import printable

JSON_BYTES = 16 * 2**20
JSON_CONTAINERS = 500_000
JSON_VALUES = 2_000_000
JSON_DEPTH = 100
TOKENIZER_BYTES = 64 * 2**20
TOKENIZER_IDS = 2**22
TOKENIZER_CONTAINERS = 2_000_000
TOKENIZER_VALUES = 8_000_000
TOML_BYTES = 2**18
TOML_KEY_PARTS = 32
LINE_BYTES = 2**26
DECOMPRESSION_RATIO = 200

_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # at the beginning of a file, from some editors; not part of the text
# Possessive quantifiers, and a lookbehind to start only at the beginning of a part: linear time.
_KEY_PART = rb"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+"""
_LONG_KEY = re.compile(rb"(?<![\w-])(?:%s\.[ \t]*+){%d}" % (_KEY_PART, TOML_KEY_PARTS))

# Python parses such a number, but str() of it raises ValueError.
_LONG_NUMBER = re.compile(r"0[xob][0-9a-fA-F_]{257}")


class TextFileError(DataError):
    """A file of text that cannot be read; the message begins with the file, and the line where there is one."""


class DamagedGzipError(TextFileError):
    """A damaged gzip file.

    Attributes:
        reason: what is wrong, without the file.
    """

    def __init__(self, path: Path, error: Exception) -> None:
        self.reason = f"the gzip file is damaged: {error}"
        super().__init__(f"{path}: {self.reason}")


def stat_regular(path: Path) -> os.stat_result:
    """Return the os.stat_result of a regular file, symbolic links followed. Raises OSError where it is absent or not a regular file."""
    try:
        result = path.stat()
    except ValueError as error:  # a NUL character, or a lone surrogate
        raise OSError(errno.EINVAL, "the name has a character that is not allowed in file names", str(path)) from error
    _check_regular(result, path)
    return result


def _check_regular(status: os.stat_result, path: Path) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))


@contextmanager
def open_regular(path: Path) -> Iterator[BufferedReader]:
    """Open a regular file to read its bytes. Raises OSError."""
    stat_regular(path)  # before it is opened: opening a device may have side effects
    # O_NONBLOCK: a named pipe may have replaced the file in the meantime, and would block. Windows has neither pipes nor that flag.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(descriptor, "rb") as file:
        _check_regular(os.fstat(descriptor), path)
        yield file


def read_file(path: Path, most: int) -> bytes:
    """Return all bytes of a regular file. Raises OSError, also if there are more than `most`."""
    with open_regular(path) as file:
        return read_stream(file, str(path), most)


def read_stream(stream: BinaryIO, name: str, most: int) -> bytes:
    """Return all bytes of a stream, such as standard input. Raises OSError if there are more than `most`."""
    result = stream.read(most + 1)
    if len(result) > most:
        raise OSError(errno.EFBIG, f"it is longer than {most:,} bytes", name)
    return result


def read_file_if_exists(path: Path, most: int) -> bytes | None:
    """Return what read_file returns, or None if the file is absent. Raises OSError, also for a dangling symbolic link."""
    try:
        return read_file(path, most)
    except FileNotFoundError:
        if path.is_symlink():
            raise
        return None


def sha256(path: Path, most: int | None = None) -> str:
    """Return the hexadecimal SHA-256 digest of a regular file. Raises OSError, also where it has more than `most` bytes."""
    with open_regular(path) as file:
        if most is not None and os.fstat(file.fileno()).st_size > most:
            raise OSError(errno.EFBIG, f"it is longer than {most:,} bytes", str(path))
        return hashlib.file_digest(file, "sha256").hexdigest()


# JSON

_WORDS = {dict: "object", list: "list"}
_T = TypeVar("_T", dict, list)


def read_json(path: Path, of: type[_T] = dict, *, missing_ok: bool = False) -> _T:  # type: ignore[assignment]  # mypy supports no defaults of type variables
    """Return the content of a JSON file, of the type `of`: an object (dict) or a list. Raises CheckpointError.

    missing_ok: where the file does not exist, the result is empty.
    """
    try:
        text = read_file_if_exists(path, JSON_BYTES) if missing_ok else read_file(path, JSON_BYTES)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise CheckpointError(f"{path} is longer than {JSON_BYTES} bytes of JSON") from error
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    return of() if text is None else json_of(text, str(path), of)


def json_of(text: bytes, where: str, of: type[_T] = dict) -> _T:  # type: ignore[assignment]
    """Parse bytes as `read_json` parses a file; `where` names them in errors."""
    try:
        value = parse_json(text)
    except RecursionError:
        raise CheckpointError(f"{where} is nested too deeply") from None
    except ValueError as error:  # invalid JSON or UTF-8, a number with too many digits, or a limit
        raise CheckpointError(f"{where} is not valid JSON: {error}") from error
    if not isinstance(value, of):
        raise CheckpointError(f"{where} must contain a JSON {_WORDS[of]}, not {type(value).__name__}")
    return value


def parse_json(text: bytes | str, *, strict: bool = True) -> Any:
    """Return a parsed JSON text. Duplicate keys of an object are an error.

    strict: lone surrogates in strings are errors too, and numbers that are NaN, infinite or beyond the largest float64.

    Raises:
        ValueError: not valid JSON, or larger than the limits above.
        RecursionError: nested deeper than JSON_DEPTH.
    """
    text = text.encode() if isinstance(text, str) else text
    check_json_size(text, JSON_CONTAINERS, JSON_VALUES)
    parsed = json.loads(
        text.decode("utf-8"), object_pairs_hook=_without_duplicates, parse_constant=_no_constant if strict else None
    )
    _check(parsed, strict=strict)
    return parsed


def check_json_size(text: bytes, containers: int, values: int) -> None:
    """Raise ValueError if a JSON text has more objects and lists, or more keys and values, than that; counted by bytes, before
    it is parsed."""
    check(text.count(b"{") + text.count(b"[") <= containers, f"more than {containers:,} objects and lists")
    check(text.count(b",") + text.count(b":") <= values, f"more than {values:,} keys and values")


def check_json_depth(value: object) -> None:
    """Raise RecursionError if a parsed JSON value is nested deeper than JSON_DEPTH."""
    _check(value, strict=False)


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen = set[str]()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"{printable(key)} is a duplicate key")
            seen.add(key)
    return result


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON number")


def _check(value: object, *, strict: bool) -> None:
    """Check depth, and where `strict` strings and numbers. Iterative, in linear time."""
    level, depth = [value], 0
    while level:
        below: list[object] = []
        for item in level:
            if isinstance(item, dict):
                if strict:
                    below += item
                below += item.values()
            elif isinstance(item, list):
                below += item
            elif strict:
                _check_scalar(item)
        depth += any(isinstance(item, dict | list) for item in level)
        if depth > JSON_DEPTH:
            raise RecursionError(f"nested deeper than {JSON_DEPTH}")
        level = below


def _check_scalar(value: object) -> None:
    if isinstance(value, str):
        if not value.isascii():
            _check_surrogates(value)
    elif (isinstance(value, float) and not math.isfinite(value)) or (
        isinstance(value, int) and value.bit_length() > 1023
    ):
        raise ValueError("a number is beyond the largest float64")


def _check_surrogates(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the string {printable(text)} has a lone surrogate") from error


# TOML


def check_toml_size(text: str) -> None:
    """Raise ValueError for TOML on which tomllib would take quadratic time."""
    check(len(text) <= TOML_BYTES, f"longer than {TOML_BYTES:,} characters")
    long_key = _LONG_KEY.search(text.encode("utf-8", "surrogatepass"))
    check(long_key is None, f"a key of more than {TOML_KEY_PARTS} parts")
    check(_LONG_NUMBER.search(text) is None, "a number of more than 256 digits")


# Text, plain or gzip-compressed


class DecompressedFile:
    """The bytes of a file, decompressed where its name ends in .gz; made by `unpacked`."""

    def __init__(self, path: Path, raw: BinaryIO) -> None:
        self._path, self._raw = path, raw
        self._file = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if path.suffix == ".gz" else raw
        self._count = 0

    @property
    def position(self) -> int:
        """Return how many bytes of the file were read, before decompression."""
        return self._raw.tell()

    def read(self, size: int) -> bytes:
        return self._checked(self._file.read(size))

    def readline(self, size: int) -> bytes:
        return self._checked(self._file.readline(size))

    def _checked(self, content: bytes) -> bytes:
        self._count += len(content)
        if self._count > LINE_BYTES:
            check_decompression_ratio(self._path, self._raw.tell(), self._count)
        return content


def check_decompression_ratio(path: Path, compressed: int, decompressed: int) -> None:
    """Raise TextFileError if the ratio of decompressed to compressed bytes is above DECOMPRESSION_RATIO."""
    if decompressed > LINE_BYTES and decompressed > DECOMPRESSION_RATIO * compressed:
        raise TextFileError(
            f"{path}: {compressed:,} compressed bytes decompress to {decompressed:,}: more than {DECOMPRESSION_RATIO} per "
            "byte; a text does not, but an attack may"
        )


@contextmanager
def open_decompressed(path: Path) -> Iterator[DecompressedFile]:
    """Open a file, and decompress it if its name ends in .gz. Raises TextFileError, also for errors while it is read."""
    try:
        with open_regular(path) as raw:
            yield DecompressedFile(path, raw)
    except FileNotFoundError:
        raise TextFileError(f"{path}: there is no such file") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DamagedGzipError(path, error) from error
    except OSError as error:
        raise TextFileError(f"{path}: cannot be read: {error.strerror or error}") from error


class Line(NamedTuple):
    """A line of text, without its line ending."""

    place: str  # file:number, for messages
    text: str
    position: int  # how many bytes of the file were read so far, approximately
    error: TextFileError | None = None  # why it has no text, where invalid lines are kept


def read_lines(path: Path, most: int = LINE_BYTES, *, keep_invalid: bool = False) -> Iterator[Line]:
    """Return the lines of a UTF-8 file.

    Raises TextFileError, also for a line of more than `most` bytes or one that is not UTF-8, unless keep_invalid: such a line is
    empty then, and has the error.
    """
    number = 0
    with open_decompressed(path) as file:
        while line := file.readline(most + 1):
            number += 1
            place = f"{path}:{number}"
            try:
                text, error = _decoded(place, line, most, is_first=number == 1), None
            except TextFileError as invalid:
                if not keep_invalid:
                    raise
                text, error = "", invalid
            yield Line(place, text, file.position, error)
            while error is not None and len(line) > most and not line.endswith(b"\n"):
                line = file.readline(most + 1)  # the rest of a line that is too long, if its reader goes on


def _decoded(place: str, line: bytes, most: int, *, is_first: bool) -> str:
    if len(line) > most:
        raise TextFileError(f"{place}: the line is longer than {most:,} bytes")
    line = line.removeprefix(_BYTE_ORDER_MARK) if is_first else line
    try:
        return line.rstrip(b"\r\n").decode("utf-8")
    except UnicodeDecodeError as error:
        raise TextFileError(
            f"{place}: is not UTF-8: byte 0x{line[error.start]:02x} at byte {error.start + 1}"
        ) from error


# Parquet


class ParquetRows:
    """Some columns of a parquet file, row by row.

    Raises TextFileError, also from `rows`, for a file that is not parquet, a duplicate column, or a decompression ratio above the
    limit. Raises ModuleNotFoundError without pyarrow.

    Attributes:
        names: the names of all columns.
        count: the number of rows.
    """

    def __init__(self, path: Path, columns: Iterable[str]) -> None:
        from pyarrow import parquet

        self._path = path
        # pyarrow takes no name that is not UTF-8, so that it gets the open file.
        with _parquet_errors(path), open_regular(path) as raw, parquet.ParquetFile(raw) as file:
            self.names: list[str] = file.schema_arrow.names
            self.count: int = file.metadata.num_rows
            self._columns = [name for name in dict.fromkeys(columns) if name in self.names]
            _check_columns(path, file.metadata, self._columns)
            types = {name: str(file.schema_arrow.types[self.names.index(name)]) for name in self._columns}
            self._repeating = [name for name in types if types[name] in ("string", "large_string")]
        twice = next((name for name in self._columns if self.names.count(name) > 1), None)
        if twice is not None:
            raise TextFileError(f"{path}: there are two columns {twice!r}")

    def rows(self, at_once: int) -> Iterator[tuple[str, dict[str, object]]]:
        """Yield the place of each row, for messages, and its values by column; `at_once` rows are read at a time.

        A value that cannot be read is the TextFileError that says why.
        """
        from pyarrow import parquet

        row, read = 0, 0
        # Dictionary-encoded, so that a text that many rows repeat is in memory once.
        with (
            _parquet_errors(self._path),
            open_regular(self._path) as raw,
            parquet.ParquetFile(raw, read_dictionary=self._repeating) as file,
        ):
            size = os.fstat(raw.fileno()).st_size
            _check_columns(
                self._path, file.metadata, self._columns
            )  # of the file that is read: another one may have its name now
            for batch in file.iter_batches(at_once, columns=self._columns):
                for index in range(batch.num_rows):
                    place = f"{self._path}: row {row}"
                    by_name = {name: _value(place, batch[name][index]) for name in self._columns}
                    read += sum(len(value) for value in by_name.values() if isinstance(value, str))
                    check_decompression_ratio(self._path, size, read)
                    yield place, by_name
                    row += 1


def _check_columns(path: Path, metadata: Any, columns: Sequence[str]) -> None:
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            if column.path_in_schema.partition(".")[0] in columns:
                check_decompression_ratio(path, column.total_compressed_size, column.total_uncompressed_size)


def _value(place: str, value: Any) -> object:
    try:
        return value.as_py()
    except UnicodeDecodeError as error:
        return TextFileError(f"{place}: is not UTF-8: {error.reason} at byte {error.start + 1}")
    except (ValueError, OverflowError) as error:  # such as a date that Python's datetime cannot represent
        return TextFileError(f"{place}: cannot be read: {error}")


@contextmanager
def _parquet_errors(path: Path) -> Iterator[None]:
    from pyarrow import ArrowException

    try:
        yield
    except FileNotFoundError:
        raise TextFileError(f"{path}: there is no such file") from None
    except TextFileError:
        raise
    except (
        ArrowException,
        OSError,
        ValueError,
        KeyError,
    ) as error:  # what pyarrow raises for files that contradict themselves
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise TextFileError(f"{path}: is not a parquet file: {reason}") from error
