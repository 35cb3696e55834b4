"""All steps of the lesson over one example, in order."""

import torch

from uwaga.viewer.lesson.computing import one_head
from uwaga.viewer.lesson.example import Example
from uwaga.viewer.lesson.parts import Step
from uwaga.viewer.lesson.steps import asking, batches, crude, database, heads, learned, masks, mixing, positions, root


@torch.no_grad()
def steps(example: Example) -> tuple[Step, ...]:
    """Every page; those with a number are the six of the calculation itself."""
    head = one_head(example)
    x = crude.inputs(example)
    made = learned.learned(example, head)
    found = asking.asked(example, head)
    done = mixing.mixed(example, head, made)
    return (
        crude.crude(example, x),
        learned.step(example, x, made),
        asking.scoring(example, made, found),
        asking.scaling(example, head, found),
        asking.softmax(example, found),
        mixing.weighing(found, made, done),
        mixing.summing(found, made, done),
        masks.step(example, head),
        database.step(example, head, found.weights, made),
        heads.step(example, made),
        batches.step(example),
        positions.step(example, x),
        root.step(example.seed),
        _in_a_model(),
    )


def _in_a_model() -> Step:
    return Step(
        id="model",
        title="The same in a real model",
        text=(
            "A trained model is this calculation, many heads wide and many layers deep: the same operation computed the"
            " numbers of this lesson and computes its maps. What it has learned is in its W_Q, W_K, W_V and W_O.",
            "These heads of the model that is loaded do most clearly what you have seen. Open one.",
        ),
        sections=(),
        code="with uwaga.watch(model) as recording: model(ids)",
    )
