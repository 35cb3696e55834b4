"""Texts to token ids: a tokenizer that training made or was given, its special tokens, and its files.

A saved one is a tokenizer.json of Hugging Face's library with a tokenizer_config.json beside it.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from tokenizers import Regex
from tokenizers import Tokenizer as Backend
from tokenizers.pre_tokenizers import Split

from uwaga._base.durable import atomic_replace
from uwaga._base.errors import CheckpointError
from uwaga.models.text.tokenizer import Tokenizer as Checked
from uwaga.models.text.tokenizer import library_errors, read
from uwaga.train import special
from uwaga.train.errors import ConfigError
from uwaga.train.special import Special

FILE = "tokenizer.json"
# Characters that are encoded at once; a longer text is cut where that changes nothing.
_PART = 2**16
# Where there is no such place in so many characters, it is cut all the same.
_FORCED = 2**20
_CHARACTER = r"[\s\S]"
_BY_CHARACTERS = {"type": "Split", "pattern": {"Regex": _CHARACTER}, "behavior": "Isolated", "invert": False}


class TextTokenizer:
    """Texts to ids, without special tokens.

    Args:
        backend: of the tokenizers library; special tokens that stand in a text are text to it.
        tokens: the ids of its special tokens.
        objective: what they are for.
        path: of its file, for messages.

    Attributes:
        vocab_size: how many ids there are.
        before, behind: ids that it puts around what an encoder reads.
    """

    def __init__(self, backend: Backend, tokens: Special, objective: str, path: Path = Path(FILE)) -> None:
        checked = Checked(backend, path)
        backend.encode_special_tokens = True
        self.backend, self.special, self._objective = backend, tokens, objective
        self.before, self.behind = checked.prefix_ids, checked.suffix_ids
        self._checked, self.vocab_size = checked, checked.vocab_size
        described = json.loads(backend.to_str())
        kind = (described["pre_tokenizer"] or {}).get("type")
        self._is_by_character = (
            described["model"]["type"] == "WordLevel"
            and described["pre_tokenizer"] == _BY_CHARACTERS
            and tokens.unknown is not None
        )
        self._is_by_word = described["model"]["type"] == "WordLevel" and kind == "WhitespaceSplit"
        is_plain = (described["normalizer"] or {}).get("type") in (None, "Lowercase")
        self._can_cut = checked.splits_at_spaces or self._is_by_word or (kind == "ByteLevel" and is_plain)

    @staticmethod
    def given(path: Path, objective: str, *, file: str = FILE) -> "TextTokenizer":
        """From a directory that transformers or training wrote, or a tokenizer.json in one. Raises ConfigError."""
        folder = path.parent if path.name == file else path
        if not (folder / file).is_file():
            raise ConfigError(f"tokenizer.path: there is no {folder / file}")
        try:
            backend = read(folder / file)
            tokens = special.of_folder(backend, folder, objective, settings=settings_file(file))
            with library_errors(folder / file):
                return TextTokenizer(backend, tokens, objective, folder / file)
        except CheckpointError as error:
            raise ConfigError(f"tokenizer.path: {error}") from error

    def save(self, folder: Path, *, file: str = FILE) -> None:
        """tokenizer.json and tokenizer_config.json, or the same under other names for a decoder's own."""
        with atomic_replace(folder / file) as opened:
            opened.write(self.backend.to_str(pretty=True).encode())
        named = special.transformers_names(self.backend, self.special, self._objective)
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **named}
        with atomic_replace(folder / settings_file(file)) as opened:
            opened.write((json.dumps(config, indent=2) + "\n").encode())

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """(T_r,) int64 of each text; a text should not be much longer than what `parts` gives."""
        if self._is_by_character:
            return [self._of_characters(text) for text in texts]
        found = self._checked.encode(texts, with_offsets=False)
        return [np.array(each.ids, np.int64) for each in found]

    def parts(self, pieces: Iterable[str]) -> Iterator[str]:
        """The same text in other pieces, whose tokens one after the other are those of the text.

        A tokenizer that may look across spaces gets its text whole.
        """
        if self._is_by_character:
            yield from pieces
            return
        if not self._can_cut:
            yield "".join(pieces)
            return
        yield from recut(pieces)

    def decode(self, ids: Sequence[int], *, all: bool = False) -> str:
        """The text, special tokens left out; or `all` of them, by their names."""
        return self._checked.decode(ids, skip_special_tokens=not all)

    def normalized(self, text: str) -> str:
        """As it is read, such as in small letters."""
        normalizer = self.backend.normalizer
        with library_errors(self._checked.path):
            return text if normalizer is None else str(normalizer.normalize_str(text))

    def _of_characters(self, text: str) -> np.ndarray:
        """By a table: a hundred times as fast as token by token."""
        return self._table()[np.frombuffer(self.normalized(text).encode("utf-32-le"), "<u4")].astype(np.int64)

    def _table(self) -> np.ndarray:
        """(0x110000,) int32: the id of every character."""
        if not hasattr(self, "_ids_of_characters"):
            assert self.special.unknown is not None
            table = np.full(0x110000, self.special.unknown, np.int32)
            for token, number in self.backend.get_vocab(with_added_tokens=False).items():
                if len(token) == 1:
                    table[ord(token)] = number
            self._ids_of_characters = table
        return self._ids_of_characters


def by_characters() -> Split:
    """What makes a token of every character: line ends too, which a dot would leave out."""
    return Split(Regex(_CHARACTER), "isolated")


def settings_file(file: str) -> str:
    """
    >>> settings_file("tokenizer.json")
    'tokenizer_config.json'
    """
    return file.replace(".json", "_config.json")


def recut(pieces: Iterable[str]) -> Iterator[str]:
    """The same text in pieces that begin with a space after a word, about 65,000 characters each.

    A text without such a place in a million characters is cut there nevertheless.
    """
    held = ""
    for piece in pieces:
        for start in range(0, len(piece), _PART):
            held += piece[start : start + _PART]
            if len(held) < _PART:
                continue
            end = _last_cut(held)
            end = len(held) if not end and len(held) >= _FORCED else end
            if end:
                yield held[:end]
                held = held[end:]
    if held:
        yield held


def _last_cut(text: str) -> int:
    """The last place between a character that is no space and a space that stands alone; 0 where there is none."""
    place = len(text) - 1
    while (place := text.rfind(" ", 0, place)) > 0:
        if not text[place - 1].isspace() and not text[place + 1].isspace():
            return place
    return 0
