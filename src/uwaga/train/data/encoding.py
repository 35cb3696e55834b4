"""Documents and pairs to stored tokens, a bounded number of characters at a time."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from uwaga.train.config import Config
from uwaga.train.data.sides import Sided, SidedPair
from uwaga.train.data.store import Writer
from uwaga.train.data.tokenizers import Tokenizers
from uwaga.train.errors import DataError

Seen = Callable[[int], object]  # told how many characters are done
# Characters that are encoded at once, by as many threads as the tokenizer has.
_BATCH = 2**20


class _Part(NamedTuple):
    side: str
    text: str
    begins: bool  # a document
    ends: bool


def write_documents(
    documents: Iterable[Sided], tokenizers: Tokenizers, writers: Mapping[str, Writer], config: Config, seen: Seen
) -> None:
    """A language model's have what begins and what ends a text around them; those of windows, only between them."""
    tokenizer = tokenizers.own
    begin, end = _none(), _none()
    is_stream = config.data.windows
    if config.objective == "language-model":
        assert tokenizer.special.end is not None
        end = np.array([tokenizer.special.end])
        begin = np.array(tokenizer.before or end)
    begun: set[str] = set()
    for parts in _gathered(_parts(documents, tokenizers)):
        for part, ids in zip(parts, tokenizer.encode([part.text for part in parts]), strict=True):
            writer = writers[part.side]
            if part.begins:
                writer.add(begin if not is_stream else end if part.side in begun else _none())
                begun.add(part.side)
            writer.add(ids)
            if part.ends and not is_stream:
                writer.add(end)
                writer.end_row()
            seen(len(part.text))
    if is_stream:
        for writer in writers.values():
            writer.end_row()


def write_pairs(
    pairs: Iterable[SidedPair], tokenizers: Tokenizers, writers: Mapping[str, Writer], config: Config, seen: Seen
) -> None:
    """Sources with what the tokenizer puts around them, targets with what the decoder begins with, and an end.

    writers: of each side, and with "-targets" behind. Raises DataError: a row that is longer than the context.
    """
    own, target = tokenizers.own, tokenizers.target
    assert target is not None
    before, behind = np.array(own.before, np.int64), np.array(own.behind, np.int64)
    start, end = np.array([target.special.padding]), np.array([target.special.end])
    for group in _grouped(pairs):
        sources, targets = own.encode([x.pair.source for x in group]), target.encode([x.pair.target for x in group])
        for (side, pair), source, answer in zip(group, sources, targets, strict=True):
            source, answer = np.concatenate((before, source, behind)), np.concatenate((start, answer, end))
            for name, length in (("source", len(source)), ("target", len(answer) - 1)):
                if length > config.data.context_length:
                    room = f"data.context_length is {config.data.context_length}"
                    raise DataError(f"{pair.place}: the {name} has {length:,} tokens with the special ones, and {room}")
            for name, ids in ((side, source), (f"{side}-targets", answer)):
                writers[name].add(ids)
                writers[name].end_row()
            seen(len(pair.source) + len(pair.target))


def _parts(documents: Iterable[Sided], tokenizers: Tokenizers) -> Iterator[_Part]:
    for side, document in documents:
        held, begins = "", True
        for text in tokenizers.own.parts(document.pieces):
            if held:
                yield _Part(side, held, begins, False)
                begins = False
            held = text
        yield _Part(side, held, begins, True)


def _gathered(parts: Iterable[_Part]) -> Iterator[list[_Part]]:
    group: list[_Part] = []
    size = 0
    for part in parts:
        group.append(part)
        size += len(part.text) + 1
        if size >= _BATCH:
            yield group
            group, size = [], 0
    if group:
        yield group


def _grouped(pairs: Iterable[SidedPair]) -> Iterator[list[SidedPair]]:
    group: list[SidedPair] = []
    size = 0
    for each in pairs:
        group.append(each)
        size += len(each.pair.source) + len(each.pair.target)
        if size >= _BATCH:
            yield group
            group, size = [], 0
    if group:
        yield group


def _none() -> np.ndarray:
    return np.empty(0, np.int64)
