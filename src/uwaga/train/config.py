"""The configuration of a training run: a TOML file, with overrides from the command line, validated as a whole."""

import datetime
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from annotated_types import Ge, Gt, Le
from pydantic import StringConstraints

from uwaga._base import env, untrusted
from uwaga._base.options import (
    Count,
    FractionBelow1,
    Name,
    NotNegative,
    OptionError,
    Positive,
    Real,
    Share,
    Size,
    Switch,
    Text,
    Words,
    options,
    read,
)  # fmt: skip
from uwaga.train.errors import ConfigError

Objective = Literal["language-model", "encoder-decoder", "masked-language-model"]

TokenizerKind = Literal["characters", "words", "byte-pair", "given"]
_NoNul = StringConstraints(pattern=r"^[^\x00]+$")
_FileName = Annotated[Text, _NoNul, Words("a path that is not empty, without NUL")]
_Sha256 = Annotated[Text, StringConstraints(pattern="^[0-9a-f]{64}$"), Words("64 hexadecimal digits")]
_Betas = Annotated[tuple[FractionBelow1, FractionBelow1], Words("a list of two numbers from 0 to less than 1")]
# The tokenizers library allocates as many entries as a vocabulary may get, and PyTorch as many threads.
_VocabularySize = Annotated[Size, Le(untrusted.TOKENIZER_IDS)]
_Threads = Annotated[Size, Le(env.MAX_THREADS)]


@options
class TargetConfig:
    """The tokenizer of targets, if the data is pairs."""

    kind: TokenizerKind = "words"
    shared: Switch = False  # one vocabulary and embedding for sources and targets: characters and words only
    vocab_size: _VocabularySize | None = None
    path: _FileName | None = None
    lowercase: Switch = False


@options
class TokenizerConfig:
    """How texts become tokens. "words" are separated by spaces."""

    kind: TokenizerKind = "characters"  # "given": loaded from `path`
    vocab_size: _VocabularySize | None = None  # at most, with special tokens; required for byte-pair; None: no limit
    path: _FileName | None = None  # of a given tokenizer: its directory, or its tokenizer.json
    lowercase: Switch = False
    target: TargetConfig | None = None  # of the targets of pairs; None: the same


@options
class SourceConfig:
    """The official source of a data file. Its name may be used in data.train in place of a path."""

    sha256: _Sha256  # of the decompressed file
    url: Name  # of the file, or of the project that it was made from
    member: Text = ""  # the file inside of the zip archive at the URL
    files: tuple[_FileName, ...] = ()  # names under UWAGA_DATA; a download is stored under the first
    instructions: Text = ""  # how to make the file, if it cannot be downloaded from the URL


@options
class DataConfig:
    """Which data is read, how it is split, and how it is cut into rows."""

    kind: Literal["text", "jsonl", "parquet", "pairs"] = "text"
    train: tuple[_FileName, ...] = ()  # files, or names of sources; relative paths start where the command runs
    validation: tuple[_FileName, ...] = ()  # files; none: a fraction of the training files
    # Of documents or sources, by a hash of their content; with windows, the end of the text.
    validation_fraction: FractionBelow1 = 0.1
    # Of text: what a document is; a paragraph ends at an empty line, and empty lines and paragraphs are left out.
    document: Literal["file", "line", "paragraph"] = "file"
    text_field: Name = "text"  # of jsonl and parquet
    pair_format: Literal["tsv", "cmudict", "jsonl", "parquet", "parallel"] = "tsv"  # of pairs
    source_field: Name = "source"  # of pairs in jsonl and parquet
    target_field: Name = "target"
    target_files: tuple[_FileName, ...] = ()  # of pairs in parallel files: line n is the target of line n of data.train
    validation_target_files: tuple[_FileName, ...] = ()
    remove_characters: Text = ""  # from targets, such as the digits that mark stress in CMUdict
    context_length: Size = 256  # the most tokens of a row
    windows: Switch = False  # rows are random windows of all texts joined, as in nanoGPT
    # Of a masked language model: the fraction of tokens that are predicted.
    mlm_probability: Annotated[Real, Gt(0), Le(1)] = 0.15
    download: Switch = False  # download sources that are not under UWAGA_DATA
    sources: dict[str, SourceConfig] = field(default_factory=dict)


@options
class BatchConfig:
    """Sizes in tokens that the model reads, sources and targets together."""

    tokens_per_batch: Size = 4096  # of a micro-batch, at most
    tokens_per_step: Size | None = None  # of an optimizer step, a multiple of tokens_per_batch; None: one micro-batch


@options
class OptimizerConfig:
    """AdamW (Loshchilov and Hutter 2019) and the loss."""

    lr: Positive = 3e-4
    betas: _Betas = (0.9, 0.95)
    eps: Positive = 1e-8
    weight_decay: NotNegative = 0.1  # of matrices, not of norms and biases
    max_grad_norm: NotNegative = 1.0  # gradients are clipped to this global norm; 0: not clipped
    label_smoothing: FractionBelow1 = 0.0
    dtype: Literal["float32", "bfloat16"] = "float32"  # of the computation; "bfloat16" is autocast over float32 weights


