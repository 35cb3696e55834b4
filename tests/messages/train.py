"""Configurations, data and files of training that raise."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from uwaga.data.tokenizers import TextTokenizer
from uwaga.models.checkpoints.directories import LAST, checkpoint_of_run, read_pointer
from uwaga.train import Config, fit, sources
from uwaga.train.checkpoint import TrainingState
from uwaga.train.config import DataConfig, SourceConfig
from uwaga.train.corpus import Corpus
from uwaga.train.evaluation import error_rates
from uwaga.train.logger import open_metrics, read_losses, tensorboard_writer

TEXT = """
objective = "language-model"
model = {family = "gpt2", num_layers = 2}
data = {train = ["a.txt"]}
schedule = {steps = 10}
run = {output_dir = "o"}
"""
PAIRS = (
    'objective="encoder-decoder"', 'model={family="transformer"}', 'data.kind="pairs"', 'tokenizer.kind="characters"',
)  # fmt: skip
MASKED = ("objective=masked-language-model", "model={family='bert'}")
SHA256 = "a" * 64


def _config(folder: Path, text: str | bytes | None) -> None:
    if text is not None:
        (folder / "a.toml").write_bytes(text.encode() if isinstance(text, str) else text)
    Config.read(folder / "a.toml")


def _state(folder: Path, change: dict[str, object]) -> None:
    state = {"format": 1, "step": 5, "tokens": 9, "seconds": 1.5, "best": None, "metrics": 3, "seed": 1, "data": "abc"}
    (folder / "training.json").write_text(json.dumps(state | change))
    TrainingState.read(folder)


def _pointer(folder: Path, text: str) -> None:
    (folder / "last").write_text(text)
    read_pointer(folder, LAST)


def _prepared(folder: Path, content: str, *overrides: str, spoil: Callable[[Path], object] | None = None) -> None:
    """Prepare data of one file; spoil changes what was prepared, which is then read again."""
    if content:
        (folder / "a.txt").write_text(content)
    config = Config.parse(TEXT, [f"data.train=['{folder}/a.txt']", "data.context_length=16", *overrides])
    for _ in range(1 if spoil is None else 2):
        corpus = Corpus.prepare(config, folder / "run")
        if spoil is not None:
            spoil(corpus.folder)


def _fit(folder: Path, *overrides: str) -> None:
    (folder / "a.txt").write_text(LINES)
    fit(
        Config.parse(TEXT, [f"data.train=['{folder}/a.txt']", f"run.output_dir={folder}/run", *overrides]),
        progress=False,
    )


def _changed(name: str, text: str | None, size: int | None = None) -> Callable[[Path], object]:
    def spoil(folder: Path) -> None:
        path = folder / name
        if size is not None:
            os.truncate(path, path.stat().st_size + size)
        elif text is None:
            path.unlink()
            os.mkfifo(path)
        else:
            path.write_text(text)

    return spoil


def _source(folder: Path, patch: pytest.MonkeyPatch, *, content: bytes | None = None, **how: object) -> None:
    patch.setenv("UWAGA_DATA", str(folder))
    if content is not None:
        (folder / "play.txt").write_bytes(content)
    download = bool(how.pop("download", False))
    source = SourceConfig(
        **{"sha256": SHA256, "url": "https://example.org/play.txt", "files": ("play.txt", "play.txt.gz"), **how}
    )
    sources.find("play", DataConfig(train=("play",), sources={"play": source}, download=download))


def _metrics(folder: Path, text: str, size: int = 0) -> None:
    (folder / "metrics.jsonl").write_text(text)
    open_metrics(folder, size)


def _losses(folder: Path, text: str) -> None:
    (folder / "metrics.jsonl").write_text(text)
    read_losses(folder, "train")


def _tokenizer(folder: Path, text: str) -> None:
    if text:
        (folder / "tokenizer.json").write_text(text)
    TextTokenizer.load(folder, "language-model")


LINES = "\n".join(f"Line {number}." for number in range(60))
