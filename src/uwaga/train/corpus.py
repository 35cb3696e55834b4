"""The data of a training run: two splits of rows, the micro-batches of each step, and their tokens.

A row is identified by a number. Rows of documents are numbered through all documents in order; random windows by their draw. Batches are
a pure function of (seed, epoch, step). Letters: R rows, N packed tokens.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from uwaga._base import untrusted
from uwaga._base.errors import CheckpointError
from uwaga._base.options import Count, OptionError, Text, options, read
from uwaga.data.documents import json_objects
from uwaga.data.splits import SPLITS, TRAIN, VALIDATION
from uwaga.data.tokenizers import TextTokenizer
from uwaga.models.tokenizers.loading import TARGET_FILE
from uwaga.ops.ragged import Cut, Ragged, part_of
from uwaga.train.config import Config
from uwaga.train.errors import DataError
from uwaga.train.prepare import ANSWERS, METADATA, Tokenizers, prepare

IGNORED = -100  # the label of a token that is not scored, as in PyTorch
_CHECKED = 2**20  # tokens that are checked at once


class MicroBatch(NamedTuple):
    """The row numbers of a micro-batch, without their tokens."""

    epoch: int
    rows: tuple[int, ...]
    number: int  # within its step


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows for a model, one after the other, without padding.

    Attributes:
        ids: (N,) int64, the input of the model or of its encoder.
        decoder_ids: (N',) int64, the input of the decoder of an encoder-decoder, in as many rows; else None.
        labels: (N,) int64, or (N',) if there are decoder_ids: the token to predict at each position; -100 is not scored.
        first_token: where ids begin in the whole batch that this is a part of.
    """

    ids: Ragged
    decoder_ids: Ragged | None
    labels: Tensor
    first_token: int = 0

    def part(self, number: int, count: int) -> "Batch":
        """Return one of `count` parts for as many processes: see `uwaga.ops.ragged.part_of`. Decoder rows are cut where
        their encoder rows are, in proportion."""
        if count == 1:
            return self
        ids = part_of(self.ids, number, count)
        other = None if self.decoder_ids is None else part_of(self.decoder_ids, number, count, like=self.ids)
        labelled = ids if other is None else other
        return Batch(
            ids=ids.rows,
            decoder_ids=None if other is None else other.rows,
            labels=self.labels[labelled.first_token :][: labelled.rows.values.shape[0]],
            first_token=ids.first_token,
        )

    @property
    def tokens(self) -> int:
        """Return the number of input tokens, of encoder and decoder together."""
        return self.ids.values.shape[0] + (0 if self.decoder_ids is None else self.decoder_ids.values.shape[0])

    def first_rows(self, tokens: int) -> "Batch":
        """Return the first rows: as many as have about so many tokens, at least one."""
        start, stop = Cut(0), Cut(max(int((self.ids.offsets[1:] <= tokens).sum()), 1))
        ids = self.ids.part(start, stop)
        other = None if self.decoder_ids is None else self.decoder_ids.part(start, stop)
        return Batch(ids=ids, decoder_ids=other, labels=self.labels[: len((ids if other is None else other).values)])

    def inputs(self, device: torch.device) -> tuple[tuple[Any, ...], int]:
        """Return the arguments of `Objective.forward` on a device, and the number of labels that count."""
        labels = self.labels
        counted = (labels != IGNORED).nonzero().flatten()
        positions = None
        if len(counted) < len(labels):
            labels, positions = labels[counted], counted
        return tuple(_moved(x, device) for x in (self.ids, self.decoder_ids, labels, positions)), len(counted)


def _moved(x: Any, device: torch.device) -> Any:
    """Return a value on a device. To a GPU it goes through pinned memory, while the GPU still computes."""
    if x is None or device.type == "cpu":
        return x
    if isinstance(x, Ragged):
        return Ragged(_moved(x.values, device), _moved(x.offsets, device), max_length=x.max_length, first=x.first)
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)


# What is read of prepared data.


@options
class _TokenFile:
    """What metadata.json says of a token file."""

    rows: Count
    tokens: Count
    dtype: Literal["<u2", "<u4"]
    sha256: Text


@options
class _Answer:
    """A line of answers.jsonl."""

    source: Text
    targets: tuple[Text, ...]