@options
class ScheduleConfig:
    """The learning rate over the steps: it rises to optimizer.lr, then falls (unless "constant")."""

    kind: Literal["cosine", "linear", "constant"] = "cosine"
    steps: Size  # optimizer steps of the run
    warmup_steps: Count = 0  # steps until the full rate
    final_lr_ratio: Share = 0.1  # learning rate of the last step, divided by optimizer.lr


@options
class ParallelConfig:
    """How the processes that torchrun started share the work."""

    # So many processes share each sequence, by the ring of uwaga.sequence_parallel; micro-batches are divided over the others.
    context: Size = 1
    # Seconds within which, on CPUs, a process is told that another ended or hangs; it waits a third of them.
    timeout: Annotated[Real, Ge(1), Le(1_000_000)] = 3600.0


@options
class RunConfig:
    """Where a run is stored, and what it logs."""

    output_dir: _FileName  # the folder of checkpoints and metrics
    init_from: _FileName | None = None  # a model's directory whose weights training starts with; None: random ones
    seed: Count = 0  # of initial weights, data order, masks and dropout
    log_every: Size = 10  # steps; all of *_every are
    eval_every: Size = 250
    eval_tokens: Size | None = None  # evaluate on about so many; None: all
    save_every: Size | None = None  # None: as eval_every
    keep_last: Size = 2  # the newest checkpoints to keep, besides the best one
    sample_every: Count = 0  # 0: never
    sample_prompts: tuple[Name, ...] = ()  # prompts, or sources of pairs
    sample_tokens: Size = 200  # the most new tokens of a sample
    attention_every: Count = 0  # attention statistics of every head; 0: never
    tensorboard: Switch = False
    threads: _Threads | None = None  # of PyTorch; None: its default
    compile: Switch = False
    device: Literal["auto", "cpu", "cuda"] = "auto"  # "auto": CUDA if it is available


