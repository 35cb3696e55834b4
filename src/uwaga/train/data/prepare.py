"""Data made ready once and kept under a name of what it depends on; whoever is stopped on the way leaves nothing to read."""

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

from uwaga._base import durable
from uwaga._base.durable import atomic_replace, file_lock, fsync
from uwaga._base.errors import CheckpointError
from uwaga._base.terminal import printable
from uwaga.models import json_files
from uwaga.train.config import Config
from uwaga.train.data import encoding, tokenizers
from uwaga.train.data.answers import Answers
from uwaga.train.data.fingerprint import fingerprint, places
from uwaga.train.data.sides import SIDES, TRAIN, VALIDATION, Places, SidedPair, sided_documents, sided_pairs
from uwaga.train.data.store import Writer, made_again
from uwaga.train.errors import DataError
from uwaga.train.settings import COUNT, TEXT, one_of

_ABOUT = {"rows": COUNT, "tokens": COUNT, "dtype": one_of("<u2", "<u4"), "sha256": TEXT}
ABOUT, ANSWERS = "about.json", "answers.jsonl"
_UNFINISHED = re.compile(r"data-[0-9a-f]+\.unfinished")
_FILES = re.compile(
    rf"{re.escape(ABOUT)}|{re.escape(ANSWERS)}|(target_)?tokenizer(_config)?\.json"
    rf"|({'|'.join(SIDES)})(-targets)?\.(tokens|offsets)"
)


class Progress(NamedTuple):
    """How far a preparation is."""

    doing: str  # "reading" for the tokenizer, or "writing tokens"
    characters: int


Listener = Callable[[Progress], object]


class Prepared(NamedTuple):
    """A folder that is whole."""

    folder: Path
    about: dict[str, Any]


def prepare(config: Config, folder: Path, listener: Listener | None = None) -> Prepared:
    """The prepared data of a configuration, made if it is not there. Several processes may ask at once: one makes it.

    Raises DataError, ConfigError.
    """
    files = places(config)
    final = folder / f"data-{fingerprint(config, files)}"
    if not os.path.lexists(final / ABOUT):
        durable.make_folder(folder)
        with file_lock(folder / ".preparing"):
            if not os.path.lexists(final / ABOUT):
                _make(config, files, final, listener or (lambda progress: None))
    return Prepared(final, _about(final / ABOUT))


def _about(path: Path) -> dict[str, Any]:
    """What was written of each Writer. Raises DataError."""
    try:
        found = json_files.read(path)
    except CheckpointError as error:
        raise DataError(f"{error}; {made_again(path.parent)}") from error
    for name, each in found.items():
        if not isinstance(each, dict) or not all(
            key in each and kind.accepts(each[key]) for key, kind in _ABOUT.items()
        ):
            raise DataError(
                f"{path}: {printable(name)} must have rows, tokens, dtype and sha256; {made_again(path.parent)}"
            )
    return found


def _make(config: Config, files: Places, final: Path, listener: Listener) -> None:
    for left in final.parent.glob("data-*.unfinished"):  # of a process that was killed: we are alone here
        if _UNFINISHED.fullmatch(left.name):
            durable.remove_folder(left, _FILES)
    unfinished = final.with_name(f"{final.name}.unfinished")
    durable.create_marked_folder(unfinished)
    try:
        made = tokenizers.made(config, files, _counter("reading", listener))
        made.save(unfinished)
        about = _write(config, files, made, unfinished, _counter("writing tokens", listener))
        _check_sides(config, about)
        with atomic_replace(unfinished / ABOUT) as file:
            file.write((json.dumps(about, indent=2, sort_keys=True) + "\n").encode())
        durable.rename_folder(unfinished, final)
        durable.unmark_folder(final)
        fsync(final.parent)
    except BaseException:
        with suppress(OSError):
            durable.remove_folder(unfinished, _FILES)
        raise


def _write(
    config: Config, files: Places, made: tokenizers.Tokenizers, folder: Path, seen: Callable[[int], object]
) -> dict[str, Any]:
    is_pairs = config.data.kind == "pairs"
    vocabularies = dict.fromkeys(SIDES, made.own.vocab_size)
    if is_pairs:
        assert made.target is not None
        vocabularies |= {f"{side}-targets": made.target.vocab_size for side in SIDES}
    with ExitStack() as stack:
        writers = {name: stack.enter_context(Writer(folder, name, size)) for name, size in vocabularies.items()}
        if is_pairs:
            answers = Answers()
            encoding.write_pairs(_noted(sided_pairs(files, config.data), answers), made, writers, config, seen)
            with atomic_replace(folder / ANSWERS) as file:
                answers.write(file)
        else:
            encoding.write_documents(sided_documents(files, config.data), made, writers, config, seen)
    return {name: writer.about for name, writer in writers.items()}


def _noted(pairs: Iterator[SidedPair], answers: Answers) -> Iterator[SidedPair]:
    for each in pairs:
        if each.side == VALIDATION:
            answers.add(each.pair.source, each.pair.target)
        yield each


def _check_sides(config: Config, about: dict[str, Any]) -> None:
    data = config.data
    least = data.context_length + 1 if data.windows else 1
    if data.windows and about[TRAIN]["tokens"] < least:
        raise DataError(
            f"{', '.join(data.train)}: windows of data.context_length, {data.context_length}, and a token need at least {least} tokens "
            f"for training, and there are {about[TRAIN]['tokens']}"
        )
    what = "pair" if data.kind == "pairs" else "document"
    for side, words in ((TRAIN, "training"), (VALIDATION, "validation")):
        if about[side]["rows"] and about[side]["tokens"] > (1 if data.windows else 0):
            continue
        names = ", ".join(data.validation if side == VALIDATION and data.validation else data.train)
        counts = f"{sum(about[each]['rows'] for each in SIDES)} of them and data.validation_fraction is {data.validation_fraction:g}"
        raise DataError(
            f"{names}: no {what} is left for {words}, with {counts}; "
            "name files in data.validation, or cut texts into more documents by data.document"
        )


def _counter(doing: str, listener: Listener) -> Callable[[int], None]:
    total = 0

    def seen(characters: int) -> None:
        nonlocal total
        total += characters
        listener(Progress(doing, total))

    return seen
