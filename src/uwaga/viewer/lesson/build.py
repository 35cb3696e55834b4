"""Builds the lesson from an example: all steps in order, and the reply that a page shows."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from uwaga.viewer.languages import tr, using
from uwaga.viewer.lesson.compute import one_head
from uwaga.viewer.lesson.document import Matrix, Step, matrices
from uwaga.viewer.lesson.example import (
    MAX_HEADS,
    MAX_NUMBER,
    MAX_RATE,
    MAX_SENTENCES,
    MAX_STEPS,
    MAX_TOKENS,
    MAX_WIDTH,
    Example,
    parse_example,
)
from uwaga.viewer.lesson.questions import with_questions
from uwaga.viewer.lesson.steps import (
    architecture,
    batches,
    blocks,
    calculation,
    database,
    heads,
    learning,
    masks,
    positions,
    scaling,
    unnormalised,
)
from uwaga.viewer.messages import Reply, RequestParser

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


def answer(request: Mapping[str, object]) -> Reply:
    """The reply to a request for the lesson.

    Args:
        request: {"ask": "lesson"}, "language", by default English, and the arguments of
            `uwaga.viewer.lesson.example.parse_example`.

    Returns:
        meta: {"question": the request with all defaults filled in, "limits": {...}, "steps": [...], "matrices": {id: {...}}},
            as `to_json` of document.py gives them; arrays: float32, one per matrix.

    Raises:
        RequestError: an argument that is unknown, invalid or too large.
    """
    language = RequestParser(request).value("language") or "en"
    with using(language):
        return _reply(parse_example({name: value for name, value in request.items() if name != "language"}))


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


@torch.no_grad()
def build_steps(example: Example) -> tuple[Step, ...]:
    """All pages of the lesson; those with a number are the six steps of the calculation."""
    head = one_head(example)
    x = unnormalised.inputs(example)
    projected = calculation.project(example, head)
    scored = calculation.score(example, head)
    mixed = calculation.mix(example, head, projected)
    crude = unnormalised.work_out(example, x)
    payload, output_weight = database.payload_of(example), heads.output_weight_of(example)
    masked, placed = masks.step(example, head), positions.placed(example, x)
    steps = (
        unnormalised.step(example, crude),
        unnormalised.alike_step(example, crude),
        calculation.projection_step(example, x, projected),
        calculation.scores_step(example, projected, scored),
        calculation.scale_step(example, head, scored),
        calculation.softmax_step(example, scored),
        calculation.weighting_step(scored, projected, mixed),
        calculation.sum_step(example, scored, projected, mixed),
        unnormalised.linear_step(example, head, projected, scored),
        scaling.step(example.seed),
        masked,
        database.step(example, head, scored.weights, projected, payload),
        database.past_step(example, head, masks.past_bits(masked), projected, payload),
        learning.step(example),
        heads.step(example, x, projected, output_weight),
        batches.step(example),
        positions.step(example, x, placed),
        *_transformer(example, placed),
        architecture.length_step(example, head, projected, scored),
        _in_a_model(),
    )
    return with_questions(example, steps)


def _transformer(example: Example, source: Matrix) -> Iterator[Step]:
    """The encoder block, two of them, the decoder and the whole architecture."""
    weights = blocks.feed_forward_weights(example)
    first = blocks.encoder_block(example, 1, source, weights)
    second = blocks.encoder_block(example, 2, first[1].output, weights)
    final = blocks.final_norm(example, second[1].output, "encoder_final")
    memory = final[-1] if final else second[1].output
    yield blocks.encoder_step(example, source, weights, first)
    yield blocks.stack_step(example, source, first[1].output, second, memory, final)
    yield blocks.decoder_step(example, memory, blocks.decode(example, memory, weights))
    yield architecture.step(example)


def _in_a_model() -> Step:
    return Step(
        id="model",
        title=tr("The same in a real model"),
        text=(
            tr(
                "A trained model is this calculation, many heads wide and many layers deep: the same operation computed the"
                " numbers of this lesson and computes its maps. What it has learned is in its W_Q, W_K, W_V and W_O."
            ),
            tr("These heads of the model that is loaded show most clearly what you have seen. Open one."),
        ),
        sections=(),
        code="with uwaga.watch(model) as recording: model(ids)",
    )
