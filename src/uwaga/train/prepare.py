"""Training files to token files, once, in a folder named by a hash of everything that they depend on.

    out/data-HASH/metadata.json                rows, tokens, dtype and checksum of each token file
    out/data-HASH/train.tokens, train.offsets  and the same of validation, and of targets: rows one after the other
    out/data-HASH/tokenizer.json               and its settings; target_tokenizer.json if targets have another
    out/data-HASH/answers.jsonl                of pairs: the validation sources with all their targets

A folder that is being written has the suffix .unfinished; no reader looks into it. Letters: R rows, N tokens.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, TypeVar

import numpy as np

from uwaga._base import durable
from uwaga._base.durable import atomic_replace, create_file, file_lock, fsync, fsync_opened
from uwaga.data.documents import Document, DocumentFile, file_status
from uwaga.data.splits import SPLITS, TRAIN, VALIDATION, Pair, pairs, split, split_by_position
from uwaga.data.tokenizers import (
    TextTokenizer,
    as_target_tokenizer,
    count_symbols,
    divide_text,
    train_byte_pair_tokenizer,
    train_symbol_tokenizer,
)
from uwaga.models.tokenizers.loading import TARGET_FILE
from uwaga.train import sources
from uwaga.train.config import Config, DataConfig, TargetConfig, TokenizerConfig
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

# The files of each split; and of parallel files of pairs "target" and "validation_target".
_Files = Mapping[str, tuple[Path, ...]]
# The tokenizer of texts or sources, and the tokenizer of targets: the same one, unless the configuration has another.
Tokenizers = tuple[TextTokenizer, TextTokenizer]


def prepare(config: Config, folder: Path) -> Path:
    """Return the folder of a configuration's prepared data inside another folder. It is made if it does not exist; if
    several processes ask, one makes it. Raises DataError, ConfigError."""
    data = config.data
    files = {
        TRAIN: data.train,
        VALIDATION: data.validation,
        "target": data.target_files,
        "validation_target": data.validation_target_files,
    }
    found = {
        name: tuple(sources.find(file, data) if file in data.sources else Path(file) for file in names)
        for name, names in files.items()
    }
    final = folder / f"data-{_fingerprint(config, found)}"
    if not os.path.lexists(final / METADATA):
        durable.make_folder(folder)
        with file_lock(folder / ".preparing"):
            if not os.path.lexists(final / METADATA):
                _make(config, found, final)
    return final


def _fingerprint(config: Config, files: _Files) -> str:
    """Return a hash of the settings, and of files by their paths, sizes and times. Raises DataError: a file does not exist."""
    data = {name: value for name, value in asdict(config.data).items() if name not in _NOT_HASHED}
    # Pairs must fit into the context, and texts that are read by windows are split by position.
    data |= {
        "context_length": config.data.context_length if data["kind"] == "pairs" else None,
        "windows": config.data.windows,
    }
    sections = (config.tokenizer, config.tokenizer.target)
    tokenizers = [Path(section.path) for section in sections if section is not None and section.path]
    described = {
        "format": _FORMAT,
        "objective": config.objective,
        "data": data,
        "tokenizer": _resolved(asdict(config.tokenizer)),
        "given": list(map(_tokenizer_states, tokenizers)),
        "files": {name: [_file_state(path) for path in paths] for name, paths in files.items()},
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]


def _resolved(tokenizer: dict[str, Any]) -> dict[str, Any]:
    """Return settings of a tokenizer and of its targets, with whole paths: ./a and a are one file."""
    result = dict(tokenizer)
    if result["path"] is not None:
        result["path"] = str(Path(result["path"]).resolve())
    if result.get("target") is not None:
        result["target"] = _resolved(result["target"])
    return result


def _file_state(path: Path) -> tuple[str, int, int]:
    status = file_status(path)
    return str(path.resolve()), status.st_size, status.st_mtime_ns


def _tokenizer_states(path: Path) -> list[tuple[str, int, int]]:
    folder = path if path.is_dir() else path.parent
    return [_file_state(file) for file in sorted(folder.glob("*.json"))]


def _make(config: Config, files: _Files, final: Path) -> None:
    for leftover in final.parent.glob("data-*.unfinished"):  # of a killed process: this one holds the lock
        if _UNFINISHED.fullmatch(leftover.name):
            durable.remove_folder(leftover, _FILES)
    unfinished = final.with_name(f"{final.name}.unfinished")
    durable.create_marked_folder(unfinished)
    try:
        tokenizers = _train_tokenizers(config, files)
        save_tokenizers(tokenizers, unfinished)
        metadata = _write(config, files, tokenizers, unfinished)
        _check_sizes(config.data, metadata)
        with atomic_replace(unfinished / METADATA) as file:
            file.write((json.dumps(metadata, indent=2, sort_keys=True) + "\n").encode())
        durable.rename_folder(unfinished, final)
        durable.unmark_folder(final)
        fsync(final.parent)
    except BaseException:
        with suppress(OSError):
            durable.remove_folder(unfinished, _FILES)
        raise


def _check_sizes(data: DataConfig, metadata: dict[str, Any]) -> None:
    """Raise DataError unless both splits have data."""
    least = data.context_length + 1 if data.windows else 1
    if data.windows and metadata[TRAIN]["tokens"] < least:
        raise DataError(
            f"{', '.join(data.train)}: windows of data.context_length, {data.context_length}, and a token need at least "
            f"{least} tokens for training, and there are {metadata[TRAIN]['tokens']}"
        )
    what = "pair" if data.kind == "pairs" else "document"
    for name, words in ((TRAIN, "training"), (VALIDATION, "validation")):
        if metadata[name]["rows"] and metadata[name]["tokens"] > (1 if data.windows else 0):
            continue
        names = ", ".join(data.validation if name == VALIDATION and data.validation else data.train)
        total = sum(metadata[split_name]["rows"] for split_name in SPLITS)
        raise DataError(
            f"{names}: no {what} is left for {words}, with {total} of them and data.validation_fraction is "
            f"{data.validation_fraction:g}; "
            "name files in data.validation, or cut texts into more documents by data.document"
        )


# Documents and pairs with their splits, in the order of the files.


def _documents(data: DataConfig, files: _Files) -> Iterator[tuple[str, Document]]:
    """Yield those that are not empty. Raises DataError."""
    field = None if data.kind == "text" else data.text_field
    of_file = partial(DocumentFile, kind=data.kind, unit=data.document, text_field=field, id_field="", skip_empty=True)
    if data.windows and not files[VALIDATION]:
        return split_by_position(files[TRAIN], of_file, data.validation_fraction)
    return split(files[TRAIN], files[VALIDATION], of_file, data.validation_fraction)


def _pairs(data: DataConfig, files: _Files) -> Iterator[tuple[str, Pair]]:
    """Yield pairs with their splits. Raises DataError."""
    names = ("pair_format", "source_field", "target_field", "remove_characters")
    how = {name: getattr(data, name) for name in names}
    train, validation = (
        list(zip(files[name], files[target] or (None,) * len(files[name]), strict=True))
        for name, target in ((TRAIN, "target"), (VALIDATION, "validation_target"))
    )
    return split(train, validation, lambda paths: pairs(*paths, **how), data.validation_fraction)


# Tokenizers: trained on the data, or loaded.


def save_tokenizers(tokenizers: Tokenizers, folder: Path) -> None:
    """Save tokenizer.json and its settings; target_tokenizer.json if targets have their own."""
    tokenizer, target = tokenizers
    tokenizer.save(folder)
    if target is not tokenizer:
        target.save(folder, file=TARGET_FILE)


def _train_tokenizers(config: Config, files: _Files) -> Tokenizers:
    """Train or load the tokenizers of the data. Characters and words are those of all files; byte pairs are learned
    from the training split alone."""
    source, target, objective = config.tokenizer, config.tokenizer.target, config.objective
    texts, answers = partial(_texts, config.data, files, ("source",)), partial(_texts, config.data, files, ("target",))
    if target is None:
        tokenizer = _train_tokenizer(source, objective, partial(_texts, config.data, files, ("source", "target")))
        return tokenizer, tokenizer
    if not target.shared:
        return _train_tokenizer(source, objective, texts), _train_tokenizer(target, objective, answers)
    how: dict[str, Any] = {"kind": source.kind, "lowercase": source.lowercase}
    targets = count_symbols(answers(every=True), target.kind, lowercase=target.lowercase)
    symbols = count_symbols(texts(every=True), **how)
    tokenizer = train_symbol_tokenizer(symbols, objective, vocab_size=source.vocab_size, targets=targets, **how)
    return tokenizer, as_target_tokenizer(tokenizer, objective, kind=target.kind, lowercase=target.lowercase)


def _train_tokenizer(
    section: TokenizerConfig | TargetConfig, objective: str, texts: Callable[..., Iterator[str]]
) -> TextTokenizer:
    if section.kind == "given":
        assert section.path is not None
        return TextTokenizer.load(Path(section.path), objective)
    how: dict[str, Any] = {"vocab_size": section.vocab_size, "lowercase": section.lowercase}
    if section.kind == "byte-pair":
        return train_byte_pair_tokenizer(texts(every=False), objective, **how)
    symbols = count_symbols(texts(every=True), section.kind, lowercase=section.lowercase)
    return train_symbol_tokenizer(symbols, objective, kind=section.kind, **how)


def _texts(data: DataConfig, files: _Files, sides: Sequence[str], *, every: bool) -> Iterator[str]:
    """Yield the texts of all files, or of the training split alone; sides: of pairs."""
    if data.kind == "pairs":
        for name, pair in _pairs(data, files):
            if every or name == TRAIN:
                yield from (getattr(pair, side) for side in sides)
        return
    for name, document in _documents(data, files):
        if every or name == TRAIN:
            yield from divide_text(document.pieces)


# Documents and pairs to token files, a bounded number of characters at a time.


def _write(config: Config, files: _Files, tokenizers: Tokenizers, folder: Path) -> dict[str, Any]:
    """Write all token files, and return their metadata by name."""
    is_pairs = config.data.kind == "pairs"
    with ExitStack() as stack:
        writers = {
            name: stack.enter_context(TokenWriter(folder, name, tokenizer.vocab_size))
            for suffix, tokenizer in zip(("", "-targets")[: 1 + is_pairs], tokenizers, strict=False)
            for name in (f"{split_name}{suffix}" for split_name in SPLITS)
        }
        if is_pairs:
            answers = _write_pairs(config, files, tokenizers, writers)
            with atomic_replace(folder / ANSWERS) as file:
                for source, targets in answers.items():
                    line = json.dumps({"source": source, "targets": list(targets)}, ensure_ascii=False)
                    file.write(f"{line}\n".encode())
        else:
            _write_documents(config, files, tokenizers[0], writers)
    return {name: writer.metadata for name, writer in writers.items()}


def _write_documents(
    config: Config, files: _Files, tokenizer: TextTokenizer, writers: Mapping[str, "TokenWriter"]
) -> None:
    """Write documents as rows of the split's writer. For a language model each begins and ends with the end-of-text
    token (or what the tokenizer puts before a text); if windows are read, all are one row with that token between
    them."""
    begin = end = nothing = np.empty(0, np.int64)
    is_stream = config.data.windows
    if config.objective == "language-model":
        assert tokenizer.special.eos is not None
        end = np.array([tokenizer.special.eos])
        begin = np.array(tokenizer.before or end)
    begun: set[str] = set()
    for parts in _batched(_parts(config.data, files, tokenizer), lambda part: len(part.text) + 1):
        for part, ids in zip(parts, tokenizer.encode([part.text for part in parts]), strict=True):
            writer = writers[part.split]
            if part.begins:
                writer.add(begin if not is_stream else end if part.split in begun else nothing)
                begun.add(part.split)
            writer.add(ids)
            if part.ends and not is_stream:
                writer.add(end)
                writer.end_row()
    if is_stream:
        for writer in writers.values():
            writer.end_row()


class _Part(NamedTuple):
    """A part of a document's text."""

    split: str
    text: str
    begins: bool  # its document
    ends: bool


