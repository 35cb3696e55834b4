"""The tokenizers of a training run: trained on its data, or loaded. One for all texts, or a second one for targets.

Characters, words, or byte pairs (Sennrich et al. 2016; on bytes as in GPT-2).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from uwaga.models.text.tokenizer import TARGET_FILE
from uwaga.train.config import Config, TargetConfig, TokenizerConfig
from uwaga.train.data.splits import TRAIN, SplitFiles, split_documents, split_pairs
from uwaga.train.errors import ConfigError
from uwaga.train.tokenizer import SPECIAL_TOKENS, TextTokenizer, by_characters, recut, special_token_ids

CountCharacters = Callable[[int], object]  # is called with the number of characters that were read
# The longest pre-token that byte pairs are learned from; a longer one is split. The library's trainer takes time quadratic in the
# length of a pre-token: 2 s for 80,000 letters, minutes for a million. Encoding is linear and has no limit.
_MAX_LEARNED_BYTES = 1024


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


# One tokenizer.


class SymbolCounter:
    """Counts the characters or words of texts.

    Args:
        section: its kind, "characters" or "words", and whether texts are read in lower case.
    """

    def __init__(self, section: TokenizerConfig | TargetConfig) -> None:
        self._is_words = section.kind == "words"
        self._normalizer = normalizers.Lowercase() if section.lowercase else None
        self.counts: Counter[str] = Counter()

    def add(self, text: str) -> None:
        text = text if self._normalizer is None else self._normalizer.normalize_str(text)
        self.counts.update(text.split() if self._is_words else text)

    def most_common(self, most: int | None) -> list[str]:
        """The commonest symbols, all where `most` is None, in the order of their code points."""
        ranked = sorted(self.counts, key=lambda symbol: (-self.counts[symbol], symbol))
        return sorted(ranked if most is None else ranked[: max(most, 0)])


def train_symbol_tokenizer(
    section: TokenizerConfig | TargetConfig, symbols: SymbolCounter, target: SymbolCounter | None, objective: str
) -> TextTokenizer:
    """A tokenizer that has a token for each symbol.

    Args:
        symbols: of the texts.
        target: symbols of the targets, which get tokens in the same vocabulary.

    Raises:
        ConfigError: the vocabulary has no room for a symbol, or there are none.
    """
    names = SPECIAL_TOKENS[objective]
    others = [] if target is None else target.most_common(None)
    fixed = dict.fromkeys([*names.values(), *others])
    most = None if section.vocab_size is None else section.vocab_size - len(fixed)
    if most is not None and most < 1:
        beside = f"{len(names)} special tokens" + (f" and {len(others)} of targets" if others else "")
        raise ConfigError(f"tokenizer.vocab_size must leave room beside {beside}: {section.vocab_size}")
    chosen = symbols.most_common(most)
    if not chosen:
        raise ConfigError(f"tokenizer.kind is {section.kind!r}, and the texts have none")
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys([*names.values(), *chosen, *others]))}
    backend = Backend(models.WordLevel(vocabulary, unk_token=names["unk"]))
    if section.kind == "words":
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    else:
        backend.pre_tokenizer = by_characters()
    # Decoding is of targets: words are joined by spaces, which is the library's default.
    if section.kind == "characters" and target is None:
        backend.decoder = decoders.Fuse()
    return _finished(backend, section, objective, names)


def train_byte_pair_tokenizer(
    section: TokenizerConfig | TargetConfig, texts: Iterable[str], objective: str
) -> TextTokenizer:
    """Byte pairs learned from texts; the same texts give the same tokens.

    For training only, a pre-token (a word, or another run of letters, digits, punctuation or spaces) of more than 1024 bytes is
    split into parts of 1024 bytes. Raises ConfigError: vocab_size is too small.
    """
    names = {role: name for role, name in SPECIAL_TOKENS[objective].items() if role != "unk"}
    if objective == "masked-language-model":  # BERT's tokenizers have an unknown token
        names = dict(SPECIAL_TOKENS[objective])
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    least = len(alphabet) + len(names)
    if section.vocab_size is None or section.vocab_size < least:
        raise ConfigError(
            f"tokenizer.vocab_size must be at least {least}, all bytes and the special tokens, not {section.vocab_size}"
        )
    backend = Backend(models.BPE())
    by_words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    # ByteLevel maps every byte to a printable character, so the pattern . matches all of them.
    by_parts = pre_tokenizers.Split(Regex(f".{{1,{_MAX_LEARNED_BYTES}}}"), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([by_words, by_parts])
    backend.decoder = decoders.ByteLevel()
    _normalize(backend, section)
    trainer = trainers.BpeTrainer(
        vocab_size=section.vocab_size,
        special_tokens=list(names.values()),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    backend.pre_tokenizer = by_words
    return _finished(backend, section, objective, names)


def _finished(
    backend: Backend, section: TokenizerConfig | TargetConfig, objective: str, names: Mapping[str, str]
) -> TextTokenizer:
    """With special tokens, and a template of those that an encoder reads around a text."""
    backend.add_special_tokens(list(names.values()))
    _normalize(backend, section)
    templates = {
        "language-model": None,
        "encoder-decoder": ("$A {eos}", "$A {eos} $B {eos}"),
        "masked-language-model": ("{cls} $A {sep}", "{cls} $A {sep} $B:1 {sep}:1"),
    }[objective]
    if templates is not None:
        single, pair = (each.format(**names) for each in templates)
        used = [(names[role], backend.token_to_id(names[role])) for role in names if f"{{{role}}}" in templates[0]]
        backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=used)
    return TextTokenizer(backend, special_token_ids(backend, names), objective)


def as_target_tokenizer(tokenizer: TextTokenizer, section: TargetConfig, objective: str) -> TextTokenizer:
    """A tokenizer of targets with the vocabulary of a shared one."""
    backend = Backend.from_str(tokenizer.backend.to_str())
    is_words = section.kind == "words"
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit() if is_words else by_characters()
    backend.decoder = None if is_words else decoders.Fuse()
    backend.normalizer = None
    _normalize(backend, section)
    return TextTokenizer(backend, tokenizer.special, objective)


def _normalize(backend: Backend, section: TokenizerConfig | TargetConfig) -> None:
    if section.lowercase:
        backend.normalizer = normalizers.Lowercase()
