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
from annotated_types import Ge, Gt, Le, MaxLen, MinLen
from torch import Tensor

from uwaga._base import languages
from uwaga._base.languages import tr
from uwaga._base.options import Integer, OptionError, Real, Switch, Text, Words, options, read
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


_Word = Annotated[Text, MinLen(1), MaxLen(_MAX_WORD_LENGTH)]
_WordList = Annotated[
    tuple[_Word, ...], MinLen(1), MaxLen(MAX_TOKENS),
    Words(f"a list of 1 to {MAX_TOKENS} words of 1 to {_MAX_WORD_LENGTH} characters"),
]  # fmt: skip
_Sentence = Annotated[
    Text, MaxLen(_MAX_TEXT_LENGTH), Words(f"a text of at most {_MAX_TEXT_LENGTH} characters, without lone surrogates")
]
_SentenceOrWords = Annotated[_Sentence | _WordList, Words(f"a sentence, or a list of 1 to {MAX_TOKENS} words")]
_Row = Annotated[
    tuple[_Number, ...], MinLen(1), MaxLen(MAX_WIDTH),
    Words(f"a list of 1 to {MAX_WIDTH} numbers from -{MAX_NUMBER:,.0f} to {MAX_NUMBER:,.0f}"),
]  # fmt: skip
_Rows = tuple[_Row, ...]


def _range(low: int, high: int) -> Any:
    return Annotated[Integer, Ge(low), Le(high)]


@options
class _Settings:
    """The settings of a request; None: the example's own."""

    wq: _Rows | None = None
    wk: _Rows | None = None
    wv: _Rows | None = None
    wo: _Rows | None = None
    heads: _range(1, MAX_HEADS) = 2  # type: ignore[valid-type]
    scaled: Switch = True
    window: _range(0, MAX_TOKENS) = 1  # type: ignore[valid-type]
    length: _range(0, MAX_TOKENS) | None = None  # type: ignore[valid-type]
    sharpness: _Number = 8.0
    payload: _Rows | None = None
    sentences: Annotated[tuple[_SentenceOrWords, ...], MinLen(1), MaxLen(MAX_SENTENCES)] | None = None
    limit: _range(1, MAX_TOKENS) = 4  # type: ignore[valid-type]
    order: tuple[Integer, ...] | None = None
    seed: _range(0, 2**31 - 1) = 0  # type: ignore[valid-type]
    w1: _Rows | None = None
    w2: _Rows | None = None
    norm: Literal[NORMS] = NORMS[0]  # type: ignore[valid-type]
    written: _SentenceOrWords | None = None
    steps: _range(0, MAX_STEPS) = 0  # type: ignore[valid-type]
    rate: Annotated[Real, Gt(0), Le(MAX_RATE)] = 2.0


