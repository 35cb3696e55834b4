"""A tokenizer, and its file tokenizer.json, which is untrusted: what it may do to a text is measured before anything is encoded."""

import base64
import json
import math
import struct
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from tokenizers import Encoding
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import DecodeStream
from tokenizers.models import Unigram

from uwaga._base import untrusted
from uwaga._base.errors import CheckpointError

FILE = "tokenizer.json"
# Characters of a prefix per token that is needed from it, at first, and the factor for the next attempt. English has four to
# five characters per token.
_CHARACTERS_PER_TOKEN = 8
_MORE = 4
# How many times as long a step of a tokenizer may make a text.
MAX_GROWTH = 64
# Steps of one part, each of which passes over the text; published files have up to 8.
MAX_STEPS = 64
# Characters of a token, and of all special tokens around a text; each text has a copy of them.
MAX_CHARACTERS = 4096
# Characters of a word that WordPiece cuts, in cubic time. Published files have 100.
MAX_WORD = 1024
_EMPTY = {"type": "BPE", "vocab": {}, "merges": []}
_LISTS = ("normalizers", "pretokenizers", "decoders", "processors")
_PARTS = ("normalizer", "pre_tokenizer", "decoder", "post_processor")
_POST_PROCESSOR_RULE = "its post-processor does more than add special tokens of type 0 before and after a text"


