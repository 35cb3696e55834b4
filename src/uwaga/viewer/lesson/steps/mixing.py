"""Steps 5 and 6 of 6: weighted values, and their sum. Letters: N tokens, D width of queries and keys, E of values."""

from typing import NamedTuple

import torch
from torch import Tensor

from uwaga.ops.attention.api import attention
from uwaga.viewer.lesson import sources
from uwaga.viewer.lesson.computing import OneHead
from uwaga.viewer.lesson.example import Example
from uwaga.viewer.lesson.parts import Finding, Matrix, Section, Step
from uwaga.viewer.lesson.sources import cell
from uwaga.viewer.lesson.steps.asking import Asked
from uwaga.viewer.lesson.steps.learned import Learned


class Mixed(NamedTuple):
    """The values by their weights, and the sums, both ways."""

    weighted: Matrix
    output: Matrix
    one_by_one: Matrix


def mixed(example: Example, head: OneHead, made: Learned) -> Mixed:
    n, columns = len(example.tokens), made.v.columns
    return Mixed(
        weighted=Matrix(
            id="weighted",
            title="Values by their weights, for one query",
            formula="a(i, j) vⱼ",
            rows=example.tokens,
            columns=columns,
            numbers=head.weights_NN[:, :, None] * head.v_NE,
            source=sources.product(cell("weights", "c", "i"), cell("v", "i", "j")),
        ),
        output=Matrix(
            id="output",
            title="Output Z = A V",
            formula="zᵢ = Σⱼ a(i, j) vⱼ",
            rows=example.tokens,
            columns=columns,
            numbers=head.output_NE,
            source=sources.dot(cell("weights", "i", "m"), cell("v", "m", "j"), n),
        ),
        one_by_one=Matrix(
            id="output_token",
            title="The sum, for one query",
            formula="Σⱼ a(i, j) vⱼ",
            rows=("sum",),
            columns=columns,
            numbers=torch.stack([_one(query[None], head) for query in head.q_ND]),
            source=sources.total(cell("weighted", "m", "j", "c"), n),
        ),
    )


def weighing(found: Asked, made: Learned, done: Mixed) -> Step:
    return Step(
        id="weighted",
        title="Weigh the values",
        number="5 of 6",
        text=("Each token gives its value, and the query takes of it as much as its weight says.",),
        sections=(
            Section(title="All at once", form="matrix", matrices=(found.weights, made.v)),
            Section(title="Token by token: a(i, j) vⱼ", form="token", matrices=(done.weighted,)),
        ),
        code="weights[i, :, None] * v",
    )


def summing(found: Asked, made: Learned, done: Mixed) -> Step:
    furthest = float((done.output.numbers - done.one_by_one.numbers[:, 0]).abs().max())
    apart = "to the last bit" if furthest == 0 else f"up to rounding, {furthest:.1g}"
    return Step(
        id="sum",
        title="Sum: what each token takes home",
        number="6 of 6",
        text=(
            "Summed, the weighted values are the query's output. That is all: attention(Q, K, V) = softmax(Q Kᵀ/√d_k) V.",
        ),
        sections=(
            Section(title="All at once: A V", form="matrix", matrices=(found.weights, made.v, done.output)),
            Section(title="Token by token", form="token", matrices=(done.weighted, done.one_by_one)),
            Section(
                title="Both are one calculation",
                findings=(
                    Finding(
                        text=f"Asked for all queries at once and for one after the other, the outputs agree {apart}.",
                        cells=[
                            ("output", i, c) for i in range(len(found.weights.rows)) for c in range(len(made.v.columns))
                        ],
                    ),
                ),
            ),
        ),
        code="uwaga.attention(q, k, v)",
    )


def _one(query_1D: Tensor, head: OneHead) -> Tensor:
    found = attention(query_1D, head.k_ND, head.v_NE, scale=head.scale)
    assert isinstance(found, Tensor)
    return found
