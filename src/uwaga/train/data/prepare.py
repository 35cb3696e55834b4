"""Training files to token files, once, in a folder named by a hash of everything that they depend on.

    out/data-HASH/metadata.json                rows, tokens, dtype and checksum of each token file
    out/data-HASH/train.tokens, train.offsets  and the same of validation, and of targets: see uwaga.train.data.store
    out/data-HASH/tokenizer.json               and its settings; target_tokenizer.json where targets have another
    out/data-HASH/answers.jsonl                of pairs: the validation sources with all their targets

A folder that is being written has the suffix .unfinished; no reader looks into it.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from uwaga._base import durable, json_files, untrusted
from uwaga._base.durable import atomic_replace, file_lock, fsync
from uwaga._base.errors import CheckpointError
from uwaga._base.options import Count, OptionError, Text, options, read
from uwaga.train.config import Config
from uwaga.train.data import sources
from uwaga.train.data.splits import (
    SPLITS,
    TRAIN,
    VALIDATION,
    SplitDocument,
    SplitFiles,
    SplitPair,
    split_documents,
    split_pairs,
)
from uwaga.train.data.store import Answers, TokenWriter, remake_hint
from uwaga.train.data.tokenizers import CountCharacters, Tokenizers, train_tokenizers
from uwaga.train.errors import DataError

METADATA, ANSWERS = "metadata.json", "answers.jsonl"
_FORMAT = 2  # of the prepared files; increased when their meaning changes
_UNFINISHED = re.compile(r"data-[0-9a-f]+\.unfinished")
_FILES = re.compile(
    rf"{re.escape(METADATA)}|{re.escape(ANSWERS)}|(target_)?tokenizer(_config)?\.json"
    rf"|({'|'.join(SPLITS)})(-targets)?\.(tokens|offsets)"
)
# Settings that the prepared files do not depend on; of the names of files, the files themselves count.
_NOT_HASHED = (
    "context_length",
    "windows",
    "mlm_probability",
    "download",
    "sources",
    "train",
    "validation",
    "target_files",
    "validation_target_files",
)
# Characters that are encoded in one call, by as many threads as the tokenizer has.
_BATCH = 2**20
_T = TypeVar("_T")


class Progress(NamedTuple):
    """How far a preparation is."""

    doing: str  # "reading" for the tokenizer, or "writing tokens"
    characters: int


Listener = Callable[[Progress], object]


@options
class _TokenFile:
    """What metadata.json says of a token file."""

    rows: Count
    tokens: Count
    dtype: Literal["<u2", "<u4"]
    sha256: Text


class Prepared(NamedTuple):
    """A complete folder of prepared data."""

    folder: Path
    metadata: dict[str, Any]


def prepare(config: Config, folder: Path, listener: Listener | None = None) -> Prepared:
    """The prepared data of a configuration; made where it does not exist. Of several processes, one makes it.

    Raises DataError, ConfigError.
    """
    files = _split_files(config)
    final = folder / f"data-{fingerprint(config, files)}"
    if not os.path.lexists(final / METADATA):
        durable.make_folder(folder)
        with file_lock(folder / ".preparing"):
            if not os.path.lexists(final / METADATA):
                _make(config, files, final, listener or (lambda progress: None))
    return Prepared(final, _read_metadata(final / METADATA))


def _split_files(config: Config) -> SplitFiles:
    """The files of each split; names of sources are resolved. Raises DataError."""
    data = config.data
    names = {
        TRAIN: data.train,
        VALIDATION: data.validation,
        "target": data.target_files,
        "validation_target": data.validation_target_files,
    }
    return {split: tuple(sources.find(name, data) for name in each) for split, each in names.items()}


def fingerprint(config: Config, files: SplitFiles) -> str:
    """A hash of the settings, and of files by their paths, sizes and times. Raises DataError: a file does not exist."""
    data = {name: value for name, value in asdict(config.data).items() if name not in _NOT_HASHED}
    # Pairs must fit into the context, and texts that are read by windows are split by position.
    data |= {
        "context_length": config.data.context_length if data["kind"] == "pairs" else None,
        "windows": config.data.windows,
    }
    paths = [each.path for each in (config.tokenizer, config.tokenizer.target) if each is not None and each.path]
    described = {
        "format": _FORMAT,
        "objective": config.objective,
        "data": data,
        "tokenizer": _resolved(asdict(config.tokenizer)),
        "given": [_tokenizer_states(Path(path)) for path in paths],
        "files": {split: [_file_state(path) for path in each] for split, each in files.items()},
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]


def _resolved(tokenizer: dict[str, Any]) -> dict[str, Any]:
    """Settings of a tokenizer and of its targets, with whole paths: ./a and a are one file."""
    result = dict(tokenizer)
    if result["path"] is not None:
        result["path"] = str(Path(result["path"]).resolve())
    if result.get("target") is not None:
        result["target"] = _resolved(result["target"])
    return result


def _file_state(path: Path) -> tuple[str, int, int]:
    try:
        state = untrusted.stat_regular(path)
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such file") from error
    except IsADirectoryError as error:
        raise DataError(f"{path}: is a directory, not a file") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    return str(path.resolve()), state.st_size, state.st_mtime_ns


def _tokenizer_states(path: Path) -> list[tuple[str, int, int]]:
    folder = path if path.is_dir() else path.parent
    return [_file_state(each) for each in sorted(folder.glob("*.json"))]


def _read_metadata(path: Path) -> dict[str, Any]:
    """By the name of a token file. Raises DataError."""
    try:
        result = json_files.read(path)
    except CheckpointError as error:
        raise DataError(f"{error}; {remake_hint(path.parent)}") from error
    try:
        read(dict[str, _TokenFile], result)
    except OptionError as error:
        raise DataError(f"{path}: {error}; {remake_hint(path.parent)}") from error
    return result


def _make(config: Config, files: SplitFiles, final: Path, listener: Listener) -> None:
    for leftover in final.parent.glob("data-*.unfinished"):  # of a killed process: this one holds the lock
        if _UNFINISHED.fullmatch(leftover.name):
            durable.remove_folder(leftover, _FILES)
    unfinished = final.with_name(f"{final.name}.unfinished")
    durable.create_marked_folder(unfinished)
    try:
        tokenizers = train_tokenizers(config, files, _counter("reading", listener))
        tokenizers.save(unfinished)
        metadata = _write(config, files, tokenizers, unfinished, _counter("writing tokens", listener))
        _check_sizes(config, metadata)
        with atomic_replace(unfinished / METADATA) as file:
            file.write((json.dumps(metadata, indent=2, sort_keys=True) + "\n").encode())
        durable.rename_folder(unfinished, final)
        durable.unmark_folder(final)
        fsync(final.parent)
    except BaseException:
        with suppress(OSError):
            durable.remove_folder(unfinished, _FILES)
        raise


def _write(
    config: Config, files: SplitFiles, tokenizers: Tokenizers, folder: Path, count: CountCharacters
) -> dict[str, Any]:
    """All token files; returns their metadata by name."""
    is_pairs = config.data.kind == "pairs"
    vocab_sizes = dict.fromkeys(SPLITS, tokenizers.tokenizer.vocab_size)
    if is_pairs:
        assert tokenizers.target_tokenizer is not None
        vocab_sizes |= {f"{split}-targets": tokenizers.target_tokenizer.vocab_size for split in SPLITS}
    with ExitStack() as stack:
        writers = {name: stack.enter_context(TokenWriter(folder, name, size)) for name, size in vocab_sizes.items()}
        if is_pairs:
            answers = Answers()
            pairs = _with_answers(split_pairs(files, config.data), answers)
            write_pairs(pairs, tokenizers, writers, config, count)
            with atomic_replace(folder / ANSWERS) as file:
                answers.write(file)
        else:
            write_documents(split_documents(files, config.data), tokenizers, writers, config, count)
    return {name: writer.metadata for name, writer in writers.items()}


def _with_answers(pairs: Iterator[SplitPair], answers: Answers) -> Iterator[SplitPair]:
    """The same pairs; those of the validation split are added to the answers."""
    for each in pairs:
        if each.split == VALIDATION:
            answers.add(each.pair.source, each.pair.target)
        yield each


def _check_sizes(config: Config, metadata: dict[str, Any]) -> None:
    """Both splits have data. Raises DataError."""
    data = config.data
    least = data.context_length + 1 if data.windows else 1
    if data.windows and metadata[TRAIN]["tokens"] < least:
        raise DataError(
            f"{', '.join(data.train)}: windows of data.context_length, {data.context_length}, and a token need at least "
            f"{least} tokens for training, and there are {metadata[TRAIN]['tokens']}"
        )
    what = "pair" if data.kind == "pairs" else "document"
    for split, words in ((TRAIN, "training"), (VALIDATION, "validation")):
        if metadata[split]["rows"] and metadata[split]["tokens"] > (1 if data.windows else 0):
            continue
        names = ", ".join(data.validation if split == VALIDATION and data.validation else data.train)
        total = sum(metadata[each]["rows"] for each in SPLITS)
        raise DataError(
            f"{names}: no {what} is left for {words}, with {total} of them and data.validation_fraction is "
            f"{data.validation_fraction:g}; "
            "name files in data.validation, or cut texts into more documents by data.document"
        )


def _counter(doing: str, listener: Listener) -> CountCharacters:
    total = 0

    def count(characters: int) -> None:
        nonlocal total
        total += characters
        listener(Progress(doing, total))

    return count


# Documents and pairs to token files, a bounded number of characters at a time.


class _Part(NamedTuple):
    """A part of a document's text."""

    split: str
    text: str
    begins: bool  # its document
    ends: bool