@options
class _Request:
    request: Text = "lesson"
    text: _Sentence | None = None
    tokens: _WordList | None = None
    x: tuple[_Row | None, ...] | None = None
    settings: _Settings | None = None


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
    try:
        asked = read(_Request, request)
    except OptionError as error:
        raise ExampleError(f"lesson: {str(error).replace('settings.', '')}") from None
    words = None if asked.text is None else _words_of("text", asked.text)
    before = asked.tokens or words or tuple(_words().roles)
    settings, tokens = asked.settings or _Settings(), words or before
    x_NM = _vectors(asked.x, before, tokens, settings)
    count, width = x_NM.shape
    wq_MD = _matrix("wq", settings.wq, width, None, lambda n: weight("wq", width, n or max(1, width // 2)))
    inner = wq_MD.shape[1]
    wk_MD = _matrix("wk", settings.wk, width, inner, lambda n: weight("wk", width, inner))
    wv_ME = _matrix("wv", settings.wv, width, None, lambda n: weight("wv", width, n or max(1, width - 1)))
    default_hidden = min(2 * width, MAX_WIDTH)
    w1_MF = _matrix("w1", settings.w1, width, None, lambda n: weight("w1", width, default_hidden))
    hidden = w1_MF.shape[1]
    order = tuple(range(count - 1, -1, -1)) if settings.order is None else settings.order
    if sorted(order) != list(range(count)):
        raise ExampleError(f"lesson: order must be a permutation of 0 to {count - 1}, not {short(list(order))}")
    length = max(1, count - 2) if settings.length is None else settings.length
    if length > count:
        raise ExampleError(f"lesson: length must be at most {count}, the number of tokens, not {length}")
    return Example(
        text=asked.text,
        tokens=tokens,
        x_NM=x_NM,
        wq_MD=wq_MD,
        wk_MD=wk_MD,
        wv_ME=wv_ME,
        wo_EM=_output_weight(settings, wv_ME.shape[1], width),
        heads=settings.heads,
        scaled=settings.scaled,
        window=settings.window,
        length=length,
        sharpness=settings.sharpness,
        payload_NP=_matrix("payload", settings.payload, count, None, lambda n: _payload(tokens)),
        sentences=tuple(
            _words_of(f"sentences[{place}]", sentence)
            for place, sentence in enumerate(settings.sentences or default_sentences())
        ),
        limit=settings.limit,
        order=order,
        seed=settings.seed,
        w1_MF=w1_MF,
        w2_FM=_matrix("w2", settings.w2, hidden, width, lambda n: weight("w2", hidden, width)),
        norm=settings.norm,
        written=_words_of(
            "written", _words().written if settings.written is None else settings.written, MAX_TOKENS - 1
        ),
        steps=settings.steps,
        rate=settings.rate,
    )


def _words_of(name: str, sentence: str | tuple[str, ...], most: int = MAX_TOKENS) -> tuple[str, ...]:
    """Return the words of a text, or a list of words as it is."""
    words = tuple(split_words(sentence)) if isinstance(sentence, str) else sentence
    if not 1 <= len(words) <= most or max(map(len, words)) > _MAX_WORD_LENGTH:
        raise ExampleError(
            f"lesson: {name} must have 1 to {most} words and punctuation marks of at most {_MAX_WORD_LENGTH} characters, not {short(sentence)}"
        )
    return words


def _matrix(
    name: str, rows: _Rows | None, height: int, width: int | None, default: Callable[[int | None], Tensor]
) -> Tensor:
    """Return (height, width) float32; a width of None allows any."""
    if rows is None:
        return default(width)
    widths = {len(row) for row in rows}
    if len(rows) != height or len(widths) != 1 or (width is not None and widths != {width}):
        columns = "equal length" if width is None else f"length {width}"
        found = f"{len(rows)} of {' and '.join(map(str, sorted(widths)))}" if rows else "0"
        raise ExampleError(f"lesson: {name} must have {height} rows of {columns}, not {found}")
    return torch.tensor(rows, dtype=torch.float32)


def _output_weight(settings: _Settings, values: int, width: int) -> Tensor:
    """Return W_O, (heads * E, M); heads that are missing in the request have the default rows."""
    count = len(settings.wo or ())
    height = values if count % values or not 0 < count <= MAX_HEADS * values else count
    first_EM = _matrix("wo", settings.wo, height, width, lambda n: weight("wo", values, width))
    num_heads = len(first_EM) // values
    others = [weight(f"wo of head {head + 1}", values, width) for head in range(num_heads, settings.heads)]
    return torch.cat((first_EM, *others))[: settings.heads * values]


def _vectors(
    x: Sequence[tuple[float, ...] | None] | None, before: Sequence[str], tokens: Sequence[str], settings: _Settings
) -> Tensor:
    """Return the rows of `tokens`, (N, M), if the request has the rows of `before`."""
    rows = [None] * len(before) if x is None else x
    widths = {len(row) for row in rows if row is not None}
    if len(rows) != len(before) or len(widths) > 1:
        found = f"{len(rows)} of {' and '.join(map(str, sorted(widths)))}" if widths else str(len(rows))
        raise ExampleError(f"lesson: x must have {len(before)} rows of equal length, not {found}")
    # If no row is given, W_Q may be.
    width = widths.pop() if widths else min(len(settings.wq or ()), MAX_WIDTH) or WIDTH
    rows_of: dict[str, list[Sequence[float]]] = {}
    for token, row in zip(before, rows, strict=True):
        rows_of.setdefault(token, []).append(vector(token, width) if row is None else row)
    filled = []
    for token in tokens:
        rows_of_token = rows_of.get(token, [vector(token, width)])
        filled.append(rows_of_token.pop(0) if len(rows_of_token) > 1 else rows_of_token[0])
    return torch.tensor(filled, dtype=torch.float32)


def _payload(tokens: Sequence[str]) -> Tensor:
    """Return the place of each token, from 1, and its number of letters, (N, 2)."""
    return torch.tensor([[place + 1.0, float(len(token))] for place, token in enumerate(tokens)])


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
