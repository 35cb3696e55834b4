"""Documents from text, JSON lines and parquet."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from uwaga.train.data.documents import Document, Part, documents
from uwaga.train.errors import DataError
from uwaga.train.sections import DataConfig


def _texts(path: Path, **options: str) -> list[str]:
    return ["".join(each.pieces) for each in documents(path, DataConfig(**options))]


def _message(path: Path, **options: str) -> str:
    with pytest.raises(DataError) as raised:
        _texts(path, **options)
    return str(raised.value)


def test_a_document_is_a_file_a_line_or_a_paragraph(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\none\ntwo\n\n \n\nthree\n")
    assert _texts(path) == ["\none\ntwo\n\n \n\nthree\n"]
    assert _texts(path, document="line") == ["one", "two", " ", "three"]
    assert _texts(path, document="paragraph") == ["one\ntwo", "three"]
    places = [each.place for each in documents(path, DataConfig(document="paragraph"))]
    assert places == [f"{path}:2", f"{path}:7"]


def test_json_lines_and_parquet_hold_texts_in_a_field(tmp_path: Path) -> None:
    texts = ["naïve\n東京", "", "two \u2028 lines"]
    lines, table = tmp_path / "a.jsonl", tmp_path / "a.parquet"
    lines.write_text("".join(json.dumps({"id": 1, "body": text}) + "\n" for text in texts))
    parquet.write_table(pa.table({"id": [1, 2, 3], "body": texts}), table)
    for kind, path in (("jsonl", lines), ("parquet", table)):
        assert _texts(path, kind=kind, text_field="body") == [texts[0], texts[2]]
        place = f"{path}:1" if kind == "jsonl" else f"{path}: row 0"
        held = "'id', 'body'" if kind == "jsonl" else "none"
        assert _message(path, kind=kind) == f"{place}: there is no field 'text', but {held}"
        kinds = _message(path, kind=kind, text_field="id")
        assert kinds == f"{place}: field 'id' must be a string, not int"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("", "is not JSON: Expecting value: line 1 column 1 (char 0)"),
        ("[1]", "must be a JSON object, not list"),
        ('{"text": null}', "field 'text' must be a string, not NoneType"),
        ('{"text": "ab\\ud800"}', "field 'text' has half a surrogate pair at character 3"),
    ],
)
def test_a_bad_line_of_json_is_named(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "good"}\n' + line + "\n")
    assert _message(path, kind="jsonl") == f"{path}:2: {message}"


def test_a_bad_parquet_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    assert _message(path, kind="parquet") == f"{path}: there is no such file"
    path.write_text("no")
    assert _message(path, kind="parquet").startswith(f"{path}: is no parquet file: ")
    parquet.write_table(pa.table({"text": pa.array([], pa.string())}), path)
    assert _message(path, kind="parquet") == f"{path}: is empty"
    bad = pa.array([b"good", b"\xff"], pa.binary())
    parquet.write_table(pa.table({"text": pa.Array.from_buffers(pa.string(), 2, bad.buffers())}), path)
    assert _message(path, kind="parquet") == f"{path}: row 1: is not UTF-8: invalid start byte at byte 1"


def test_a_part_of_a_document_is_a_part_of_its_text() -> None:
    document = Document(place="", pieces=("abc", "", "de", "fgh"))
    for start in range(9):
        for stop in range(start, 9):
            assert "".join(Part(document=document, start=start, stop=stop)) == "abcdefgh"[start:stop]