def _parts(data: DataConfig, files: _Files, tokenizer: TextTokenizer) -> Iterator[_Part]:
    for name, document in _documents(data, files):
        held, begins = "", True
        for text in tokenizer.parts(document.pieces):
            if held:
                yield _Part(name, held, begins, False)
                begins = False
            held = text
        yield _Part(name, held, begins, True)


def _write_pairs(
    config: Config, files: _Files, tokenizers: Tokenizers, writers: Mapping[str, "TokenWriter"]
) -> dict[str, dict[str, None]]:
    """Write sources and targets.

    Sources have the special tokens that the tokenizer puts around them, targets a padding and an end token.

    Returns:
        the sources of the validation split, each with all its targets; a dict of None is an ordered set.

    Raises:
        DataError: a source or target is longer than data.context_length.
    """
    tokenizer, target_tokenizer = tokenizers
    before, behind = np.array(tokenizer.before, np.int64), np.array(tokenizer.behind, np.int64)
    start, end = np.array([target_tokenizer.special.pad]), np.array([target_tokenizer.special.eos])
    answers: dict[str, dict[str, None]] = {}
    for batch in _batched(_pairs(config.data, files), lambda item: len(item[1].source) + len(item[1].target)):
        read = tokenizer.encode([pair.source for _, pair in batch])
        written = target_tokenizer.encode([pair.target for _, pair in batch])
        for (name, pair), source, target in zip(batch, read, written, strict=True):
            source_ids, target_ids = np.concatenate((before, source, behind)), np.concatenate((start, target, end))
            for side, length in (("source", len(source_ids)), ("target", len(target_ids) - 1)):
                if length > config.data.context_length:
                    raise DataError(
                        f"{pair.place}: the {side} has {length:,} tokens with the special ones, and data.context_length is "
                        f"{config.data.context_length}"
                    )
            for writer, ids in ((writers[name], source_ids), (writers[f"{name}-targets"], target_ids)):
                writer.add(ids)
                writer.end_row()
            if name == VALIDATION:
                answers.setdefault(pair.source, {})[pair.target] = None
    return answers


