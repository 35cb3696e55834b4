"""Files of earlier versions are read by this one, in each folder beside this file; `write_files.py` wrote them, once.

A database, a recording, a checkpoint, a training and vectors that somebody has are worth more than the code that wrote them. A test
that fails here means that the format has changed: keep reading the old one.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from pyarrow import parquet
from safetensors.torch import load_file
from typer.testing import CliRunner
from write_files import DOCUMENTS, IDS, SHARDS, outputs

import uwaga
from uwaga import SoftDatabase, TextEncoder
from uwaga.cli import app
from uwaga.models import load
from uwaga.train import Config, fit

VERSIONS = sorted(path for path in Path(__file__).parent.iterdir() if path.is_dir() and path.name[0].isdigit())


@pytest.fixture(params=VERSIONS, ids=[path.name for path in VERSIONS])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a version's files, since to open some of them changes them."""
    return shutil.copytree(request.param, tmp_path / "files")


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5", "transformer"])
def test_a_checkpoint(files: Path, family: str) -> None:
    folder = files / "checkpoints"
    expected = load_file(folder / "outputs.safetensors")[family]
    assert len(expected) == sum(map(len, IDS))
    torch.testing.assert_close(outputs(load(folder / family)), expected, rtol=1e-4, atol=1e-5)


def test_a_recording_of_every_mask_and_bias(files: Path) -> None:
    recording = uwaga.Recording.load(files / "recordings" / "layers.safetensors")
    expected = load_file(files / "recordings" / "weights.safetensors")
    assert recording.tokens["encoder"] == [list("abcdefghi"), list("jklmnopqr")]
    for layer in range(len(recording.maps)):
        torch.testing.assert_close(recording.maps["encoder", layer].to_dense(), expected[f"layers.{layer}"])
        assert recording.values["encoder", layer].shape == (2, 2, 9, 8)


def test_a_recording_of_a_generation(files: Path) -> None:
    recording = uwaga.Recording.load(files / "recordings" / "generation.safetensors")
    expected = load_file(files / "recordings" / "weights.safetensors")
    for layer in range(2):
        for row, dense in enumerate(recording.maps["decoder", layer].to_dense()):
            torch.testing.assert_close(dense, expected[f"generation.{layer}.{row}"])


@pytest.mark.parametrize("name", ["records", "heads"])
def test_a_database_is_read(files: Path, name: str) -> None:
    expected = load_file(files / "databases" / "rows.safetensors")
    with SoftDatabase.open(files / "databases" / name) as db:
        assert db.check() == []
        assert torch.equal(db.ids(), expected[f"{name}.ids"])
        rows = list(db)
        keys, values = expected[f"{name}.keys"].double(), expected[f"{name}.values"].double()
        assert torch.equal(torch.stack([row.key for row in rows]).double(), keys)
        assert torch.equal(torch.stack([row.value for row in rows]).double(), values)
        if name == "records":
            assert db.model == "a model@0123"
            assert rows[1].record == {"text": "row 1", "number": 1, "share": 0.125, "odd": 1}
            assert rows[-1].record == {}
            query = keys[4].float()
            weights = (keys @ query.double()).div(6**0.5).softmax(0)
            torch.testing.assert_close(db.attend(query).value, (weights @ values).float())
            assert db.search(query, 3, where="number < ?", parameters=(6,)).ids.tolist() == _best(keys, query, 5, 3)


def _best(keys: torch.Tensor, query: torch.Tensor, rows: int, k: int) -> list[int]:
    """The ids of the k largest scores among the first rows; of these 3 was deleted."""
    ids = [0, 1, 2, 4, 5]
    return [ids[n] for n in (keys[:rows] @ query.double()).topk(k).indices.tolist()]


def test_a_database_is_written_on(files: Path) -> None:
    path = files / "databases" / "records"
    with SoftDatabase.open(path) as db:
        before = db.ids().tolist()
        assert list(db.append(torch.ones(2, 6), records=[{"number": 99}, {"new": "a field"}])) == [16, 17]
        db.delete([0])
        db.compact()
        assert db.check() == []
    with SoftDatabase.open(path) as db:
        assert db.ids().tolist() == [*before[1:], 16, 17]


def test_vectors_are_finished(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files / "vectors")
    assert "finished already" in _encode("finished.parquet")
    table = parquet.read_table("finished.parquet")
    vectors = np.array(table["vector"].to_pylist(), np.float32)
    np.testing.assert_allclose(vectors, TextEncoder.load("model").encode(DOCUMENTS), rtol=1e-4, atol=1e-5)


def test_an_interrupted_encoding_is_resumed(
    files: Path, monkeypatch: pytest.MonkeyPatch, shard_size: Callable[[int, int], None]
) -> None:
    monkeypatch.chdir(files / "vectors")
    shard_size(*SHARDS.values())
    _encode("interrupted.parquet")
    one, other = (parquet.read_table(name) for name in ("finished.parquet", "interrupted.parquet"))
    assert one.drop_columns("vector").equals(other.drop_columns("vector"))
    vectors = [np.array(table["vector"].to_pylist(), np.float32) for table in (one, other)]
    np.testing.assert_allclose(*vectors, rtol=1e-4, atol=1e-5)  # the last shard by this processor


def _encode(output: str) -> str:
    result = CliRunner().invoke(app, ["encode", "documents.jsonl", "-o", output, "--model", "model"])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.slow
def test_a_training_is_resumed(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files / "training")
    result = fit(Config.read(Path("config.toml")), resume=True, progress=False)
    expected = {int(step): loss for step, loss in json.loads(Path("losses.json").read_text()).items()}
    assert list(result.losses) == list(expected)
    np.testing.assert_allclose(list(result.losses.values()), list(expected.values()), rtol=1e-4)
