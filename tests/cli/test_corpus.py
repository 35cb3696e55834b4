"""Documents from files: every fault is named with its file and line."""

import gzip
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from uwaga.cli.corpus import Corpus, CorpusError, Document, digest

GOOD = b'{"id": "a", "text": "the cat"}\n'


def message(path: Path, **fields: str) -> str:
    with pytest.raises(CorpusError) as caught:
        list(Corpus(path, **fields))
    return str(caught.value)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"id": "b", "text": "\xff"}', "is not UTF-8: byte 0xff at byte 22"),
        (b'{"id": "b", "text": ', "is not JSON: Expecting value: line 1 column 21 (char 20)"),
        (b"", "is not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"[1]", "must be a JSON object, not list"),
        (b'{"id": "b", "body": "x"}', "there is no field 'text', but 'id', 'body'"),
        (b"{}", "there is no field 'text', but none"),
        (b'{"id": "b", "text": null}', "field 'text' must be a string, not NoneType"),
        (b'{"text": "x"}', "there is no field 'id', but 'text'"),
        (b'{"id": true, "text": "x"}', "field 'id' must be a string or a whole number, not bool"),
    ],
)
def test_a_line_that_is_none(line: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_bytes(GOOD + line + b"\n" + GOOD)
    assert message(path) == f"{path}:2: {said}"


def test_documents_before_a_fault_come_out(tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_bytes(GOOD * 2 + b"broken\n")
    corpus = iter(Corpus(path))
    assert [next(corpus).place for _ in range(2)] == [f"{path}:1", f"{path}:2"]


def test_plain_lines_have_no_fields(tmp_path: Path) -> None:
    path = tmp_path / "docs.txt"
    path.write_bytes(b"the cat\nthe \xe9\n")
    assert message(path) == f"{path}:2: is not UTF-8: byte 0xe9 at byte 5"
    assert message(path, text="text") == f"{path}: lines of plain text have no fields"


def test_a_damaged_gzip_file(tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl.gz"
    path.write_bytes(gzip.compress(GOOD * 1000, mtime=0)[:-10])
    said = message(path)
    assert said.startswith(f"{path}:")
    assert ": the gzip file is damaged: " in said
    path.write_bytes(b"not gzip")
    assert message(path).startswith(f"{path}:1: the gzip file is damaged: ")


def test_a_parquet_file_that_is_none_or_lacks_something(tmp_path: Path) -> None:
    path = tmp_path / "docs.parquet"
    path.write_bytes(b"PAR1")
    assert message(path).startswith(f"{path}: is no parquet file: ")
    parquet.write_table(pa.table({"body": ["x"]}), path)
    assert message(path) == f"{path}: row 0: there is no field 'text', but 'body'"
    parquet.write_table(pa.table({"text": ["x", None]}), path)
    assert message(path) == f"{path}: row 1: field 'text' must be a string, not NoneType"
    broken = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
    parquet.write_table(pa.table({"text": broken}), path)
    assert message(path) == f"{path}: row 0: is not UTF-8: invalid start byte at byte 1"


def test_a_file_that_is_not_there_or_of_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    assert message(path) == f"{path}: there is no such file"
    path = tmp_path / "docs.csv"
    path.write_bytes(b"text\nx\n")
    assert message(path) == f"{path}: the name must end in .jsonl, .jsonl.gz, .txt, .txt.gz or .parquet"


def test_position_reaches_the_size(tmp_path: Path) -> None:
    lines, rows = tmp_path / "docs.jsonl.gz", tmp_path / "docs.parquet"
    lines.write_bytes(gzip.compress(GOOD * 3))
    parquet.write_table(pa.table({"text": ["x"] * 3}), rows)
    for path in (lines, rows):
        corpus = Corpus(path)
        assert len(list(corpus)) == 3
        assert corpus.position == corpus.size


def test_digests_tell_documents_apart_and_where_one_ends() -> None:
    pairs = [("a", "bc"), ("ab", "c"), (None, "abc")]
    found = {digest([Document("somewhere", *pair)]) for pair in pairs} | {digest([])}
    assert len(found) == 4
    assert digest([Document("here", "a", "b")]) == digest([Document("there", "a", "b")])
