"""Names of checkpoints, which of them are kept, and leftovers of interrupted writes."""

from pathlib import Path

import pytest

from uwaga._base import durable
from uwaga._base.errors import CheckpointError
from uwaga.train import run_folder


def make(out: Path, *steps: int) -> None:
    for step in steps:
        (out / run_folder.checkpoint_name(step)).mkdir()
        (out / run_folder.checkpoint_name(step) / run_folder.STATE).write_text("x")


def test_a_finished_folder_has_its_name_and_its_files(tmp_path: Path) -> None:
    folder = run_folder.begin_checkpoint(tmp_path, 7)
    (folder / run_folder.STATE).write_text("new")
    assert run_folder.checkpoint_steps(tmp_path) == []
    assert run_folder.finish_checkpoint(tmp_path, 7) == tmp_path / "step-000007"
    assert [path.name for path in (tmp_path / "step-000007").iterdir()] == [run_folder.STATE]
    assert (tmp_path / "step-000007" / run_folder.STATE).read_text() == "new"


def test_an_existing_checkpoint_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    make(tmp_path, 7)
    folder = run_folder.begin_checkpoint(tmp_path, 7)
    (folder / run_folder.STATE).write_text("new")
    run_folder.finish_checkpoint(tmp_path, 7)
    assert (tmp_path / "step-000007" / run_folder.STATE).read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["step-000007"]


def test_a_folder_that_is_not_a_checkpoint_is_neither_replaced_nor_removed(tmp_path: Path) -> None:
    make(tmp_path, 1, 2, 3)
    (tmp_path / "step-000001" / "notes.txt").write_text("mine")
    (tmp_path / "step-000002" / run_folder.STATE).rename(tmp_path / "step-000002" / "config.json")
    run_folder.prune(tmp_path, last=3, keep=1, best=None)
    assert run_folder.checkpoint_steps(tmp_path) == [1, 2, 3]
    run_folder.begin_checkpoint(tmp_path, 1)
    with pytest.raises(durable.PathConflictError) as caught:
        run_folder.finish_checkpoint(tmp_path, 1)
    assert caught.value.filename == str(tmp_path / "step-000001")
    assert caught.value.strerror == "cannot be used: it has other files than those of a checkpoint; move it away"
    assert sorted(path.name for path in (tmp_path / "step-000001").iterdir()) == ["notes.txt", run_folder.STATE]
    run_folder.discard_unfinished(tmp_path, 1)
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_the_last_checkpoints_and_the_best_are_kept(tmp_path: Path) -> None:
    make(tmp_path, 1, 2, 3, 4, 5, 6)
    run_folder.prune(tmp_path, last=5, keep=2, best=1)
    # A checkpoint after `last` is of an interrupted run: the resumed run replaces it when it gets there.
    assert run_folder.checkpoint_steps(tmp_path) == [1, 4, 5, 6]


def test_pointers_name_checkpoints(tmp_path: Path) -> None:
    assert run_folder.read_pointer(tmp_path, run_folder.LAST) is None
    make(tmp_path, 1234567)
    run_folder.write_pointer(tmp_path, run_folder.LAST, 1234567)
    assert run_folder.read_pointer(tmp_path, run_folder.LAST) == tmp_path / "step-1234567"


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
    run_folder.remove_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"step-000001", ".step-000003.unfinished", *kept}
    assert (tmp_path / ".step-000003.unfinished" / "notes.txt").read_text() == "mine"
    assert all((tmp_path / name / "config.json").read_text() == "mine" for name in kept)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("../../elsewhere", "'../../elsewhere'"),
        ("step-1", "'step-1'"),
        ("step-000001/..", "'step-000001/..'"),
        ("", "''"),
        ("\x1b[2J", "'\\x1b[2J'"),
        ("step-" + "9" * 90, "'step-" + "9" * 59 + "'"),
    ],
)
def test_a_pointer_with_an_invalid_name_is_an_error(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "last").write_text(text)
    with pytest.raises(CheckpointError) as caught:
        run_folder.read_pointer(tmp_path, run_folder.LAST)
    assert str(caught.value) == f"{tmp_path}/last must name a checkpoint such as step-000100, not {said}"


def test_a_pointer_to_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "best").write_text("step-000005\n")
    with pytest.raises(CheckpointError) as caught:
        run_folder.read_pointer(tmp_path, run_folder.BEST)
    assert str(caught.value) == f"{tmp_path}/best names step-000005, and there is no such folder in {tmp_path}"
