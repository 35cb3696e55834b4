"""The request for the lesson: an example of the page's reader, calculated step by step by `uwaga.lessons`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from uwaga._base.languages import using
from uwaga.lessons.build import build_steps
from uwaga.lessons.document import matrices
from uwaga.lessons.example import (
    MAX_HEADS,
    MAX_NUMBER,
    MAX_RATE,
    MAX_SENTENCES,
    MAX_STEPS,
    MAX_TOKENS,
    MAX_WIDTH,
    Example,
    ExampleError,
    parse_example,
)
from uwaga.viewer.messages import Reply, RequestError, RequestParser

# The page checks these before it sends a request.
_LIMITS = {
    "tokens": MAX_TOKENS,
    "width": MAX_WIDTH,
    "heads": MAX_HEADS,
    "sentences": MAX_SENTENCES,
    "number": MAX_NUMBER,
    "steps": MAX_STEPS,
    "rate": MAX_RATE,
}


def answer_lesson(request: Mapping[str, object]) -> Reply:
    """The reply to a request for the lesson.

    Args:
        request: {"ask": "lesson"}, "language", by default English, and the arguments of
            `uwaga.lessons.example.parse_example`.

    Returns:
        meta: {"question": the request with all defaults filled in, "limits": {...}, "steps": [...], "matrices": {id: {...}}},
            as `to_json` of document.py gives them; arrays: float32, one per matrix.

    Raises:
        RequestError: an argument that is unknown, invalid or too large.
    """
    language = RequestParser(request).value("language") or "en"
    with using(language):
        try:
            return _reply(parse_example({name: value for name, value in request.items() if name != "language"}))
        except ExampleError as error:
            raise RequestError(str(error)) from error


def _reply(example: Example) -> Reply:
    steps = build_steps(example)
    shown = matrices(steps)
    meta: dict[str, Any] = {
        "question": example.request(),
        "limits": _LIMITS,
        "steps": [step.to_json() for step in steps],
        "matrices": {id: matrix.to_json(index) for index, (id, matrix) in enumerate(shown.items())},
    }
    arrays = tuple(
        np.ascontiguousarray(each.numbers.detach().to(torch.float32).numpy(), dtype="<f4") for each in shown.values()
    )
    return Reply(meta=meta, arrays=arrays)
