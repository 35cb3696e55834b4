"""Builds the lesson from an example: all steps in order."""

from collections.abc import Iterator

import torch

from uwaga._base.languages import tr
from uwaga.lessons.compute import one_head
from uwaga.lessons.document import Matrix, Step
from uwaga.lessons.example import Example
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
    unnormalised,
)


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
