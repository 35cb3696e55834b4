"""Tokenizers that are trained here, on characters, words or byte pairs (Sennrich et al. 2016; on bytes as in GPT-2), and their files.

Saving writes a tokenizer.json of the tokenizers library and a tokenizer_config.json, as transformers has them.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from uwaga._base import untrusted
from uwaga._base.durable import atomic_replace
from uwaga._base.errors import CheckpointError, ConfigError
from uwaga.models.checkpoints.directories import checkpoint_of_run
from uwaga.models.tokenizers import auto_tokenizer
from uwaga.models.tokenizers.tokenizer import FILE, Tokenizer, content_of, library_errors, read, state

# Special tokens by role of the tokenizers that are trained here, in the order of their ids; GPT-2, T5 and BERT have these names.
SPECIAL_TOKENS: Mapping[str, Mapping[str, str]] = {
    "language-model": {"eos": "<|endoftext|>", "unk": "<unk>"},
    "encoder-decoder": {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"},
    "masked-language-model": {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
}
# Roles that a loaded tokenizer must have a token for.
_REQUIRED = {
    "language-model": ("eos",),
    "encoder-decoder": ("pad", "eos"),
    "masked-language-model": ("pad", "cls", "sep", "mask"),
}
# The keys of a role in tokenizer_config.json and, with the suffix _id, in config.json; the first is the one that is written.
_KEYS = {
    "pad": ("pad_token",), "eos": ("eos_token", "sep_token"), "unk": ("unk_token",),
    "cls": ("cls_token", "bos_token"), "sep": ("sep_token", "eos_token"), "mask": ("mask_token",),
}  # fmt: skip
# Characters that are encoded in one call; a longer text is cut between words.
_PART = 2**16
# A text without such a place in so many characters is cut there nevertheless.
_FORCED = 2**20
_CHARACTER = r"[\s\S]"  # line ends too, which the pattern . does not match
_BY_CHARACTERS = {"type": "Split", "pattern": {"Regex": _CHARACTER}, "behavior": "Isolated", "invert": False}
# The longest pre-token that byte pairs are learned from; a longer one is split. The library's trainer takes time quadratic in the
# length of a pre-token: 2 s for 80,000 letters, minutes for a million. Encoding is linear and has no limit.
_MAX_LEARNED_BYTES = 1024


class SpecialTokens(NamedTuple):
    """Ids of special tokens by role; None where a tokenizer has no such token."""

    pad: int | None = None  # a decoder starts with it
    eos: int | None = None
    unk: int | None = None
    cls: int | None = None
    sep: int | None = None
    mask: int | None = None

    def ids(self) -> set[int]:
        return {number for number in self if number is not None}


def read_special_tokens(backend: Backend, folder: Path, objective: str, *, settings: str) -> SpecialTokens:
    """Read the special tokens that `settings`, special_tokens_map.json or config.json name in a tokenizer's folder.

    Raises ConfigError if one that the objective needs is missing.
    """
    named: dict[str, Any] = {}
    for file in ("special_tokens_map.json", settings):
        named |= untrusted.read_json(folder / file, missing_ok=True)
    config = untrusted.read_json(folder / "config.json", missing_ok=True)
    by_role = {role: _token_id(backend, named, config, _KEYS[role]) for role in SPECIAL_TOKENS[objective]}
    for role in _REQUIRED[objective]:
        if by_role[role] is None:
            keys = " or ".join(_KEYS[role])
            raise ConfigError(f"{folder}: the tokenizer has no {keys}, which a {objective} needs")
    return SpecialTokens(**by_role)


def _token_id(
    backend: Backend, named: Mapping[str, Any], config: Mapping[str, Any], keys: tuple[str, ...]
) -> int | None:
    for key in keys:
        token = content_of(named.get(key))
        if token is not None and (result := backend.token_to_id(token)) is not None:
            return int(result)
        number = config.get(f"{key}_id")
        if type(number) is int and 0 <= number < 2**31 and backend.id_to_token(number) is not None:
            return number
    return None


class TextTokenizer:
    """Encodes texts to ids without special tokens, and decodes.

    Args:
        backend: of the tokenizers library; names of special tokens in a text are encoded as text.
        tokens: the ids of its special tokens.
        objective: of the model that reads them.
        path: of its file, for messages.

    Attributes:
        vocab_size: the number of ids.
        before, behind: ids that it puts around a text for an encoder.
    """

    def __init__(self, backend: Backend, tokens: SpecialTokens, objective: str, path: Path = Path(FILE)) -> None:
        checked = Tokenizer(backend, path)
        backend.encode_special_tokens = True
        self.backend, self.special, self._objective = backend, tokens, objective
        self.before, self.behind = checked.prefix_ids, checked.suffix_ids
        self._checked, self.vocab_size = checked, checked.vocab_size
        cut, has_words = state(backend.pre_tokenizer), isinstance(backend.model, models.WordLevel)
        kind = cut.get("type")
        self._is_by_character = has_words and cut == _BY_CHARACTERS and tokens.unk is not None
        self._is_by_word = has_words and kind == "WhitespaceSplit"
        is_plain = state(backend.normalizer).get("type") in (None, "Lowercase")
        self._can_cut = checked.splits_at_spaces or self._is_by_word or (kind == "ByteLevel" and is_plain)

    @staticmethod
    def load(path: Path, objective: str, *, file: str = FILE) -> "TextTokenizer":
        """Load the tokenizer of a directory that transformers or training wrote, or its tokenizer.json. Raises ConfigError."""
        folder = path.parent if path.name == file else checkpoint_of_run(path)
        if not (folder / file).is_file():
            raise ConfigError(f"tokenizer.path: there is no {folder / file}")
        try:
            backend = auto_tokenizer.load(folder)[0] if file == FILE else read(folder / file)
            tokens = read_special_tokens(backend, folder, objective, settings=f"{Path(file).stem}_config.json")
            with library_errors(folder / file):
                return TextTokenizer(backend, tokens, objective, folder / file)
        except CheckpointError as error:
            raise ConfigError(f"tokenizer.path: {error}") from error

    def save(self, folder: Path, *, file: str = FILE) -> None:
        """Write tokenizer.json and tokenizer_config.json; or target_tokenizer.json and its settings."""
        named: dict[str, str] = {}
        for role in SpecialTokens._fields:
            number = getattr(self.special, role) if role in SPECIAL_TOKENS[self._objective] else None
            if number is not None and (token := self.backend.id_to_token(number)) is not None:
                named[_KEYS[role][0]] = token
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **named}
        with atomic_replace(folder / file) as opened:
            opened.write(self.backend.to_str(pretty=True).encode())
        with atomic_replace(folder / f"{Path(file).stem}_config.json") as opened:
            opened.write((json.dumps(config, indent=2) + "\n").encode())

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each text, (T_r,) int64. Texts should not be much longer than those that `parts` yields."""
        if self._is_by_character:
            # By a lookup table: a hundred times as fast as the library.
            codes = (np.frombuffer(self.normalized(text).encode("utf-32-le"), "<u4") for text in texts)
            return [self._table[codes_T].astype(np.int64) for codes_T in codes]
        result = self._checked.encode(texts, with_offsets=False)
        return [np.array(encoding.ids, np.int64) for encoding in result]

    def parts(self, pieces: Iterable[str]) -> Iterator[str]:
        """Yield the same text in other pieces, whose tokens together are those of the text.

        A text is not cut for a tokenizer that may join characters across spaces.
        """
        if self._is_by_character:
            yield from pieces
            return
        if not self._can_cut:
            yield "".join(pieces)
            return
        yield from divide_text(pieces)

    def decode(self, ids: Sequence[int], *, all: bool = False) -> str:
        """Return the text without special tokens; all=True: with their names."""
        return self._checked.decode(ids, skip_special_tokens=not all)

    def normalized(self, text: str) -> str:
        """Return a text as the tokenizer's normalizer changes it, such as in lower case."""
        normalizer = self.backend.normalizer
        with library_errors(self._checked.path):
            return text if normalizer is None else str(normalizer.normalize_str(text))

    @cached_property
    def _table(self) -> np.ndarray:
        """(0x110000,) int32: the id of every code point."""
        assert self.special.unk is not None
        table = np.full(0x110000, self.special.unk, np.int32)
        for token, number in self.backend.get_vocab(with_added_tokens=False).items():
            if len(token) == 1:
                table[ord(token)] = number
        return table


