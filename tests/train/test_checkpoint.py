"""training.json: the state survives writing and reading, and errors name the invalid field."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from uwaga._base.errors import CheckpointError
from uwaga.train.checkpoint import BestEvaluation, TrainingState

STATE = TrainingState(
    step=5, tokens=100, seconds=1.5, best=BestEvaluation(step=4, loss=2.25), metrics=300, seed=1, data="abc"
)


@pytest.mark.parametrize("state", [STATE, replace(STATE, best=None)])
def test_a_written_state_reads_back_equal(tmp_path: Path, state: TrainingState) -> None:
    state.write(tmp_path)
    assert TrainingState.read(tmp_path) == state


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 2}, "training.json: format must be 1, not 2"),
        ({"step": -1}, "training.json: step must be a whole number of at least 0, not -1"),
        (
            {"step": 2**80},
            "training.json: step must be a whole number of at least 0, not an integer of more than 20 digits",
        ),
        ({"tokens": True}, "training.json: tokens must be a whole number of at least 0, not True"),
        ({"seconds": "1"}, "training.json: seconds must be a number, not '1'"),
        ({"best": [1]}, "training.json: best must be an object, not [1]"),
        ({"best": {"step": 1}}, "training.json: best.loss is missing: it must be a number"),
        ({"data": "a\x1b" * 300}, None),
        ({"data": 5}, "training.json: data must be a string, not 5"),
    ],
)
def test_an_invalid_field_is_named(tmp_path: Path, change: dict[str, Any], said: str | None) -> None:
    STATE.write(tmp_path)
    path = tmp_path / "training.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    if said is None:
        assert TrainingState.read(tmp_path).data == change["data"]
        return
    with pytest.raises(CheckpointError) as caught:
        TrainingState.read(tmp_path)
    assert str(caught.value) == f"{tmp_path}/{said}"


def test_infinity_is_not_valid_json(tmp_path: Path) -> None:
    STATE.write(tmp_path)
    path = tmp_path / "training.json"
    path.write_text(path.read_text().replace("2.25", "Infinity"))
    with pytest.raises(CheckpointError) as caught:
        TrainingState.read(tmp_path)
    assert str(caught.value) == f"{path} is not valid JSON: Infinity is not a JSON number"
