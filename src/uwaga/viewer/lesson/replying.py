"""The lesson as an answer to a page: all steps with all numbers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from uwaga.viewer.desk.reply import Reply
from uwaga.viewer.lesson.example import MOST_HEADS, MOST_SENTENCES, MOST_TOKENS, MOST_WIDTH, Example, example
from uwaga.viewer.lesson.parts import Step, matrices
from uwaga.viewer.lesson.reading import LARGEST
from uwaga.viewer.lesson.working import steps

# What a page may send; it says no before the host has to.
_LIMITS = {
    "tokens": MOST_TOKENS,
    "width": MOST_WIDTH,
    "heads": MOST_HEADS,
    "sentences": MOST_SENTENCES,
    "number": LARGEST,
}


def answer(question: Mapping[str, object]) -> Reply:
    """All steps of the lesson.

    Args:
        question: {"ask": "lesson"}, and what `uwaga.viewer.lesson.example.example` says.

    Returns:
        meta: {"question": the question with everything that was left out, "limits": {...}, "steps": [...],
            "matrices": {id: {...}}}, as the `facts` of parts.py; arrays: float32, one per matrix.

    Raises:
        QuestionError: the question cannot be answered; the message says why.
    """
    asked = example(question)
    return reply_of(asked, steps(asked))


def reply_of(asked: Example, made: tuple[Step, ...]) -> Reply:
    """The steps of an example as an answer."""
    shown = matrices(made)
    meta: dict[str, Any] = {
        "question": asked.question(),
        "limits": _LIMITS,
        "steps": [step.facts() for step in made],
        "matrices": {id: matrix.facts(place) for place, (id, matrix) in enumerate(shown.items())},
    }
    arrays = tuple(
        np.ascontiguousarray(each.numbers.detach().to(torch.float32).numpy(), dtype="<f4") for each in shown.values()
    )
    return Reply(meta=meta, arrays=arrays)
