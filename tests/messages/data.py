"""Calls that read files of texts and pairs, and train tokenizers on them, and raise."""

from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from uwaga.data.documents import DocumentFile
from uwaga.data.splits import pairs
from uwaga.data.tokenizers import count_symbols, train_byte_pair_tokenizer, train_symbol_tokenizer

GOOD = b'{"id": "a", "text": "the cat"}\n'
FIRST_PAIRS = {"tsv": b"good\tgut", "cmudict": b"A 1 EY1", "jsonl": b'{"source": "good", "target": "gut"}'}
BROKEN_TEXT = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])


def _file(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    return folder / name


def _read(folder: Path, name: str, content: bytes, **options: object) -> None:
    list(DocumentFile(_file(folder, name, content), **options))


def _read_parquet(folder: Path, columns: dict[str, object], **options: object) -> None:
    parquet.write_table(pa.table(columns), folder / "a.parquet")
    list(DocumentFile(folder / "a.parquet", **options))


def _parallel(folder: Path, *counts: int) -> None:
    files = [_file(folder, name, b"a\n" * count) for name, count in zip("ab", counts, strict=True)]
    list(pairs(*files))
