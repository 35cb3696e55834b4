"""A model's tokenizer.json, checked against the vocabulary of its config.json."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import cast

import torch
from tokenizers import Encoding
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import DecodeStream
from tokenizers.models import Unigram
from tokenizers.normalizers import Lowercase
from tokenizers.normalizers import Sequence as Chain

from uwaga._base import json_files
from uwaga._base.errors import CheckpointError
from uwaga._base.terminal import printable
from uwaga.models.checkpoints import directories, sentence_files
from uwaga.models.tokenizers import auto_tokenizer
from uwaga.models.tokenizers.tokenizer_file import AROUND, check, library_errors, read, state

_FILE = auto_tokenizer.FILE
TARGET_FILE = f"target_{_FILE}"
# Characters of a prefix per token that is needed from it, at first, and the factor for the next attempt. English has four to
# five characters per token.
_CHARACTERS_PER_TOKEN = 8
_GROWTH = 4


class Tokenizer:
    """Texts to token ids, and the special tokens that the model expects around them.

    Attributes:
        backend: the tokenizers.Tokenizer, with truncation and padding turned off.
        path: the file, for messages.
        prefix_ids, suffix_ids: the special tokens before and after every sequence.
        prefix_types, suffix_types: their token types; 0 but for models of transformers that tell them apart, as Funnel and XLNet do.
        num_special_tokens: how many of them every sequence has.
        truncation_side: where texts are cut if nothing else says so, "left" or "right".
        vocab_size: one more than the largest id; tokens that no file has are not counted.
        splits_at_spaces: whether the tokens of a text up to a space do not depend on what follows: words are separated at
            spaces first, and no later step joins them.
    """

    def __init__(
        self,
        backend: Backend,
        path: Path = Path(_FILE),
        *,
        allows_types: bool = False,
        defaults: frozenset[str] = frozenset(),
    ) -> None:
        self.backend, self.path = backend, path
        # Files keep the settings of their last use: that of all-MiniLM-L6-v2 truncates at 128 tokens. transformers keeps the side alone.
        self.truncation_side: str = (backend.truncation or {}).get("direction", "right")
        backend.no_truncation()
        backend.no_padding()
        vocabulary = check(backend, path)
        for token in defaults:
            vocabulary.pop(token, None)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        before, behind = _special_tokens_around(backend, path, allows_types=allows_types)
        self.prefix_ids, self.suffix_ids = [each[0] for each in before], [each[0] for each in behind]
        self.prefix_types, self.suffix_types = [each[1] for each in before], [each[1] for each in behind]
        self.num_special_tokens = len(before) + len(behind)
        self.splits_at_spaces = _splits_at_spaces(backend)

    @staticmethod
    def load(folder: Path, *, lowercase: bool = False, allows_types: bool = False) -> "Tokenizer":
        """From the directory of a model. allows_types: special tokens may have other token types than 0.

        Raises CheckpointError, also where it does not match config.json.
        """
        path = folder / _FILE
        if not os.path.lexists(path):
            raise CheckpointError(
                f"there is no {path}; transformers writes one: AutoTokenizer.from_pretrained(...).save_pretrained(...)"
            )
        backend, defaults = auto_tokenizer.load(folder)
        if lowercase:
            first = backend.normalizer
            described = state(first)
            # As sentence-transformers, which adds none to a tokenizer that has one already.
            if "Lowercase" not in [each.get("type") for each in described.get("normalizers", [described])]:
                backend.normalizer = Lowercase() if first is None else Chain([Lowercase(), first])
        with library_errors(path):
            result = Tokenizer(backend, path, allows_types=allows_types, defaults=defaults)
        # The special tokens of config.json are those of the decoder where it has a tokenizer of its own.
        _check_fit(result, "vocab_size", has_ids=not os.path.lexists(folder / TARGET_FILE))
        return result

    @staticmethod
    def load_target(folder: Path) -> "Tokenizer | None":
        """The separate tokenizer of a decoder, as `uwaga.train` saves it; None where encoder and decoder share one.

        Raises CheckpointError.
        """
        path = folder / TARGET_FILE
        if not os.path.lexists(path):
            return None
        with library_errors(path):
            result = Tokenizer(read(path), path)
        _check_fit(result, "decoder_vocab_size", "vocab_size", has_ids=True)
        return result

    def without_special_tokens(self) -> "Tokenizer":
        """The same, for texts that have their special tokens in them."""
        result = copy(self)
        result.prefix_ids, result.suffix_ids, result.prefix_types, result.suffix_types = [], [], [], []
        result.num_special_tokens = 0
        return result

    @cached_property
    def _unknown_id(self) -> int | None:
        """The token that stands for what the vocabulary lacks; None where there is none."""
        model = self.backend.model
        if isinstance(model, Unigram):  # the library has no other way to its id
            return cast(int | None, state(model)["unk_id"])
        return None if (token := model.unk_token) is None else self.backend.token_to_id(token)

    def encode(self, texts: Sequence[str], *, with_offsets: bool) -> list[Encoding]:
        """The tokens of each text without special ones; with their character offsets, which takes twice as long.

        Raises CheckpointError: the library fails, for example on a regular expression that backtracks too far. ValueError: a text with a
        lone surrogate, by its number; callers that have another name for it check it before.
        """
        encode = self.backend.encode_batch if with_offsets else self.backend.encode_batch_fast
        try:
            with library_errors(self.path):
                return encode(texts, add_special_tokens=False)
        except CheckpointError:
            for number, text in enumerate(texts):
                check_text(f"text {number}", text)
            raise

    def with_special_tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text as the model reads them. Raises CheckpointError as `encode`."""
        return [[*self.prefix_ids, *each.ids, *self.suffix_ids] for each in self.encode(texts, with_offsets=False)]

    def unknown_characters(self, text: str) -> list[str]:
        """The parts of a text that the model does not see, without repetitions: those that become the unknown token, and
        characters that belong to no token at all. Raises CheckpointError as `encode`.
        """
        (encoding,) = self.encode([text], with_offsets=True)
        results = [
            text[start:stop]
            for number, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True)
            if number == self._unknown_id
        ]
        if sum(stop - start for start, stop in encoding.offsets) < len(text):  # spaces as a rule
            # Alone: where a character is left out, the library's offsets of those after it are wrong.
            letters = [each for each in dict.fromkeys(text) if each.isprintable() and not each.isspace()]
            alone = self.encode(letters, with_offsets=False)
            results += [letter for letter, tokens in zip(letters, alone, strict=True) if not len(tokens)]
        return sorted(set(results), key=text.find)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Token ids to text. Raises CheckpointError as `encode`."""
        with library_errors(self.path):
            return str(self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def step(self, stream: DecodeStream, token: int) -> str:
        """The text that the next token adds; empty while a character is incomplete. Raises CheckpointError as `encode`."""
        with library_errors(self.path):
            return stream.step(self.backend, token) or ""


def lone_surrogate(text: str) -> str | None:
    """What is wrong with a text that UTF-8 cannot write, and no tokenizer reads; None: nothing."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"has a lone surrogate at character {error.start}"
    return None


