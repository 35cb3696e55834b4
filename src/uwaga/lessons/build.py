"""Builds the lesson from an example: all steps in order."""

from collections.abc import Callable

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
    known: dict[str, Matrix] = {}

    def made(id: str, make: Callable[[Page], LessonStep]) -> LessonStep:
        return make(Page(id, example, known))

    head = one_head(example)
    steps = (
        made("crude", unnormalised.crude),
        made("alike", unnormalised.alike),
        made("vectors", calculation.vectors),
        made("scores", calculation.scores),
        made("scale", calculation.scale),
        made("softmax", calculation.softmax),
        made("weighted", calculation.weighted),
        made("sum", calculation.total),
        made("root", scaling.root),
        made("heads", heads.heads),
        made("positions", positions.positions),
        made("masks", masks.masks),
        made("database", database.database),
        made("past", database.past),
        learning.step(example),
        batches.step(example),
        made("encoder", blocks.encoder),
        made("stack", blocks.stack),
        made("decoder", blocks.decoder),
        trained.copy_step(example),
        architecture.step(example),
        made("linear", unnormalised.linear),
        architecture.length_step(example, head, known),
        trained.model_step(),
    )
    return with_ledger(example, with_questions(example, steps))
