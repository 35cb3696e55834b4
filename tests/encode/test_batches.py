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
    folder: Path, write_model: Callable[..., Path], shared: bool
) -> None:
    encode, reads = BatchEncoder(folder, shared=shared), 0

    def is_load(path: Path) -> bool:
        """Whether the weights are opened after they were opened for each fingerprint."""
        nonlocal reads
        reads += path == folder / "model.safetensors"
        return reads == 2

    changed = "changed while they were read"
    with when_opened(is_load, lambda: write_model(folder, seed=1)), pytest.raises(CheckpointError, match=changed):
        encode({"text": ["it"]})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, None])
def test_shared_weights_are_those_of_the_model(folder: Path, dtype: torch.dtype | None) -> None:
    alone, shared = (TextEncoder.load(folder, dtype=dtype, shared=shared) for shared in (False, True))
    for name, x in alone.model.state_dict().items():
        mine = shared.model.state_dict()[name]
        assert mine.dtype == x.dtype
        assert torch.equal(mine, x)
    assert np.array_equal(shared.encode(["it sat"]), alone.encode(["it sat"]))


def test_weights_that_are_overwritten_while_they_are_mapped_are_told(folder: Path) -> None:
    encode = BatchEncoder(folder)
    encode({"text": ["it sat"]})
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="its files changed while they were read"):
        encode({"text": ["it sat"]})


def test_a_link_to_a_directory_stays_its_name(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert BatchEncoder(link).model == str(link)
