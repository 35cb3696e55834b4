"""The sections of a configuration: what each key means, what it may be, and what it is where it is not given."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from uwaga._base import renamed
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
PAIR_FORMATS = ("tsv", "cmudict", "jsonl", "parquet", "parallel")
_SHA256 = Kind(
    "64 hexadecimal digits", lambda x: isinstance(x, str) and len(x) == 64 and not set(x) - set("0123456789abcdef")
)


@renamed.parameters(vocabulary="vocab_size")
@dataclass(frozen=True, kw_only=True)
class TargetConfig:
    """The decoder's tokenizer, of pairs."""

    kind: str = "words"  # as the tokenizer's
    shared: bool = False  # one vocabulary, embedding and file for both sides: characters and words only
    vocab_size: int | None = None
    path: str | None = None
    lowercase: bool = False

    KINDS: ClassVar[Mapping[str, Kind]] = {
        "kind": one_of(*TOKENIZERS), "shared": SWITCH, "vocab_size": SIZE, "path": NAME, "lowercase": SWITCH,
    }  # fmt: skip
    SECTIONS: ClassVar[Mapping[str, Any]] = {}


@renamed.parameters(vocabulary="vocab_size")
@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """How texts become tokens. "words" are what spaces separate."""

    kind: str = "characters"  # "characters", "words", "byte-pair", or "given": not trained but read
    vocab_size: int | None = (
        None  # tokens at most, special ones included; byte-pair needs it; None: all characters or words
    )
    path: str | None = None  # of a given one: its directory, or its tokenizer.json
    lowercase: bool = False
    target: TargetConfig | None = None  # of pairs, the decoder's; None: the same

    KINDS: ClassVar[Mapping[str, Kind]] = {
        "kind": one_of(*TOKENIZERS), "vocab_size": SIZE, "path": NAME, "lowercase": SWITCH,
    }  # fmt: skip
    SECTIONS: ClassVar[Mapping[str, Any]] = {"target": TargetConfig}


@renamed.parameters(address="url", made="instructions")
@dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """Where a file of the data comes from; its name may stand in data.train in place of a path."""

    sha256: str  # of the text, unpacked
    url: str  # of the file, or of the project that it was made from
    member: str = ""  # the file inside of the zip archive at the URL
    files: tuple[str, ...] = ()  # names under UWAGA_DATA; the first is what a download is kept as
    instructions: str = ""  # how to make the file, where it cannot be downloaded from the URL

    KINDS: ClassVar[Mapping[str, Kind]] = {
        "sha256": _SHA256, "url": NAME, "member": TEXT, "files": NAMES, "instructions": TEXT,
    }  # fmt: skip
    SECTIONS: ClassVar[Mapping[str, Any]] = {}


