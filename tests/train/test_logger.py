"""metrics.jsonl, TensorBoard and the progress display."""

from pathlib import Path

import pytest
import rich.console  # noqa: F401  # keeps time.monotonic as it is when it is imported, which a test replaces

from uwaga.train import TrainingError
from uwaga.train.logger import Display, open_metrics


@pytest.mark.parametrize("text", ["", '{"st', '{"step": 1, "ki'])
def test_an_incomplete_first_line_is_overwritten(tmp_path: Path, text: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(text)
    open_metrics(tmp_path).close()
    assert (tmp_path / "metrics.jsonl").read_text() == ""


@pytest.mark.parametrize("is_link", [False, True])
def test_a_file_that_uwaga_did_not_write_is_not_truncated(tmp_path: Path, is_link: bool) -> None:
    text = '{"step": 1}' if is_link else "mine"
    (tmp_path / ("mine" if is_link else "metrics.jsonl")).write_text(text)
    if is_link:
        (tmp_path / "metrics.jsonl").symlink_to(tmp_path / "mine")
    with pytest.raises(TrainingError):
        open_metrics(tmp_path)
    assert (tmp_path / "metrics.jsonl").read_text() == text


def test_without_a_terminal_progress_is_lines_without_a_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 40.0])
    monkeypatch.setattr("uwaga.train.logger.time.monotonic", lambda: next(clock))
    display = Display(1000, 100)
    display.message("[bold]as\x1b[2J it is[/bold]")
    display.progress(110, 1.25, 12345.0)  # 10 steps took 40 seconds, and 890 remain
    assert capsys.readouterr().err.splitlines() == [
        "[bold]as<U+001B>[2J it is[/bold]",
        "step 110 of 1,000: loss 1.2500, 12,345 tokens/s, 59 min left",
    ]
