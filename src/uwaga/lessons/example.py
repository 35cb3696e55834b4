"""The example of a lesson: the numbers it computes from, their defaults, and the validation of a request for them.

The default is a sentence with a vector per word and weights that can be followed by hand. No weight is trained. Requests come
from a page, a notebook or a terminal, and are untrusted.

Letters: N tokens, M width of a token's vector, D width of a head's queries and keys, E of its values, P of the payload.
"""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from uwaga._base import languages
from uwaga._base.languages import tr
from uwaga._base.options import Integer, OptionError, Real, Switch, read
from uwaga._base.terminal import short
from uwaga.models.tokenizers.token_text import split_words

MAX_TOKENS, MAX_WIDTH, MAX_HEADS, MAX_SENTENCES = 12, 8, 4, 6
# Beyond this, sums of products of these numbers could leave the range of float32.
MAX_NUMBER = 1000.0
_MAX_WORD_LENGTH = 64
_MAX_TEXT_LENGTH = MAX_TOKENS * (_MAX_WORD_LENGTH + 1)
_Number = Annotated[Real, Ge(-MAX_NUMBER), Le(MAX_NUMBER)]

START = "<start>"
NORMS = ("post", "pre")
MAX_STEPS, MAX_RATE = 240, 4.0
WIDTH = 4  # of the vectors made by hand

# What points at a thing, acts, says which thing, is the thing, and ends. The vector of the thing is the longest: in the unnormalised
# form it dominates.
_BY_ROLE = {
    "pointing": (1.0, 0.0, 0.5, 0.0),
    "acting": (0.0, 1.0, 0.0, 0.0),
    "describing": (0.5, 0.0, 1.0, 0.0),
    "thing": (0.0, 0.0, 2.0, 0.5),
    "ending": (0.0, 0.0, 0.0, 1.0),
}


class ExampleError(ValueError):
    """An example that cannot be calculated; the message is shown to the user."""


class _Words(NamedTuple):
    """The words of a language's own example, in their order, with their roles; what the decoder has written; a short third sentence."""

    roles: dict[str, str]
    written: tuple[str, str]
    third: str


_WORDS = {
    "en": _Words({"this": "pointing", "is": "acting", "a": "describing", "pen": "thing", ".": "ending"}, ("a", "pen"), "yes"),
    "pl": _Words({"to": "pointing", "jest": "acting", "moje": "describing", "pióro": "thing", ".": "ending"}, ("moje", "pióro"), "tak"),
    "pt": _Words({"isto": "pointing", "é": "acting", "uma": "describing", "caneta": "thing", ".": "ending"}, ("uma", "caneta"), "sim"),
    "ja": _Words({"これ": "pointing", "は": "describing", "ペン": "thing", "です": "acting", "。": "ending"}, ("ペン", "です"), "はい"),
    "zh": _Words({"这": "pointing", "是": "acting", "一支": "describing", "笔": "thing", "。": "ending"}, ("一支", "笔"), "是的"),
}  # fmt: skip


def _words() -> _Words:
    return _WORDS[languages.current()]


def default_sentences() -> tuple[tuple[str, ...], ...]:
    """Return the batch of the step "batches"."""
    words = _words()
    return tuple(words.roles), (*words.written, tuple(words.roles)[-1]), (words.third,)


def by_hand(word: str) -> tuple[float, ...] | None:
    """Return the vector (M,) of a word of the language's own example; None for any other word."""
    role = _words().roles.get(word)
    return None if role is None else _BY_ROLE[role]


