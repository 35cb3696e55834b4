"""Documents from files, and the place of every error. The other messages are in tests/messages/data.txt."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from uwaga._base.errors import DataError
from uwaga.data.documents import CHUNK_BYTES, DocumentFile, FileChunks, lines

GOOD = b'{"id": "a", "text": "the cat"}\n'


def _both(path: Path) -> list[str]:
    """The messages of reading by lines and in chunks."""
    results = []
    for read in (lines, FileChunks):
        with pytest.raises(DataError) as raised:
            list(read(path))
        results.append(str(raised.value))
    return results


@pytest.mark.parametrize("before", ["", "x" * (CHUNK_BYTES - 1) + "\n", "x" * (CHUNK_BYTES - 10) + "\n"])
@pytest.mark.parametrize("packed", [False, True])
def test_the_text_is_what_is_in_the_file(before: str, packed: bool, tmp_path: Path) -> None:
    """Characters of several bytes lie anywhere: here, across the end of a chunk too."""
    text = before + "ï\r\n\n東京 🐷\nthe end"
    path = tmp_path / ("a.txt.gz" if packed else "a.txt")
    content = b"\xef\xbb\xbf" + text.encode()  # a mark of byte order is no text
    path.write_bytes(gzip.compress(content) if packed else content)
    assert "".join(FileChunks(path)) == text
    assert [line.text for line in lines(path)][-4:] == ["ï", "", "東京 🐷", "the end"]
    assert [line.place for line in lines(path)][-1] == f"{path}:{4 + bool(before)}"


@pytest.mark.parametrize(
    ("written", "place"),
    [
        ("ä".encode() * (CHUNK_BYTES // 2) + b"\xc3(", f"1: is not UTF-8: byte 0xc3 at byte {CHUNK_BYTES + 1}"),
        (b"a" * (CHUNK_BYTES - 1) + b"\xc3(", f"1: is not UTF-8: byte 0xc3 at byte {CHUNK_BYTES}"),
        (b"abc\xff", "1: is not UTF-8: byte 0xff at byte 4"),
        ("ä\nöü".encode() + b"\xc3(", "2: is not UTF-8: byte 0xc3 at byte 5"),
        (b"one\ntwo\n\x80\n", "3: is not UTF-8: byte 0x80 at byte 1"),
        (b"one\ntwo \xe6\x9d", "2: is not UTF-8: byte 0xe6 at byte 5"),
        (b"\xef\xbb", "1: is not UTF-8: byte 0xef at byte 1"),
    ],
)
def test_what_is_no_utf8_is_named_by_line_and_byte(written: bytes, place: str, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(written)
    assert _both(path) == [f"{path}:{place}"] * 2


def test_a_file_must_be_there_and_hold_something(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    assert _both(path) == [f"{path}: there is no such file"] * 2
    assert _both(tmp_path) == [f"{tmp_path}: cannot be read: Is a directory"] * 2
    path.write_bytes(b"")
    assert _both(path) == [f"{path}: is empty"] * 2
    packed = tmp_path / "a.txt.gz"
    packed.write_bytes(gzip.compress(b""))
    assert _both(packed) == [f"{packed}: is empty"] * 2


def test_damaged_gzip_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(b"plain")
    damaged = "the gzip file is damaged: Not a gzipped file (b'pl')"
    assert _both(path) == [f"{path}:1: {damaged}", f"{path}: {damaged}"]
    path.write_bytes(gzip.compress(b"a\n" * 1000)[:-9])
    assert _both(path)[0].startswith(f"{path}:1001: the gzip file is damaged: ")


def _texts(path: Path, **options: str) -> list[str]:
    return [document.text for document in DocumentFile(path, skip_empty=True, id_field="", **options)]


def test_a_document_is_a_file_a_line_or_a_paragraph(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\none\ntwo\n\n \n\nthree\n")
    assert _texts(path, unit="file") == ["\none\ntwo\n\n \n\nthree\n"]
    assert _texts(path, unit="line") == ["one", "two", " ", "three"]
    assert _texts(path, unit="paragraph") == ["one\ntwo", "three"]
    places = [document.place for document in DocumentFile(path, unit="paragraph")]
    assert places == [f"{path}:2", f"{path}:7"]


def test_json_lines_and_parquet_hold_texts_in_a_field(tmp_path: Path) -> None:
    texts = ["naïve\n東京", "", "two \u2028 lines"]
    lines, table = tmp_path / "a.jsonl", tmp_path / "a.parquet"
    lines.write_text("".join(json.dumps({"id": 1, "body": text}) + "\n" for text in texts))
    parquet.write_table(pa.table({"id": [1, 2, 3], "body": texts}), table)
    for kind, path in (("jsonl", lines), ("parquet", table)):
        assert _texts(path, kind=kind, text_field="body") == [texts[0], texts[2]]


def test_documents_say_where_in_the_file_they_end(tmp_path: Path) -> None:
    plain, rows, packed = tmp_path / "docs.jsonl", tmp_path / "docs.parquet", tmp_path / "docs.jsonl.gz"
    plain.write_bytes(GOOD * 4)
    parquet.write_table(pa.table({"text": ["x"] * 4}), rows)
    packed.write_bytes(gzip.compress(GOOD * 4))
    for path in (plain, rows):
        assert [document.position for document in DocumentFile(path)] == [0.25, 0.5, 0.75, 1.0]
    assert [document.position for document in DocumentFile(packed)][-1] == 1.0


def test_what_cannot_be_read_is_kept_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_bytes(
        GOOD
        + b"broken\n"
        + b'{"text": null}\n'
        + b'{"text": "\xff"}\n'
        + b'{"text": "%s"}\n' % (b"x" * 2**26)
        + b'{"text": "\\ud800"}\n'
        + b'["text"]\n'
        + GOOD
    )
    results = list(DocumentFile(path, keep_invalid=True))
    assert [result.place for result in results] == [f"{path}:{line}" for line in range(1, 9)]
    assert [result.error for result in results] == [
        None,
        "is not JSON: Expecting value: line 1 column 1 (char 0)",
        "field 'text' must be a string, not NoneType",
        "is not UTF-8: byte 0xff at byte 11",
        "the line is longer than 67,108,864 bytes",
        "field 'text' has a lone surrogate at character 1",
        "must be a JSON object, not list",
        None,
    ]
    assert results[0].text == results[-1].text != ""
    assert {result.text for result in results[1:-1]} == {""}


def test_a_row_of_parquet_that_cannot_be_read_is_kept_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "docs.parquet"
    broken = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"\xffx")]
    )
    parquet.write_table(pa.table({"text": broken}), path)
    first, second = DocumentFile(path, keep_invalid=True)
    assert "is not UTF-8" in first.error
    assert (second.text, second.error) == ("x", None)


def _table(path: Path, text: str | bytes, **options: object) -> DocumentFile:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return DocumentFile(path, **options)


def test_csv_has_columns_quotes_and_newlines_in_fields(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    results = list(
        _table(path, 'id,text,year\r\n7,"the ""cat"", sat\non the mat",1999\r\n\r\n8,,2000\r\n9,naïve 🐷,\r\n')
    )
    assert [(result.id, result.text, result.place) for result in results] == [
        ("7", 'the "cat", sat\non the mat', f"{path}:2"), ("8", "", f"{path}:5"), ("9", "naïve 🐷", f"{path}:6"),
    ]  # fmt: skip
    assert results[-1].position == 1.0
    assert [document.text for document in _table(path, "title\nyes\nno\n", text_field="title")] == ["yes", "no"]


def test_invalid_rows_of_a_table_are_kept_with_their_reasons(tmp_path: Path) -> None:
    rows = b'text\nyes\n"bad"x\n\xff\na,b\n' + b'"' + b"x" * 200_000 + b"\nno\n"
    results = list(_table(tmp_path / "a.csv", rows, keep_invalid=True))
    assert [(result.text, result.error) for result in results] == [
        ("yes", None),
        ("", "is not CSV: ',' expected after '\"'"),
        ("", "is not UTF-8: byte 0xff at byte 1"),
        ("", "has 2 fields, and the first line 1"),
        ("", "is not CSV: field larger than field limit (131072)"),
        ("no", None),
    ]