def divide_text(pieces: Iterable[str]) -> Iterator[str]:
    """Yield the same text in pieces of about 65,000 characters. Each begins with the space after a word.

    A text without such a place in a million characters is cut there nevertheless.
    """
    buffer = ""
    for piece in pieces:
        for start in range(0, len(piece), _PART):
            buffer += piece[start : start + _PART]
            if len(buffer) < _PART:
                continue
            end = _last_cut(buffer)
            end = len(buffer) if not end and len(buffer) >= _FORCED else end
            if end:
                yield buffer[:end]
                buffer = buffer[end:]
    if buffer:
        yield buffer


def _last_cut(text: str) -> int:
    """Return the last position of a single space between two other characters, or 0."""
    place = len(text) - 1
    while (place := text.rfind(" ", 0, place)) > 0:
        if not text[place - 1].isspace() and not text[place + 1].isspace():
            return place
    return 0


def count_symbols(texts: Iterable[str], kind: str, *, lowercase: bool = False) -> Counter[str]:
    """Return how often each symbol is in texts; kind: "characters", or "words", which spaces separate."""
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
    """Return a tokenizer that has a token for each symbol.

    Args:
        symbols: of the texts, as `count_symbols` returns them.
        objective: of the model that reads them.
        kind: "characters" or "words".
        vocab_size: the most tokens, special ones included: of the commonest symbols.
        lowercase: texts are read in lower case.
        targets: symbols of the targets, which all get tokens in the same vocabulary.

    Raises:
        ConfigError: the vocabulary has no room for a symbol, or there are no symbols.
    """
    names, others = SPECIAL_TOKENS[objective], sorted(targets)
    least = len({*names.values(), *others}) + 1
    if vocab_size is not None and vocab_size < least:
        reserved = f"{len(names)} special tokens" + (f", {len(others)} of targets" if others else "")
        raise ConfigError(
            f"tokenizer.vocab_size must be at least {least}, for {reserved} and a symbol, not {vocab_size}"
        )
    most = len(symbols) if vocab_size is None else vocab_size - least + 1
    chosen = sorted(sorted(symbols, key=lambda symbol: (-symbols[symbol], symbol))[:most])
    if not chosen:
        raise ConfigError(f"tokenizer.kind is {kind!r}, but the texts have no {kind}")
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys([*names.values(), *chosen, *others]))}
    backend = Backend(models.WordLevel(vocabulary, unk_token=names["unk"]))
    _read_symbols(backend, kind, lowercase)
    # Decoding is of targets: words are joined by spaces, which is the library's default.
    backend.decoder = decoders.Fuse() if kind == "characters" and not others else None
    return _finished(backend, objective, names)


