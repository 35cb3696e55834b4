"""Training of tokenizers: characters, words, or byte pairs (Sennrich et al. 2016; on bytes as in GPT-2)."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Protocol

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from uwaga._base.errors import ConfigError
from uwaga.models.tokenizers.text_tokenizer import SPECIAL_TOKENS, TextTokenizer, by_characters, special_token_ids

# The longest pre-token that byte pairs are learned from; a longer one is split. The library's trainer takes time quadratic in the
# length of a pre-token: 2 s for 80,000 letters, minutes for a million. Encoding is linear and has no limit.
_MAX_LEARNED_BYTES = 1024


class TokenizerOptions(Protocol):
    """The section `tokenizer` of a configuration of training, or `tokenizer.target`."""

    @property
    def kind(self) -> str:
        """characters, words or byte-pair."""

    @property
    def vocab_size(self) -> int | None:
        """The most tokens, special ones included."""

    @property
    def lowercase(self) -> bool:
        """Whether texts are read in lower case."""


class SymbolCounter:
    """Counts the characters or words of texts.

    Args:
        section: its kind, "characters" or "words", and whether texts are read in lower case.
    """

    def __init__(self, section: TokenizerOptions) -> None:
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
    section: TokenizerOptions, symbols: SymbolCounter, target: SymbolCounter | None, objective: str
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


def train_byte_pair_tokenizer(section: TokenizerOptions, texts: Iterable[str], objective: str) -> TextTokenizer:
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


def _finished(backend: Backend, section: TokenizerOptions, objective: str, names: Mapping[str, str]) -> TextTokenizer:
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


def as_target_tokenizer(tokenizer: TextTokenizer, section: TokenizerOptions, objective: str) -> TextTokenizer:
    """A tokenizer of targets with the vocabulary of a shared one."""
    backend = Backend.from_str(tokenizer.backend.to_str())
    is_words = section.kind == "words"
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit() if is_words else by_characters()
    backend.decoder = None if is_words else decoders.Fuse()
    backend.normalizer = None
    _normalize(backend, section)
    return TextTokenizer(backend, tokenizer.special, objective)


def _normalize(backend: Backend, section: TokenizerOptions) -> None:
    if section.lowercase:
        backend.normalizer = normalizers.Lowercase()
