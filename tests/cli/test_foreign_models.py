"""Commands with a family that is not uwaga's own: they say how it runs."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from uwaga import TextEncoder
from uwaga.cli import app

pytest.importorskip("transformers", minversion="5")
from tiny_foreign import write_deberta

TEXTS = ["the cat sat", "a dog", "it ran away"]
WHY = "transformers, one by one; not transformers, packed: DebertaV2Model computes attention by itself"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_deberta(tmp_path / "deberta")


def run(*arguments: object) -> tuple[str, str]:
    """Standard output and standard error."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def test_encode(model: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    output = tmp_path / "vectors.parquet"
    _, said = run("encode", tmp_path / "texts.txt", "-o", output, "--model", model)
    assert f"uwaga encode: {model} runs by {WHY}\n" in said
    vectors = np.stack(pq.read_table(output)["vector"].to_numpy())
    assert np.array_equal(vectors, TextEncoder.load(model).encode(TEXTS))


@pytest.mark.stress
def test_several_processes_say_it_once(model: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS * 400))
    output = tmp_path / "vectors.parquet"
    _, said = run("encode", tmp_path / "texts.txt", "-o", output, "--model", model, "--processes", "2")
    assert said.count(f"uwaga encode: {model} runs by {WHY}\n") == said.count(" runs by ") == 1