def write_documents(
    documents: Iterable[SplitDocument],
    tokenizers: Tokenizers,
    writers: Mapping[str, TokenWriter],
    config: Config,
    count: CountCharacters,
) -> None:
    """Documents as rows of the split's writer.

    For a language model each begins and ends with the end-of-text token (or what the tokenizer puts before a text); where
    windows are read, all are one row with that token between them.
    """
    tokenizer = tokenizers.tokenizer
    begin, end = _no_tokens(), _no_tokens()
    is_stream = config.data.windows
    if config.objective == "language-model":
        assert tokenizer.special.eos is not None
        end = np.array([tokenizer.special.eos])
        begin = np.array(tokenizer.before or end)
    begun: set[str] = set()
    for parts in _batched(_parts(documents, tokenizers), lambda part: len(part.text) + 1):
        for part, ids in zip(parts, tokenizer.encode([part.text for part in parts]), strict=True):
            writer = writers[part.split]
            if part.begins:
                writer.add(begin if not is_stream else end if part.split in begun else _no_tokens())
                begun.add(part.split)
            writer.add(ids)
            if part.ends and not is_stream:
                writer.add(end)
                writer.end_row()
            count(len(part.text))
    if is_stream:
        for writer in writers.values():
            writer.end_row()


def write_pairs(
    pairs: Iterable[SplitPair],
    tokenizers: Tokenizers,
    writers: Mapping[str, TokenWriter],
    config: Config,
    count: CountCharacters,
) -> None:
    """Sources with the special tokens that the tokenizer puts around them; targets between a padding and an end token.

    Args:
        writers: by split for sources, and by split and "-targets" for targets.

    Raises:
        DataError: a source or target is longer than data.context_length.
    """
    tokenizer, target_tokenizer = tokenizers.tokenizer, tokenizers.target_tokenizer
    assert target_tokenizer is not None
    before, behind = np.array(tokenizer.before, np.int64), np.array(tokenizer.behind, np.int64)
    start, end = np.array([target_tokenizer.special.pad]), np.array([target_tokenizer.special.eos])
    for batch in _batched(pairs, lambda each: len(each.pair.source) + len(each.pair.target)):
        sources = tokenizer.encode([each.pair.source for each in batch])
        targets = target_tokenizer.encode([each.pair.target for each in batch])
        for (split, pair), source, target in zip(batch, sources, targets, strict=True):
            source_ids, target_ids = np.concatenate((before, source, behind)), np.concatenate((start, target, end))
            for name, length in (("source", len(source_ids)), ("target", len(target_ids) - 1)):
                if length > config.data.context_length:
                    raise DataError(
                        f"{pair.place}: the {name} has {length:,} tokens with the special ones, and data.context_length is "
                        f"{config.data.context_length}"
                    )
            for name, ids in ((split, source_ids), (f"{split}-targets", target_ids)):
                writers[name].add(ids)
                writers[name].end_row()
            count(len(pair.source) + len(pair.target))


def _parts(documents: Iterable[SplitDocument], tokenizers: Tokenizers) -> Iterator[_Part]:
    for split, document in documents:
        held, begins = "", True
        for text in tokenizers.tokenizer.parts(document.pieces):
            if held:
                yield _Part(split, held, begins, False)
                begins = False
            held = text
        yield _Part(split, held, begins, True)


def _batched(items: Iterable[_T], size: Callable[[_T], int]) -> Iterator[list[_T]]:
    """Lists of items that have about a million characters together."""
    batch: list[_T] = []
    total = 0
    for item in items:
        batch.append(item)
        total += size(item)
        if total >= _BATCH:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


def _no_tokens() -> np.ndarray:
    return np.empty(0, np.int64)
