"""The sections of a configuration: what each key means, what it may be, and what it is where it is not given."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from uwaga.models.settings import Kind
from uwaga.train.settings import (
    BETAS,
    COUNT,
    NAME,
    NAMES,
    NOT_NEGATIVE,
    PART,
    POSITIVE,
    SHARE,
    SIZE,
    SWITCH,
    TEXT,
    Named,
    number,
    one_of,
)

TOKENIZERS = ("characters", "words", "byte-pair", "given")
DATA = ("text", "jsonl", "parquet", "pairs")
LAYOUTS = ("tsv", "cmudict", "jsonl", "parquet", "parallel")
_SHA256 = Kind(
    "64 hexadecimal digits", lambda x: isinstance(x, str) and len(x) == 64 and not set(x) - set("0123456789abcdef")
)


@dataclass(frozen=True, kw_only=True)
class TargetConfig:
    """The decoder's tokenizer, of pairs."""

    kind: str = "words"  # as the tokenizer's
    shared: bool = False  # one vocabulary, embedding and file for both sides: characters and words only
    vocabulary: int | None = None
    path: str | None = None
    lowercase: bool = False

    KINDS: ClassVar[Mapping[str, Kind]] = {
        "kind": one_of(*TOKENIZERS), "shared": SWITCH, "vocabulary": SIZE, "path": NAME, "lowercase": SWITCH,
    }  # fmt: skip
    SECTIONS: ClassVar[Mapping[str, Any]] = {}


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """How texts become tokens. "words" are what spaces separate."""

    kind: str = "characters"  # "characters", "words", "byte-pair", or "given": not trained but read
    vocabulary: int | None = (
        None  # tokens at most, special ones included; byte-pair needs it; None: all characters or words
    )
    path: str | None = None  # of a given one: its directory, or its tokenizer.json
    lowercase: bool = False
    target: TargetConfig | None = None  # of pairs, the decoder's; None: the same

    KINDS: ClassVar[Mapping[str, Kind]] = {
        "kind": one_of(*TOKENIZERS), "vocabulary": SIZE, "path": NAME, "lowercase": SWITCH,
    }  # fmt: skip
    SECTIONS: ClassVar[Mapping[str, Any]] = {"target": TargetConfig}


@dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """Where a file of the data comes from; its name may stand in data.train in place of a path."""

    sha256: str  # of the text, unpacked
    address: str  # of the file, or of the project that it was made from
    member: str = ""  # of a zip archive at the address, the file inside
    files: tuple[str, ...] = ()  # names under UWAGA_DATA; the first is what a download is kept as
    made: str = ""  # where it is not at the address as it is: how it is made

    KINDS: ClassVar[Mapping[str, Kind]] = {
        "sha256": _SHA256, "address": NAME, "member": TEXT, "files": NAMES, "made": TEXT,
    }  # fmt: skip
    SECTIONS: ClassVar[Mapping[str, Any]] = {}


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What is read, how it is split, and how it is cut into rows."""

    kind: str = "text"
    train: tuple[str, ...] = ()  # files, or names of sources; relative paths start where the command runs
    valid: tuple[str, ...] = ()  # files; none: a share of the training files
    valid_share: float = (
        0.1  # of documents or source words, by a hash of their content; of windows, the end of the text
    )
    document: str = (
        "file"  # of text: what a document is; "line" and "paragraph" (up to an empty line) leave empty ones out
    )
    field: str = "text"  # of jsonl and parquet
    layout: str = "tsv"  # of pairs
    source_field: str = "source"  # of pairs in jsonl and parquet
    target_field: str = "target"
    target_files: tuple[str, ...] = ()  # of pairs in parallel files: line n of these answers line n of train
    valid_target_files: tuple[str, ...] = ()
    without: str = ""  # characters that are taken out of the targets, as the digits that mark stress in CMUdict
    context: int = 256  # tokens of a row at most
    windows: bool = False  # rows are random windows of all texts as one long one, as in nanoGPT
    mask_share: float = 0.15  # of a masked language model: tokens that it is asked for
    download: bool = False  # fetch sources that are not there
    sources: Mapping[str, SourceConfig] = dataclasses.field(default_factory=dict)

    KINDS: ClassVar[Mapping[str, Kind]] = {
        "kind": one_of(*DATA), "train": NAMES, "valid": NAMES, "valid_share": PART,
        "document": one_of("file", "line", "paragraph"), "field": NAME, "layout": one_of(*LAYOUTS),
        "source_field": NAME, "target_field": NAME, "target_files": NAMES, "valid_target_files": NAMES, "without": TEXT,
        "context": SIZE, "windows": SWITCH, "mask_share": number("a number above 0 and up to 1", lambda x: 0 < x <= 1),
        "download": SWITCH,
    }  # fmt: skip
    SECTIONS: ClassVar[Mapping[str, Any]] = {"sources": Named(SourceConfig)}


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """Sizes in tokens: what the model reads, source and target together."""

    tokens: int = 4096  # of a micro-batch, at most
    global_tokens: int | None = None  # of a step, a multiple of tokens; None: one micro-batch is a step

    KINDS: ClassVar[Mapping[str, Kind]] = {"tokens": SIZE, "global_tokens": SIZE}
    SECTIONS: ClassVar[Mapping[str, Any]] = {}

    @property
    def accumulated(self) -> int:
        """Micro-batches of a step."""
        return 1 if self.global_tokens is None else self.global_tokens // self.tokens


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW (Loshchilov and Hutter 2019) and the loss."""

    lr: float = 3e-4
    betas: tuple[float, ...] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1  # of matrices, not of norms, biases
    clip: float = 1.0  # norm of the gradient at most; 0: as it is
    label_smoothing: float = 0.0
    dtype: str = "float32"  # of the arithmetic; "bfloat16" keeps float32 master weights

    KINDS: ClassVar[Mapping[str, Kind]] = {
        "lr": POSITIVE, "betas": BETAS, "eps": POSITIVE, "weight_decay": NOT_NEGATIVE, "clip": NOT_NEGATIVE,
        "label_smoothing": PART, "dtype": one_of("float32", "bfloat16"),
    }  # fmt: skip
    SECTIONS: ClassVar[Mapping[str, Any]] = {}


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """The learning rate over the steps: it rises to optimizer.lr, then falls."""

    kind: str = "cosine"
    steps: int  # of the optimizer
    warmup: int = 0  # steps until the full rate
    final: float = 0.1  # share of the rate at the last step

    KINDS: ClassVar[Mapping[str, Kind]] = {
        "kind": one_of("cosine", "linear", "constant"), "steps": SIZE, "warmup": COUNT, "final": SHARE,
    }  # fmt: skip
    SECTIONS: ClassVar[Mapping[str, Any]] = {}


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One training: where it goes and what it tells."""

    out: str  # folder of checkpoints and metrics
    seed: int = 0  # of weights, order, masks and dropout
    log_every: int = 10  # steps; the same for the others
    eval_every: int = 250
    eval_tokens: int | None = None  # of the validation data, about; None: all
    save_every: int | None = None  # None: with every evaluation
    keep_last: int = 2  # checkpoints, the best apart
    sample_every: int = 0  # 0: never
    samples: tuple[str, ...] = ()  # prompts, or sources of pairs
    sample_tokens: int = 200  # of a sample at most
    attention_every: int = 0  # entropy and sink mass of every head; 0: never
    tensorboard: bool = False
    threads: int | None = None  # of PyTorch; None: as it has them
    compile: bool = False
    device: str = "auto"  # "auto": CUDA where there is one

    KINDS: ClassVar[Mapping[str, Kind]] = {
        "out": NAME, "seed": COUNT, "log_every": SIZE, "eval_every": SIZE, "eval_tokens": SIZE, "save_every": SIZE,
        "keep_last": SIZE, "sample_every": COUNT, "samples": NAMES, "sample_tokens": SIZE, "attention_every": COUNT,
        "tensorboard": SWITCH, "threads": SIZE, "compile": SWITCH, "device": one_of("auto", "cpu", "cuda"),
    }  # fmt: skip
    SECTIONS: ClassVar[Mapping[str, Any]] = {}