class TokenRows(NamedTuple):
    """Token files as memory maps."""

    tokens: np.ndarray  # (N,)
    offsets: np.ndarray  # (R+1,)

    def row(self, number: int) -> np.ndarray:
        """Return the token ids of a row, (T,) int64."""
        return self.tokens[self.offsets[number] : self.offsets[number + 1]].astype(np.int64)

    def lengths(self) -> np.ndarray:
        """Return the numbers of tokens of all rows, (R,) int64."""
        return np.diff(self.offsets)


@contextmanager
def _remake_hint(folder: Path) -> Iterator[None]:
    """Raise errors of damaged prepared data as a DataError that says what to do."""
    try:
        yield
    except (DataError, CheckpointError, OptionError, OSError) as error:
        what = f"{error.filename} cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise DataError(f"{what}; remove {folder} to prepare it again") from error


def _read_tokens(folder: Path, name: str, described: Mapping[str, _TokenFile], vocab_size: int) -> TokenRows:
    """Return the token files of a name, after one pass over all tokens.

    Raises DataError: a file is missing, or is not what was written.

    Args:
        described: by name.
        vocab_size: ids are below it.
    """
    with _remake_hint(folder):
        if name not in described:
            raise DataError(f"{folder / METADATA}: there is no {name}")
        of_name = described[name]
        result = TokenRows(
            _mapped(folder / f"{name}.tokens", of_name.dtype, of_name.tokens),
            _mapped(folder / f"{name}.offsets", "<i8", of_name.rows + 1),
        )
        for fault in _faults(folder / f"{name}.tokens", result, of_name.sha256, vocab_size):
            raise DataError(f"{folder / name}{fault}")
    return result


def _mapped(path: Path, kind: str, count: int) -> np.ndarray:
    expected, size = count * np.dtype(kind).itemsize, untrusted.stat_regular(path).st_size
    if size != expected:
        raise DataError(f"{path} has {size} bytes, and {expected} bytes were written")
    if not count:
        return np.empty(0, kind)  # an empty file cannot be mapped
    return np.memmap(path, kind, mode="r", shape=(count,))


def _faults(tokens: Path, rows: TokenRows, sha256: str, vocab_size: int) -> Iterator[str]:
    offsets, digest = np.array(rows.offsets), hashlib.sha256()
    if offsets[0] != 0 or offsets[-1] != len(rows.tokens) or (np.diff(offsets) < 0).any():
        yield ".offsets do not ascend from 0 to the number of tokens"
    # A million at a time, in the order in which they were written; not by the memory map, whose pages would stay in memory.
    with untrusted.open_regular(tokens) as file:
        for start, stop in pairwise(offsets.tolist()):
            for first in range(start, stop, _CHECKED):
                part = file.read((min(first + _CHECKED, stop) - first) * rows.tokens.itemsize)
                if (largest := int(np.frombuffer(part, rows.tokens.dtype).max())) >= vocab_size:
                    yield f".tokens has token {largest}, and the vocabulary has {vocab_size}"
                digest.update(part)
            digest.update(stop.to_bytes(8, "little"))
    if digest.hexdigest() != sha256:
        yield ".tokens and .offsets are not what was written"


# Rows of each objective.


class Rows(NamedTuple):
    """The rows of one split."""

    lengths: np.ndarray  # (R,) int64: the number of tokens that a model reads of each
    batch: Callable[[int, Sequence[int]], Batch]  # of an epoch and the numbers of its rows


def document_rows(stored: TokenRows, context: int) -> Rows:
    """Return the rows of documents for a language model. Each token of a document except the first is a label once.
    Documents end in an end token."""
    lengths, first_of = slices(stored, stored.lengths() - 1, context)

    def batch(epoch: int, rows: Sequence[int]) -> Batch:
        first = [(first_of(row), int(lengths[row]) + 1) for row in rows]
        return _next_tokens([stored.tokens[start : start + count] for start, count in first])

    return Rows(lengths, batch)


def window_rows(stored: TokenRows, context: int, seed: int, rows_per_step: int) -> Rows:
    """Return the rows of one long text for a language model: windows at random positions.

    The positions are drawn again in each epoch.

    Args:
        seed: of the draws.
        rows_per_step: an epoch is about as many rows as the text has windows, in whole steps.
    """
    tokens = stored.tokens
    count = max(1, round(len(tokens) / context / rows_per_step)) * rows_per_step

    @lru_cache(maxsize=1)
    def starts(epoch: int) -> np.ndarray:
        return (random_bits(count, "windows", seed, epoch) % np.uint64(len(tokens) - context)).astype(np.int64)

    def batch(epoch: int, rows: Sequence[int]) -> Batch:
        return _next_tokens([tokens[start : start + context + 1] for start in starts(epoch)[list(rows)]])

    return Rows(np.full(count, context, np.int64), batch)