def train_byte_pair_tokenizer(
    texts: Iterable[str], objective: str, *, vocab_size: int | None, lowercase: bool = False
) -> TextTokenizer:
    """Learn byte pairs from texts; the same texts give the same tokens.

    For training only, a pre-token (a word, or another run of letters, digits, punctuation or spaces) of more than 1024 bytes is
    split into parts of 1024 bytes. Raises ConfigError: vocab_size is too small.
    """
    names = dict(SPECIAL_TOKENS[objective])
    if objective != "masked-language-model":  # BERT's tokenizers have an unknown token
        del names["unk"]
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
    """Return a tokenizer of targets with the vocabulary of a shared one."""
    backend = Backend.from_str(tokenizer.backend.to_str())
    _read_symbols(backend, kind, lowercase)
    backend.decoder = None if kind == "words" else decoders.Fuse()
    return TextTokenizer(backend, tokenizer.special, objective)


def _read_symbols(backend: Backend, kind: str, lowercase: bool) -> None:
    by_characters = pre_tokenizers.Split(Regex(_CHARACTER), "isolated")
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit() if kind == "words" else by_characters
    backend.normalizer = normalizers.Lowercase() if lowercase else None


def _finished(backend: Backend, objective: str, names: Mapping[str, str]) -> TextTokenizer:
    """Return the tokenizer with special tokens, and with a template of those that an encoder reads around a text."""
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