# Three widths that differ, d = 4, d_k = 2 and d_v = 3, so that no product of matrices fits by chance. In head 1 a pointing word
# looks for a thing; in head 2 it looks for what acts.
_BY_HAND = {
    "wq": ((1.5, 0.0), (0.0, 1.0), (0.5, 0.5), (0.0, 0.5)),
    "wk": ((0.0, 1.0), (0.5, 0.0), (1.5, 0.0), (0.0, 0.5)),
    "wv": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.5), (0.0, 0.0, 1.0), (0.0, 0.5, 0.0)),
    "wo": ((1.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0), (0.5, 0.0, 1.0, 0.0)),
    "wq of head 2": ((0.0, 3.0), (2.0, 0.0), (0.5, 0.0), (0.0, 1.0)),
    "wk of head 2": ((1.5, 0.0), (0.0, 1.0), (0.5, 0.0), (0.0, 0.5)),
    "wv of head 2": ((0.0, 0.0, 1.0), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 0.5)),
    "wo of head 2": ((0.0, 0.5, 0.0, 0.0), (0.0, 0.0, 0.5, 0.0), (0.0, 0.0, 0.0, 1.0)),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Example:
    """The numbers that the lesson computes from. `heads` to `seed` are settings of single steps."""

    text: str | None  # the sentence that the tokens are the words of; None if the tokens were given
    tokens: tuple[str, ...]
    x_NM: Tensor
    wq_MD: Tensor
    wk_MD: Tensor
    wv_ME: Tensor
    wo_EM: Tensor  # of all heads, one after the other: (heads * E, M)
    heads: int  # each with matrices of the sizes of wq, wk and wv; those are of the first
    scaled: bool
    window: int  # visible keys before the query's own
    length: int  # keys that are not padding
    sharpness: float  # factor of the scores in the soft database: an inverse temperature
    payload_NP: Tensor  # values of the soft database
    sentences: tuple[tuple[str, ...], ...]
    limit: int  # context length of a model
    order: tuple[int, ...]  # the permutation that shuffles the tokens
    seed: int  # of the random vectors of the step "scaling"
    w1_MF: Tensor  # of the feed-forward layer
    w2_FM: Tensor
    norm: str  # "post" or "pre"
    written: tuple[str, ...]  # what the decoder has written after its start sign
    steps: int  # gradient steps of the step "learning"
    rate: float  # their learning rate

    @property
    def width_names(self) -> tuple[str, ...]:
        """Return names of the components: words if the vectors were made by hand, else numbers."""
        width = self.x_NM.shape[1]
        if width == WIDTH and all(by_hand(token) is not None for token in self.tokens):
            return tr("pointing"), tr("acting"), tr("thing"), tr("ending")
        return numbered("x", width)

    @property
    def scale(self) -> float:
        """Return the factor of the scores."""
        return 1.0 / math.sqrt(self.wq_MD.shape[1]) if self.scaled else 1.0

    @property
    def scale_text(self) -> str:
        """Return the factor as a formula."""
        return f"1/√{self.wq_MD.shape[1]}" if self.scaled else "1"

    @property
    def scale_argument(self) -> str:
        """Return the argument of a call of `uwaga.attention` for this example's scaling."""
        return "" if self.scaled else ", scale=1.0"

    def request(self) -> dict[str, Any]:
        """Return the request that gives this example, with all arguments."""
        settings = {_named(field): as_lists(getattr(self, field.name)) for field in fields(self)}
        text, tokens, x = (settings.pop(name) for name in ("text", "tokens", "x"))
        written = {} if text is None else {"text": text}
        return {"request": "lesson"} | written | {"tokens": tokens, "x": x, "settings": settings}


def _named(field: Field[Any]) -> str:
    """Return the name of a field in a request: without the letters of its shape."""
    return field.name.partition("_")[0]


def as_lists(value: object) -> Any:
    """Return tuples, tensors and arrays as lists."""
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        return value.tolist()
    return [as_lists(item) for item in value] if isinstance(value, tuple | list) else value


SETTINGS = [_named(field) for field in fields(Example)][3:]  # behind text, tokens and x