class Tokenizer:
    """Texts to token ids, and the special tokens that the model expects around them.

    Attributes:
        backend: the tokenizers.Tokenizer, with truncation and padding turned off.
        path: the file, for messages.
        prefix_ids, suffix_ids: the special tokens before and after every sequence.
        prefix_types, suffix_types: their token types; 0, except for models of transformers such as Funnel and XLNet.
        num_special_tokens: how many of them every sequence has.
        truncation_side: where texts are cut if nothing else says so, "left" or "right".
        vocab_size: one more than the largest id; tokens that no file has are not counted.
        splits_at_spaces: whether the tokens of a text up to a space do not depend on what follows: words are separated at
            spaces first, and no later step joins them.
    """

    def __init__(
        self,
        backend: Backend,
        path: Path = Path(FILE),
        *,
        allows_types: bool = False,
        defaults: frozenset[str] = frozenset(),
    ) -> None:
        self.backend, self.path = backend, path
        # Files keep the settings of their last use: that of all-MiniLM-L6-v2 truncates at 128 tokens. transformers keeps the side alone.
        self.truncation_side: str = (backend.truncation or {}).get("direction", "right")
        backend.no_truncation()
        backend.no_padding()
        vocabulary = backend.get_vocab()
        for rule in _broken_rules(backend, vocabulary):
            raise CheckpointError(f"{path}: {rule}")
        for token in defaults:
            vocabulary.pop(token, None)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        before, behind = _special_tokens_around(backend, path, allows_types=allows_types)
        self.prefix_ids, self.suffix_ids = [special[0] for special in before], [special[0] for special in behind]
        self.prefix_types, self.suffix_types = [special[1] for special in before], [special[1] for special in behind]
        self.num_special_tokens = len(before) + len(behind)
        # Two kinds do: BERT's normalizer and pre-tokenizer, and byte-level BPE as in RoBERTa.
        kinds = [state(part).get("type") for part in (backend.normalizer, backend.pre_tokenizer)]
        self.splits_at_spaces = kinds in (["BertNormalizer", "BertPreTokenizer"], [None, "ByteLevel"])

    def without_special_tokens(self) -> "Tokenizer":
        """Return this tokenizer without its special tokens, for texts that contain their own."""
        result = copy(self)
        result.prefix_ids, result.suffix_ids, result.prefix_types, result.suffix_types = [], [], [], []
        result.num_special_tokens = 0
        return result

    @cached_property
    def _unknown_id(self) -> int | None:
        """The token that stands for what the vocabulary lacks; None: the tokenizer has no such token."""
        model = self.backend.model
        if isinstance(model, Unigram):  # the library has no other way to its id
            return cast(int | None, state(model)["unk_id"])
        return None if (token := model.unk_token) is None else self.backend.token_to_id(token)

    def encode(self, texts: Sequence[str], *, with_offsets: bool) -> list[Encoding]:
        """Return the tokens of each text without special ones; with their character offsets, which takes twice as long.

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
        """Return the ids of each text as the model reads them. Raises CheckpointError as `encode`."""
        return [
            [*self.prefix_ids, *encoding.ids, *self.suffix_ids] for encoding in self.encode(texts, with_offsets=False)
        ]

    def unknown_characters(self, text: str) -> list[str]:
        """Return the parts of a text that the model does not see, without repetitions. Raises CheckpointError as `encode`.

        They are the parts that become the unknown token, and characters that belong to no token.
        """
        (encoding,) = self.encode([text], with_offsets=True)
        tokens = zip(encoding.ids, encoding.offsets, strict=True)
        results = [text[start:stop] for number, (start, stop) in tokens if number == self._unknown_id]
        if sum(stop - start for start, stop in encoding.offsets) < len(text):  # spaces as a rule
            # Alone: where a character is left out, the library's offsets of those after it are wrong.
            letters = [letter for letter in dict.fromkeys(text) if letter.isprintable() and not letter.isspace()]
            alone = self.encode(letters, with_offsets=False)
            results += [letter for letter, made in zip(letters, alone, strict=True) if not len(made)]
        return sorted(set(results), key=text.find)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Decode token ids to text. Raises CheckpointError as `encode`."""
        with library_errors(self.path):
            return str(self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def step(self, stream: DecodeStream, token: int) -> str:
        """Return the text that the next token adds; empty while a character is incomplete. Raises CheckpointError as `encode`."""
        with library_errors(self.path):
            return stream.step(self.backend, token) or ""


def _special_tokens_around(
    backend: Backend, path: Path, *, allows_types: bool
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the special tokens before and after a sequence, each with its type, found by encoding a sample with and without them."""
    with_them, alone = (backend.encode("a", add_special_tokens=adds) for adds in (True, False))
    inside = [index for index, special in enumerate(with_them.special_tokens_mask) if not special]
    start, stop = (inside[0], inside[-1] + 1) if inside else (0, 0)
    types = with_them.type_ids[start:stop] if allows_types else with_them.type_ids
    if not inside or with_them.ids[start:stop] != alone.ids or any(types):
        raise CheckpointError(f"{path}: {_POST_PROCESSOR_RULE}")
    tokens = list(zip(with_them.ids, with_them.type_ids, strict=True))
    ends = tokens[:start], tokens[stop:]
    for number, _ in (*ends[0], *ends[1]):
        if backend.id_to_token(number) is None:
            raise CheckpointError(f"{path}: its post-processor adds token {number}, which is not in the vocabulary")
    return ends


def content_of(token: object) -> str | None:
    """Return the text of a special token, which is written as a string or as an object with options."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def lone_surrogate(text: str) -> str | None:
    """Return what is wrong with a text that UTF-8 cannot write, and no tokenizer reads; None: nothing."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"has a lone surrogate at character {error.start}"
    return None


def check_text(name: str, text: str) -> None:
    """Raise ValueError for a text with a lone surrogate. name: the name of the text, for the message."""
    if (reason := lone_surrogate(text)) is not None:
        raise ValueError(f"{name} {reason}")


def encode_prefixes(tokenizer: Tokenizer, texts: Sequence[str], *, max_tokens: int) -> list[Encoding]:
    """Encode each text with offsets: all of its tokens, or more than `max_tokens`. Long texts are not tokenised whole.

    Raises CheckpointError as Tokenizer.encode.
    """
    if not tokenizer.splits_at_spaces:
        return tokenizer.encode(texts, with_offsets=True)
    results: dict[int, Encoding] = {}
    left, length = list(range(len(texts))), max_tokens * _CHARACTERS_PER_TOKEN
    while left:
        ends = {number: prefix_end(texts[number], length) for number in left}
        prefixes = [texts[number][: ends[number]] for number in left]
        results.update(zip(left, tokenizer.encode(prefixes, with_offsets=True), strict=True))
        left = [number for number in left if ends[number] < len(texts[number]) and len(results[number]) <= max_tokens]
        length *= _MORE
    return [results[number] for number in range(len(texts))]


def prefix_end(text: str, length: int) -> int:
    """Return the first position from `length` on with a space after it and no space before it, or the end of the text."""
    end = length
    while 0 < (end := text.find(" ", end)) < len(text):
        if not text[end - 1].isspace():
            return end
        end += 1
    return len(text)


@contextmanager
def library_errors(path: Path) -> Iterator[None]:
    """Raise CheckpointError for any error of the tokenizers library."""
    try:
        yield
    except (CheckpointError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    # The library raises Exception itself, and a panic of its Rust code is a BaseException.
    except BaseException as error:
        raise CheckpointError(f"{path} is not a valid tokenizer: {error}") from error


def parse(path: Path) -> dict[str, Any]:
    """Return the content of a file, whose steps are within the limits above. Raises CheckpointError."""
    try:
        text = untrusted.read_file(path, untrusted.TOKENIZER_BYTES)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    with library_errors(path):
        untrusted.check_json_size(text, untrusted.TOKENIZER_CONTAINERS, untrusted.TOKENIZER_VALUES)
        described = json.loads(text.decode())
        if not isinstance(described, dict) or not isinstance(described.get("model"), dict):
            raise ValueError("it has no model")
        # With tokens the library would already run its normalizer, on each of them.
        for rule in _broken_steps(build(described | {"model": _EMPTY, "added_tokens": []})):
            raise CheckpointError(f"{path}: {rule}")
        return described


def build(described: dict[str, Any]) -> Backend:
    """Return the tokenizers.Tokenizer of a parsed file; errors are the library's."""
    return Backend.from_str(json.dumps(described))


def read(path: Path) -> Backend:
    """Return the tokenizers.Tokenizer of a file alone. Raises CheckpointError."""
    described = parse(path)
    with library_errors(path):
        return build(described)


def state(part: Any) -> dict[str, Any]:
    """Return the description of a part of a tokenizer, as in tokenizer.json; empty without the part."""
    return {} if part is None else json.loads(part.__getstate__())


def _broken_rules(backend: Backend, vocabulary: Mapping[str, int]) -> Iterator[str]:
    """Yield the limits that a tokenizer breaks, by its own description."""
    if (last := max(vocabulary.values(), default=-1)) >= untrusted.TOKENIZER_IDS:
        yield f"it has the token id {last}, beyond the limit of {untrusted.TOKENIZER_IDS} ids"
    if (longest := max(map(len, vocabulary), default=0)) > MAX_CHARACTERS:
        yield f"a token has {longest:,} characters, more than the limit of {MAX_CHARACTERS:,}"
    yield from _broken_steps(backend)
    for key in ("unk_token", "continuing_subword_prefix", "end_of_word_suffix"):
        if len(text := getattr(backend.model, key, None) or "") > MAX_GROWTH:  # for one character of a text
            yield f"its {key} has {len(text):,} characters, more than the limit of {MAX_GROWTH}"
    if (word := getattr(backend.model, "max_input_chars_per_word", 0)) > MAX_WORD:
        yield f"max_input_chars_per_word must be at most {MAX_WORD}, not {word}"
    if dropout := getattr(backend.model, "dropout", None):
        yield f"dropout must be null, not {dropout:g}: the same text would have other tokens at each call"


def _broken_steps(backend: Backend) -> Iterator[str]:
    for name in _PARTS:
        part = getattr(backend, name)
        steps = [] if part is None else list(_steps(state(part)))
        if len(steps) > MAX_STEPS:
            yield f"its {name} has {len(steps):,} steps, more than the limit of {MAX_STEPS}"
        if name == "post_processor":
            yield from _broken_around(steps)
        elif (growth := math.prod(_growth(step, name) for step in steps)) > MAX_GROWTH:
            yield f"its {name} may make a text {growth} times as long, more than the limit of {MAX_GROWTH}"


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    """Yield the steps of a part. Those of a sequence come one by one."""
    if inside := next((part[name] for name in _LISTS if name in part), None):
        for step in inside:
            yield from _steps(step)
    else:
        yield part


def _growth(step: dict[str, Any], part: str) -> int:
    """Return how many times as long a step may make a text. Steps that are not listed here, such as Unicode's normal forms, count as 1."""
    kind = step.get("type")
    if kind == "ByteLevel" and part != "decoder":  # the bytes of a character
        return 4
    if kind == "Precompiled":
        # A table of SentencePiece is the size of a trie, the trie, and replacements that end with zeros.
        charsmap = base64.b64decode(step["precompiled_charsmap"])
        (size,) = struct.unpack_from("<I", charsmap)
        return max(
            1, *(_length(replacement.decode(errors="replace")) for replacement in charsmap[4 + size :].split(b"\0"))
        )
    if kind == "Prepend":  # to each part of a text between added tokens
        return 1 + _length(step["prepend"])
    if kind != "Replace":
        return 1
    pattern, length = step["pattern"].get("String"), _length(step["content"])
    # A regular expression may match the empty string between any two characters.
    return length + 1 if not pattern else -(-max(length, 1) // len(pattern))


def _length(text: str) -> int:
    """Return the length of a text, or that of its longest normal form if it is longer."""
    return max(len(text), len(unicodedata.normalize("NFKD", text.lower())))


def _broken_around(steps: list[dict[str, Any]]) -> Iterator[str]:
    """Yield what is wrong with a post-processor: it repeats the text, or adds too many special tokens."""
    count = characters = 0
    for step in steps:
        tokens = step.get("special_tokens") or {}
        for form in ("single", "pair"):
            pieces = step.get(form) or []
            texts = [piece["Sequence"]["id"] for piece in pieces if "Sequence" in piece]
            if len(texts) > len(set(texts)):
                yield _POST_PROCESSOR_RULE
            for name, uses in Counter(
                piece["SpecialToken"]["id"] for piece in pieces if "SpecialToken" in piece
            ).items():
                if name in tokens:
                    count += uses * len(tokens[name]["ids"])
                    characters += uses * sum(map(len, tokens[name]["tokens"]))
        characters += sum(len(step[key][0]) for key in ("cls", "sep") if key in step)
    if max(count, characters) > MAX_CHARACTERS:
        added = f"{count:,} special tokens of {characters:,} characters"
        yield f"its post-processor adds {added}, more than the limit of {MAX_CHARACTERS:,}"