def pair_rows(sources: TokenRows, targets: TokenRows) -> Rows:
    """Return the rows of pairs for an encoder-decoder. Targets are stored with the decoder's start token before them
    and an end token behind."""

    def batch(epoch: int, rows: Sequence[int]) -> Batch:
        decoded = _next_tokens([targets.row(row) for row in rows])
        return replace(decoded, ids=_ragged([sources.row(row) for row in rows]), decoder_ids=decoded.ids)

    return Rows(sources.lengths() + targets.lengths() - 1, batch)


def masked_rows(stored: TokenRows, context: int, tokenizer: TextTokenizer, probability: float, seed: int) -> Rows:
    """Return the rows for a masked language model, as in BERT (Devlin et al. 2019, section 3.1).

    A fraction of each row's tokens are labels, at least one: 80 % of them are masked, 10 % replaced by a random token
    and 10 % unchanged.

    Args:
        tokenizer: puts its tokens around each row.
        probability: the fraction.
        seed: of masks and random tokens.
    """
    mask, special = tokenizer.special.mask, tokenizer.special.ids()
    assert mask is not None
    ordinary = np.array([number for number in range(tokenizer.vocab_size) if number not in special])
    before, behind = (np.array(ids, np.int64) for ids in (tokenizer.before, tokenizer.behind))
    special_count = len(before) + len(behind)
    lengths, first_of = slices(stored, stored.lengths(), context - special_count)

    def row_of(epoch: int, row: int) -> tuple[np.ndarray, np.ndarray]:
        first, count = first_of(row), int(lengths[row])
        ids = stored.tokens[first : first + count].astype(np.int64)
        drawn = random_bits(3 * count, "masks", seed, epoch, row).reshape(3, count)
        chosen = np.argsort(drawn[0], kind="stable")[: max(1, round(count * probability))]
        labels = np.full(count + special_count, IGNORED, np.int64)
        labels[len(before) + chosen] = ids[chosen]
        tenth = (drawn[1][chosen] % np.uint64(10)).astype(np.int64)
        other = ordinary[(drawn[2][chosen] % np.uint64(len(ordinary))).astype(np.int64)]
        ids[chosen] = np.where(tenth < 8, mask, np.where(tenth == 8, other, ids[chosen]))
        return np.concatenate((before, ids, behind)), labels

    def batch(epoch: int, rows: Sequence[int]) -> Batch:
        ids, labels = zip(*(row_of(epoch, row) for row in rows), strict=True)
        return Batch(ids=_ragged(ids), decoder_ids=None, labels=torch.from_numpy(np.concatenate(labels)))

    return Rows(lengths + special_count, batch)


