"""Calls that read files of texts and pairs, and train tokenizers on them, and raise."""

from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from uwaga.data.documents import DocumentFile
from uwaga.data.splits import pairs
from uwaga.data.tokenizers import count_symbols, train_byte_pair_tokenizer, train_symbol_tokenizer

GOOD = b'{"id": "a", "text": "the cat"}\n'
JSON_LINES = [
    b"{", b"", b"[1]", b"{}", b'{"id": "b", "text": "\xff"}', b'{"id": "b", "text": ', b'{"id": "b", "body": "x"}', b'{"id": "b", "text": null}',
    b'{"id": "b", "text": "ab\\ud800"}', b'{"text": "x"}', b'{"id": true, "text": "x"}',
]  # fmt: skip
TABLES = [
    b"", b"id,id,text\n", b"a,b\n1,2\n", b"id,text\n1\n", b'id,text\n1,"never closed\n2,x\n', b'id,text\n1,"a"b\n', b"id,text\n1,\xff\n",
]  # fmt: skip
PAIRS = {
    "tsv": [b"alone", b"", b"a\tb\tc", b"\tb", b"a\t "],
    "cmudict": [b"READ", b"READ R EH1 D", b"READ 1", b";;; a comment"],
    "jsonl": [b'{"source": "a"}', b'{"source": "a", "target": 1}', b'{"source": "a", "target": " "}'],
}
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


CALLS = {
    **{
        f"DocumentFile of JSON lines: {line!r}": lambda folder, line=line: _read(folder, "a.jsonl", GOOD + line + b"\n" + GOOD)
        for line in JSON_LINES
    },
    **{f"DocumentFile of CSV: {text!r}": lambda folder, text=text: _read(folder, "a.csv", text) for text in TABLES},
    "DocumentFile: no such file": lambda folder: DocumentFile(folder / "a.txt"),
    "DocumentFile: another ending": lambda folder: _read(folder, "a.tsv", b"text\nx\n"),
    "DocumentFile: a field of plain text": lambda folder: _read(folder, "a.txt", b"a\n", text_field="text"),
    "DocumentFile: not UTF-8": lambda folder: _read(folder, "a.txt", b"the cat\nthe \xe9\n"),
    "DocumentFile: not gzip": lambda folder: _read(folder, "a.jsonl.gz", b"plain"),
    "DocumentFile: no JSON field": lambda folder: _read(folder, "a.jsonl", GOOD, text_field="body"),
    "DocumentFile: a JSON field that is no string": lambda folder: _read(folder, "a.jsonl", b'{"id": 1, "text": "a"}', text_field="id"),
    "DocumentFile: parquet without rows": lambda folder: _read_parquet(folder, {"text": pa.array([], pa.string())}),
    "DocumentFile: parquet without the column": lambda folder: _read_parquet(folder, {"id": [1], "body": ["x"]}),
    "DocumentFile: parquet with a column of numbers": lambda folder: _read_parquet(folder, {"text": [1]}),
    "DocumentFile: parquet with null": lambda folder: _read_parquet(folder, {"text": ["x", None]}),
    "DocumentFile: parquet that is not UTF-8": lambda folder: _read_parquet(folder, {"text": BROKEN_TEXT}),
    **{
        f"pairs of {kind}: {line!r}": lambda folder, kind=kind, line=line: list(
            pairs(_file(folder, "a", FIRST_PAIRS[kind] + b"\n" + line + b"\n"), pair_format=kind)
        )
        for kind, lines in PAIRS.items()
        for line in lines
    },
    "pairs: only characters that are removed": lambda folder: list(
        pairs(_file(folder, "a", b"A 1 0\n"), pair_format="cmudict", remove_characters="0")
    ),
    "pairs: the second file is longer": lambda folder: _parallel(folder, 2, 4),
    "pairs: the first file is longer": lambda folder: _parallel(folder, 4, 2),
    "train_byte_pair_tokenizer: too few tokens": lambda: train_byte_pair_tokenizer(["a"], "language-model", vocab_size=256),
    "train_symbol_tokenizer: too few tokens": lambda: train_symbol_tokenizer({"a": 1}, "language-model", kind="characters", vocab_size=2),
    "train_symbol_tokenizer: too few tokens beside targets": lambda: train_symbol_tokenizer(
        {"a": 1}, "encoder-decoder", kind="characters", vocab_size=6, targets=["K", "AE", "T"]
    ),
    "train_symbol_tokenizer: no symbols": lambda: train_symbol_tokenizer(count_symbols([""], "words"), "language-model", kind="words"),
}  # fmt: skip
