"""Builds the lesson from an example: all steps in order."""

from collections.abc import Callable, Mapping

import torch

from uwaga.lessons.document import LessonStep
from uwaga.lessons.example import Example
from uwaga.lessons.matrix import Matrix
from uwaga.lessons.page import Page
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

# How each step is made, by its id, in the order of the lesson: a step reads matrices of those before it.
STEPS: Mapping[str, Callable[[Page], LessonStep]] = {
    "crude": unnormalised.crude,
    "alike": unnormalised.alike,
    "vectors": calculation.vectors,
    "scores": calculation.scores,
    "scale": calculation.scale,
    "softmax": calculation.softmax,
    "weighted": calculation.weighted,
    "sum": calculation.total,
    "root": scaling.root,
    "heads": heads.heads,
    "positions": positions.positions,
    "masks": masks.masks,
    "database": database.database,
    "past": database.past,
    "learning": learning.learning,
    "batches": batches.batches,
    "encoder": blocks.encoder,
    "stack": blocks.stack,
    "decoder": blocks.decoder,
    "copy": trained.copying,
    "architecture": architecture.architecture,
    "linear": unnormalised.linear,
    "length": architecture.length,
    "model": trained.real_model,
}


@torch.no_grad()
def build_steps(example: Example) -> tuple[LessonStep, ...]:
    """Return all pages of the lesson; those with a number are the six steps of the calculation."""
    matrices: dict[str, Matrix] = {}
    return tuple(make(Page(id, example, matrices)) for id, make in STEPS.items())
