"""Configurations, data and files of training that raise."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from uwaga.models.checkpoints.directories import LAST, checkpoint_of_run, read_pointer
from uwaga.models.tokenizers.text_tokenizer import TextTokenizer
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
OVERRIDES: list[tuple[str, ...]] = [
    # Unknown keys.
    ("optimizer.learning_rate=3",), ("learning_rate=3",), ("run.sed=3",), ("optimiser.lr=3",), ("model.layrs=3",), ("data.sources.x.ulr=a",),
    ("tokenizer.target.knd=a",),
    # Values of another type, or out of range.
    ("objective=translate",), ("optimizer.lr=fast",), ("optimizer.lr=nan",), ("optimizer.lr=0",), ("optimizer.betas=[0.9]",),
    ("optimizer.max_grad_norm=-1",), ("optimizer.dtype=float16",), ("schedule.final_lr_ratio=1.5",), ("schedule.steps=0",), ("run.threads=4097",),
    ("tokenizer.vocab_size=4194305",), ("run.seed=true",), ("run.output_dir=7",), ("run.sample_prompts=[1]",), ("run.compile=1",),
    ("data.validation_fraction=1",), ("data.mlm_probability=0",), ("data.remove_characters=1",), ("data.sources=1",), ("data.sources.x=1",),
    ("data.sources.x.url='a'",), ("optimizer=1",), ("model=1",), ('run.output_dir="a\\u0000b"',), ('data.train=["a\\u0000b"]',),
    ("model.num_layers=10000",), (f"optimizer.eps=1{'0' * 400}",), ("optimizer.eps=1e400",),
    # Models.
    ("model.family=gpt",), ("model.family=bert",), ("model.vocab_size=9",), ("model.num_layers=0.5",), ("model.num_heads=5",),
    ("model={family='transformer', num_layers=2}",), (*PAIRS, "model={family='t5', num_layers=0}"),
    (*PAIRS, "model={family='t5', num_decoder_layers=0}"), (*PAIRS, "model={family='transformer', num_layers=0}"),
    (*PAIRS, "model={family='transformer', num_decoder_layers=0}"),
    # Settings that exclude each other.
    ("data.train=[]",), ("data.validation_fraction=0",), (*PAIRS, "data.windows=true"), (*PAIRS, "data.pair_format=parallel"),
    ("data.target_files=['b']",), ("data.validation_target_files=['b']",), ("data.kind=pairs",), (*PAIRS, "data.kind=text"),
    ("data.remove_characters='a'",), ("tokenizer.target.kind=words",), (*MASKED, "data.windows=true"), (*MASKED, "data.context_length=2"),
    ("batch.tokens_per_batch=255",), (*PAIRS, "batch.tokens_per_batch=511"), ("batch.tokens_per_step=5000",), ("data.context_length=2048",),
    ("schedule.warmup_steps=11",), ("parallel.context=2", "run.compile=true"), ("parallel.context=2", "run.device=cuda"),
    (*PAIRS, "parallel.context=3", "model.dropout=0.1"),
    ("parallel.context=2", "optimizer.dtype=bfloat16", "model.dropout=0.1", "model.embedding_dropout=0.1"),
    ("tokenizer.kind=byte-pair",), ("tokenizer.kind=given",), ("tokenizer.path=a",),
    ("tokenizer.kind=given", "tokenizer.path=a", "tokenizer.lowercase=true"),
    (*PAIRS, "tokenizer={kind='byte-pair', vocab_size=300, target={kind='words', shared=true}}"),
    (*PAIRS, "tokenizer={kind='characters', target={kind='words', shared=true, vocab_size=9}}"),
    (*PAIRS, "model={family='t5'}", "tokenizer.target.kind=words"),
    # Overrides that are none.
    ("optimizer.lr",), (".lr=1",), ("objective.lr=1",), ("run.sample_prompts=[1",), ("run.output_dir=caf\udce9",),
]  # fmt: skip
STATES = [
    {"format": 2}, {"step": -1}, {"step": 2**80}, {"tokens": True}, {"seconds": "1"}, {"best": [1]}, {"best": {"step": 1}}, {"data": 5},
    {"best": {"step": 1, "loss": float("inf")}},
]  # fmt: skip
POINTERS = ["../../elsewhere", "step-1", "step-000001/..", "", "\x1b[2J", "step-" + "9" * 90, "step-000005\n"]
SHA256 = "a" * 64


def _name(overrides: tuple[str, ...]) -> str:
    """Return the name of a row, in ASCII and of bounded length."""
    text = " ".join(overrides).replace(" ".join(PAIRS), "pairs").replace(" ".join(MASKED), "masks")
    return f"Config.parse: {ascii(text)[:100]}"


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


def _given(folder: Path, text: str) -> None:
    if text:
        (folder / "tokenizer.json").write_text(text)
    TextTokenizer.load(folder, "language-model")


LINES = "\n".join(f"Line {number}." for number in range(60))
CALLS = {
    **{
        _name(each): lambda each=each: Config.parse(TEXT, each) for each in OVERRIDES
    },
    "Config.read: no file": lambda folder: _config(folder, None),
    "Config.read: not UTF-8": lambda folder: _config(folder, b"run = 1\n\xff"),
    "Config.read: not TOML": lambda folder: _config(folder, "run = "),
    "Config.read: an unknown table": lambda folder: _config(folder, TEXT + "[running]\n"),
    "Config.read: a table is missing": lambda folder: _config(folder, TEXT.replace("run =", "#")),
    **{f"TrainingState: {each}": lambda folder, each=each: _state(folder, each) for each in STATES},
    "a run without a checkpoint": lambda folder: ((folder / "metrics.jsonl").touch(), checkpoint_of_run(folder)),
    **{f"last: {each!r}": lambda folder, each=each: _pointer(folder, each) for each in POINTERS},
    "Corpus: no file": lambda folder: _prepared(folder, ""),
    "Corpus: a folder": lambda folder: _prepared(folder, "", f"data.train=['{folder}']"),
    "Corpus: nothing for validation": lambda folder: _prepared(folder, LINES),
    "Corpus: nothing for training": lambda folder: _prepared(folder, LINES, "data.document=line", "data.validation_fraction=0.9999999999"),
    "Corpus: fewer tokens than a window": lambda folder: _prepared(folder, "0123456789", "data.windows=true"),
    "Corpus: a source that is too long": lambda folder: _prepared(folder, "a\tb\n" * 4 + "0123456789abcdef\tb\n", *PAIRS),
    "Corpus: a target that is too long": lambda folder: _prepared(folder, "a\tb\n" * 4 + "a\t0123456789abcdef\n", *PAIRS),
    **{
        f"Corpus: {name} is {text or size}": lambda folder, name=name, text=text, size=size: _prepared(
            folder, LINES, "data.document=line", spoil=_changed(name, text, size)
        )
        for name, text, size in [
            ("metadata.json", "[]", None), ("metadata.json", '{"train": {"rows": -1}}', None), ("metadata.json", "{}", None),
            ("metadata.json", None, None), ("train.tokens", None, -2), ("train.offsets", None, 8),
        ]
    },
    "fit: several processes for a sequence, and there is one": lambda folder: _fit(folder, "parallel.context=2"),
    "fit: the folder cannot be made": lambda folder: _fit(folder, f"run.output_dir={folder}/a.txt/run"),
    "sources.find: not there": lambda folder, patch: _source(folder, patch),
    "sources.find: not there, with instructions": lambda folder, patch: _source(folder, patch, instructions="recipes/play.py writes it"),
    "sources.find: another scheme": lambda folder, patch: _source(folder, patch, url="file:///etc/hostname", download=True),
    "sources.find: another checksum": lambda folder, patch: _source(folder, patch, content=b"something else"),
    **{f"metrics.jsonl of others: {text!r}": lambda folder, text=text: _metrics(folder, text) for text in ("mine", "{}", '{"loss": 1}')},
    "metrics.jsonl: shorter than at the checkpoint": lambda folder: _metrics(folder, "", 5),
    "metrics.jsonl: not a line of metrics": lambda folder: _losses(folder, '{"step": 1, "kind": "train"}\n'),
    "TensorBoard is not installed": lambda folder, patch: (
        patch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None), tensorboard_writer(folder, 0)
    ),
    "a given tokenizer: no file": lambda folder: _given(folder, ""),
    "error_rates: another number of predictions": lambda: error_rates(["A"], []),
    "error_rates: a word without a reference": lambda: error_rates(["A", "B"], [["A"], [" "]]),
}  # fmt: skip