def slices(stored: TokenRows, lengths: np.ndarray, context: int) -> tuple[np.ndarray, Callable[[int], int]]:
    """Return documents cut into consecutive rows of at most `context` tokens; the last row of a document may be shorter.

    Args:
        lengths: (documents,) tokens of each that are cut.
        context: of a row.

    Returns:
        (R,) int64 the lengths of the rows, and a function that returns the first token of a row.
    """
    ends = np.cumsum(-(-lengths // context))  # the number of rows up to and including each document
    result, has_rows = np.full(int(ends[-1]) if len(ends) else 0, context, np.int64), lengths > 0
    result[ends[has_rows] - 1] = (lengths[has_rows] - 1) % context + 1

    def first_of(row: int) -> int:
        document = int(np.searchsorted(ends, row, side="right"))
        number = row - (int(ends[document - 1]) if document else 0)
        return int(stored.offsets[document]) + number * context

    return result, first_of


def _next_tokens(rows: Sequence[np.ndarray]) -> Batch:
    """Return rows whose labels are the next tokens."""
    labels = np.concatenate([row[1:] for row in rows]).astype(np.int64)
    return Batch(ids=_ragged([row[:-1] for row in rows]), decoder_ids=None, labels=torch.from_numpy(labels))


def _ragged(rows: Sequence[np.ndarray]) -> Ragged:
    """Pack the ids of rows, with values (N,) int64."""
    lengths = [len(row) for row in rows]
    offsets = torch.from_numpy(np.concatenate(([0], np.cumsum(lengths))).astype(np.int64))
    return Ragged(torch.from_numpy(np.concatenate(rows).astype(np.int64)), offsets, max_length=max(lengths))


def fill_batches(lengths: np.ndarray, tokens: int) -> np.ndarray:
    """Return the first row of each micro-batch, and the end of the last one, (micro-batches + 1,) int64.

    A micro-batch is filled with rows of these lengths up to so many tokens.

    >>> fill_batches(np.array([3, 3, 2, 4, 9]), 8).tolist()
    [0, 3, 4, 5]
    """
    ends = np.cumsum(lengths)
    starts, row, before = [0], 0, 0
    while row < len(lengths):
        row = max(int(np.searchsorted(ends, before + tokens, side="right")), row + 1)
        before = int(ends[row - 1])
        starts.append(row)
    return np.array(starts, np.int64)


def random_bits(count: int, *name: object) -> np.ndarray:
    """Return random bits, (count,) uint64, as a function of a name such as ("order", seed, epoch).

    >>> int(random_bits(3, "order", 0, 1)[0]) == int(random_bits(1, "order", 0, 1)[0])
    True
    """
    digest = hashlib.sha256(repr(name).encode()).digest()
    key = np.frombuffer(digest[:16], "<u8").astype(np.uint64)
    return np.random.Philox(key=key).random_raw(count)


def permutation(count: int, *name: object) -> np.ndarray:
    """Return the numbers below count, (count,) int64, in an order that is a function of the name.

    >>> sorted(permutation(5, "order", 0, 0).tolist())
    [0, 1, 2, 3, 4]
    """
    return np.argsort(random_bits(count, "permutation", *name), kind="stable")


class Split:
    """The rows of one split, in micro-batches.

    In an epoch, rows come in the order of a permutation and fill a micro-batch until the next one does not fit; lengths are mixed. To
    sort them would save nothing, since there is no padding, and would give each step rows of one length only.

    Args:
        rows: their tokens.
        config: its batch sizes and its seed.
    """

    def __init__(self, rows: Rows, config: Config) -> None:
        self.rows, self._tokens = rows, config.batch.tokens_per_batch
        self.micro_batches_per_step, self._seed = _micro_batches_per_step(config), config.run.seed
        # All steps of an epoch ask for its order, which takes 8 bytes a row.
        self._order = lru_cache(maxsize=2)(self._new_order)
        self._steps_of_epochs: list[int] = []

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows.lengths)

    def steps_per_epoch(self, epoch: int) -> int:
        """Return the number of steps of an epoch. The last step may have fewer micro-batches; no step reads two epochs."""
        while len(self._steps_of_epochs) <= epoch:
            _, starts = self._order(len(self._steps_of_epochs))
            self._steps_of_epochs.append(-(-(len(starts) - 1) // self.micro_batches_per_step))
        return self._steps_of_epochs[epoch]

    def micro_batches(self, step: int) -> list[MicroBatch]:
        """Return the micro-batches of a step, which is counted from 0 over all epochs."""
        epoch, begun = 0, 0
        while step >= begun + self.steps_per_epoch(epoch):
            begun += self.steps_per_epoch(epoch)
            epoch += 1
        (order, starts), first = self._order(epoch), (step - begun) * self.micro_batches_per_step
        ends = starts[first : first + self.micro_batches_per_step + 1].tolist()
        return [MicroBatch(epoch, tuple(order[a:b].tolist()), number) for number, (a, b) in enumerate(pairwise(ends))]

    def batch(self, micro_batch: MicroBatch) -> Batch:
        """Return its tokens, on the CPU."""
        return self.rows.batch(micro_batch.epoch, micro_batch.rows)

    def evaluation_batches(self, tokens: int | None = None) -> Iterator[Batch]:
        """Yield batches of all rows in order; or of evenly spaced rows that hold about so many tokens. Each has up to
        twice the tokens of a micro-batch: without a backward pass they fit into memory, and are faster."""
        total, chosen = int(self.rows.lengths.sum()), np.arange(len(self))
        if tokens is not None and tokens < total:
            count = max(1, len(chosen) * tokens // total)
            chosen = chosen[np.arange(count) * len(chosen) // count]
        for start, stop in pairwise(fill_batches(self.rows.lengths[chosen], 2 * self._tokens).tolist()):
            yield self.rows.batch(0, chosen[start:stop].tolist())

    def _new_order(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows in their order (R,), and where each micro-batch begins in it. Both are a pure function of
        (seed, epoch)."""
        order = permutation(len(self), "order", self._seed, epoch)
        return order, fill_batches(self.rows.lengths[order], self._tokens)


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """The prepared data of a training run.

    Attributes:
        folder: of its files.
        train, validation: its splits.
        tokenizers: of texts or sources, and of targets: the same one, unless the configuration has another.
        model_settings: the settings of a model's config that the tokenizers decide, for `uwaga.train.model.model_config`.
        digest: a hash of all that batches depend on: tokens, rows and order.
    """

    folder: Path
    train: Split
    validation: Split
    tokenizers: Tokenizers
    model_settings: dict[str, Any]
    digest: str

    @staticmethod
    def prepare(config: Config, folder: Path) -> "Corpus":
        """Train or load tokenizers and tokenize the data into a folder inside this one, or read what was prepared there.

        Raises:
            DataError: a file does not exist or has invalid content; the message names the line.
            ConfigError: a tokenizer that cannot be used.
        """
        folder = prepare(config, folder)
        with _remake_hint(folder):
            metadata = untrusted.read_json(folder / METADATA)
            described = read(dict[str, _TokenFile], metadata, path=str(folder / METADATA))
        tokenizer = target = TextTokenizer.load(folder, config.objective)
        if config.tokenizer.target is not None:
            target = TextTokenizer.load(folder, config.objective, file=TARGET_FILE)
        tokenizers = (tokenizer, target)
        stored = {
            name: [
                _read_tokens(folder, f"{name}{suffix}", described, tokenizer.vocab_size)
                for suffix, tokenizer in zip(("", "-targets"), tokenizers, strict=True)
                if not suffix or config.data.kind == "pairs"
            ]
            for name in SPLITS
        }
        return Corpus(
            folder=folder,
            train=Split(_rows(config, stored[TRAIN], tokenizers[0], is_training=True), config),
            validation=Split(_rows(config, stored[VALIDATION], tokenizers[0], is_training=False), config),
            tokenizers=tokenizers,
            model_settings=_model_settings(config, tokenizers),
            digest=_digest(config, metadata),
        )

    @property
    def tokenizer(self) -> TextTokenizer:
        """Return the tokenizer of texts, or of the sources of pairs."""
        return self.tokenizers[0]

    @property
    def target_tokenizer(self) -> TextTokenizer:
        """Return the tokenizer of targets and of generated text."""
        return self.tokenizers[1]

    def questions(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield each source of the validation pairs once, with all its targets."""
        with _remake_hint(self.folder):
            for place, value, *_ in json_objects(self.folder / ANSWERS):
                answer = read(_Answer, value, path=place)
                yield answer.source, answer.targets


def _rows(config: Config, stored: Sequence[TokenRows], tokenizer: TextTokenizer, *, is_training: bool) -> Rows:
    data, batch, seed = config.data, config.batch, config.run.seed
    if config.objective == "encoder-decoder":
        return pair_rows(*stored)
    if config.objective == "masked-language-model":
        how = (tokenizer, data.mlm_probability, seed if is_training else 0)
        return masked_rows(stored[0], data.context_length, *how)
    if data.windows and is_training:
        rows_per_step = batch.tokens_per_batch // data.context_length * _micro_batches_per_step(config)
        return window_rows(stored[0], data.context_length, seed, rows_per_step)
    return document_rows(stored[0], data.context_length)


def _micro_batches_per_step(config: Config) -> int:
    batch = config.batch
    return 1 if batch.tokens_per_step is None else batch.tokens_per_step // batch.tokens_per_batch


def _model_settings(config: Config, tokenizers: Tokenizers) -> dict[str, Any]:
    tokenizer, target = tokenizers
    family, settings = config.model["family"], {"vocab_size": tokenizer.vocab_size}
    if family == "bert":
        return settings | {"pad_token_id": tokenizer.special.pad}
    made: dict[str, Any] = settings | {"eos_token_ids": (target.special.eos,)}
    if config.objective == "encoder-decoder":
        made |= {"pad_token_id": target.special.pad, "decoder_start_token_id": target.special.pad}
    elif family == "transformer":
        made |= {"decoder_start_token_id": tokenizer.special.eos}
    if config.tokenizer.target is not None and not config.tokenizer.target.shared:
        made["decoder_vocab_size"] = target.vocab_size
    return made


def _digest(config: Config, metadata: dict[str, Any]) -> str:
    data, batch = config.data, config.batch
    sizes = [
        data.context_length,
        data.windows,
        data.mlm_probability,
        batch.tokens_per_batch,
        _micro_batches_per_step(config),
        config.run.seed,
    ]
    return hashlib.sha256(json.dumps([config.objective, sizes, metadata], sort_keys=True).encode()).hexdigest()
