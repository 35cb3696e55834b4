"""Ctrl-C during a training: the first one ends the step and writes a checkpoint, the second one stops at once."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from uwaga.train import Config, fit
from uwaga.train.errors import TrainingInterrupted
from uwaga.train.step import TrainableModel

pytestmark = pytest.mark.slow

SHORT = ("schedule.steps=6", "run.eval_every=4", "data.document=line")


@pytest.fixture(autouse=True)
def _ctrl_c() -> Iterator[None]:
    """Python's own handler of SIGINT. What a shell starts in the background ignores SIGINT (POSIX, "Asynchronous Lists"), Python then
    installs no handler, and a training leaves it so."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def make(make_config: Callable[..., Config], verses: str, tmp_path: Path) -> Callable[[str], Config]:
    return lambda name: make_config("language-model", [verses], *SHORT, f"run.output_dir={tmp_path / name}")


def press(monkeypatch: pytest.MonkeyPatch, at: int, times: int = 1) -> None:
    """Ctrl-C comes so often in the step `at`, counted from 1."""
    run = TrainableModel.step
    steps = 0

    def interrupted(self: TrainableModel, *arguments: object) -> object:
        nonlocal steps
        steps += 1
        for _ in range(times if steps == at else 0):
            signal.raise_signal(signal.SIGINT)
        return run(self, *arguments)

    monkeypatch.setattr(TrainableModel, "step", interrupted)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_one_ctrl_c_writes_a_checkpoint_and_nothing_is_lost(
    make: Callable[[str], Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = fit(make("whole"), progress=False)
    handler = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patched:
        press(patched, at=2)
        with pytest.raises(TrainingInterrupted) as caught:
            fit(make("stopped"))
    assert "stopped at step 2" in str(caught.value)
    assert "Ctrl-C: step 2 is the last one, and a checkpoint is written after it" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is handler
    resumed = fit(make("stopped"), resume=True, progress=False)
    expected, result = weights(whole.checkpoint), weights(resumed.checkpoint)
    assert expected.keys() == result.keys()
    assert all(torch.equal(expected[name], result[name]) for name in expected)


@pytest.mark.parametrize(
    ("at", "said"),
    [(6, "stopped at once after step 5: 1 step is lost"), (2, "before the first checkpoint: 1 step is lost")],
)
def test_a_second_ctrl_c_stops_at_once_and_says_what_is_lost(
    make: Callable[[str], Config], monkeypatch: pytest.MonkeyPatch, at: int, said: str
) -> None:
    press(monkeypatch, at=at, times=2)
    with pytest.raises(TrainingInterrupted) as caught:
        fit(make("run"), progress=False)
    assert said in str(caught.value)


def test_a_program_with_a_handler_of_its_own_keeps_it(
    make: Callable[[str], Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    came = []
    before = signal.signal(signal.SIGINT, lambda *_: came.append(1))
    try:
        press(monkeypatch, at=2)
        assert fit(make("run"), progress=False).steps == 6
    finally:
        signal.signal(signal.SIGINT, before)
    assert came == [1]
