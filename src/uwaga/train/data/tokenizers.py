"""The tokenizers of a training run: trained on its data, or loaded. One for all texts, or a second one for targets."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from uwaga.data.tokenizers import (
    SymbolCounter,
    as_target_tokenizer,
    train_byte_pair_tokenizer,
    train_symbol_tokenizer,
)
from uwaga.models.tokenizers.loading import TARGET_FILE
from uwaga.models.tokenizers.text_tokenizer import TextTokenizer, recut
from uwaga.train.config import Config, TargetConfig, TokenizerConfig
from uwaga.train.data.splits import TRAIN, SplitFiles, split_documents, split_pairs

CountCharacters = Callable[[int], object]  # is called with the number of characters that were read


class Tokenizers(NamedTuple):
    """The tokenizer of texts and sources, and that of targets."""

    tokenizer: TextTokenizer
    target_tokenizer: TextTokenizer | None  # None where the data is not pairs
    has_target_vocab: bool  # whether targets have a vocabulary of their own

    def save(self, folder: Path) -> None:
        """tokenizer.json and its settings; target_tokenizer.json where targets are tokenized another way."""
        self.tokenizer.save(folder)
        if self.target_tokenizer is not None and self.target_tokenizer is not self.tokenizer:
            self.target_tokenizer.save(folder, file=TARGET_FILE)


def train_tokenizers(config: Config, files: SplitFiles, count: CountCharacters) -> Tokenizers:
    """From the data. Characters and words are those of all files; byte pairs are learned from the training split alone."""
    own, target = config.tokenizer, config.tokenizer.target
    if config.data.kind != "pairs":
        tokenizer = _train_tokenizer(own, config, lambda every: _texts(config, files, every, count))
        return Tokenizers(tokenizer, None, False)
    if target is not None and target.shared:
        source_symbols, target_symbols = SymbolCounter(own), SymbolCounter(target)
        for source, answer in _pair_texts(config, files, True, count):
            source_symbols.add(source)
            target_symbols.add(answer)
        tokenizer = train_symbol_tokenizer(own, source_symbols, target_symbols, config.objective)
        return Tokenizers(tokenizer, as_target_tokenizer(tokenizer, target, config.objective), False)
    if target is None:
        tokenizer = _train_tokenizer(
            own, config, lambda every: (text for pair in _pair_texts(config, files, every, count) for text in pair)
        )
        return Tokenizers(tokenizer, tokenizer, False)
    sources = _train_tokenizer(
        own, config, lambda every: (pair[0] for pair in _pair_texts(config, files, every, count))
    )
    targets = _train_tokenizer(
        target, config, lambda every: (pair[1] for pair in _pair_texts(config, files, every, count))
    )
    return Tokenizers(sources, targets, True)


def load_tokenizers(config: Config, folder: Path) -> Tokenizers:
    """Those that were saved to a folder."""
    tokenizer, target = TextTokenizer.load(folder, config.objective), config.tokenizer.target
    if config.data.kind != "pairs":
        return Tokenizers(tokenizer, None, False)
    if target is None:
        return Tokenizers(tokenizer, tokenizer, False)
    if target.shared:
        return Tokenizers(tokenizer, as_target_tokenizer(tokenizer, target, config.objective), False)
    return Tokenizers(tokenizer, TextTokenizer.load(folder, config.objective, file=TARGET_FILE), True)


def _train_tokenizer(
    section: TokenizerConfig | TargetConfig, config: Config, texts: Callable[[bool], Iterator[str]]
) -> TextTokenizer:
    """One tokenizer. texts(True): the texts of all files; texts(False): those of the training split alone."""
    if section.kind == "given":
        assert section.path is not None
        return TextTokenizer.load(Path(section.path), config.objective)
    if section.kind == "byte-pair":
        return train_byte_pair_tokenizer(section, texts(False), config.objective)
    symbols = SymbolCounter(section)
    for text in texts(True):
        symbols.add(text)
    return train_symbol_tokenizer(section, symbols, None, config.objective)


def _texts(config: Config, files: SplitFiles, every: bool, count: CountCharacters) -> Iterator[str]:
    for split, document in split_documents(files, config.data):
        for piece in recut(document.pieces):
            count(len(piece))
            if every or split == TRAIN:
                yield piece


def _pair_texts(config: Config, files: SplitFiles, every: bool, count: CountCharacters) -> Iterator[tuple[str, str]]:
    for split, pair in split_pairs(files, config.data):
        count(len(pair.source) + len(pair.target))
        if every or split == TRAIN:
            yield pair.source, pair.target
