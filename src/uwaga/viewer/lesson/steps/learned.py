"""Step 1 of 6: W_Q, W_K, W_V. Letters: N tokens, M width of a token's vector, D inner width of queries and keys, E of
values."""

from typing import NamedTuple

from torch import Tensor

from uwaga.viewer.lesson import sources
from uwaga.viewer.lesson.computing import OneHead
from uwaga.viewer.lesson.defaults import numbered
from uwaga.viewer.lesson.example import Example
from uwaga.viewer.lesson.parts import Matrix, Section, Step
from uwaga.viewer.lesson.sources import cell


class Learned(NamedTuple):
    """The learned matrices and what they make of X."""

    wq: Matrix
    wk: Matrix
    wv: Matrix
    q: Matrix
    k: Matrix
    v: Matrix


def learned(example: Example, head: OneHead) -> Learned:
    q, k, v = head.q_ND, head.k_ND, head.v_NE
    return Learned(
        _weight(example, "wq", "W_Q", example.wq_MD, "q"),
        _weight(example, "wk", "W_K", example.wk_MD, "k"),
        _weight(example, "wv", "W_V", example.wv_ME, "v"),
        _mapped(example, "q", "Q, what each token looks for", q, "wq"),
        _mapped(example, "k", "K, what each token can be found by", k, "wk"),
        _mapped(example, "v", "V, what each token gives", v, "wv"),
    )


def step(example: Example, x: Matrix, made: Learned) -> Step:
    return Step(
        id="vectors",
        title="Three roles: Q, K and V",
        number="1 of 6",
        text=(
            "A token plays three roles: it looks for something (query), it can be found by something (key), and it gives"
            " something (value). Three learned matrices turn its row of X into the three.",
            "In a trained model they are learned; here they are chosen so that you can follow them.",
        ),
        sections=(
            Section(title="The input", matrices=(x,)),
            Section(title="What is learned", matrices=(made.wq, made.wk, made.wv)),
            Section(
                title="All tokens at once: X W",
                form="matrix",
                matrices=(made.q, made.k, made.v),
                text=("One product of matrices gives the queries of all tokens, one the keys, one the values.",),
            ),
            Section(
                title="Token by token: xᵢ W_Q",
                form="token",
                matrices=(_products(example, made),),
                text=("Each number of the token scales its row of W_Q; down each column the products sum to qᵢ.",),
            ),
        ),
        code="q, k, v = layer.project(X, X, X)     # uwaga.nn.MultiHeadAttention",
    )


def _weight(example: Example, id: str, title: str, numbers: Tensor, letter: str) -> Matrix:
    return Matrix(
        id=id,
        title=title,
        formula="learned",
        rows=example.width_names,
        columns=numbered(letter, numbers.shape[1]),
        numbers=numbers,
        source=sources.typed(),
        field=id,
    )


def _mapped(example: Example, id: str, title: str, numbers: Tensor, weight: str) -> Matrix:
    return Matrix(
        id=id,
        title=title,
        formula=f"{id.upper()} = X W_{id.upper()}",
        rows=example.tokens,
        columns=numbered(id, numbers.shape[1]),
        numbers=numbers,
        source=sources.dot(cell("x", "i", "m"), cell(weight, "m", "j"), example.x_NM.shape[1]),
    )


def _products(example: Example, made: Learned) -> Matrix:
    return Matrix(
        id="q_products",
        title="Products of xᵢ and W_Q",
        formula="x(i, m) W_Q(m, d)",
        rows=example.width_names,
        columns=made.q.columns,
        numbers=example.x_NM[:, :, None] * example.wq_MD,
        source=sources.product(cell("x", "c", "i"), cell("wq", "i", "j")),
    )
