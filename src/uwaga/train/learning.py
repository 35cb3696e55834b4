"""Tokenizers from texts: alphabets, words, and byte pairs (Sennrich et al. 2016; on bytes as in GPT-2)."""

from collections import Counter
from collections.abc import Iterable, Mapping

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from uwaga.train import special
from uwaga.train.errors import ConfigError
from uwaga.train.sections import TargetConfig, TokenizerConfig
from uwaga.train.tokenizer import TextTokenizer, by_characters

Wanted = TokenizerConfig | TargetConfig


class Symbols:
    """Counts the characters or words of texts.

    Args:
        kind: "characters" or "words".
        lowercase: whether in small letters, as the tokenizer will read them.
    """

    def __init__(self, wanted: Wanted) -> None:
        self._is_words = wanted.kind == "words"
        self._normalizer = normalizers.Lowercase() if wanted.lowercase else None
        self.counts: Counter[str] = Counter()

    def add(self, text: str) -> None:
        text = text if self._normalizer is None else self._normalizer.normalize_str(text)
        self.counts.update(text.split() if self._is_words else text)

    def chosen(self, most: int | None) -> list[str]:
        """The commonest, in the order of their code points."""
        ranked = sorted(self.counts, key=lambda symbol: (-self.counts[symbol], symbol))
        return sorted(ranked if most is None else ranked[: max(most, 0)])


def of_symbols(wanted: Wanted, own: Symbols, target: Symbols | None, objective: str) -> TextTokenizer:
    """Each symbol a token. `target`: the decoder's symbols, in the same vocabulary. Raises ConfigError."""
    names = special.NAMES[objective]
    others = [] if target is None else target.chosen(None)
    fixed = dict.fromkeys([*names.values(), *others])
    room = None if wanted.vocab_size is None else wanted.vocab_size - len(fixed)
    if room is not None and room < 1:
        beside = f"{len(names)} special tokens" + (f" and {len(others)} of targets" if others else "")
        raise ConfigError(f"tokenizer.vocab_size must leave room beside {beside}: {wanted.vocab_size}")
    symbols = own.chosen(room)
    if not symbols:
        raise ConfigError(f"tokenizer.kind is {wanted.kind!r}, and the texts have none")
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys([*names.values(), *symbols, *others]))}
    backend = Backend(models.WordLevel(vocabulary, unk_token=names["unknown"]))
    if wanted.kind == "words":
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    else:
        backend.pre_tokenizer = by_characters()
    # What is written is the target's: words have spaces between them, which is the library's default.
    if wanted.kind == "characters" and target is None:
        backend.decoder = decoders.Fuse()
    return _finished(backend, wanted, objective, names)


def of_pairs(wanted: Wanted, texts: Iterable[str], objective: str) -> TextTokenizer:
    """Byte pairs learned from texts; the same texts give the same tokens. Raises ConfigError."""
    names = {role: name for role, name in special.NAMES[objective].items() if role != "unknown"}
    if objective == "masked-language-model":  # BERT's models have one
        names = dict(special.NAMES[objective])
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    least = len(alphabet) + len(names)
    if wanted.vocab_size is None or wanted.vocab_size < least:
        raise ConfigError(
            f"tokenizer.vocab_size must be at least {least}, all bytes and the special tokens, not {wanted.vocab_size}"
        )
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    _normalize(backend, wanted)
    trainer = trainers.BpeTrainer(
        vocab_size=wanted.vocab_size,
        special_tokens=list(names.values()),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return _finished(backend, wanted, objective, names)


def _finished(backend: Backend, wanted: Wanted, objective: str, names: Mapping[str, str]) -> TextTokenizer:
    backend.add_special_tokens(list(names.values()))
    _normalize(backend, wanted)
    around = {
        "language-model": None,
        "encoder-decoder": ("$A {end}", "$A {end} $B {end}"),
        "masked-language-model": ("{first} $A {last}", "{first} $A {last} $B:1 {last}:1"),
    }[objective]
    if around is not None:
        single, pair = (each.format(**names) for each in around)
        used = [(names[role], backend.token_to_id(names[role])) for role in names if f"{{{role}}}" in around[0]]
        backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=used)
    return TextTokenizer(backend, special.of_names(backend, names), objective)


def as_target(own: TextTokenizer, wanted: TargetConfig, objective: str) -> TextTokenizer:
    """The vocabulary of a shared tokenizer, as targets are read with it."""
    backend = Backend.from_str(own.backend.to_str())
    is_words = wanted.kind == "words"
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit() if is_words else by_characters()
    backend.decoder = None if is_words else decoders.Fuse()
    backend.normalizer = None
    _normalize(backend, wanted)
    return TextTokenizer(backend, own.special, objective)


def _normalize(backend: Backend, wanted: Wanted) -> None:
    if wanted.lowercase:
        backend.normalizer = normalizers.Lowercase()
