"""One file tokenizer.json, which is untrusted: what it may do to a text is measured before anything is encoded."""

import base64
import json
import math
import struct
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from uwaga._base import untrusted
from uwaga._base.errors import CheckpointError

# How many times as long a step of a tokenizer may make a text.
_MAX_GROWTH = 64
# Steps of one part, each of which passes over the text; published files have up to 8.
_MAX_STEPS = 64
# Characters of a token, and of all special tokens around a text; each text has a copy of them.
_MAX_CHARACTERS = 4096
# Characters of a word that WordPiece cuts, in cubic time. Published files have 100.
_MAX_WORD = 1024
_EMPTY = {"type": "BPE", "vocab": {}, "merges": []}
_LISTS = ("normalizers", "pretokenizers", "decoders", "processors")
_PARTS = ("normalizer", "pre_tokenizer", "decoder", "post_processor")
AROUND = "its post-processor does more than add special tokens of type 0 before and after a text"


@contextmanager
def library_errors(path: Path) -> Iterator[None]:
    """Raise CheckpointError for any error of the tokenizers library."""
    try:
        yield
    except (CheckpointError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except (
        BaseException
    ) as error:  # the library raises Exception itself, and a panic of its Rust code is a BaseException
        raise CheckpointError(f"{path} is not a valid tokenizer: {error}") from error


def parse(path: Path) -> dict[str, Any]:
    """The content of a file, whose steps are within the limits above. Raises CheckpointError."""
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
    """The tokenizers.Tokenizer of a parsed file; errors are the library's."""
    return Backend.from_str(json.dumps(described))


def read(path: Path) -> Backend:
    """The tokenizers.Tokenizer of a file alone. Raises CheckpointError."""
    described = parse(path)
    with library_errors(path):
        return build(described)


def state(part: Any) -> dict[str, Any]:
    """The description of a part of a tokenizer, as in tokenizer.json; empty without the part."""
    return {} if part is None else json.loads(part.__getstate__())


def check(backend: Backend, path: Path) -> dict[str, int]:
    """Check what a tokenizer may do to a text, by its own description, and return its vocabulary. Raises CheckpointError."""
    vocabulary = backend.get_vocab()
    for rule in _broken_rules(backend, vocabulary):
        raise CheckpointError(f"{path}: {rule}")
    return vocabulary


def _broken_rules(backend: Backend, vocabulary: Mapping[str, int]) -> Iterator[str]:
    if (last := max(vocabulary.values(), default=-1)) >= untrusted.TOKENIZER_IDS:
        yield f"it has the token id {last}, beyond the limit of {untrusted.TOKENIZER_IDS} ids"
    if (longest := max(map(len, vocabulary), default=0)) > _MAX_CHARACTERS:
        yield f"a token has {longest:,} characters, more than the limit of {_MAX_CHARACTERS:,}"
    yield from _broken_steps(backend)
    for key in ("unk_token", "continuing_subword_prefix", "end_of_word_suffix"):
        if len(text := getattr(backend.model, key, None) or "") > _MAX_GROWTH:  # for one character of a text
            yield f"its {key} has {len(text):,} characters, more than the limit of {_MAX_GROWTH}"
    if (word := getattr(backend.model, "max_input_chars_per_word", 0)) > _MAX_WORD:
        yield f"max_input_chars_per_word must be at most {_MAX_WORD}, not {word}"
    if dropout := getattr(backend.model, "dropout", None):
        yield f"dropout must be null, not {dropout:g}: the same text would have other tokens at each call"


def _broken_steps(backend: Backend) -> Iterator[str]:
    for name in _PARTS:
        part = getattr(backend, name)
        steps = [] if part is None else list(_steps(state(part)))
        if len(steps) > _MAX_STEPS:
            yield f"its {name} has {len(steps):,} steps, more than the limit of {_MAX_STEPS}"
        if name == "post_processor":
            yield from _broken_around(steps)
        elif (growth := math.prod(_growth(step, name) for step in steps)) > _MAX_GROWTH:
            yield f"its {name} may make a text {growth} times as long, more than the limit of {_MAX_GROWTH}"


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    """The steps of a part, those of sequences one by one."""
    if inside := next((part[name] for name in _LISTS if name in part), None):
        for each in inside:
            yield from _steps(each)
    else:
        yield part


def _growth(step: dict[str, Any], part: str) -> int:
    """How many times as long a step may make a text; other steps than these at most once, as of Unicode's normal forms."""
    kind = step.get("type")
    if kind == "ByteLevel" and part != "decoder":  # the bytes of a character
        return 4
    if kind == "Precompiled":
        # A table of SentencePiece is the size of a trie, the trie, and replacements that end with zeros.
        charsmap = base64.b64decode(step["precompiled_charsmap"])
        (size,) = struct.unpack_from("<I", charsmap)
        return max(1, *(_length(each.decode(errors="replace")) for each in charsmap[4 + size :].split(b"\0")))
    if kind == "Prepend":  # to each part of a text between added tokens
        return 1 + _length(step["prepend"])
    if kind != "Replace":
        return 1
    pattern, length = step["pattern"].get("String"), _length(step["content"])
    # A regular expression may match the empty string between any two characters.
    return length + 1 if not pattern else -(-max(length, 1) // len(pattern))


def _length(text: str) -> int:
    """Of a text, or of its longest normal form."""
    return max(len(text), len(unicodedata.normalize("NFKD", text.lower())))


def _broken_around(steps: list[dict[str, Any]]) -> Iterator[str]:
    """A text is repeated nowhere, and the special tokens around it are few."""
    count = characters = 0
    for step in steps:
        tokens = step.get("special_tokens") or {}
        for form in ("single", "pair"):
            pieces = step.get(form) or []
            texts = [each["Sequence"]["id"] for each in pieces if "Sequence" in each]
            if len(texts) > len(set(texts)):
                yield AROUND
            for name, uses in Counter(each["SpecialToken"]["id"] for each in pieces if "SpecialToken" in each).items():
                if name in tokens:
                    count += uses * len(tokens[name]["ids"])
                    characters += uses * sum(map(len, tokens[name]["tokens"]))
        characters += sum(len(step[key][0]) for key in ("cls", "sep") if key in step)
    if max(count, characters) > _MAX_CHARACTERS:
        added = f"{count:,} special tokens of {characters:,} characters"
        yield f"its post-processor adds {added}, more than the limit of {_MAX_CHARACTERS:,}"
