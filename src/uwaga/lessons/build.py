"""Builds the lesson from an example: all steps in order."""

from collections.abc import Iterator

import torch

from uwaga.lessons.compute import one_head
from uwaga.lessons.document import LessonStep, Matrix
from uwaga.lessons.example import Example
from uwaga.lessons.ledger import with_ledger
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
    head = one_head(example)
    x = unnormalised.inputs(example)
    projected = calculation.project(example, head)
    scored = calculation.score(example, head)
    mixed = calculation.mix(example, head, projected)
    crude = unnormalised.work_out(example, x)
    payload, output_weight = database.payload_of(example), heads.output_weight_of(example)
    masked, placed = masks.step(example, head), positions.placed(example, x)
    root = scaling.step(example.seed)
    steps = (
        unnormalised.step(example, crude),
        unnormalised.alike_step(example, crude),
        calculation.projection_step(example, x, projected),
        calculation.scores_step(example, projected, scored),
        calculation.scale_step(example, head, scored),
        calculation.softmax_step(example, scored),
        calculation.weighting_step(scored, projected, mixed),
        calculation.sum_step(example, scored, projected, mixed),
        root,
        heads.step(example, x, output_weight),
        positions.step(example, x, placed),
        masked,
        database.step(example, head, scored.weights, projected, payload),
        database.past_step(example, head, masks.past_bits(masked), projected, payload),
        learning.step(example),
        batches.step(example),
        *_transformer(example, placed),
        unnormalised.linear_step(example, head, projected, scored),
        architecture.length_step(example, head, projected, scored),
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
