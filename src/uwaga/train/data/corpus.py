"""The data of a training: two splits of rows, and the steps that they make."""

import hashlib
import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from uwaga.train.config import Config
from uwaga.train.data import tokenizers
from uwaga.train.data.answers import Question, questions
from uwaga.train.data.batch import Batch, Micro
from uwaga.train.data.order import Order
from uwaga.train.data.prepare import ABOUT, ANSWERS, Listener, Prepared, prepare
from uwaga.train.data.rows import DocumentRows, MaskedRows, Masks, PairRows, Rows, Sides, WindowRows
from uwaga.train.data.sides import SIDES, TRAIN, VALIDATION
from uwaga.train.data.store import Store, made_again
from uwaga.train.data.tokenizers import Tokenizers
from uwaga.train.errors import DataError


class Split:
    """Rows of one side, in micro-batches.

    Args:
        rows: their tokens.
        config: its batch sizes and its seed.
    """

    def __init__(self, rows: Rows, config: Config) -> None:
        self._rows, self._tokens = rows, config.batch.tokens_per_batch
        self._accumulated, self._seed = config.batch.gradient_accumulation_steps, config.run.seed
        self._lengths = rows.lengths()
        # Steps of an epoch are asked for over and over; the order of one takes 8 bytes a row.
        self._order = lru_cache(maxsize=2)(self._new_order)
        self._counts: list[int] = []

    def __len__(self) -> int:
        """Rows."""
        return len(self._rows)

    def steps(self, epoch: int) -> int:
        """Steps of an epoch. The last one may hold fewer micro-batches; no step reads two epochs."""
        while len(self._counts) <= epoch:
            self._counts.append(-(-len(self._order(len(self._counts))) // self._accumulated))
        return self._counts[epoch]

    def step(self, step: int) -> list[Micro]:
        """The micro-batches of a step, counted from 0 over all epochs."""
        epoch, begun = 0, 0
        while step >= begun + self.steps(epoch):
            begun += self.steps(epoch)
            epoch += 1
        order, first = self._order(epoch), (step - begun) * self._accumulated
        micros = range(first, min(first + self._accumulated, len(order)))
        return [Micro(epoch=epoch, rows=order.rows(micro), number=number) for number, micro in enumerate(micros)]

    def batch(self, micro: Micro) -> Batch:
        """Its tokens, on the CPU."""
        return self._rows.batch(micro.epoch, micro.rows)

    def all(self, tokens: int | None = None) -> Iterator[Batch]:
        """For evaluation: every row once in order, or rows from all over it that hold about so many tokens.

        Twice as many at once as a step reads: without a backward pass they fit, and small batches take longer.
        """
        total, chosen = int(self._lengths.sum()), np.arange(len(self._lengths))
        if tokens is not None and tokens < total:
            count = max(1, len(chosen) * tokens // total)
            chosen = chosen[np.arange(count) * len(chosen) // count]
        order = Order(self._lengths[chosen], 2 * self._tokens, None, 0)
        for micro in range(len(order)):
            yield self._rows.batch(0, [int(chosen[row]) for row in order.rows(micro)])

    def _new_order(self, epoch: int) -> Order:
        return Order(self._lengths, self._tokens, self._seed, epoch)


class Corpus:
    """What a training reads.

    Attributes:
        train, validation: its splits.
        tokenizer: of texts, and of what an encoder reads.
        target_tokenizer: of pairs, as targets are read and written; the same, unless the configuration says otherwise.
        digest: a number that changes with anything that the batches depend on: tokens, rows and order.
    """

    def __init__(self, config: Config, prepared: Prepared) -> None:
        self._config, self._folder, about = config, prepared.folder, prepared.about
        self._tokenizers = tokenizers.opened(config, prepared.folder)
        self.tokenizer, self.target_tokenizer = self._tokenizers.own, self._tokenizers.target
        stores = {name: self._store(name, about) for name in self._names()}
        self.train = Split(_rows(config, stores, TRAIN, self._tokenizers), config)
        self.validation = Split(_rows(config, stores, VALIDATION, self._tokenizers), config)
        self.digest = _digest(config, about)

    @staticmethod
    def prepare(config: Config, folder: Path, listener: Listener | None = None) -> "Corpus":
        """Read, learn or load tokenizers, tokenise: once, into a folder inside this one; the next time, from there.

        listener: told how far it is, where there is something to do.

        Raises:
            DataError: files that are not there or hold what they should not, with the line.
            ConfigError: a tokenizer that cannot be used.
        """
        return Corpus(config, prepare(config, folder, listener))

    def _names(self) -> tuple[str, ...]:
        is_pairs = self._config.data.kind == "pairs"
        return (*SIDES, *(f"{side}-targets" for side in SIDES)) if is_pairs else SIDES

    def _store(self, name: str, about: dict[str, Any]) -> Store:
        if name not in about:
            raise DataError(f"{self._folder / ABOUT}: there is no {name}; {made_again(self._folder)}")
        tokenizer = self.target_tokenizer if name.endswith("-targets") else self.tokenizer
        assert tokenizer is not None
        return Store(self._folder, name, about[name], tokenizer.vocab_size)

    @property
    def model_settings(self) -> dict[str, Any]:
        """What the tokenizers decide of a model's config, for `uwaga.train.families.built`."""
        own, target = self.tokenizer, self.target_tokenizer or self.tokenizer
        family, settings = self._config.model["family"], {"vocab_size": own.vocab_size}
        if family == "bert":
            return settings | {"pad_token_id": own.special.padding}
        given: dict[str, Any] = settings | {"eos_token_ids": (target.special.end,)}
        if self._config.objective == "encoder-decoder":
            given |= {"pad_token_id": target.special.padding, "decoder_start_token_id": target.special.padding}
        elif family == "transformer":
            given |= {"decoder_start_token_id": own.special.end}
        if self._tokenizers.is_apart:
            given["decoder_vocab_size"] = target.vocab_size
        return given

    def save_tokenizers(self, folder: Path) -> None:
        """tokenizer.json and tokenizer_config.json, and target_tokenizer.json where targets are read another way."""
        self._tokenizers.save(folder)

    def questions(self) -> Iterator[Question]:
        """Of pairs: the sources of the validation side, each once, with all answers that the data lists."""
        assert self._config.data.kind == "pairs"
        return questions(self._folder / ANSWERS)


def _rows(config: Config, stores: dict[str, Store], side: str, own: Tokenizers) -> Rows:
    data, store, seed = config.data, stores[side], config.run.seed
    if config.objective == "encoder-decoder":
        return PairRows(Sides(store, stores[f"{side}-targets"]))
    if config.objective == "masked-language-model":
        return MaskedRows(store, data.context_length, _masks(config, own, seed if side == TRAIN else 0))
    if data.windows and side == TRAIN:
        return WindowRows(
            store,
            data.context_length,
            seed,
            config.batch.tokens_per_batch // data.context_length * config.batch.gradient_accumulation_steps,
        )
    return DocumentRows(store, data.context_length)


def _masks(config: Config, own: Tokenizers, seed: int) -> Masks:
    tokenizer = own.own
    assert tokenizer.special.mask is not None
    special = tokenizer.special.ids()
    words = np.array([number for number in range(tokenizer.vocab_size) if number not in special])
    before, behind = (np.array(ids, np.int64) for ids in (tokenizer.before, tokenizer.behind))
    return Masks(config.data.mlm_probability, tokenizer.special.mask, words, before, behind, seed)


def _digest(config: Config, about: dict[str, Any]) -> str:
    data, batch = config.data, config.batch
    sizes = [
        data.context_length,
        data.windows,
        data.mlm_probability,
        batch.tokens_per_batch,
        batch.gradient_accumulation_steps,
        config.run.seed,
    ]
    return hashlib.sha256(json.dumps([config.objective, sizes, about], sort_keys=True).encode()).hexdigest()
