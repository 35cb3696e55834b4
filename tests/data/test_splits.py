"""Which documents and pairs are for validation: chosen by a hash of the content, so that it does not depend on order or place. And pairs
of every format. The errors of invalid lines are in tests/messages/data.txt."""

import json
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from uwaga.data.documents import DocumentFile
from uwaga.data.splits import VALIDATION, Pair, is_validation, pairs, split, split_by_position

_PARAGRAPHS = [f"Line 1 of {number}.\nLine 2 of {number}." for number in range(60)]
_read = partial(DocumentFile, unit="paragraph")


def test_a_fraction_of_the_words_is_held_out_and_stays_the_same() -> None:
    words = [f"word{number}" for number in range(20_000)]
    held, more = ([x for x in words if is_validation(Pair("", x, "").digest(), part)] for part in (0.1, 0.2))
    assert abs(len(held) - 2000) < 5 * (20_000 * 0.1 * 0.9) ** 0.5
    assert held[:5] == ["word21", "word77", "word79", "word113", "word139"]
    assert set(held) <= set(more)


def test_all_targets_of_a_source_are_in_one_split(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"word{number}\tK\n{f'Word{number}'}\tT\n" for number in range(300)))
    splits: dict[str, set[str]] = {}
    for name, pair in split([path], [], pairs, 0.3):
        splits.setdefault(pair.source.lower(), set()).add(name)
    assert all(len(names) == 1 for names in splits.values())
    assert 40 < sum(VALIDATION in names for names in splits.values()) < 140


def test_the_split_of_a_document_does_not_depend_on_its_place(tmp_path: Path) -> None:
    results = []
    for name, texts in (("forwards", _PARAGRAPHS), ("backwards", _PARAGRAPHS[::-1])):
        (tmp_path / name).write_text("\n\n".join(texts))
        results.append(
            {document.text: name for name, document in split([tmp_path / name], [], partial(_read, kind="text"), 0.3)}
        )
    assert results[0] == results[1]
    assert len(set(results[0].values())) == 2


def test_with_files_for_validation_nothing_else_is_held_out(tmp_path: Path) -> None:
    for name, texts in (("train.txt", _PARAGRAPHS), ("valid.txt", ["Line 9 of 9.", "And another one."])):
        (tmp_path / name).write_text("\n\n".join(texts))
    held = [
        document.text
        for name, document in split([tmp_path / "train.txt"], [tmp_path / "valid.txt"], _read, 0.5)
        if name == VALIDATION
    ]
    assert held == ["Line 9 of 9.", "And another one."]


@pytest.mark.parametrize("unit", ["file", "line"])
def test_by_position_the_end_of_the_text_is_held_out(tmp_path: Path, unit: str) -> None:
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path, lines in zip(paths, (_PARAGRAPHS, ["And this is the end."]), strict=True):
        path.write_text("\n".join(lines))
    results = [(name, piece.text) for name, piece in split_by_position(paths, partial(DocumentFile, unit=unit), 0.25)]
    text = "".join(piece.text for path in paths for piece in DocumentFile(path, unit=unit))
    assert "".join(part for name, part in results if name == VALIDATION) == text[int(len(text) * 0.75) :]
    assert "".join(part for _, part in results) == text


# Pairs.


@pytest.mark.parametrize("pair_format", ["tsv", "cmudict", "jsonl", "parquet", "parallel"])
def test_every_pair_format_gives_the_same_pairs(pair_format: str, tmp_path: Path) -> None:
    expected = [("READ", "R EH1 D"), ("READ", "R IY1 D"), ("A'S", "EY1 Z")]
    path, answers = tmp_path / "a", None
    if pair_format == "tsv":
        path.write_text("".join(f"{source}\t{target}\r\n" for source, target in expected))
    elif pair_format == "cmudict":
        path.write_text("".join(f"{source}  {n} {target}\n" for n, (source, target) in enumerate(expected)))
    elif pair_format == "jsonl":
        path.write_text("".join(json.dumps({"target": target, "source": source}) + "\n" for source, target in expected))
    elif pair_format == "parquet":
        parquet.write_table(pa.table({"target": [y for _, y in expected], "source": [x for x, _ in expected]}), path)
    else:
        answers = tmp_path / "b"
        path.write_text("\n".join(source for source, _ in expected))
        answers.write_text("\n".join(target for _, target in expected) + "\n")
    assert [pair[1:] for pair in pairs(path, answers, pair_format=pair_format)] == expected


def test_remove_characters_applies_to_targets(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("A1 1 EY1 W AH0 N\n")
    (pair,) = pairs(path, pair_format="cmudict", remove_characters="012")
    assert pair[1:] == ("A1", "EY W AH N")
