"""metrics.jsonl, TensorBoard and the progress display."""

import io
import json
from pathlib import Path

import pytest

from uwaga.train import TrainingError
from uwaga.train.logger import JsonlWriter, progress_display, read_losses, tensorboard_writer


def test_lines_are_written_at_once(tmp_path: Path) -> None:
    writer = JsonlWriter(tmp_path)
    writer.write(1, "train", {"loss": 0.1 + 0.2}, {"seconds": 1.0})
    writer.write(2, "validation", {"loss": 3.0})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert lines[0] == '{"step": 1, "kind": "train", "loss": 0.30000000000000004, "wall": {"seconds": 1.0}}'
    assert json.loads(lines[1]) == {"step": 2, "kind": "validation", "loss": 3.0}
    assert writer.sync() == (tmp_path / "metrics.jsonl").stat().st_size
    assert read_losses(tmp_path, "train") == {1: 0.1 + 0.2}
    writer.close()


def test_resuming_truncates_the_file_to_the_checkpoint(tmp_path: Path) -> None:
    writer = JsonlWriter(tmp_path)
    writer.write(1, "train", {"loss": 1.0})
    size = writer.sync()
    writer.write(2, "train", {"loss": 2.0})
    writer.close()
    again = JsonlWriter(tmp_path, size)
    again.write(3, "train", {"loss": 3.0})
    again.close()
    assert read_losses(tmp_path, "train") == {1: 1.0, 3: 3.0}


def test_a_file_that_uwaga_did_not_write_is_not_truncated(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("mine")
    with pytest.raises(TrainingError):
        JsonlWriter(tmp_path)
    assert (tmp_path / "metrics.jsonl").read_text() == "mine"


@pytest.mark.parametrize("text", ["", '{"st', '{"step": 1, "ki'])
def test_an_incomplete_first_line_is_overwritten(tmp_path: Path, text: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(text)
    JsonlWriter(tmp_path).close()
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text('{"step": 1}')
    (tmp_path / "metrics.jsonl").symlink_to(tmp_path / "mine")
    with pytest.raises(TrainingError) as caught:
        JsonlWriter(tmp_path)
    said = f"{tmp_path / 'metrics.jsonl'} cannot be used: it is a link or a folder, not a file"
    assert str(caught.value) == said
    assert (tmp_path / "mine").read_text() == '{"step": 1}'


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_drops_steps_that_are_repeated_after_resuming(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for step, losses in ((0, {1: 3.0, 2: 2.0, 3: 9.0}), (2, {3: 1.0})):
        writer = tensorboard_writer(tmp_path, step)
        for at, loss in losses.items():
            writer.add_scalar("train/loss", loss, at)
        writer.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(1, 3.0), (2, 2.0), (3, 1.0)]


def test_without_a_terminal_progress_is_lines_without_a_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uwaga.train.logger._SECONDS_BETWEEN_LINES", 0.0)
    with progress_display(10, 4) as display:
        display.message("[bold]as\x1b[2J it is[/bold]")
        display.progress(5, 1.25, 12345.0)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "[bold]as<U+001B>[2J it is[/bold]"
    assert said[1].startswith("step 5 of 10: loss 1.2500, 12,345 tokens/s, ")
    assert said[1].endswith(" left")


def test_the_remaining_time_is_estimated_from_the_steps_of_this_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 40.0])
    monkeypatch.setattr("uwaga.train.logger.time.monotonic", lambda: next(clock))
    with progress_display(1000, 100) as display:
        display.progress(110, 1.0, 1.0)  # 10 steps took 40 seconds, and 890 remain
    assert capsys.readouterr().err.rstrip().endswith(" 59 min left")


def test_no_display_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_display(10, 0, shown=False) as display:
        display.progress(1, 1.0, 1.0)
        display.message("nothing")
    assert capsys.readouterr().err == ""


def test_the_bar_names_no_loss_before_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    shown = io.StringIO()
    monkeypatch.setattr("rich.console.Console", lambda **_: Console(file=shown, force_terminal=True, width=160))
    with progress_display(10, 0) as display:
        display.progress(5, 1.25, 12345.0)
    assert "nan" not in shown.getvalue()
    assert "loss 1.2500" in shown.getvalue()
