"""Where the measurements of a training run go: metrics.jsonl, TensorBoard, and a progress bar with messages on standard error.

metrics.jsonl has one line for every measurement, in the order of the steps:

    {"step": 10, "kind": "train", "loss": 3.1, "lr": 0.001, "grad_norm": 0.7, "tokens": 40960, "wall": {...}}
    {"step": 250, "kind": "validation", "loss": 2.4}

A line is a function of the configuration and the data, except for "wall", which holds clock times. A run that is resumed from
a checkpoint truncates the file to its size at that checkpoint.
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from uwaga._base import durable, untrusted
from uwaga._base.terminal import escape_controls
from uwaga._base.untrusted import TextFileError
from uwaga.models.transformer import Transformer
from uwaga.train.checkpoint import TrainingState
from uwaga.train.config import Config
from uwaga.train.corpus import Corpus
from uwaga.train.errors import TrainingError
from uwaga.train.evaluation import attention_statistics, attention_summary, model_error_rates, sample_prompts, samples
from uwaga.train.step import StepResult

METRICS_FILE = "metrics.jsonl"
_LINE_START = b'{"step": '
# If standard error is not a terminal, seconds between two lines of progress.
_SECONDS_BETWEEN_LINES = 30.0


class MetricsLogger:
    """Logs what a run measures. Only the first process has one.

    Args:
        config, corpus: of the run.
        out: its folder.
        state: where it is: what was logged after that is cut off.
        begun: the first messages.
        shown: whether progress and messages are printed.

    Raises:
        ConfigError: run.sample_prompts has an invalid prompt.
        TrainingError: metrics.jsonl cannot be continued; run.tensorboard is set and tensorboard is not installed.
    """

    def __init__(
        self, config: Config, corpus: Corpus, out: Path, state: TrainingState, begun: Sequence[str], *, shown: bool
    ) -> None:
        self._config, self._corpus = config, corpus
        self._prompts = sample_prompts(config, corpus) if config.run.sample_every else []
        self._tensorboard = tensorboard_writer(out, state.step) if config.run.tensorboard else None
        self._file = open_metrics(out, state.metrics)
        self._display = Display(config.schedule.steps, state.step, shown=shown)
        for line in begun:
            self.message(line)

    def message(self, text: str) -> None:
        """Print a line above the bar."""
        self._display.message(text)

    def log_step(self, state: TrainingState, result: StepResult, tokens_per_second: float) -> None:
        """Log the loss of an optimizer step."""
        loss, norm = result.loss.item(), result.grad_norm.item()
        clock = {"seconds": round(state.seconds, 3), "tokens_per_second": round(tokens_per_second, 1)}
        record = {"loss": loss, "lr": result.lr, "grad_norm": norm, "tokens": state.tokens, "wall": clock}
        scalars = {"train/loss": loss, "train/lr": result.lr, "train/grad_norm": norm}
        self._write(state.step, "train", record, scalars)
        self._display.progress(state.step, loss, tokens_per_second)

    def log_validation(self, step: int, loss: float, is_better: bool) -> None:
        self._write(step, "validation", {"loss": loss}, {"validation/loss": loss})
        self.message(f"step {step:,}: validation loss {loss:.4f}{', the best so far' if is_better else ''}")

    def log_error_rates(self, step: int, model: Transformer, *, all: bool) -> None:
        """Log error rates of pairs, by a model with all its weights. all: every source, else about a thousand."""
        phoneme, word, words = model_error_rates(model, self._config, self._corpus, all=all)
        rates = {"phoneme_error_rate": phoneme, "word_error_rate": word, "words": words}
        self._write(step, "error_rates", rates, {"error_rates/phoneme": phoneme, "error_rates/word": word})
        said = f"phoneme error rate {100 * phoneme:.2f} %, word error rate {100 * word:.2f} %, of {words:,} words"
        self.message(f"step {step:,}: {said}")

    def log_samples(self, step: int, model: Transformer) -> None:
        texts = samples(model, [ids for _, ids in self._prompts], self._config, self._corpus)
        for (prompt, _), text in zip(self._prompts, texts, strict=True):
            self._write(step, "sample", {"prompt": prompt, "text": text})
            self.message(f"step {step:,}: {prompt} > {text}")

    def log_attention(self, step: int, model: Transformer) -> None:
        measured = attention_statistics(model, next(self._corpus.validation.evaluation_batches()))
        scalars = {
            f"{name}/{layer}.{head}": value
            for layer, by_name in measured.items()
            for name, values in by_name.items()
            for head, value in enumerate(values)
        }
        self._write(step, "attention", {"heads": measured}, scalars)
        self.message(f"step {step:,}: {attention_summary(measured)}")

    def sync(self) -> int:
        """Sync metrics.jsonl to the disk; returns its size in bytes."""
        durable.fsync_opened(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        self._display.close()
        self._file.close()
        if self._tensorboard is not None:
            self._tensorboard.close()

    def _write(self, step: int, kind: str, fields: Mapping[str, Any], scalars: Mapping[str, float] = {}) -> None:
        """Write a line of metrics.jsonl, which other processes can read at once, and scalars."""
        left = memoryview((json.dumps({"step": step, "kind": kind, **fields}, ensure_ascii=False) + "\n").encode())
        while left:
            left = left[self._file.write(left) or 0 :]
        if self._tensorboard is not None:
            for name, value in scalars.items():
                self._tensorboard.add_scalar(name, value, step)


# metrics.jsonl.


def open_metrics(out: Path, size: int = 0) -> IO[bytes]:
    """Return metrics.jsonl of a run's folder, open for appending; `size` bytes of it are kept, and what follows is cut
    off. Raises TrainingError: the file is shorter, not one that uwaga wrote, or cannot be read."""
    path = out / METRICS_FILE
    try:
        written = untrusted.stat_regular(path).st_size if os.path.lexists(path) else 0
    except OSError as error:
        raise TrainingError(f"{path} cannot be read: {error.strerror}") from error
    if written < size:
        raise TrainingError(
            f"{path} has {written} bytes, and had {size} when the checkpoint was written: the metrics up to there are lost"
        )
    try:
        # Unbuffered: closing a file with a buffer fails on a full disk.
        return durable.open_append(path, _is_metrics, size=size)
    except durable.PathConflictError as error:
        raise TrainingError(f"{path} {error.strerror}") from error


def _is_metrics(first: bytes) -> bool:
    """Return whether a file begins as metrics.jsonl does; a process that was killed may have left a part of the first line."""
    return _LINE_START.startswith(first[: len(_LINE_START)])


def read_losses(out: Path, kind: str) -> dict[int, float]:
    """Return the losses of a run by step; kind: "train" or "validation". Raises TrainingError: a line is not one of metrics.jsonl."""
    losses: dict[int, float] = {}
    try:
        for place, text, *_ in untrusted.read_lines(out / METRICS_FILE):
            match _parsed(text):
                case {"kind": str(written), "step": int(step), "loss": int() | float() as loss} if written == kind:
                    losses[step] = loss
                case {"kind": str(written)} if written != kind:
                    pass
                case _:
                    raise TrainingError(f"{place}: is not a line of metrics")
    except TextFileError as error:
        raise TrainingError(str(error)) from error
    return losses


def _parsed(text: str) -> Any:
    try:
        return untrusted.parse_json(text, strict=False)  # a loss may be NaN
    except (ValueError, RecursionError):
        return None


def tensorboard_writer(out: Path, step: int) -> Any:
    """Return a SummaryWriter for the folder tensorboard of a run.

    Args:
        out: the run's folder.
        step: the step that the run is resumed from: events of later steps are purged.

    Raises:
        TrainingError: tensorboard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise TrainingError("run.tensorboard needs tensorboard: pip install 'uwaga[train]'") from error
    return SummaryWriter(str(out / "tensorboard"), purge_step=step + 1)


