"""The data of a training run: two splits of rows, and the micro-batches of each step."""

import hashlib
import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from uwaga.models.tokenizers.text_tokenizer import TextTokenizer
from uwaga.train.config import Config
from uwaga.train.data.batch import Batch, MicroBatch
from uwaga.train.data.prepare import ANSWERS, METADATA, Listener, Prepared, prepare
from uwaga.train.data.rows import DocumentRows, EpochOrder, MaskedRows, Masking, PairRows, Rows, WindowRows
from uwaga.train.data.splits import SPLITS, TRAIN, VALIDATION
from uwaga.train.data.store import ReferencePair, TokenStore, questions, remake_hint
from uwaga.train.data.tokenizers import load_tokenizers
from uwaga.train.errors import DataError


class Split:
    """The rows of one split, in micro-batches.

    Args:
        rows: their tokens.
        config: its batch sizes and its seed.
    """

    def __init__(self, rows: Rows, config: Config) -> None:
        self._rows, self._tokens = rows, config.batch.tokens_per_batch
        self._per_step, self._seed = config.batch.gradient_accumulation_steps, config.run.seed
        self._lengths = rows.lengths()
        # All steps of an epoch ask for its order, which takes 8 bytes a row.
        self._order = lru_cache(maxsize=2)(self._new_order)
        self._steps_of_epochs: list[int] = []

    def __len__(self) -> int:
        """The number of rows."""
        return len(self._rows)

    def steps_per_epoch(self, epoch: int) -> int:
        """Steps of an epoch. The last one may have fewer micro-batches; no step reads two epochs."""
        while len(self._steps_of_epochs) <= epoch:
            self._steps_of_epochs.append(-(-len(self._order(len(self._steps_of_epochs))) // self._per_step))
        return self._steps_of_epochs[epoch]

    def micro_batches(self, step: int) -> list[MicroBatch]:
        """The micro-batches of a step, which is counted from 0 over all epochs."""
        epoch, begun = 0, 0
        while step >= begun + self.steps_per_epoch(epoch):
            begun += self.steps_per_epoch(epoch)
            epoch += 1
        order, first = self._order(epoch), (step - begun) * self._per_step
        numbers = range(first, min(first + self._per_step, len(order)))
        return [MicroBatch(epoch=epoch, rows=order.rows(each), number=number) for number, each in enumerate(numbers)]

    def batch(self, micro_batch: MicroBatch) -> Batch:
        """Its tokens, on the CPU."""
        return self._rows.batch(micro_batch.epoch, micro_batch.rows)

    def evaluation_batches(self, tokens: int | None = None) -> Iterator[Batch]:
        """Batches of all rows in order; or of evenly spaced rows that hold about so many tokens.

        Each has up to twice the tokens of a micro-batch: without a backward pass they fit into memory, and are faster.
        """
        total, chosen = int(self._lengths.sum()), np.arange(len(self._lengths))
        if tokens is not None and tokens < total:
            count = max(1, len(chosen) * tokens // total)
            chosen = chosen[np.arange(count) * len(chosen) // count]
        order = EpochOrder(self._lengths[chosen], 2 * self._tokens, None, 0)
        for number in range(len(order)):
            yield self._rows.batch(0, [int(chosen[row]) for row in order.rows(number)])

    def _new_order(self, epoch: int) -> EpochOrder:
        return EpochOrder(self._lengths, self._tokens, self._seed, epoch)


class Corpus:
    """The prepared data of a training run.

    Attributes:
        train, validation: its splits.
        tokenizer: of texts, and of sources.
        target_tokenizer: of the targets of pairs: the same, unless the configuration has another. None without pairs.
        digest: a hash of all that batches depend on: tokens, rows and order.
    """

    def __init__(self, config: Config, prepared: Prepared) -> None:
        self._config, self._folder, metadata = config, prepared.folder, prepared.metadata
        self._tokenizers = load_tokenizers(config, prepared.folder)
        self.tokenizer, self.target_tokenizer = self._tokenizers.tokenizer, self._tokenizers.target_tokenizer
        stores = {name: self._store(name, metadata) for name in self._store_names()}
        self.train = Split(_rows(config, stores, TRAIN, self.tokenizer), config)
        self.validation = Split(_rows(config, stores, VALIDATION, self.tokenizer), config)
        self.digest = _digest(config, metadata)

    @staticmethod
    def prepare(config: Config, folder: Path, listener: Listener | None = None) -> "Corpus":
        """Train or load tokenizers and tokenize the data into a folder inside this one, or read what was prepared there.

        Args:
            listener: called with the progress of a preparation.

        Raises:
            DataError: a file does not exist or has invalid content; the message names the line.
            ConfigError: a tokenizer that cannot be used.
        """
        return Corpus(config, prepare(config, folder, listener))

    def _store_names(self) -> tuple[str, ...]:
        is_pairs = self._config.data.kind == "pairs"
        return (*SPLITS, *(f"{split}-targets" for split in SPLITS)) if is_pairs else SPLITS

    def _store(self, name: str, metadata: dict[str, Any]) -> TokenStore:
        if name not in metadata:
            raise DataError(f"{self._folder / METADATA}: there is no {name}; {remake_hint(self._folder)}")
        tokenizer = self.target_tokenizer if name.endswith("-targets") else self.tokenizer
        assert tokenizer is not None
        return TokenStore(self._folder, name, metadata[name], tokenizer.vocab_size)

    @property
    def model_settings(self) -> dict[str, Any]:
        """The settings of a model's config that the tokenizers decide, for `uwaga.train.model.model_config`."""
        own, target = self.tokenizer, self.target_tokenizer or self.tokenizer
        family, settings = self._config.model["family"], {"vocab_size": own.vocab_size}
        if family == "bert":
            return settings | {"pad_token_id": own.special.pad}
        given: dict[str, Any] = settings | {"eos_token_ids": (target.special.eos,)}
        if self._config.objective == "encoder-decoder":
            given |= {"pad_token_id": target.special.pad, "decoder_start_token_id": target.special.pad}
        elif family == "transformer":
            given |= {"decoder_start_token_id": own.special.eos}
        if self._tokenizers.has_target_vocab:
            given["decoder_vocab_size"] = target.vocab_size
        return given

    def save_tokenizers(self, folder: Path) -> None:
        """tokenizer.json and its settings; target_tokenizer.json where targets are tokenized another way."""
        self._tokenizers.save(folder)

    def questions(self) -> Iterator[ReferencePair]:
        """Of pairs: each source of the validation split once, with all its targets."""
        assert self._config.data.kind == "pairs"
        return questions(self._folder / ANSWERS)


def _rows(config: Config, stores: dict[str, TokenStore], split: str, tokenizer: TextTokenizer) -> Rows:
    data, batch, store, seed = config.data, config.batch, stores[split], config.run.seed
    if config.objective == "encoder-decoder":
        return PairRows(store, stores[f"{split}-targets"])
    if config.objective == "masked-language-model":
        return MaskedRows(store, data.context_length, _masking(config, tokenizer, seed if split == TRAIN else 0))
    if data.windows and split == TRAIN:
        rows_per_step = batch.tokens_per_batch // data.context_length * batch.gradient_accumulation_steps
        return WindowRows(store, data.context_length, seed, rows_per_step)
    return DocumentRows(store, data.context_length)


def _masking(config: Config, tokenizer: TextTokenizer, seed: int) -> Masking:
    assert tokenizer.special.mask is not None
    special = tokenizer.special.ids()
    ordinary = np.array([number for number in range(tokenizer.vocab_size) if number not in special])
    before, behind = (np.array(ids, np.int64) for ids in (tokenizer.before, tokenizer.behind))
    return Masking(config.data.mlm_probability, tokenizer.special.mask, ordinary, before, behind, seed)


def _digest(config: Config, metadata: dict[str, Any]) -> str:
    data, batch = config.data, config.batch
    sizes = [
        data.context_length,
        data.windows,
        data.mlm_probability,
        batch.tokens_per_batch,
        batch.gradient_accumulation_steps,
        config.run.seed,
    ]
    return hashlib.sha256(json.dumps([config.objective, sizes, metadata], sort_keys=True).encode()).hexdigest()
