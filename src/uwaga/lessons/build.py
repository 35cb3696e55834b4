"""Builds the lesson from an example: all steps in order."""

from collections.abc import Callable, Iterator

import torch

from uwaga.lessons.compute import one_head
from uwaga.lessons.document import LessonStep
from uwaga.lessons.example import Example
from uwaga.lessons.ledger import with_ledger
from uwaga.lessons.matrix import Matrix
from uwaga.lessons.page import Page
from uwaga.lessons.questions import with_questions
from uwaga.lessons.steps import (
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
    trained,
    unnormalised,
)


@torch.no_grad()
def build_steps(example: Example) -> tuple[LessonStep, ...]:
    """All pages of the lesson; those with a number are the six steps of the calculation."""
    known = {"x": unnormalised.inputs(example)}

    def made(id: str, make: Callable[[Page], LessonStep]) -> LessonStep:
        return make(Page(id, example, known))

    x, head = known["x"], one_head(example)
    crude = unnormalised.work_out(example, x)
    payload, output_weight = database.payload_of(example), heads.output_weight_of(example)
    placed = positions.placed(example, x)
    steps = (
        unnormalised.step(example, crude),
        unnormalised.alike_step(example, crude),
        made("vectors", calculation.vectors),
        made("scores", calculation.scores),
        made("scale", calculation.scale),
        made("softmax", calculation.softmax),
        made("weighted", calculation.weighted),
        made("sum", calculation.total),
        scaling.step(example.seed),
        heads.step(example, x, output_weight),
        positions.step(example, x, placed),
        made("masks", masks.masks),
        database.step(example, head, known, payload),
        database.past_step(example, head, known, payload),
        learning.step(example),
        batches.step(example),
        *_transformer(example, placed),
        unnormalised.linear_step(example, head, known),
        architecture.length_step(example, head, known),
        trained.model_step(),
    )
    return with_ledger(example, with_questions(example, steps))


def _transformer(example: Example, source: Matrix) -> Iterator[LessonStep]:
    """The encoder block, two of them, the decoder, one that was trained, and the whole architecture."""
    weights = blocks.feed_forward_weights(example)
    first = blocks.encoder_block(example, 1, source, weights)
    second = blocks.encoder_block(example, 2, first[1].output, weights)
    final = blocks.final_norm(example, second[1].output, "encoder_final")
    memory = final[-1] if final else second[1].output
    yield blocks.encoder_step(example, source, weights, first)
    yield blocks.stack_step(example, source, first[1].output, second, memory, final)
    yield blocks.decoder_step(example, memory, blocks.decode(example, memory, weights))
    yield trained.copy_step(example)
    yield architecture.step(example)
