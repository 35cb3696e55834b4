"""The question of a lesson, checked: what a page, a notebook or a terminal sends is not trusted.

Letters: N tokens, M width of a token's vector, D inner width of queries and keys, E of values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from uwaga.viewer.lesson import defaults
from uwaga.viewer.lesson.reading import Reader

MOST_TOKENS, MOST_WIDTH, MOST_HEADS, MOST_SENTENCES = 12, 8, 4, 6
SETTINGS = (
    *("wq", "wk", "wv", "wo", "heads", "scaled", "window", "length", "sharpness", "payload", "sentences", "limit"),
    *("order", "seed"),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Example:
    """Everything that the lesson computes from."""

    tokens: tuple[str, ...]
    x_NM: Tensor
    wq_MD: Tensor
    wk_MD: Tensor
    wv_ME: Tensor
    wo_EM: Tensor
    heads: int
    scaled: bool
    window: int  # keys that a query sees before its own
    length: int  # keys that are no padding
    sharpness: float
    payload_NP: Tensor
    sentences: tuple[tuple[str, ...], ...]
    limit: int  # tokens that a model can read
    order: tuple[int, ...]  # in which the tokens stand after they were shuffled
    seed: int

    @property
    def width_names(self) -> tuple[str, ...]:
        return defaults.width_names(self.x_NM.shape[1])

    def question(self) -> dict[str, Any]:
        """The question that gives this very example, nothing left out."""
        settings = {
            "wq": self.wq_MD.tolist(),
            "wk": self.wk_MD.tolist(),
            "wv": self.wv_ME.tolist(),
            "wo": self.wo_EM.tolist(),
            "heads": self.heads,
            "scaled": self.scaled,
            "window": self.window,
            "length": self.length,
            "sharpness": self.sharpness,
            "payload": self.payload_NP.tolist(),
            "sentences": [list(sentence) for sentence in self.sentences],
            "limit": self.limit,
            "order": list(self.order),
            "seed": self.seed,
        }
        return {"ask": "lesson", "tokens": list(self.tokens), "x": self.x_NM.tolist(), "settings": settings}


def example(question: Mapping[str, object]) -> Example:
    """What a question asks for; what it leaves out is that of the default sentence.

    Args:
        question: {"ask": "lesson"} and any of
            tokens: 1 to 12 strings.
            x: a row of 1 to 8 numbers per token; null for the word's own vector.
            settings: any of those of `Example.question()`.

    Raises:
        QuestionError: an unknown argument, or one that is wrong or too large.
    """
    asked = Reader("lesson", question, ("ask", "tokens", "x", "settings"))
    tokens = asked.words("tokens", MOST_TOKENS, defaults.TOKENS)
    settings = Reader("lesson", asked.mapping("settings"), SETTINGS)
    return _example(tokens, _vectors(asked, tokens, settings), settings)


def _example(tokens: tuple[str, ...], x_NM: Tensor, settings: Reader) -> Example:
    count, width = x_NM.shape
    wq_MD = settings.matrix("wq", (width, None), MOST_WIDTH, lambda n: defaults.weight("wq", width, n or width))
    inner = wq_MD.shape[1]
    wk_MD = settings.matrix("wk", (width, inner), MOST_WIDTH, lambda n: defaults.weight("wk", width, inner))
    wv_ME = settings.matrix("wv", (width, None), MOST_WIDTH, lambda n: defaults.weight("wv", width, n or inner))
    values = wv_ME.shape[1]
    wo_EM = settings.matrix("wo", (values, width), MOST_WIDTH, lambda n: defaults.weight("wo", values, width))
    return Example(
        tokens=tokens,
        x_NM=x_NM,
        wq_MD=wq_MD,
        wk_MD=wk_MD,
        wv_ME=wv_ME,
        wo_EM=wo_EM,
        heads=settings.heads("heads", MOST_HEADS, inner, values),
        scaled=settings.truth("scaled", True),
        window=settings.whole("window", 0, MOST_TOKENS, 1),
        length=settings.whole("length", 0, count, max(1, count - 2)),
        sharpness=settings.number("sharpness", 8.0),
        payload_NP=settings.matrix("payload", (count, None), MOST_WIDTH, lambda n: _payload(tokens)),
        sentences=settings.sentences("sentences", MOST_SENTENCES, MOST_TOKENS, defaults.SENTENCES),
        limit=settings.whole("limit", 1, MOST_TOKENS, 4),
        order=settings.order("order", count),
        seed=settings.whole("seed", 0, 2**31 - 1, 0),
    )


def _vectors(asked: Reader, tokens: Sequence[str], settings: Reader) -> Tensor:
    width, rows = asked.rows("x", len(tokens), MOST_WIDTH)
    if width is None:  # no row says it; W_Q may
        width = settings.height("wq", MOST_WIDTH) or len(defaults.WIDTHS)
    rows = [None] * len(tokens) if rows is None else rows
    filled = [
        defaults.vector(token, width) if row is None else tuple(row) for token, row in zip(tokens, rows, strict=True)
    ]
    return torch.tensor(filled, dtype=torch.float32)


def _payload(tokens: Sequence[str]) -> Tensor:
    """(N, 2): where a token stands, and how many letters it has."""
    return torch.tensor([[place + 1.0, float(len(token))] for place, token in enumerate(tokens)])
