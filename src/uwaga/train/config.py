"""The configuration of a training: a TOML file, changed from the command line, checked as a whole."""

import datetime
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar

from uwaga._base import untrusted
from uwaga.models.settings import Kind
from uwaga.train import families, rules, settings, toml
from uwaga.train.errors import ConfigError
from uwaga.train.families import OBJECTIVES
from uwaga.train.sections import (
    BatchConfig,
    DataConfig,
    OptimizerConfig,
    RunConfig,
    ScheduleConfig,
    TokenizerConfig,
)
from uwaga.train.settings import one_of

_TABLE = Kind("a table", lambda x: isinstance(x, Mapping))


@dataclass(frozen=True, kw_only=True)
class Config:
    """What a training is. The sections are TOML's tables by these names.

    Raises:
        ConfigError: a value that is not of its kind, or values that do not go together.
    """

    objective: str  # of uwaga.train.families.OBJECTIVES
    model: Mapping[str, Any]  # "family", and settings of its config; the vocabulary comes from the tokenizer
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    data: DataConfig
    batch: BatchConfig = field(default_factory=BatchConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig
    run: RunConfig

    KINDS: ClassVar[Mapping[str, Kind]] = {"objective": one_of(*OBJECTIVES), "model": _TABLE}
    SECTIONS: ClassVar[Mapping[str, Any]] = {
        "tokenizer": TokenizerConfig, "data": DataConfig, "batch": BatchConfig, "optimizer": OptimizerConfig,
        "schedule": ScheduleConfig, "run": RunConfig,
    }  # fmt: skip

    def __post_init__(self) -> None:
        settings.check(self)
        families.check(self.model, self.objective)
        rules.check(self)

    @staticmethod
    def read(path: Path, overrides: Iterable[str] = ()) -> "Config":
        """From a TOML file; overrides are `key.path=value` with a value of TOML. Raises ConfigError."""
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
        """The same of a text."""
        try:
            untrusted.check_toml_size(text)
            table = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # TOML's own, and numbers of thousands of digits
            raise ConfigError(f"is not TOML: {error}") from error
        for override in overrides:
            _change(table, override)
        return settings.read(Config, table, "", frozenset(settings.keys(Config)))

    def text(self) -> str:
        """As TOML with every key that has a value: `parse` of it is equal."""
        return toml.written(_plain(self))


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return value


def _change(table: dict[str, Any], override: str) -> None:
    """One `key.path=value` into the table."""
    try:
        override.encode()  # an argument that is no UTF-8 arrives as halves of surrogate pairs
    except UnicodeError as error:
        raise ConfigError(f"{override!r} is not valid UTF-8") from error
    path, equals, text = override.partition("=")
    names: Sequence[str] = path.strip().split(".")
    if not equals or not all(names):
        raise ConfigError(f"{override!r} must be key.path=value, such as optimizer.lr=3e-4")
    for done, name in enumerate(names[:-1], start=1):
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{override!r}: {'.'.join(names[:done])} is no table")
    table[names[-1]] = _parsed(text.strip())


def _parsed(text: str) -> Any:
    """A value of TOML; a word or path that is none is a string as it stands, for shells take quotes away."""
    try:
        untrusted.check_toml_size(text)
        value = tomllib.loads(f"x = {text}")["x"]
    except (ValueError, RecursionError) as error:
        if text[:1] in ("", '"', "'", "[", "{") or "\n" in text:
            raise ConfigError(f"{text!r} is no value of TOML: {error}") from error
        return text
    # A folder may well be called 2024-05-01.
    return text if isinstance(value, datetime.date | datetime.time) else value