def check_text(name: str, text: str) -> None:
    """Raises ValueError: a text with a lone surrogate. name: of the text, for its caller."""
    if (reason := lone_surrogate(text)) is not None:
        raise ValueError(f"{name} {reason}")


def tokenizer(model: torch.nn.Module | str | os.PathLike[str], *, decoder: bool = False) -> Backend:
    """The tokenizer of a model, as a tokenizers.Tokenizer: `.encode(text).ids` gives what the model reads, `.decode(ids)` text.

    Args:
        model: one that `uwaga.models.load` returned, or what it takes: a directory, the name of a bundled model, an id of the hub.
        decoder: the tokenizer of what the decoder reads and writes; the same one, unless the model has two vocabularies.

    Raises:
        CheckpointError: there is no tokenizer, or it does not match the model. ValueError: a model that was not loaded from files.

    >>> speller = tokenizer("speller")
    >>> speller.encode("cat").tokens
    ['c', 'a', 't', '</s>']
    >>> tokenizer("speller", decoder=True).encode("K AE1 T").ids == speller.encode("cat").ids
    False
    """
    return of_model(model, decoder=decoder).backend


def of_model(model: torch.nn.Module | str | os.PathLike[str], *, decoder: bool = False) -> Tokenizer:
    """As `tokenizer`, with the special tokens of the model. Its errors too."""
    if isinstance(model, torch.nn.Module):
        folder = getattr(model, "directory", None)
        if not isinstance(folder, Path):
            raise ValueError(
                f"tokenizer: this {type(model).__name__} was not read by uwaga.models.load; give the directory of its tokenizer.json"
            )
    else:
        folder = directories.transformer(directories.find(model, None))
    if decoder and (target := Tokenizer.load_target(folder)) is not None:
        return target
    return Tokenizer.load(folder, lowercase=sentence_files.lowercases(folder))


