"""The tokenizers of a training: learned from its data, or given. One, or another one for the decoder."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from uwaga.models.text.tokenizer import TARGET_FILE
from uwaga.train import learning
from uwaga.train.config import Config
from uwaga.train.data.sides import TRAIN, Places, sided_documents, sided_pairs
from uwaga.train.learning import Symbols
from uwaga.train.sections import TargetConfig, TokenizerConfig
from uwaga.train.tokenizer import TextTokenizer, recut

Seen = Callable[[int], object]  # told how many characters were read


class Tokenizers(NamedTuple):
    """Of both sides."""

    own: TextTokenizer
    target: TextTokenizer | None  # of pairs: as targets are read
    is_apart: bool  # whether the target's is a vocabulary of its own

    def save(self, folder: Path) -> None:
        """tokenizer.json and what belongs to it; target_tokenizer.json where targets are read another way."""
        self.own.save(folder)
        if self.target is not None and self.target is not self.own:
            self.target.save(folder, file=TARGET_FILE)


def made(config: Config, files: Places, seen: Seen) -> Tokenizers:
    """From the data. An alphabet is that of all files; byte pairs are learned from the training side alone."""
    wanted, target = config.tokenizer, config.tokenizer.target
    if config.data.kind != "pairs":
        return Tokenizers(_one(wanted, config, lambda all_of: _texts(config, files, all_of, seen)), None, False)
    sides = {"source": wanted, "target": target}
    symbols = {name: Symbols(each) for name, each in sides.items() if each and each.kind in ("characters", "words")}
    if target is not None and target.shared:
        for source, answer in _pair_texts(config, files, True, seen):
            symbols["source"].add(source)
            symbols["target"].add(answer)
        own = learning.of_symbols(wanted, symbols["source"], symbols["target"], config.objective)
        return Tokenizers(own, learning.as_target(own, target, config.objective), False)
    if target is None:
        own = _one(
            wanted, config, lambda all_of: (x for pair in _pair_texts(config, files, all_of, seen) for x in pair)
        )
        return Tokenizers(own, own, False)
    own = _one(wanted, config, lambda all_of: (pair[0] for pair in _pair_texts(config, files, all_of, seen)))
    other = _one(target, config, lambda all_of: (pair[1] for pair in _pair_texts(config, files, all_of, seen)))
    return Tokenizers(own, other, True)


def opened(config: Config, folder: Path) -> Tokenizers:
    """Those that were saved."""
    own, target = TextTokenizer.given(folder, config.objective), config.tokenizer.target
    if config.data.kind != "pairs":
        return Tokenizers(own, None, False)
    if target is None:
        return Tokenizers(own, own, False)
    if target.shared:
        return Tokenizers(own, learning.as_target(own, target, config.objective), False)
    return Tokenizers(own, TextTokenizer.given(folder, config.objective, file=TARGET_FILE), True)


def _one(
    wanted: TokenizerConfig | TargetConfig, config: Config, texts: Callable[[bool], Iterator[str]]
) -> TextTokenizer:
    """texts: of all files, or of the training side alone."""
    if wanted.kind == "given":
        assert wanted.path is not None
        return TextTokenizer.given(Path(wanted.path), config.objective)
    if wanted.kind == "byte-pair":
        return learning.of_pairs(wanted, texts(False), config.objective)
    symbols = Symbols(wanted)
    for text in texts(True):
        symbols.add(text)
    return learning.of_symbols(wanted, symbols, None, config.objective)


def _texts(config: Config, files: Places, all_of: bool, seen: Seen) -> Iterator[str]:
    for side, document in sided_documents(files, config.data):
        for piece in recut(document.pieces):
            seen(len(piece))
            if all_of or side == TRAIN:
                yield piece


def _pair_texts(config: Config, files: Places, all_of: bool, seen: Seen) -> Iterator[tuple[str, str]]:
    for side, pair in sided_pairs(files, config.data):
        seen(len(pair.source) + len(pair.target))
        if all_of or side == TRAIN:
            yield pair.source, pair.target