# The progress bar.


class Display:
    """Shows on standard error how a run proceeds: a bar with loss, tokens/s and time left if that is a terminal, else lines now and then.

    Args:
        steps: of the whole run.
        done: steps that were taken before it was resumed.
        shown: False: nothing is printed.
    """

    def __init__(self, steps: int, done: int, *, shown: bool = True) -> None:
        self._steps, self._done, self._bar = steps, done, _bar(steps, done) if shown else None
        self._started = self._last_line = time.monotonic()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()

    def progress(self, step: int, loss: float, tokens_per_second: float) -> None:
        """Show the number of steps taken, and the loss of the last one."""
        if self._bar is None:
            return
        self._bar.update(self._bar.task_ids[0], completed=step, loss=f"loss {loss:.4f}", rate=tokens_per_second)
        now = time.monotonic()
        if self._bar.console.is_terminal or now - self._last_line < _SECONDS_BETWEEN_LINES:
            return
        self._last_line = now
        left = (now - self._started) / (step - self._done) * (self._steps - step)
        self.message(
            f"step {step:,} of {self._steps:,}: loss {loss:.4f}, {tokens_per_second:,.0f} tokens/s, "
            f"{_format_duration(left)} left"
        )

    def message(self, text: str) -> None:
        """Print a line above the bar."""
        if self._bar is not None:
            # Text that a model wrote may look like rich's markup or hold control characters.
            self._bar.console.print(escape_controls(text), markup=False)


def _bar(steps: int, done: int) -> Any:
    from rich import progress as rich
    from rich.console import Console

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    columns = (
        rich.BarColumn(), rich.MofNCompleteColumn(), rich.TextColumn("{task.fields[loss]}"),
        rich.TextColumn("{task.fields[rate]:,.0f} tokens/s"), rich.TimeRemainingColumn(compact=True),
    )  # fmt: skip
    bar = rich.Progress(*columns, console=console, disable=not console.is_terminal)
    bar.add_task("", total=steps, completed=done, loss="", rate=0.0)  # no loss is known yet
    bar.start()
    return bar


def _format_duration(seconds: float) -> str:
    """Return seconds as a text.

    >>> _format_duration(59), _format_duration(3599), _format_duration(90000)
    ('59 s', '59 min', '25 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds // 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.0f} h"
