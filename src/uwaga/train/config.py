"""The configuration of a training run: a TOML file, with overrides from the command line, validated as a whole."""

import dataclasses
import datetime
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar

from uwaga._base import untrusted
from uwaga._base.options import POSITIVE, SWITCH, OptionValidator, number, one_of
from uwaga.train import families, settings
from uwaga.train.errors import ConfigError
from uwaga.train.families import OBJECTIVES
from uwaga.train.settings import (
    BETAS,
    COUNT,
    NAME,
    NAMES,
    NOT_NEGATIVE,
    PART,
    SECONDS,
    SHARE,
    SIZE,
    TEXT,
    THREADS,
    VOCABULARY,
    Named,
)

TOKENIZERS = ("characters", "words", "byte-pair", "given")
DATA = ("text", "jsonl", "parquet", "pairs")
PAIR_FORMATS = ("tsv", "cmudict", "jsonl", "parquet", "parallel")
_SHA256 = OptionValidator(
    "64 hexadecimal digits", lambda x: isinstance(x, str) and len(x) == 64 and not set(x) - set("0123456789abcdef")
)


@dataclass(frozen=True, kw_only=True)
class TargetConfig:
    """The tokenizer of targets, where the data is pairs."""

    kind: str = "words"  # as of TokenizerConfig
    shared: bool = False  # one vocabulary and embedding for sources and targets: characters and words only
    vocab_size: int | None = None
    path: str | None = None
    lowercase: bool = False

    KINDS: ClassVar[Mapping[str, OptionValidator]] = {
        "kind": one_of(*TOKENIZERS), "shared": SWITCH, "vocab_size": VOCABULARY, "path": NAME, "lowercase": SWITCH,
    }  # fmt: skip
    SECTIONS: ClassVar[Mapping[str, Any]] = {}


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """How texts become tokens. "words" are separated by spaces."""

    kind: str = "characters"  # "characters", "words", "byte-pair", or "given": loaded from `path`
    vocab_size: int | None = None  # at most, with special tokens; required for byte-pair; None: all characters or words
    path: str | None = None  # of a given tokenizer: its directory, or its tokenizer.json
    lowercase: bool = False
    target: TargetConfig | None = None  # of the targets of pairs; None: the same

    KINDS: ClassVar[Mapping[str, OptionValidator]] = {
        "kind": one_of(*TOKENIZERS), "vocab_size": VOCABULARY, "path": NAME, "lowercase": SWITCH,
    }  # fmt: skip
    SECTIONS: ClassVar[Mapping[str, Any]] = {"target": TargetConfig}


@dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """The official source of a data file. Its name may be used in data.train in place of a path."""

    sha256: str  # of the decompressed file
    url: str  # of the file, or of the project that it was made from
    member: str = ""  # the file inside of the zip archive at the URL
    files: tuple[str, ...] = ()  # names under UWAGA_DATA; a download is stored under the first
    instructions: str = ""  # how to make the file, where it cannot be downloaded from the URL

    KINDS: ClassVar[Mapping[str, OptionValidator]] = {
        "sha256": _SHA256, "url": NAME, "member": TEXT, "files": NAMES, "instructions": TEXT,
    }  # fmt: skip
    SECTIONS: ClassVar[Mapping[str, Any]] = {}


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which data is read, how it is split, and how it is cut into rows."""

    kind: str = "text"
    train: tuple[str, ...] = ()  # files, or names of sources; relative paths start where the command runs
    validation: tuple[str, ...] = ()  # files; none: a fraction of the training files
    validation_fraction: float = (
        0.1  # of documents or sources, by a hash of their content; with windows, the end of the text
    )
    document: str = (
        "file"  # of text: what a document is; or "line" or "paragraph" (up to an empty line), without empty ones
    )
    text_field: str = "text"  # of jsonl and parquet
    pair_format: str = "tsv"  # of pairs
    source_field: str = "source"  # of pairs in jsonl and parquet
    target_field: str = "target"
    target_files: tuple[str, ...] = ()  # of pairs in parallel files: line n is the target of line n of data.train
    validation_target_files: tuple[str, ...] = ()
    remove_characters: str = ""  # from targets, such as the digits that mark stress in CMUdict
    context_length: int = 256  # the most tokens of a row
    windows: bool = False  # rows are random windows of all texts joined, as in nanoGPT
    mlm_probability: float = 0.15  # of a masked language model: the fraction of tokens that are predicted
    download: bool = False  # download sources that are not under UWAGA_DATA
    sources: Mapping[str, SourceConfig] = dataclasses.field(default_factory=dict)

    KINDS: ClassVar[Mapping[str, OptionValidator]] = {
        "kind": one_of(*DATA), "train": NAMES, "validation": NAMES, "validation_fraction": PART,
        "document": one_of("file", "line", "paragraph"), "text_field": NAME, "pair_format": one_of(*PAIR_FORMATS),
        "source_field": NAME, "target_field": NAME, "target_files": NAMES, "validation_target_files": NAMES, "remove_characters": TEXT,
        "context_length": SIZE, "windows": SWITCH, "mlm_probability": number("a number above 0 and up to 1", lambda x: 0 < x <= 1),
        "download": SWITCH,
    }  # fmt: skip
    SECTIONS: ClassVar[Mapping[str, Any]] = {"sources": Named(SourceConfig)}


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """Sizes in tokens that the model reads, sources and targets together."""

    tokens_per_batch: int = 4096  # of a micro-batch, at most
    tokens_per_step: int | None = None  # of an optimizer step, a multiple of tokens_per_batch; None: one micro-batch

    KINDS: ClassVar[Mapping[str, OptionValidator]] = {"tokens_per_batch": SIZE, "tokens_per_step": SIZE}
    SECTIONS: ClassVar[Mapping[str, Any]] = {}

    @property
    def gradient_accumulation_steps(self) -> int:
        """MicroBatch-batches of a step."""
        return 1 if self.tokens_per_step is None else self.tokens_per_step // self.tokens_per_batch


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW (Loshchilov and Hutter 2019) and the loss."""

    lr: float = 3e-4
    betas: tuple[float, ...] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1  # of matrices, not of norms and biases
    max_grad_norm: float = 1.0  # gradients are clipped to this global norm; 0: not clipped
    label_smoothing: float = 0.0
    dtype: str = "float32"  # of the computation; "bfloat16" is autocast over float32 weights

    KINDS: ClassVar[Mapping[str, OptionValidator]] = {
        "lr": POSITIVE, "betas": BETAS, "eps": POSITIVE, "weight_decay": NOT_NEGATIVE, "max_grad_norm": NOT_NEGATIVE,
        "label_smoothing": PART, "dtype": one_of("float32", "bfloat16"),
    }  # fmt: skip
    SECTIONS: ClassVar[Mapping[str, Any]] = {}


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """The learning rate over the steps: it rises to optimizer.lr, then falls (unless "constant")."""

    kind: str = "cosine"
    steps: int  # optimizer steps of the run
    warmup_steps: int = 0  # steps until the full rate
    final_lr_ratio: float = 0.1  # learning rate of the last step, divided by optimizer.lr

    KINDS: ClassVar[Mapping[str, OptionValidator]] = {
        "kind": one_of("cosine", "linear", "constant"), "steps": SIZE, "warmup_steps": COUNT, "final_lr_ratio": SHARE,
    }  # fmt: skip
    SECTIONS: ClassVar[Mapping[str, Any]] = {}


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """How the processes that torchrun started share the work."""

    context: int = 1  # so many processes share each sequence, by the ring of uwaga.sequence_parallel; micro-batches are divided over the rest
    timeout: float = (
        3600.0  # seconds within which, on CPUs, a process is told that another ended or hangs; it waits a third of them
    )

    KINDS: ClassVar[Mapping[str, OptionValidator]] = {"context": SIZE, "timeout": SECONDS}
    SECTIONS: ClassVar[Mapping[str, Any]] = {}


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Where a run is stored, and what it logs."""

    output_dir: str  # the folder of checkpoints and metrics
    init_from: str | None = None  # a model's directory whose weights training starts with; None: random ones
    seed: int = 0  # of initial weights, data order, masks and dropout
    log_every: int = 10  # steps; all of *_every are
    eval_every: int = 250
    eval_tokens: int | None = None  # evaluate on about so many; None: all
    save_every: int | None = None  # None: as eval_every
    keep_last: int = 2  # the newest checkpoints to keep, beside the best one
    sample_every: int = 0  # 0: never
    sample_prompts: tuple[str, ...] = ()  # prompts, or sources of pairs
    sample_tokens: int = 200  # the most new tokens of a sample
    attention_every: int = 0  # attention statistics of every head; 0: never
    tensorboard: bool = False
    threads: int | None = None  # of PyTorch; None: its default
    compile: bool = False
    device: str = "auto"  # "auto": CUDA where it is available

    KINDS: ClassVar[Mapping[str, OptionValidator]] = {
        "output_dir": NAME, "init_from": NAME, "seed": COUNT, "log_every": SIZE, "eval_every": SIZE, "eval_tokens": SIZE, "save_every": SIZE,
        "keep_last": SIZE, "sample_every": COUNT, "sample_prompts": NAMES, "sample_tokens": SIZE, "attention_every": COUNT,
        "tensorboard": SWITCH, "threads": THREADS, "compile": SWITCH, "device": one_of("auto", "cpu", "cuda"),
    }  # fmt: skip
    SECTIONS: ClassVar[Mapping[str, Any]] = {}


_TABLE = OptionValidator("a table", lambda x: isinstance(x, Mapping))


@dataclass(frozen=True, kw_only=True)
class Config:
    """The configuration of a training run. Sections are TOML tables of these names.

    Raises:
        ConfigError: a value of the wrong type or out of range, or values that contradict each other.
    """

    objective: str  # of uwaga.train.families.OBJECTIVES
    model: Mapping[str, Any]  # "family", and settings of its config class; vocab_size comes from the tokenizer
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    data: DataConfig
    batch: BatchConfig = field(default_factory=BatchConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    run: RunConfig

    KINDS: ClassVar[Mapping[str, OptionValidator]] = {"objective": one_of(*OBJECTIVES), "model": _TABLE}
    SECTIONS: ClassVar[Mapping[str, Any]] = {
        "tokenizer": TokenizerConfig, "data": DataConfig, "batch": BatchConfig, "optimizer": OptimizerConfig,
        "schedule": ScheduleConfig, "parallel": ParallelConfig, "run": RunConfig,
    }  # fmt: skip

    def __post_init__(self) -> None:
        settings.check(self)
        families.check(self.model, self.objective)
        for check in (_check_files, _check_objective, _check_sizes, _check_tokenizers, _check_parallel):
            check(self)

    @staticmethod
    def read(path: Path, overrides: Iterable[str] = ()) -> "Config":
        """From a TOML file.

        Args:
            path: of the file.
            overrides: "key.path=value" each, with a value of TOML; a word without quotes is a string.

        Raises:
            ConfigError: the message begins with the path.
        """
        try:
            return Config.parse(untrusted.read_file(path, untrusted.TOML_BYTES).decode("utf-8"), overrides)
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"{path} is not UTF-8: byte 0x{error.object[error.start]:02x} at byte {error.start + 1}"
            ) from error
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    @staticmethod
    def parse(text: str, overrides: Iterable[str] = ()) -> "Config":
        """From the text of a TOML file, as `read`. Raises ConfigError."""
        try:
            untrusted.check_toml_size(text)
            table = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # syntax errors, and numbers of thousands of digits
            raise ConfigError(f"is not TOML: {error}") from error
        for override in overrides:
            _override(table, override)
        return settings.read(Config, table, "", frozenset(settings.keys(Config)))

    def text(self) -> str:
        """As TOML with every key that has a value: `Config.parse` of it is equal to this."""
        return to_toml(_as_dict(self))


# Values that contradict each other. Each function raises ConfigError.


def _check_files(config: Config) -> None:
    data = config.data
    if not data.train:
        raise ConfigError("data.train names no file")
    if not data.validation and not data.validation_fraction:
        raise ConfigError(
            "data.validation names no file, and data.validation_fraction is 0: there would be nothing to validate on"
        )
    if data.windows and data.kind == "pairs":
        raise ConfigError("data.windows is for texts, and data.kind is 'pairs'")
    is_parallel = data.kind == "pairs" and data.pair_format == "parallel"
    for name, files, target_files in (
        ("train", data.train, data.target_files),
        ("validation", data.validation, data.validation_target_files),
    ):
        target = "data.target_files" if name == "train" else "data.validation_target_files"
        if is_parallel and len(files) != len(target_files):
            raise ConfigError(
                f"{target} must name one file for each of data.{name}: {len(files)}, not {len(target_files)}"
            )
        if not is_parallel and target_files:
            raise ConfigError(f"{target} is for data.pair_format 'parallel'")


def _check_objective(config: Config) -> None:
    is_pairs = config.data.kind == "pairs"
    if is_pairs != (config.objective == "encoder-decoder"):
        rule = "must be 'pairs'" if not is_pairs else "must not be 'pairs'"
        raise ConfigError(f"data.kind {rule} for the objective {config.objective!r}")
    if config.data.windows and config.objective != "language-model":
        raise ConfigError(f"data.windows is for a language-model, not for the objective {config.objective!r}")
    if config.data.remove_characters and not is_pairs:
        raise ConfigError("data.remove_characters is for pairs")
    if config.tokenizer.target is not None and not is_pairs:
        raise ConfigError("tokenizer.target is for pairs")


def _check_sizes(config: Config) -> None:
    data, batch = config.data, config.batch
    least = data.context_length * (2 if data.kind == "pairs" else 1)
    if batch.tokens_per_batch < least:
        both = "source and target of data.context_length" if data.kind == "pairs" else "a row of data.context_length"
        raise ConfigError(f"batch.tokens_per_batch must hold {both} tokens, {least}, and is {batch.tokens_per_batch}")
    if batch.tokens_per_step is not None and batch.tokens_per_step % batch.tokens_per_batch:
        raise ConfigError(
            f"batch.tokens_per_step must be a multiple of batch.tokens_per_batch, {batch.tokens_per_batch}, "
            f"not {batch.tokens_per_step}"
        )
    longest = families.max_tokens(config.model, config.objective)
    if longest is not None and data.context_length > longest:
        raise ConfigError(f"data.context_length is {data.context_length}, and the model has {longest} positions")
    if config.objective == "masked-language-model" and data.context_length < 3:
        raise ConfigError(
            f"data.context_length must be at least 3, for a token between [CLS] and [SEP], and is {data.context_length}"
        )
    if config.schedule.warmup_steps > config.schedule.steps:
        steps, warmup = config.schedule.steps, config.schedule.warmup_steps
        raise ConfigError(
            f"schedule.warmup_steps must not be more than schedule.steps, {steps}, and is {warmup}; "
            f"for a short run, add schedule.warmup_steps={steps // 10}"
        )


def _check_tokenizers(config: Config) -> None:
    own = config.tokenizer
    _check_tokenizer(own, "tokenizer")
    target = own.target
    if target is None:
        return
    _check_tokenizer(target, "tokenizer.target")
    if target.shared and not {own.kind, target.kind} <= {"characters", "words"}:
        raise ConfigError("tokenizer.target.shared is for characters and words")
    if target.shared and target.vocab_size is not None:
        raise ConfigError(
            "tokenizer.target.vocab_size is not for a shared vocabulary: tokenizer.vocab_size limits both"
        )
    if not target.shared and config.model["family"] != "transformer":
        raise ConfigError(
            f"tokenizer.target is a second vocabulary, which the family {config.model['family']!r} does not support: "
            "set tokenizer.target.shared, or remove the table"
        )


def _check_tokenizer(section: TokenizerConfig | TargetConfig, name: str) -> None:
    if (section.path is not None) != (section.kind == "given"):
        need = "is needed where" if section.path is None else "is for"
        raise ConfigError(f"{name}.path {need} {name}.kind{' is' if section.path is None else ''} 'given'")
    if section.kind == "byte-pair" and section.vocab_size is None:
        raise ConfigError(f"{name}.vocab_size is needed where {name}.kind is 'byte-pair'")
    if section.kind == "given" and (section.vocab_size is not None or section.lowercase):
        raise ConfigError(f"{name}.vocab_size and {name}.lowercase are not for {name}.kind 'given'")


def _check_parallel(config: Config) -> None:
    if config.parallel.context == 1:
        return
    is_set = f"parallel.context is {config.parallel.context}, and"
    if config.run.compile:
        raise ConfigError(f"{is_set} run.compile is true: attention by several processes cannot be compiled")
    if config.run.device == "cuda":
        raise ConfigError(f"{is_set} run.device is 'cuda': attention by several processes is computed on CPUs")
    if dropouts := families.hidden_dropouts(config.model, config.objective):
        named = " and ".join(f"model.{name}" for name in dropouts)
        if config.objective == "encoder-decoder":
            raise ConfigError(f"{is_set} for an encoder-decoder {named} must then be 0")
        if config.optimizer.dtype != "float32":
            raise ConfigError(f"{is_set} with optimizer.dtype {config.optimizer.dtype!r} {named} must then be 0")


# TOML in and out.


def _as_dict(value: Any) -> Any:
    if is_dataclass(value):
        return {each.name: _as_dict(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {name: _as_dict(each) for name, each in value.items()}
    return value


def _override(table: dict[str, Any], override: str) -> None:
    """Set one "key.path=value" in the table. Raises ConfigError."""
    try:
        override.encode()  # bytes of an argument that are not UTF-8 are lone surrogates
    except UnicodeError as error:
        raise ConfigError(f"{override!r} is not valid UTF-8") from error
    path, equals, text = override.partition("=")
    names: Sequence[str] = path.strip().split(".")
    if not equals or not all(names):
        raise ConfigError(f"{override!r} must be key.path=value, such as optimizer.lr=3e-4")
    for done, name in enumerate(names[:-1], start=1):
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{override!r}: {'.'.join(names[:done])} is not a table")
    table[names[-1]] = _parsed(text.strip())


def _parsed(text: str) -> Any:
    """A value of TOML; a word or path without quotes is a string, since shells remove quotes. Raises ConfigError."""
    try:
        untrusted.check_toml_size(text)
        value = tomllib.loads(f"x = {text}")["x"]
    except (ValueError, RecursionError) as error:
        if text[:1] in ("", '"', "'", "[", "{") or "\n" in text:
            raise ConfigError(f"{text!r} is not a TOML value: {error}") from error
        return text
    # 2024-05-01 is a date in TOML, and here the name of a folder.
    return text if isinstance(value, datetime.date | datetime.time) else value


# Written by hand: the standard library reads TOML and does not write it, and a package for these 40 lines (tomli-w) would be one
# more dependency of every installation. Tests read what is written back by tomllib.
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(tables: Mapping[str, Any]) -> str:
    r"""Tables and values as TOML, which `tomllib` reads back equal. Keys whose value is None are left out: TOML has no null.

    >>> print(to_toml({"steps": 3, "rates": [1e-05, 2.0], "run": {"output_dir": "a\\b", "model": {"num_layers": 2}}}), end="")
    steps = 3
    rates = [1e-05, 2.0]
    <BLANKLINE>
    [run]
    output_dir = "a\\b"
    <BLANKLINE>
    [run.model]
    num_layers = 2
    """
    lines: list[str] = []
    _append_table(tables, (), lines)
    return "\n".join(lines).lstrip("\n") + "\n"


def _append_table(table: Mapping[str, Any], path: tuple[str, ...], lines: list[str]) -> None:
    given = {name: value for name, value in table.items() if value is not None}
    values = {name: value for name, value in given.items() if not isinstance(value, Mapping)}
    if path and (values or not given):
        lines.extend(("", f"[{'.'.join(map(_key, path))}]"))
    lines.extend(f"{_key(name)} = {_value_text(value)}" for name, value in values.items())
    for name, value in given.items():
        if isinstance(value, Mapping):
            _append_table(value, (*path, name), lines)


def _key(name: str) -> str:
    """A key, in quotes unless it may be bare."""
    return name if _BARE_KEY.fullmatch(name) else _string(name)


def _value_text(value: object) -> str:
    """A value other than a table."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value_text, value))}]"
    raise TypeError(f"{type(value).__name__} is not a type of TOML")


def _string(text: str) -> str:
    # JSON's escapes are valid in TOML, which also forbids a raw DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")