@renamed.parameters(
    valid="validation", valid_share="validation_fraction", valid_target_files="validation_target_files", field="text_field",
    layout="pair_format", without="remove_characters", context="context_length", mask_share="mlm_probability",
)  # fmt: skip
@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What is read, how it is split, and how it is cut into rows."""

    kind: str = "text"
    train: tuple[str, ...] = ()  # files, or names of sources; relative paths start where the command runs
    validation: tuple[str, ...] = ()  # files; none: a fraction of the training files
    validation_fraction: float = (
        0.1  # of documents or source words, by a hash of their content; of windows, the end of the text
    )
    document: str = (
        "file"  # of text: what a document is; "line" and "paragraph" (up to an empty line) leave empty ones out
    )
    text_field: str = "text"  # of jsonl and parquet
    pair_format: str = "tsv"  # of pairs
    source_field: str = "source"  # of pairs in jsonl and parquet
    target_field: str = "target"
    target_files: tuple[str, ...] = ()  # of pairs in parallel files: line n of these answers line n of train
    validation_target_files: tuple[str, ...] = ()
    remove_characters: str = (
        ""  # characters that are taken out of the targets, as the digits that mark stress in CMUdict
    )
    context_length: int = 256  # tokens of a row at most
    windows: bool = False  # rows are random windows of all texts as one long one, as in nanoGPT
    mlm_probability: float = 0.15  # of a masked language model: the fraction of tokens that are predicted
    download: bool = False  # fetch sources that are not there
    sources: Mapping[str, SourceConfig] = dataclasses.field(default_factory=dict)

    KINDS: ClassVar[Mapping[str, Kind]] = {
        "kind": one_of(*DATA), "train": NAMES, "validation": NAMES, "validation_fraction": PART,
        "document": one_of("file", "line", "paragraph"), "text_field": NAME, "pair_format": one_of(*PAIR_FORMATS),
        "source_field": NAME, "target_field": NAME, "target_files": NAMES, "validation_target_files": NAMES, "remove_characters": TEXT,
        "context_length": SIZE, "windows": SWITCH, "mlm_probability": number("a number above 0 and up to 1", lambda x: 0 < x <= 1),
        "download": SWITCH,
    }  # fmt: skip
    SECTIONS: ClassVar[Mapping[str, Any]] = {"sources": Named(SourceConfig)}


@renamed.parameters(tokens="tokens_per_batch", global_tokens="tokens_per_step")
@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """Sizes in tokens: what the model reads, source and target together."""

    tokens_per_batch: int = 4096  # of a micro-batch, at most
    tokens_per_step: int | None = None  # of an optimizer step, a multiple of tokens_per_batch; None: one micro-batch

    KINDS: ClassVar[Mapping[str, Kind]] = {"tokens_per_batch": SIZE, "tokens_per_step": SIZE}
    SECTIONS: ClassVar[Mapping[str, Any]] = {}

    @property
    def gradient_accumulation_steps(self) -> int:
        """Micro-batches of a step."""
        return 1 if self.tokens_per_step is None else self.tokens_per_step // self.tokens_per_batch


@renamed.parameters(clip="max_grad_norm")
@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW (Loshchilov and Hutter 2019) and the loss."""

    lr: float = 3e-4
    betas: tuple[float, ...] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1  # of matrices, not of norms, biases
    max_grad_norm: float = 1.0  # gradients are clipped to this global norm; 0: not clipped
    label_smoothing: float = 0.0
    dtype: str = "float32"  # of the arithmetic; "bfloat16" keeps float32 master weights

    KINDS: ClassVar[Mapping[str, Kind]] = {
        "lr": POSITIVE, "betas": BETAS, "eps": POSITIVE, "weight_decay": NOT_NEGATIVE, "max_grad_norm": NOT_NEGATIVE,
        "label_smoothing": PART, "dtype": one_of("float32", "bfloat16"),
    }  # fmt: skip
    SECTIONS: ClassVar[Mapping[str, Any]] = {}


@renamed.parameters(warmup="warmup_steps", final="final_lr_ratio")
@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """The learning rate over the steps: it rises to optimizer.lr, then falls."""

    kind: str = "cosine"
    steps: int  # of the optimizer
    warmup_steps: int = 0  # steps until the full rate
    final_lr_ratio: float = 0.1  # learning rate of the last step, divided by optimizer.lr

    KINDS: ClassVar[Mapping[str, Kind]] = {
        "kind": one_of("cosine", "linear", "constant"), "steps": SIZE, "warmup_steps": COUNT, "final_lr_ratio": SHARE,
    }  # fmt: skip
    SECTIONS: ClassVar[Mapping[str, Any]] = {}


@renamed.parameters(out="output_dir", samples="sample_prompts")
@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One training: where it goes and what it tells."""

    output_dir: str  # folder of checkpoints and metrics
    seed: int = 0  # of weights, order, masks and dropout
    log_every: int = 10  # steps; the same for the others
    eval_every: int = 250
    eval_tokens: int | None = None  # of the validation data, about; None: all
    save_every: int | None = None  # None: with every evaluation
    keep_last: int = 2  # checkpoints, the best apart
    sample_every: int = 0  # 0: never
    sample_prompts: tuple[str, ...] = ()  # prompts, or sources of pairs
    sample_tokens: int = 200  # of a sample at most
    attention_every: int = 0  # entropy and sink mass of every head; 0: never
    tensorboard: bool = False
    threads: int | None = None  # of PyTorch; None: as it has them
    compile: bool = False
    device: str = "auto"  # "auto": CUDA where there is one

    KINDS: ClassVar[Mapping[str, Kind]] = {
        "output_dir": NAME, "seed": COUNT, "log_every": SIZE, "eval_every": SIZE, "eval_tokens": SIZE, "save_every": SIZE,
        "keep_last": SIZE, "sample_every": COUNT, "sample_prompts": NAMES, "sample_tokens": SIZE, "attention_every": COUNT,
        "tensorboard": SWITCH, "threads": SIZE, "compile": SWITCH, "device": one_of("auto", "cpu", "cuda"),
    }  # fmt: skip
    SECTIONS: ClassVar[Mapping[str, Any]] = {}