def _batched(items: Iterable[_T], size: Callable[[_T], int]) -> Iterator[list[_T]]:
    """Yield lists of items that have about a million characters together."""
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


# Token files.


class TokenWriter:
    """Writes NAME.tokens (N,) and NAME.offsets (R+1,) into a folder, token by token.

    Args:
        vocab_size: ids are below it; they are stored in two bytes if that is enough.
    """

    def __init__(self, folder: Path, name: str, vocab_size: int) -> None:
        self._dtype = "<u2" if vocab_size <= 2**16 else "<u4"
        self._folder, self._rows, self._total = folder, 0, 0
        self._digest = hashlib.sha256()
        self._tokens: IO[bytes] = create_file(folder / f"{name}.tokens")
        self._offsets: IO[bytes] = create_file(folder / f"{name}.offsets")
        self._offsets.write(bytes(8))

    def add(self, ids: np.ndarray) -> None:
        """Append ids to the present row."""
        packed = ids.astype(self._dtype).tobytes()
        self._tokens.write(packed)
        self._digest.update(packed)
        self._total += len(ids)

    def end_row(self) -> None:
        """End the present row; the next token begins another."""
        packed = np.array(self._total, "<i8").tobytes()
        self._offsets.write(packed)
        self._digest.update(packed)
        self._rows += 1

    @property
    def metadata(self) -> dict[str, object]:
        return {"rows": self._rows, "tokens": self._total, "dtype": self._dtype, "sha256": self._digest.hexdigest()}

    def __enter__(self) -> "TokenWriter":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for file in (self._tokens, self._offsets):
            if error is None:
                file.flush()
                fsync_opened(file.fileno())
            file.close()
        if error is None:
            fsync(self._folder)
