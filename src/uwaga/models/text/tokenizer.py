"""A model's tokenizer.json, checked against the model that its tokens are for."""

import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import Encoding
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import DecodeStream
from tokenizers.normalizers import Lowercase
from tokenizers.normalizers import Sequence as Chain

from uwaga._base import untrusted
from uwaga._base.errors import CheckpointError
from uwaga.models import json_files
from uwaga.models.json_files import printable

_FILE = "tokenizer.json"
TARGET_FILE = f"target_{_FILE}"
# Ids at most: tables with a place for each are made of them. The largest vocabularies in use have 262,144.
_MOST_TOKENS = 2**22
# How many times as long a text may become before it is cut into tokens, or when tokens become a text again.
_MOST_GROWTH = 64
# Special tokens by their names in tokenizer_config.json and, with _id behind, in config.json.
_SPECIAL = ("pad_token", "bos_token", "eos_token", "cls_token", "sep_token", "mask_token", "unk_token")


class Tokenizer:
    """Texts to token numbers, and the special tokens that the model expects before and behind them.

    Attributes:
        backend: the tokenizers.Tokenizer; never cuts or pads, whatever its file says.
        path: of its file, for messages.
        before, behind: numbers of the special tokens around every sequence.
        vocabulary: how many ids there are: one more than the largest.
        can_cut: whether a text may be cut before a space without changing the tokens of what is left: where words are
            told apart by spaces before anything else is done, and nothing looks across.
    """

    def __init__(self, backend: Backend, path: Path = Path(_FILE)) -> None:
        self.backend, self.path = backend, path
        # Files carry the settings of their last use: that of all-MiniLM-L6-v2 cuts at 128 tokens.
        backend.no_truncation()
        backend.no_padding()
        self.vocabulary = max(backend.get_vocab().values(), default=-1) + 1
        if self.vocabulary > _MOST_TOKENS:
            raise CheckpointError(f"{path}: it has token {self.vocabulary - 1}, and {_MOST_TOKENS} ids are the most")
        self.before, self.behind = _around(backend, path)
        self.can_cut = _can_cut(json.loads(backend.to_str()))

    @staticmethod
    def load(folder: Path, *, lowercase: bool = False) -> "Tokenizer":
        """From the directory of a model. Raises CheckpointError, also where it does not fit config.json."""
        path = folder / _FILE
        if not os.path.lexists(path):
            raise CheckpointError(
                f"there is no {path}; transformers writes one: AutoTokenizer.from_pretrained(...).save_pretrained(...)"
            )
        backend = read(path)
        if lowercase:
            first = backend.normalizer
            backend.normalizer = Lowercase() if first is None else Chain([Lowercase(), first])
        # config.json has the special tokens of the side that is written.
        _check_fit(backend, path, "vocab_size", has_ids=not os.path.lexists(folder / TARGET_FILE))
        with library_errors(path):
            return Tokenizer(backend, path)

    @staticmethod
    def load_target(folder: Path) -> "Tokenizer | None":
        """That of a decoder which reads and writes another way, as `uwaga.train` saves it; None where both are one.

        Raises CheckpointError.
        """
        path = folder / TARGET_FILE
        if not os.path.lexists(path):
            return None
        backend = read(path)
        _check_fit(backend, path, "decoder_vocab_size", "vocab_size", has_ids=True)
        with library_errors(path):
            return Tokenizer(backend, path)

    @property
    def special(self) -> int:
        """How many special tokens every sequence has."""
        return len(self.before) + len(self.behind)

    def encode(self, texts: Sequence[str], *, with_places: bool) -> list[Encoding]:
        """The tokens of each text, special ones apart; their places in the text too, which takes twice as long.

        Raises CheckpointError: the library cannot, as with a regular expression that it gives up on.
        """
        encode = self.backend.encode_batch if with_places else self.backend.encode_batch_fast
        with library_errors(self.path):
            return encode(texts, add_special_tokens=False)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of tokens. Raises CheckpointError as `encode`."""
        with library_errors(self.path):
            return str(self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def step(self, stream: DecodeStream, token: int) -> str:
        """What the next token adds to the text; nothing, while a letter is not whole. Raises CheckpointError as `encode`."""
        with library_errors(self.path):
            return stream.step(self.backend, token) or ""


def read(path: Path) -> Backend:
    """Of the library. Raises CheckpointError."""
    try:
        text = untrusted.read_file(path, untrusted.TOKENIZER_BYTES)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    with library_errors(path):
        untrusted.check_json_size(text, untrusted.TOKENIZER_CONTAINERS, untrusted.TOKENIZER_VALUES)
        backend = Backend.from_buffer(text)
        for part in ("normalizer", "pre_tokenizer", "decoder"):
            step = getattr(backend, part)
            growth = 1 if step is None else _growth(json.loads(step.__getstate__()))
            if growth > _MOST_GROWTH:
                said = f"may make a text {growth} times as long, and {_MOST_GROWTH} is the most"
                raise CheckpointError(f"{path}: its {part} {said}")
    return backend


def _growth(part: Any) -> int:
    """How many times as long a text may become by replacing, one step after another: each may double what came before."""
    if isinstance(part, list):
        return math.prod(map(_growth, part))
    if not isinstance(part, dict):
        return 1
    inside = math.prod(_growth(part[name]) for name in ("normalizers", "pretokenizers", "decoders") if name in part)
    if part.get("type") != "Replace":
        return inside
    pattern = part["pattern"].get("String")
    # A regular expression may match nothing, between any two characters.
    return len(part["content"]) + 1 if not pattern else -(-max(len(part["content"]), 1) // len(pattern))


@contextmanager
def library_errors(path: Path) -> Iterator[None]:
    """What the library has against a file, when it is read or used, is a CheckpointError."""
    try:
        yield
    except (CheckpointError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:  # the library raises Exception itself, and its panics are not even that
        raise CheckpointError(f"{path} is no tokenizer: {error}") from error


def _around(backend: Backend, path: Path) -> tuple[list[int], list[int]]:
    """The special tokens before and behind a sequence, as a sample shows them."""
    with_them, alone = (backend.encode("a", add_special_tokens=wanted) for wanted in (True, False))
    own = [place for place, special in enumerate(with_them.special_tokens_mask) if not special]
    start, stop = (own[0], own[-1] + 1) if own else (0, 0)
    if not own or with_them.ids[start:stop] != alone.ids or any(with_them.type_ids):
        raise CheckpointError("tokenizer.json does more to a text than to put special tokens of type 0 around it")
    around = with_them.ids[:start], with_them.ids[stop:]
    for number in (*around[0], *around[1]):
        if backend.id_to_token(number) is None:
            raise CheckpointError(f"{path} puts token {number} around a text, and has no such token")
    return around


def _check_fit(backend: Backend, path: Path, *sizes: str, has_ids: bool) -> None:
    """The vocabulary is not larger than the model's, and both mean the same tokens by the same names.

    sizes: keys of config.json, the first of which says how large the vocabulary is. has_ids: whether its ids of special
    tokens are of this tokenizer.
    """
    config = json_files.read(path.parent / "config.json")
    settings = path.with_stem(f"{path.stem}_config")
    named = json_files.optional(settings) or {}
    where = f"{path} does not fit config.json"
    largest = max(backend.get_vocab().values(), default=-1)
    vocabulary = next((config[key] for key in sizes if config.get(key) is not None), None)
    if isinstance(vocabulary, int) and largest >= vocabulary:
        raise CheckpointError(f"{where}: it has token {largest}, and the model's vocabulary ends before {vocabulary}")
    for name in _SPECIAL:
        token, expected = _content(named.get(name)), config.get(f"{name}_id")
        if token is None:
            continue
        found = backend.token_to_id(token)
        if found is None:
            raise CheckpointError(f"{where}: it does not know the {name} {printable(token)!r} of {settings.name}")
        if has_ids and isinstance(expected, int) and found != expected:
            raise CheckpointError(f"{where}: its {name} {printable(token)!r} is token {found}, not {expected}")


def _content(token: object) -> str | None:
    """A special token is written as a string, or as an object with options."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _can_cut(described: dict) -> bool:
    """Known kinds only: BERT's words, with its own normalizer, and byte-level BPE as RoBERTa has it."""
    kinds = [(described[part] or {}).get("type") for part in ("normalizer", "pre_tokenizer")]
    return kinds in (["BertNormalizer", "BertPreTokenizer"], [None, "ByteLevel"])
