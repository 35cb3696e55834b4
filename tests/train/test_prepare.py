"""Prepared data: reused, prepared again where its input changed, and written atomically."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from uwaga.train.config import Config, TokenizerConfig
from uwaga.train.corpus import Corpus
from uwaga.train.errors import DataError

Make = Callable[..., Config]
_LINES = "data.document=line"


def _prepared(config: Config, folder: Path) -> Path:
    return Corpus.prepare(config, folder).folder


def _refusal(config: Config, folder: Path) -> str:
    with pytest.raises(DataError) as raised:
        Corpus.prepare(config, folder)
    return str(raised.value)


def test_prepared_data_is_reused_until_a_text_changes(tmp_path: Path, verses: str, make_config: Make) -> None:
    config = make_config("language-model", [verses], _LINES)
    first = _prepared(config, tmp_path / "run")
    made = {path: path.stat().st_mtime_ns for path in first.iterdir()}
    assert _prepared(config, tmp_path / "run") == first
    assert {path: path.stat().st_mtime_ns for path in first.iterdir()} == made
    with (tmp_path / verses).open("a") as file:
        file.write("One more line.\n")
    assert _prepared(config, tmp_path / "run") != first


def test_data_of_a_given_tokenizer_is_reused_however_its_path_is_written(
    tmp_path: Path, verses: str, make_config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = make_config("language-model", [verses], _LINES)
    (tmp_path / "given").mkdir()
    for file in _prepared(config, tmp_path / "run").glob("tokenizer*.json"):
        (tmp_path / "given" / file.name).write_bytes(file.read_bytes())
    tokenizers = [TokenizerConfig(kind="given", path=path) for path in ("given", "./given", str(tmp_path / "given"))]
    assert len({_prepared(dataclasses.replace(config, tokenizer=x), tmp_path / "run") for x in tokenizers}) == 1


def test_the_digest_does_not_depend_on_paths(tmp_path: Path, verses: str, make_config: Make) -> None:
    first = Corpus.prepare(make_config("language-model", [verses], _LINES), tmp_path / "run").digest
    (tmp_path / verses).rename(tmp_path / "moved.txt")
    assert Corpus.prepare(make_config("language-model", ["moved.txt"], _LINES), tmp_path / "run").digest == first


def test_folders_that_uwaga_did_not_make_are_not_touched(tmp_path: Path, verses: str, make_config: Make) -> None:
    config = make_config("language-model", [verses], _LINES)
    name = _prepared(config, tmp_path / "run").name
    other = tmp_path / "other"
    for folder in ("data-mine.unfinished", "data-0123456789abcdef.unfinished", f"{name}.unfinished"):
        (other / folder).mkdir(parents=True)
        (other / folder / "metadata.json").write_text("mine")
    with pytest.raises(FileExistsError) as caught:
        Corpus.prepare(config, other)
    assert caught.value.filename == str(other / f"{name}.unfinished")
    assert "it already exists" in caught.value.strerror
    assert [path.read_text() for path in other.glob("*/*")] == ["mine"] * 3
    (other / f"{name}.unfinished").rename(other / name)
    (other / name / "metadata.json").rename(other / name / "notes")
    with pytest.raises(FileExistsError) as caught:
        Corpus.prepare(config, other)
    assert caught.value.filename == str(other / name)
    assert [path.read_text() for path in other.glob("*/*")] == ["mine"] * 3


@pytest.mark.parametrize("name", ["train.tokens", "train.offsets"])
def test_corrupted_data_is_refused(tmp_path: Path, verses: str, make_config: Make, name: str) -> None:
    config = make_config("language-model", [verses], _LINES)
    folder = _prepared(config, tmp_path / "run")
    values = np.memmap(folder / name, "<u2" if name == "train.tokens" else "<i8", mode="r+")
    first = int(values[1])
    values[1] = first + (-1 if first else 1)
    values.flush()
    assert "are not what was written" in _refusal(config, tmp_path / "run")
    values[1] = 2**15
    values.flush()
    said = (
        "has token 32768, and the vocabulary has"
        if name == "train.tokens"
        else "do not ascend from 0 to the number of tokens"
    )
    assert said in _refusal(config, tmp_path / "run")
