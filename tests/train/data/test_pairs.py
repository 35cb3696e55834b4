"""Pairs: every pair_format, and the errors of invalid lines."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from uwaga.train.config import DataConfig
from uwaga.train.data.splits import pairs
from uwaga.train.errors import DataError


def _read(path: Path, answers: Path | None = None, **options: str) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in pairs(path, answers, DataConfig(kind="pairs", **options))]


def _message(*given: Path, **options: str) -> str:
    with pytest.raises(DataError) as raised:
        _read(*given, **options)
    return str(raised.value)


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
    assert _read(path, answers, pair_format=pair_format) == expected


def test_remove_characters_applies_to_targets(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("A1 1 EY1 W AH0 N\n")
    assert _read(path, pair_format="cmudict", remove_characters="012") == [("A1", "EY W AH N")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("alone", "a pair must have 2 fields, separated by a tab, not 1"),
        ("", "a pair must have 2 fields, separated by a tab, not 1"),
        ("a\tb\tc", "a pair must have 2 fields, separated by a tab, not 3"),
        ("\tb", "the source is empty"),
        ("a\t ", "the target is empty"),
    ],
)
def test_a_line_with_invalid_fields_is_named(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(f"good\tgut\n{line}\ngood\tgut\n")
    assert _message(path) == f"{path}:2: {message}"


@pytest.mark.parametrize("line", ["READ", "READ R EH1 D", "READ 1", ";;; a comment"])
def test_a_line_that_is_not_in_the_format_of_cmudict_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text(f"A 1 EY1\n{line}\n")
    wanted = "must be a word, a whole number and phonemes, separated by spaces"
    assert _message(path, pair_format="cmudict") == f"{path}:2: {wanted}"


def test_parallel_files_with_different_numbers_of_lines_are_refused(tmp_path: Path) -> None:
    short, long = tmp_path / "short", tmp_path / "long"
    short.write_text("a\nb\n")
    long.write_text("a\nb\nc\nd\n")
    rule = "line n of one file must answer line n of the other"
    expected = f"{long}:3: there is no such line in {short}, which ends after 2: {rule}"
    assert _message(short, long, pair_format="parallel") == expected
    assert _message(long, short, pair_format="parallel") == expected


def test_a_target_of_removed_characters_alone_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("A 1 0\n")
    assert _message(path, pair_format="cmudict", remove_characters="0") == f"{path}:1: the target is empty"
