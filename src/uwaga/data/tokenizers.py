"""Training of tokenizers: characters, words, or byte pairs (Sennrich et al. 2016; on bytes as in GPT-2)."""

from collections import Counter
from collections.abc import Iterable, Mapping

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from uwaga._base.errors import ConfigError
from uwaga.models.tokenizers.text_tokenizer import CHARACTER, SPECIAL_TOKENS, SpecialTokens, TextTokenizer

# The longest pre-token that byte pairs are learned from; a longer one is split. The library's trainer takes time quadratic in the
# length of a pre-token: 2 s for 80,000 letters, minutes for a million. Encoding is linear and has no limit.
_MAX_LEARNED_BYTES = 1024


def count_symbols(texts: Iterable[str], kind: str, *, lowercase: bool = False) -> Counter[str]:
    """How often each symbol is in texts; kind: "characters", or "words", which spaces separate."""
    normalizer, counts = normalizers.Lowercase(), Counter[str]()
    for text in texts:
        text = normalizer.normalize_str(text) if lowercase else text
        counts.update(text.split() if kind == "words" else text)
    return counts


def train_symbol_tokenizer(
    symbols: Mapping[str, int],
    objective: str,
    *,
    kind: str,
    vocab_size: int | None = None,
    lowercase: bool = False,
    targets: Iterable[str] = (),
) -> TextTokenizer:
    """A tokenizer that has a token for each symbol.

    Args:
        symbols: of the texts, as `count_symbols` returns them.
        objective: of the model that reads them.
        kind: "characters" or "words".
        vocab_size: the most tokens, special ones included: of the commonest symbols.
        lowercase: texts are read in lower case.
        targets: symbols of the targets, which all get tokens in the same vocabulary.

    Raises:
        ConfigError: the vocabulary has no room for a symbol, or there are none.
    """
    names, others = SPECIAL_TOKENS[objective], sorted(targets)
    most = len(symbols) if vocab_size is None else vocab_size - len({*names.values(), *others})
    if most < 1 and vocab_size is not None:
        beside = f"{len(names)} special tokens" + (f" and {len(others)} of targets" if others else "")
        raise ConfigError(f"tokenizer.vocab_size must leave room beside {beside}: {vocab_size}")
    chosen = sorted(sorted(symbols, key=lambda symbol: (-symbols[symbol], symbol))[:most])
    if not chosen:
        raise ConfigError(f"tokenizer.kind is {kind!r}, and the texts have none")
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys([*names.values(), *chosen, *others]))}
    backend = Backend(models.WordLevel(vocabulary, unk_token=names["unk"]))
    _read_symbols(backend, kind, lowercase)
    # Decoding is of targets: words are joined by spaces, which is the library's default.
    backend.decoder = decoders.Fuse() if kind == "characters" and not others else None
    return _finished(backend, objective, names)


def train_byte_pair_tokenizer(
    texts: Iterable[str], objective: str, *, vocab_size: int | None, lowercase: bool = False
) -> TextTokenizer:
    """Byte pairs learned from texts; the same texts give the same tokens.

    For training only, a pre-token (a word, or another run of letters, digits, punctuation or spaces) of more than 1024 bytes is
    split into parts of 1024 bytes. Raises ConfigError: vocab_size is too small.
    """
    # BERT's tokenizers have an unknown token.
    names = {
        role: name
        for role, name in SPECIAL_TOKENS[objective].items()
        if role != "unk" or objective == "masked-language-model"
    }
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    least = len(alphabet) + len(names)
    if vocab_size is None or vocab_size < least:
        raise ConfigError(
            f"tokenizer.vocab_size must be at least {least}, all bytes and the special tokens, not {vocab_size}"
        )
    backend = Backend(models.BPE())
    by_words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    # ByteLevel maps every byte to a printable character, so the pattern . matches all of them.
    by_parts = pre_tokenizers.Split(Regex(f".{{1,{_MAX_LEARNED_BYTES}}}"), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([by_words, by_parts])
    backend.decoder = decoders.ByteLevel()
    backend.normalizer = normalizers.Lowercase() if lowercase else None
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=list(names.values()), initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    backend.pre_tokenizer = by_words
    return _finished(backend, objective, names)


def as_target_tokenizer(tokenizer: TextTokenizer, objective: str, *, kind: str, lowercase: bool) -> TextTokenizer:
    """A tokenizer of targets with the vocabulary of a shared one."""
    backend = Backend.from_str(tokenizer.backend.to_str())
    _read_symbols(backend, kind, lowercase)
    backend.decoder = None if kind == "words" else decoders.Fuse()
    return TextTokenizer(backend, tokenizer.special, objective)


def _read_symbols(backend: Backend, kind: str, lowercase: bool) -> None:
    by_characters = pre_tokenizers.Split(Regex(CHARACTER), "isolated")
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit() if kind == "words" else by_characters
    backend.normalizer = normalizers.Lowercase() if lowercase else None


def _finished(backend: Backend, objective: str, names: Mapping[str, str]) -> TextTokenizer:
    """With special tokens, and a template of those that an encoder reads around a text."""
    backend.add_special_tokens(list(names.values()))
    templates = {
        "language-model": None,
        "encoder-decoder": ("$A {eos}", "$A {eos} $B {eos}"),
        "masked-language-model": ("{cls} $A {sep}", "{cls} $A {sep} $B:1 {sep}:1"),
    }[objective]
    if templates is not None:
        single, pair = (template.format(**names) for template in templates)
        used = [(names[role], backend.token_to_id(names[role])) for role in names if f"{{{role}}}" in templates[0]]
        backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=used)
    special = {role: backend.token_to_id(name) for role, name in names.items()}
    return TextTokenizer(backend, SpecialTokens(**special), objective)
