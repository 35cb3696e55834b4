"""Checkpoints: training.json, names, which are kept, and leftovers of interrupted writes. Messages: tests/messages/train.txt."""

from dataclasses import replace
from pathlib import Path

import pytest

from uwaga._base import durable
from uwaga.models.checkpoints.directories import BEST, LAST, read_pointer
from uwaga.train import checkpoint
from uwaga.train.checkpoint import BestEvaluation, TrainingState, new_checkpoint

STATE = TrainingState(
    step=5, tokens=100, seconds=1.5, best=BestEvaluation(step=4, loss=2.25), metrics=300, seed=1, data="abc"
)


# Folders.


def make(out: Path, *steps: int) -> None:
    for step in steps:
        (out / checkpoint.checkpoint_name(step)).mkdir()
        (out / checkpoint.checkpoint_name(step) / checkpoint.STATE).write_text("x")


def test_a_new_checkpoint_replaces_one_of_the_same_step_when_it_is_complete(tmp_path: Path) -> None:
    for text in ("first", "second"):
        with new_checkpoint(tmp_path, 7) as folder:
            (folder / checkpoint.STATE).write_text(text)
            assert checkpoint.checkpoint_steps(tmp_path) == ([] if text == "first" else [7])
        assert [path.name for path in tmp_path.iterdir()] == ["step-000007"]
        assert [path.name for path in (tmp_path / "step-000007").iterdir()] == [checkpoint.STATE]
        assert (tmp_path / "step-000007" / checkpoint.STATE).read_text() == text


def test_a_folder_that_is_not_a_checkpoint_is_neither_replaced_nor_removed(tmp_path: Path) -> None:
    make(tmp_path, 1, 2, 3)
    (tmp_path / "step-000001" / "notes.txt").write_text("mine")
    (tmp_path / "step-000002" / checkpoint.STATE).rename(tmp_path / "step-000002" / "config.json")
    checkpoint.update_pointers(tmp_path, replace(STATE, step=3, best=None), keep=1)
    assert checkpoint.checkpoint_steps(tmp_path) == [1, 2, 3]
    with pytest.raises(durable.PathConflictError) as caught, new_checkpoint(tmp_path, 1):
        pass
    assert caught.value.filename == str(tmp_path / "step-000001")
    assert "it has other files" in caught.value.strerror
    assert sorted(path.name for path in (tmp_path / "step-000001").iterdir()) == ["notes.txt", checkpoint.STATE]
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_the_last_checkpoints_and_the_best_are_kept(tmp_path: Path) -> None:
    assert read_pointer(tmp_path, LAST) is None
    make(tmp_path, 1, 2, 3, 4, 5, 6)
    checkpoint.update_pointers(tmp_path, replace(STATE, best=BestEvaluation(step=1, loss=2.0)), keep=2)
    # A checkpoint after `last` is of an interrupted run: the resumed run replaces it when it gets there.
    assert checkpoint.checkpoint_steps(tmp_path) == [1, 4, 5, 6]
    assert [read_pointer(tmp_path, which) for which in (LAST, BEST)] == [
        tmp_path / "step-000005", tmp_path / "step-000001",
    ]  # fmt: skip


def test_unfinished_checkpoints_are_removed_and_other_files_are_not(tmp_path: Path) -> None:
    make(tmp_path, 1)
    for name in (".step-000002.unfinished", ".step-000001.going", ".step-000003.unfinished"):
        durable.create_marked_folder(tmp_path / name)
        (tmp_path / name / "config.json").write_text("x")
    (tmp_path / ".last.uwaga-0123456789abcdef").write_text("step")
    kept = [".step-000004.unfinished", ".step-.unfinished", ".step-000001.going.mine"]
    for name in kept:
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("mine")
    (tmp_path / ".step-000003.unfinished" / "notes.txt").write_text("mine")
    checkpoint.remove_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"step-000001", ".step-000003.unfinished", *kept}
    assert (tmp_path / ".step-000003.unfinished" / "notes.txt").read_text() == "mine"
    assert all((tmp_path / name / "config.json").read_text() == "mine" for name in kept)