class ExampleParser:
    """Validates the values of one JSON object; missing ones get their defaults.

    Raises:
        ExampleError: from every method for an invalid value, and from the constructor for an unknown name.
    """

    def __init__(self, subject: str, values: Mapping[str, object], names: Sequence[str]) -> None:
        self._subject, self._values = subject, values
        for name in values:
            if name not in names:
                raise self._error(f"unknown argument {short(name)}")

    def mapping(self, name: str) -> Mapping[str, object]:
        value = self._values.get(name)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self._wrong(name, "an object", value)
        return value

    def text(self, name: str, max_count: int) -> tuple[str | None, tuple[str, ...]]:
        """Return a text of at most `max_count` words, and its words; None if it is missing."""
        value = self._values.get(name)
        return (None, ()) if value is None else (str(value), self._split(name, value, max_count))

    def words(self, name: str, max_count: int, default: Sequence[str]) -> tuple[str, ...]:
        value = self._values.get(name)
        return tuple(default) if value is None else self._words(name, value, max_count)

    def sentences(
        self, name: str, max_count: int, max_words: int, default: Sequence[tuple[str, ...]]
    ) -> tuple[tuple[str, ...], ...]:
        value = self._values.get(name)
        if value is None:
            return tuple(default)
        if not isinstance(value, list) or not 1 <= len(value) <= max_count:
            raise self._wrong(name, f"a list of 1 to {max_count} sentences", value)
        return tuple(
            (self._split if isinstance(sentence, str) else self._words)(f"{name}[{place}]", sentence, max_words)
            for place, sentence in enumerate(value)
        )

    def setting(self, name: str, rule: Any, default: Any) -> Any:
        """Return a value of the type `rule`, whose annotations are its limits."""
        return self._checked(name, self._values.get(name, default), rule)

    def sentence(self, name: str, max_count: int, default: Sequence[str]) -> tuple[str, ...]:
        """Return a text, or a list of words."""
        value = self._values.get(name)
        if isinstance(value, str):
            return self._split(name, value, max_count)
        return tuple(default) if value is None else self._words(name, value, max_count)

    def order(self, name: str, count: int) -> tuple[int, ...]:
        """Return a permutation of 0 to count - 1; by default the reverse order."""
        value = self._values.get(name)
        if value is None:
            return tuple(range(count - 1, -1, -1))
        if (
            not isinstance(value, list)
            or any(isinstance(place, bool) or not isinstance(place, int) for place in value)
            or sorted(value) != list(range(count))
        ):
            raise self._wrong(name, f"a permutation of 0 to {count - 1}", value)
        return tuple(value)

    def rows(self, name: str, count: int, max_count: int) -> tuple[int | None, list[list[float] | None] | None]:
        """Return the common width of the rows, and the rows; None for what is missing. The width is None if all rows
        are missing, the rows are None if `name` is."""
        value = self._values.get(name)
        if value is None:
            return None, None
        if not isinstance(value, list) or len(value) != count:
            result = _counted(len(value), "row") if isinstance(value, list) else short(value)
            raise self._error(f"{name} must be a list of {_counted(count, 'row')}, not {result}")
        rows = [None if row is None else self._row(f"{name}[{n}]", row, max_count) for n, row in enumerate(value)]
        widths = sorted({len(row) for row in rows if row is not None})
        if len(widths) > 1:
            raise self._error(f"{name} must have rows of equal width, not of {' and '.join(map(str, widths))}")
        return (widths[0] if widths else None), rows

    def height(self, name: str, max_count: int) -> int | None:
        """Return the number of rows; None if `name` is missing, or invalid, which `matrix` reports."""
        value = self._values.get(name)
        return len(value) if isinstance(value, list) and 1 <= len(value) <= max_count else None

    def matrix(
        self, name: str, shape: tuple[int, int | None], max_count: int, default: Callable[[int | None], Tensor]
    ) -> Tensor:
        """Return a float32 matrix of a shape, in which None allows any width."""
        height, width = shape
        reply, rows = self.rows(name, height, max_count)
        if rows is None or reply is None:
            return default(width)
        if None in rows:
            raise self._error(f"{name}[{rows.index(None)}] is missing")
        if width is not None and reply != width:
            raise self._error(f"{name} must have {_counted(width, 'column')}, not {reply}")
        return torch.tensor(rows, dtype=torch.float32)

    def _words(self, name: str, value: object, max_count: int) -> tuple[str, ...]:
        if not isinstance(value, list) or not 1 <= len(value) <= max_count:
            actual = f"of {len(value)}" if isinstance(value, list) else short(value)
            raise self._error(f"{name} must be a list of 1 to {max_count} words, not {actual}")
        for place, word in enumerate(value):
            if not isinstance(word, str) or not 1 <= len(word) <= _MAX_WORD_LENGTH:
                raise self._wrong(f"{name}[{place}]", f"a word of 1 to {_MAX_WORD_LENGTH} characters", word)
            self._check_characters(f"{name}[{place}]", word)
        return tuple(value)

    def _split(self, name: str, value: object, max_count: int) -> tuple[str, ...]:
        """Return the words of a text."""
        if not isinstance(value, str) or len(value) > _MAX_TEXT_LENGTH:
            raise self._wrong(name, f"a text of at most {_MAX_TEXT_LENGTH} characters", value)
        self._check_characters(name, value)
        words = split_words(value)
        if not 1 <= len(words) <= max_count:
            raise self._error(f"{name} must have 1 to {max_count} words and punctuation marks, not {len(words)}")
        for word in words:
            if len(word) > _MAX_WORD_LENGTH:
                raise self._error(f"{name} has a word of more than {_MAX_WORD_LENGTH} characters: {short(word)}")
        return tuple(words)

    def _check_characters(self, name: str, text: str) -> None:
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise self._error(f"{name} has a lone surrogate, which is not a character")

    def _row(self, name: str, value: object, max_count: int) -> list[float]:
        if not isinstance(value, list) or not 1 <= len(value) <= max_count:
            actual = f"of {len(value)}" if isinstance(value, list) else short(value)
            raise self._error(f"{name} must be a list of 1 to {max_count} numbers, not {actual}")
        return [float(self._checked(f"{name}[{place}]", entry, _Number)) for place, entry in enumerate(value)]

    def _checked(self, name: str, value: object, rule: Any) -> Any:
        try:
            return read(rule, value, path=name)
        except OptionError as error:
            raise self._error(str(error)) from None

    def _wrong(self, name: str, rule: str, value: object) -> ExampleError:
        return self._error(f"{name} must be {rule}, not {short(value)}")

    def _error(self, text: str) -> ExampleError:
        return ExampleError(f"{self._subject}: {text}")