@options
class Config:
    """The configuration of a training run. Sections are TOML tables of these names.

    Raises:
        ValueError: a value of the wrong type or out of range.
        ConfigError: values that contradict each other.
    """

    objective: Objective
    model: dict[str, Any]  # "family", and settings of its config class; vocab_size comes from the tokenizer
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    data: DataConfig
    batch: BatchConfig = field(default_factory=BatchConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    run: RunConfig

    def __post_init__(self) -> None:
        # uwaga.train.model imports PyTorch, which takes seconds; a missing file is reported before that.
        from uwaga.train.model import hidden_dropouts, model_config

        model = model_config(self.model, self.objective, {"vocab_size": 2**16})
        for message in chain(
            _files_conflicts(self),
            _objective_conflicts(self),
            _sizes_conflicts(self, model.max_tokens),
            _tokenizers_conflicts(self),
            _parallel_conflicts(self, hidden_dropouts(model)),
        ):
            raise ConfigError(message)

    @staticmethod
    def read(path: Path, overrides: Iterable[str] = ()) -> "Config":
        """Read a configuration from a TOML file.

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
        """Read a configuration from the text of a TOML file, as `read`. Raises ConfigError."""
        try:
            untrusted.check_toml_size(text)
            table = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # syntax errors, and numbers of thousands of digits
            raise ConfigError(f"is not TOML: {error}") from error
        for override in overrides:
            _override(table, override)
        try:
            return read(Config, table, noun="table")
        except OptionError as error:
            raise ConfigError(str(error)) from None

    def text(self) -> str:
        """Return TOML with every key that has a value; `Config.parse` reads it back equal."""
        return tomli_w.dumps(_without_none(asdict(self)))


# Values that contradict each other: what each function yields is the message of an error.


def _files_conflicts(config: Config) -> Iterator[str]:
    data = config.data
    if not data.train:
        yield "data.train names no file"
    if not data.validation and not data.validation_fraction:
        yield (
            "data.validation names no file, and data.validation_fraction is 0: there would be nothing to validate on"
        )
    if data.windows and data.kind == "pairs":
        yield "data.windows is for texts, and data.kind is 'pairs'"
    is_parallel = data.kind == "pairs" and data.pair_format == "parallel"
    for name, files, target_files in (
        ("train", data.train, data.target_files),
        ("validation", data.validation, data.validation_target_files),
    ):
        target = "data.target_files" if name == "train" else "data.validation_target_files"
        if is_parallel and len(files) != len(target_files):
            yield f"{target} must name one file for each of data.{name}: {len(files)}, not {len(target_files)}"
        if not is_parallel and target_files:
            yield f"{target} is for data.pair_format 'parallel'"


def _objective_conflicts(config: Config) -> Iterator[str]:
    is_pairs = config.data.kind == "pairs"
    if is_pairs != (config.objective == "encoder-decoder"):
        rule = "must be 'pairs'" if not is_pairs else "must not be 'pairs'"
        yield f"data.kind {rule} for the objective {config.objective!r}"
    if config.data.windows and config.objective != "language-model":
        yield f"data.windows is for a language-model, not for the objective {config.objective!r}"
    if config.data.remove_characters and not is_pairs:
        yield "data.remove_characters is for pairs"
    if config.tokenizer.target is not None and not is_pairs:
        yield "tokenizer.target is for pairs"


def _sizes_conflicts(config: Config, longest: int | None) -> Iterator[str]:
    """Yield conflicts of sizes. longest: the tokens that the model has positions for; None: no limit."""
    data, batch = config.data, config.batch
    least = data.context_length * (2 if data.kind == "pairs" else 1)
    if batch.tokens_per_batch < least:
        both = "source and target of data.context_length" if data.kind == "pairs" else "a row of data.context_length"
        yield f"batch.tokens_per_batch must hold {both} tokens, {least}, and is {batch.tokens_per_batch}"
    if batch.tokens_per_step is not None and batch.tokens_per_step % batch.tokens_per_batch:
        yield (
            f"batch.tokens_per_step must be a multiple of batch.tokens_per_batch, {batch.tokens_per_batch}, "
            f"not {batch.tokens_per_step}"
        )
    if longest is not None and data.context_length > longest:
        yield f"data.context_length is {data.context_length}, and the model has {longest} positions"
    if config.objective == "masked-language-model" and data.context_length < 3:
        yield (
            f"data.context_length must be at least 3, for a token between [CLS] and [SEP], and is {data.context_length}"
        )
    if config.schedule.warmup_steps > config.schedule.steps:
        steps, warmup = config.schedule.steps, config.schedule.warmup_steps
        yield (
            f"schedule.warmup_steps must not be more than schedule.steps, {steps}, and is {warmup}; "
            f"for a short run, add schedule.warmup_steps={steps // 10}"
        )


def _tokenizers_conflicts(config: Config) -> Iterator[str]:
    tokenizer = config.tokenizer
    yield from _tokenizer_conflicts(tokenizer, "tokenizer")
    target = tokenizer.target
    if target is None:
        return
    yield from _tokenizer_conflicts(target, "tokenizer.target")
    if target.shared and not {tokenizer.kind, target.kind} <= {"characters", "words"}:
        yield "tokenizer.target.shared is for characters and words"
    if target.shared and target.vocab_size is not None:
        yield "tokenizer.target.vocab_size is not for a shared vocabulary: tokenizer.vocab_size limits both"
    if not target.shared and config.model["family"] != "transformer":
        yield (
            f"tokenizer.target is a second vocabulary, which the family {config.model['family']!r} does not support: "
            "set tokenizer.target.shared, or remove the table"
        )


def _tokenizer_conflicts(section: TokenizerConfig | TargetConfig, name: str) -> Iterator[str]:
    if (section.path is not None) != (section.kind == "given"):
        need = "is needed where" if section.path is None else "is for"
        yield f"{name}.path {need} {name}.kind{' is' if section.path is None else ''} 'given'"
    if section.kind == "byte-pair" and section.vocab_size is None:
        yield f"{name}.vocab_size is needed where {name}.kind is 'byte-pair'"
    if section.kind == "given" and (section.vocab_size is not None or section.lowercase):
        yield f"{name}.vocab_size and {name}.lowercase are not for {name}.kind 'given'"


def _parallel_conflicts(config: Config, dropouts: Sequence[str]) -> Iterator[str]:
    """Yield conflicts of several processes. dropouts: the settings by which the model drops hidden states."""
    if config.parallel.context == 1:
        return
    is_set = f"parallel.context is {config.parallel.context}, and"
    if config.run.compile:
        yield f"{is_set} run.compile is true: attention by several processes cannot be compiled"
    if config.run.device == "cuda":
        yield f"{is_set} run.device is 'cuda': attention by several processes is computed on CPUs"
    if dropouts:
        named = " and ".join(f"model.{name}" for name in dropouts)
        if config.objective == "encoder-decoder":
            yield f"{is_set} for an encoder-decoder {named} must then be 0"
        if config.optimizer.dtype != "float32":
            yield f"{is_set} with optimizer.dtype {config.optimizer.dtype!r} {named} must then be 0"


# TOML in and out.


def _without_none(value: Any) -> Any:
    """Return tables without keys whose value is None: TOML has no null."""
    if isinstance(value, Mapping):
        return {name: _without_none(inner) for name, inner in value.items() if inner is not None}
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
    """Return a value of TOML, or the text if it is a word or path without quotes. Shells remove quotes. Raises
    ConfigError."""
    try:
        untrusted.check_toml_size(text)
        value = tomllib.loads(f"x = {text}")["x"]
    except (ValueError, RecursionError) as error:
        if text[:1] in ("", '"', "'", "[", "{") or "\n" in text:
            raise ConfigError(f"{text!r} is not a TOML value: {error}") from error
        return text
    # 2024-05-01 is a date in TOML, and here the name of a folder.
    return text if isinstance(value, datetime.date | datetime.time) else value
