"""BatchEncoder: batches of every kind, errors in their rows, models that changed."""

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from opened import when_opened

from uwaga import TextEncoder
from uwaga._base.errors import CheckpointError
from uwaga.encode import BatchEncoder
from uwaga.models.checkpoints import mapped_weights

TEXTS = ["the cat sat", "", "a dog ran away on the mat", None, "it"]
LONG = "the cat sat on the mat and then it ran away from the house"


@pytest.fixture
def expected(folder: Path) -> np.ndarray:
    return TextEncoder.load(folder).encode([text for text in TEXTS if text])


def test_a_mapping_gets_vectors_and_errors_in_the_order_of_the_texts(folder: Path, expected: np.ndarray) -> None:
    result = BatchEncoder(folder)({"n": [3, 1, 4, 1, 5], "text": TEXTS})
    assert list(result) == ["n", "start", "stop", "characters", "tokens", "windows", "vector", "error"]
    assert result["n"].tolist() == [3, 1, 4, 1, 5]
    assert result["error"].tolist() == [None, "is empty", None, "must be a string, not NoneType", None]
    is_good = result["error"] == None  # noqa: E711
    assert np.array_equal(result["vector"][is_good], expected)
    assert np.isnan(result["vector"][~is_good]).all()


def test_a_frame_and_a_table_come_back_as_what_they_are(folder: Path, expected: np.ndarray) -> None:
    encode = BatchEncoder(folder, keep_text=True)
    frame = encode(pd.DataFrame({"n": range(5), "text": TEXTS}, index=list("abcde")))
    table = encode(pa.table({"n": range(5), "text": TEXTS}))
    assert table["text"].to_pylist() == TEXTS
    assert table.schema.field("vector").type == pa.list_(pa.float32(), 16)
    for vectors, numbers in (
        (frame["vector"].tolist(), frame["n"].tolist()),
        (table["vector"].to_pylist(), table["n"].to_pylist()),
    ):
        assert numbers == list(range(5))
        assert [vector is None for vector in vectors] == [False, True, False, True, False]
        assert np.array_equal(np.array([vector for vector in vectors if vector is not None], np.float32), expected)


def test_an_iterator_gives_an_iterator_and_what_failed_is_tried_again(folder: Path, expected: np.ndarray) -> None:
    encode = BatchEncoder(folder, keep_text=True)
    first, *results = encode({"text": [text]} for text in TEXTS)
    assert np.array_equal(np.concatenate([first["vector"], results[1]["vector"], results[3]["vector"]]), expected)
    assert results[0]["error"].tolist() == ["is empty"]
    again = encode({**results[0], "text": [TEXTS[2]]})
    assert again["error"].tolist() == [None]
    assert np.array_equal(again["vector"], expected[1:2])


def test_windows_have_a_row_each_with_the_other_columns(folder: Path) -> None:
    result = BatchEncoder(folder, overflow="windows")({"id": ["a", "b", "c"], "text": ["it", LONG, ""]})
    assert result["id"].tolist() == ["a", "b", "b", "c"]
    assert result["windows"].tolist() == [1, 2, 2, 0]
    assert result["stop"][2] == len(LONG)


def test_it_is_pickled_without_the_model(folder: Path, expected: np.ndarray) -> None:
    written = pickle.dumps(BatchEncoder(folder, overflow="mean"))
    assert len(written) < 1000
    result = pickle.loads(written)({"text": [text for text in TEXTS if text]})
    assert np.array_equal(result["vector"], expected)


def test_a_changed_model_is_refused(folder: Path, write_model: Callable[..., Path]) -> None:
    encode = BatchEncoder(folder)
    write_model(folder, seed=1)
    with pytest.raises(CheckpointError, match="holds another model"):
        encode({"text": ["it"]})


@pytest.mark.parametrize("shared", [False, True])
def test_a_model_that_changes_while_it_is_loaded_is_refused(
    folder: Path, write_model: Callable[..., Path], shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UWAGA_DATA", str(folder.parent / "data"))
    encode, reads = BatchEncoder(folder, shared=shared), 0

    def is_load(path: Path) -> bool:
        """Whether the weights are opened after they were opened for each fingerprint."""
        nonlocal reads
        reads += path == folder / "model.safetensors"
        return reads == 2 + shared

    changed = "changed while they were read"
    with when_opened(is_load, lambda: write_model(folder, seed=1)), pytest.raises(CheckpointError, match=changed):
        encode({"text": ["it"]})
    assert not list(folder.parent.glob("data/weights/*.safetensors"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, None])
def test_shared_weights_are_those_of_the_model(folder: Path, dtype: torch.dtype | None, tmp_path: Path) -> None:
    alone = TextEncoder.load(folder, dtype=dtype)
    for _ in range(2):  # written; mapped
        shared = TextEncoder.load(folder, dtype=dtype, shared=True)
        for name, x in alone.model.state_dict().items():
            mine = shared.model.state_dict()[name]
            assert mine.dtype == x.dtype
            assert torch.equal(mine, x)
            assert mine.data_ptr() % 64 == 0
        assert np.array_equal(shared.encode(["it sat"]), alone.encode(["it sat"]))


@pytest.fixture
def file(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Shared weights."""
    monkeypatch.setenv("UWAGA_DATA", str(tmp_path / "data"))
    TextEncoder.load(folder, shared=True)
    (file,) = (tmp_path / "data" / "weights").glob("*.safetensors")
    return file


def test_shared_weights_of_other_shapes_are_refused(file: Path) -> None:
    """As of a version that named or cut them in another way."""
    mapped = mapped_weights.SharedFile(file.with_name(file.name.rpartition("-")[0]), lambda: True)
    with pytest.raises(CheckpointError) as caught:
        mapped_weights.mapped(mapped, dict, {"weight": torch.zeros(1)})
    assert f"{file} is damaged" in str(caught.value)


@pytest.mark.parametrize("damage", ["zeros", "shorter"])
def test_shared_weights_that_were_overwritten_are_refused(folder: Path, damage: str, file: Path) -> None:
    """Their names and shapes may still be right."""
    size = file.stat().st_size
    with file.open("r+b") as opened:
        opened.seek(size - 4096)
        opened.write(bytes(4096)) if damage == "zeros" else opened.truncate()
    with pytest.raises(CheckpointError) as caught:
        TextEncoder.load(folder, shared=True)
    assert str(caught.value) == f"{file} is damaged: remove it"
    file.unlink()
    assert np.array_equal(
        TextEncoder.load(folder, shared=True).encode(["it sat"]), TextEncoder.load(folder).encode(["it sat"])
    )


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    file = mapped_weights.SharedFile(tmp_path / f"float32-{'0' * 41}", lambda: True)
    left = tmp_path / f".{file.path.name[:40]}.uwaga-0123456789abcdef"
    left.touch()
    mapped_weights.mapped(file, lambda: {"x": torch.zeros(3)}, {"x": torch.zeros(3)})
    assert not left.exists()


def test_where_shared_weights_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "no").touch()
    file = mapped_weights.SharedFile(tmp_path / "no" / "weights", lambda: True)
    with pytest.raises(CheckpointError, match="UWAGA_DATA is another folder for it"):
        mapped_weights.mapped(file, dict, {})


def test_a_link_to_a_directory_stays_its_name(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert BatchEncoder(link).model == str(link)