def parse_example(request: Mapping[str, object]) -> Example:
    """Return the example that a request describes; missing arguments get their defaults.

    Args:
        request: {"request": "lesson"} and any of
            tokens: 1 to 12 strings.
            x: a row of 1 to 8 numbers per token; null for the word's default vector.
            text: a sentence, whose words replace the tokens. Words that are among `tokens` keep their rows of `x`; without
                `tokens`, the rows belong to the new words.
            settings: any settings of `Example.request()`.

    Raises:
        ExampleError: an argument that is unknown, invalid or too large.
    """
    parser = ExampleParser("lesson", request, ("request", "text", "tokens", "x", "settings"))
    text, words = parser.text("text", MAX_TOKENS)
    before = parser.words("tokens", MAX_TOKENS, words or tuple(_words().roles))
    settings = ExampleParser("lesson", parser.mapping("settings"), SETTINGS)
    tokens = words or before
    return _example(text, tokens, _vectors(parser, before, tokens, settings), settings)


def _range(low: int, high: int) -> Any:
    return Annotated[Integer, Ge(low), Le(high)]


def _example(text: str | None, tokens: tuple[str, ...], x_NM: Tensor, settings: ExampleParser) -> Example:
    count, width = x_NM.shape
    wq_MD = settings.matrix("wq", (width, None), MAX_WIDTH, lambda n: weight("wq", width, n or max(1, width // 2)))
    inner = wq_MD.shape[1]
    wk_MD = settings.matrix("wk", (width, inner), MAX_WIDTH, lambda n: weight("wk", width, inner))
    wv_ME = settings.matrix("wv", (width, None), MAX_WIDTH, lambda n: weight("wv", width, n or max(1, width - 1)))
    values = wv_ME.shape[1]
    heads = settings.setting("heads", _range(1, MAX_HEADS), 2)
    wo_EM = _output_weight(settings, heads, values, width)
    w1_MF = settings.matrix("w1", (width, None), MAX_WIDTH, lambda n: weight("w1", width, min(2 * width, MAX_WIDTH)))
    hidden = w1_MF.shape[1]
    return Example(
        text=text,
        tokens=tokens,
        x_NM=x_NM,
        wq_MD=wq_MD,
        wk_MD=wk_MD,
        wv_ME=wv_ME,
        wo_EM=wo_EM,
        heads=heads,
        scaled=settings.setting("scaled", Switch, True),
        window=settings.setting("window", _range(0, MAX_TOKENS), 1),
        length=settings.setting("length", _range(0, count), max(1, count - 2)),
        sharpness=settings.setting("sharpness", _Number, 8.0),
        payload_NP=settings.matrix("payload", (count, None), MAX_WIDTH, lambda n: _payload(tokens)),
        sentences=settings.sentences("sentences", MAX_SENTENCES, MAX_TOKENS, default_sentences()),
        limit=settings.setting("limit", _range(1, MAX_TOKENS), 4),
        order=settings.order("order", count),
        seed=settings.setting("seed", _range(0, 2**31 - 1), 0),
        w1_MF=w1_MF,
        w2_FM=settings.matrix("w2", (hidden, width), MAX_WIDTH, lambda n: weight("w2", hidden, width)),
        norm=settings.setting("norm", Literal[NORMS], NORMS[0]),
        written=settings.sentence("written", MAX_TOKENS - 1, _words().written),
        steps=settings.setting("steps", _range(0, MAX_STEPS), 0),
        rate=settings.setting("rate", Annotated[Real, Gt(0), Le(MAX_RATE)], 2.0),
    )


def _output_weight(settings: ExampleParser, heads: int, values: int, width: int) -> Tensor:
    """Return W_O, (heads * E, M); heads that are missing in the request have the default rows."""
    most = MAX_HEADS * values
    height = settings.height("wo", most) or values
    if height % values:
        height = values  # which is what the error names
    first_EM = settings.matrix("wo", (height, width), MAX_WIDTH, lambda n: weight("wo", values, width))
    num_heads = len(first_EM) // values
    others = [weight(f"wo of head {head + 1}", values, width) for head in range(num_heads, heads)]
    return torch.cat((first_EM, *others))[: heads * values]


def _vectors(parser: ExampleParser, before: Sequence[str], tokens: Sequence[str], settings: ExampleParser) -> Tensor:
    """Return the rows of `tokens`, (N, M), if the request has the rows of `before`."""
    width, rows = parser.rows("x", len(before), MAX_WIDTH)
    if width is None:  # no row is given; W_Q may be
        width = settings.height("wq", MAX_WIDTH) or WIDTH
    rows_of: dict[str, list[list[float]]] = {}
    for token, row in zip(before, rows or [None] * len(before), strict=True):
        rows_of.setdefault(token, []).append(list(vector(token, width)) if row is None else row)
    filled = []
    for token in tokens:
        rows_of_token = rows_of.get(token, [list(vector(token, width))])
        filled.append(rows_of_token.pop(0) if len(rows_of_token) > 1 else rows_of_token[0])
    return torch.tensor(filled, dtype=torch.float32)


def _payload(tokens: Sequence[str]) -> Tensor:
    """Return the place of each token, from 1, and its number of letters, (N, 2)."""
    return torch.tensor([[place + 1.0, float(len(token))] for place, token in enumerate(tokens)])


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def vector(word: str, width: int) -> tuple[float, ...]:
    """Return (M,) the vector of a word, the same in every sentence. Words of the language's own example have vectors
    made by hand; others are random, seeded by the word."""
    if width == WIDTH and (result := by_hand(word)) is not None:
        return result
    drawn = torch.randint(-4, 5, (width,), generator=_seeded(f"word {word}")) / 4.0
    return tuple(drawn.tolist())


def weight(name: str, rows: int, columns: int) -> Tensor:
    """Return one of the lesson's matrices, (rows, columns) float32, by its name, such as "wq". The default widths have
    matrices made by hand; others are random with a fixed seed."""
    if name in _BY_HAND and (rows, columns) == (len(_BY_HAND[name]), len(_BY_HAND[name][0])):
        return torch.tensor(_BY_HAND[name])
    return torch.randint(-4, 5, (rows, columns), generator=_seeded(f"weight {name}")) / 4.0


def numbered(letter: str, count: int) -> tuple[str, ...]:
    """Return names such as q1, q2, q3.

    >>> numbered("q", 3)
    ('q1', 'q2', 'q3')
    """
    return tuple(f"{letter}{n + 1}" for n in range(count))


def _seeded(text: str) -> torch.Generator:
    # crc32 and not hash(), which differs from process to process. A lone surrogate has no UTF-8.
    return torch.Generator().manual_seed(zlib.crc32(text.encode("utf-8", "surrogatepass")))
