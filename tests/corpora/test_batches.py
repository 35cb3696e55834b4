"""BatchEncoder: batches of every kind, errors in their rows, models that changed."""

import pickle
import re
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from uwaga import TextEncoder
from uwaga._base.errors import CheckpointError
from uwaga.corpora import BatchEncoder, batches

TEXTS = ["the cat sat", "", "a dog ran away on the mat", None, "it"]
LONG = "the cat sat on the mat and then it ran away from the house"


@pytest.fixture
def model(write_model: Callable[..., Path], tmp_path: Path) -> Path:
    batches._encoder.cache_clear()
    return write_model(tmp_path / "model")


@pytest.fixture
def expected(model: Path) -> np.ndarray:
    return TextEncoder.load(model).encode([text for text in TEXTS if text])


def test_a_mapping_gets_vectors_and_errors_in_the_order_of_the_texts(model: Path, expected: np.ndarray) -> None:
    result = BatchEncoder(model)({"n": [3, 1, 4, 1, 5], "text": TEXTS})
    assert list(result) == ["n", "start", "stop", "characters", "tokens", "windows", "vector", "error"]
    assert result["n"].tolist() == [3, 1, 4, 1, 5]
    assert result["error"].tolist() == [None, "is empty", None, "must be a string, not NoneType", None]
    is_good = result["error"] == None  # noqa: E711
    assert np.array_equal(result["vector"][is_good], expected)
    assert np.isnan(result["vector"][~is_good]).all()


def test_a_frame_and_a_table_come_back_as_what_they_are(model: Path, expected: np.ndarray) -> None:
    encode = BatchEncoder(model, keep_text=True)
    frame = encode(pd.DataFrame({"n": range(5), "text": TEXTS}, index=list("abcde")))
    table = encode(pa.table({"n": range(5), "text": TEXTS}))
    assert table["text"].to_pylist() == TEXTS
    assert table.schema.field("vector").type == pa.list_(pa.float32(), 16)
    for vectors, numbers in (
        (frame["vector"].tolist(), frame["n"].tolist()),
        (table["vector"].to_pylist(), table["n"].to_pylist()),
    ):
        assert numbers == list(range(5))
        assert [each is None for each in vectors] == [False, True, False, True, False]
        assert np.array_equal(np.array([each for each in vectors if each is not None], np.float32), expected)


def test_an_iterator_gives_an_iterator(model: Path, expected: np.ndarray) -> None:
    encode = BatchEncoder(model)
    results = encode({"text": [text]} for text in TEXTS)
    found = np.concatenate([each["vector"] for each in results if each["error"][0] is None])
    assert np.array_equal(found, expected)


def test_what_failed_is_tried_again_as_it_is_or_mended(model: Path, expected: np.ndarray) -> None:
    encode = BatchEncoder(model, keep_text=True)
    first = encode({"text": TEXTS[:2]})
    again = encode({**first, "text": [TEXTS[0], TEXTS[2]]})
    assert again["error"].tolist() == [None, None]
    assert np.array_equal(again["vector"], expected[:2])


def test_windows_have_a_row_each_with_the_other_columns(model: Path) -> None:
    result = BatchEncoder(model, overflow="windows")({"id": ["a", "b", "c"], "text": ["it", LONG, ""]})
    assert result["id"].tolist() == ["a", "b", "b", "c"]
    assert result["windows"].tolist() == [1, 2, 2, 0]
    assert result["stop"][2] == len(LONG)


def test_it_is_pickled_without_the_model(model: Path, expected: np.ndarray) -> None:
    written = pickle.dumps(BatchEncoder(model, overflow="mean"))
    assert len(written) < 1000
    result = pickle.loads(written)({"text": [text for text in TEXTS if text]})
    assert np.array_equal(result["vector"], expected)


def test_a_changed_model_is_refused(model: Path, write_model: Callable[..., Path]) -> None:
    encode = BatchEncoder(model)
    write_model(model, seed=1)
    with pytest.raises(CheckpointError) as caught:
        encode({"text": ["it"]})
    assert re.sub("[0-9a-f]{12}", "X", str(caught.value)) == (
        f"{model} on {socket.gethostname()} holds another model than the work was begun with: its fingerprint is X, not X; put the same "
        "files there"
    )


def test_bad_input(model: Path) -> None:
    encode = BatchEncoder(model, text="body")
    with pytest.raises(ValueError) as caught:
        encode({"text": ["it"]})
    assert str(caught.value) == "BatchEncoder: there is no column 'body'; the columns are 'text'"
    with pytest.raises(ValueError) as caught:
        BatchEncoder(model, dtype="float33")({"text": ["it"]})
    assert str(caught.value) == "BatchEncoder: dtype must be the name of a dtype of PyTorch, not 'float33'"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, None])
def test_shared_weights_are_those_of_the_model(model: Path, dtype: torch.dtype | None, tmp_path: Path) -> None:
    alone = TextEncoder.load(model, dtype=dtype)
    for _ in range(2):  # written; mapped
        shared = TextEncoder.load(model, dtype=dtype, shared=True)
        for name, x in alone.model.state_dict().items():
            mine = shared.model.state_dict()[name]
            assert mine.dtype == x.dtype
            assert torch.equal(mine, x)
            assert mine.data_ptr() % 64 == 0
        assert np.array_equal(shared.encode(["it sat"]), alone.encode(["it sat"]))