def encode_prefixes(tokenizer: Tokenizer, texts: Sequence[str], *, max_tokens: int) -> list[Encoding]:
    """Tokens of each text with their offsets: all of them, or more than `max_tokens`. Long texts are not tokenised whole.

    Raises CheckpointError as Tokenizer.encode.
    """
    if not tokenizer.splits_at_spaces:
        return tokenizer.encode(texts, with_offsets=True)
    results: dict[int, Encoding] = {}
    wanted, length = list(range(len(texts))), max_tokens * _CHARACTERS_PER_TOKEN
    while wanted:
        ends = {number: prefix_end(texts[number], length) for number in wanted}
        prefixes = [texts[number][: ends[number]] for number in wanted]
        results.update(zip(wanted, tokenizer.encode(prefixes, with_offsets=True), strict=True))
        wanted = [
            number for number in wanted if ends[number] < len(texts[number]) and len(results[number]) <= max_tokens
        ]  # fmt: skip
        length *= _GROWTH
    return [results[number] for number in range(len(texts))]


def prefix_end(text: str, length: int) -> int:
    """The first position from `length` on with a space after it and none before it, or the end of the text."""
    end = length
    while 0 < (end := text.find(" ", end)) < len(text):
        if not text[end - 1].isspace():
            return end
        end += 1
    return len(text)


def _special_tokens_around(
    backend: Backend, path: Path, *, allows_types: bool
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The special tokens before and after a sequence, each with its type, found by encoding a sample with and without them."""
    with_them, alone = (backend.encode("a", add_special_tokens=wanted) for wanted in (True, False))
    own = [index for index, special in enumerate(with_them.special_tokens_mask) if not special]
    start, stop = (own[0], own[-1] + 1) if own else (0, 0)
    types = with_them.type_ids[start:stop] if allows_types else with_them.type_ids
    if not own or with_them.ids[start:stop] != alone.ids or any(types):
        raise CheckpointError(f"{path}: {AROUND}")
    tokens = list(zip(with_them.ids, with_them.type_ids, strict=True))
    around = tokens[:start], tokens[stop:]
    for number, _ in (*around[0], *around[1]):
        if backend.id_to_token(number) is None:
            raise CheckpointError(f"{path}: its post-processor adds token {number}, which is not in the vocabulary")
    return around


def _check_fit(tokenizer: Tokenizer, *sizes: str, has_ids: bool) -> None:
    """Check that the vocabulary is not larger than the model's, and that special tokens have the ids of config.json, by which a decoder begins and
    ends. Other models read the ids that the tokenizer gives, and published ones differ: multilingual-e5-small has two of padding.

    sizes: keys of config.json for the size of the vocabulary, the first one present counts. has_ids: whether the ids of
    special tokens in config.json belong to this tokenizer.
    """
    for place, rule in _misfits(tokenizer, sizes, has_ids=has_ids):
        raise CheckpointError(f"{place} does not match config.json: {rule}")


def _misfits(tokenizer: Tokenizer, sizes: Sequence[str], *, has_ids: bool) -> Iterator[tuple[Path, str]]:
    """What does not fit, with the file that has it."""
    backend, path, last = tokenizer.backend, tokenizer.path, tokenizer.vocab_size - 1
    config = json_files.read(path.parent / "config.json")
    settings = path.with_stem(f"{path.stem}_config")
    named = json_files.optional(settings) or {}
    key = next((key for key in sizes if config.get(key) is not None), None)
    size = None if key is None else config[key]
    rows = size if isinstance(size, int) else sys.maxsize
    for name in auto_tokenizer.SPECIAL:
        if (token := _content(named.get(name))) is None:
            continue
        result, expected = backend.token_to_id(token), config.get(f"{name}_id")
        if result is None or result >= rows:  # transformers adds it after the others
            yield path, f"the {name} {printable(token)!r} of {settings.name} is not in its vocabulary"
        elif has_ids and config.get("is_encoder_decoder") and isinstance(expected, int) and result != expected:
            yield path, f"its {name} {printable(token)!r} is token {result}, not {expected}"
    if last >= rows:
        # As the files write it; id_to_token gives it as the normalizer leaves it.
        token = next(each for each, number in backend.get_vocab().items() if number == last)
        yield _origin(path, token), f"the token {printable(token)!r} has the id {last}, but {key} is {size}"


def _origin(path: Path, token: str) -> Path:
    """The file beside a tokenizer.json that adds a token, or itself."""
    for name in (auto_tokenizer.ADDED, auto_tokenizer.MAP, auto_tokenizer.SETTINGS):
        beside = path.with_name(name)
        if token in json.dumps(json_files.optional(beside), ensure_ascii=False):
            return beside
    return path


def _content(token: object) -> str | None:
    """The text of a special token, which is written as a string or as an object with options."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _splits_at_spaces(backend: Backend) -> bool:
    """True for two known kinds: BERT's normalizer and pre-tokenizer, and byte-level BPE as in RoBERTa."""
    kinds = [state(part).get("type") for part in (backend.normalizer, backend.pre_tokenizer)]
    return kinds in (["BertNormalizer", "BertPreTokenizer"], [None, "ByteLevel"])
