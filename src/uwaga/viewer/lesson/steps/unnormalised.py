"""Unnormalised attention X X^T X, and its four shortcomings. Letters: N tokens, M width of a token's vector."""

from typing import NamedTuple

from torch import Tensor

from uwaga.viewer.lesson import provenance
from uwaga.viewer.lesson.compute import scores, unnormalised
from uwaga.viewer.lesson.document import Finding, Matrix, Section, Step, shown
from uwaga.viewer.lesson.example import Example
from uwaga.viewer.lesson.provenance import cell


class _Matrices(NamedTuple):
    x: Matrix
    scores: Matrix
    sums: Matrix
    lengths: Matrix
    mixed: Matrix
    shuffled: Matrix


def inputs(example: Example) -> Matrix:
    """X, the input of all steps."""
    return Matrix(
        id="x",
        title="X, the tokens",
        formula="a row of numbers per token",
        rows=example.tokens,
        columns=example.width_names,
        numbers=example.x_NM,
        source=provenance.typed(),
        field="x",
    )


def step(example: Example, x: Matrix) -> Step:
    made = _matrices(example, x)
    return Step(
        id="crude",
        title="Crude attention: X Xᵀ X",
        text=(
            "Each token is a row of numbers. Every token is compared with every other: their score is the sum of the products of"
            " their numbers, q · k. The output of a token is the sum of all rows, each multiplied by its score.",
            "Nothing is learned here, and it has four shortcomings. Each can be seen in the numbers below.",
        ),
        sections=(
            Section(title="The input", matrices=(made.x, made.lengths)),
            Section(title="Scores: X Xᵀ", matrices=(made.scores, made.sums)),
            Section(title="Weighted sums: (X Xᵀ) X", matrices=(made.mixed,)),
            Section(
                title="Its shortcomings",
                findings=(_sums(made), _dominated(made), _symmetric(made), _unordered(example, made)),
                matrices=(made.shuffled,),
                controls=("order",),
            ),
        ),
        code="uwaga.attention(X, X, X, scale=1.0, normalize=None)",
    )


def _matrices(example: Example, x: Matrix) -> _Matrices:
    x_NM, tokens, widths = example.x_NM, example.tokens, example.width_names
    n, m = x_NM.shape
    scores_NN = scores(x_NM, x_NM)
    row_of = [example.order.index(place) for place in range(n)]
    shuffled_NM = x_NM[list(example.order)]
    return _Matrices(
        x=x,
        scores=Matrix(
            id="crude_scores",
            title="Scores X Xᵀ",
            formula="score(i, j) = xᵢ · xⱼ",
            rows=tokens,
            columns=tokens,
            numbers=scores_NN,
            source=provenance.dot(cell("x", "i", "m"), cell("x", "j", "m"), m),
        ),
        sums=Matrix(
            id="crude_sums",
            title="Sum of each row",
            formula="Σⱼ score(i, j)",
            rows=tokens,
            columns=("sum",),
            numbers=scores_NN.sum(-1, keepdim=True),
            source=provenance.total(cell("crude_scores", "i", "m"), n),
        ),
        lengths=Matrix(
            id="lengths",
            title="Length of each vector",
            formula="√ Σ x²",
            rows=tokens,
            columns=("length",),
            numbers=x_NM.norm(dim=-1, keepdim=True),
            source=provenance.length(cell("x", "i", "m"), m),
        ),
        mixed=Matrix(
            id="crude",
            title="X Xᵀ X",
            formula="Σⱼ score(i, j) xⱼ",
            rows=tokens,
            columns=widths,
            numbers=unnormalised(x_NM, x_NM, x_NM),
            source=provenance.dot(cell("crude_scores", "i", "m"), cell("x", "m", "j"), n),
        ),
        shuffled=Matrix(
            id="crude_shuffled",
            title="X Xᵀ X of the same tokens in another order",
            formula="the rows of X Xᵀ X, reordered",
            rows=[tokens[place] for place in example.order],
            columns=widths,
            numbers=unnormalised(shuffled_NM, shuffled_NM, shuffled_NM),
            source=provenance.copy(cell("crude", provenance.picked(example.order, "i"), "j")),
            note=f"The token of row 1 above is in row {row_of[0] + 1} here.",
        ),
    )


def _sums(made: _Matrices) -> Finding:
    sums = made.sums.numbers[:, 0].tolist()
    listed = ", ".join(shown(number) for number in sums)
    text = f"Rows do not sum to 1. They sum to {listed}: the size of an output depends on the number of tokens."
    return Finding(text=text, cells=[("crude_sums", i, 0) for i in range(len(sums))])


def _dominated(made: _Matrices) -> Finding:
    """The token whose score with a longer vector exceeds the score with itself the most."""
    scores_NN, lengths = made.scores.numbers, made.lengths.numbers[:, 0]
    excess_NN = scores_NN - scores_NN.diagonal()[:, None]
    i, j = divmod(int(excess_NN.argmax()), len(scores_NN))
    if float(excess_NN[i, j]) <= 0:
        text = "Long vectors dominate. With these numbers none does: make one row of X larger to see the effect."
        return Finding(text=text, cells=[("lengths", int(lengths.argmax()), 0)])
    text = (
        f"Long vectors dominate. “{made.x.rows[i]}” has the score {_score(scores_NN, i, j)} with “{made.x.rows[j]}” and "
        f"only {_score(scores_NN, i, i)} with itself, since the vector of “{made.x.rows[j]}” has length {shown(float(lengths[j]))} and "
        f"its own "
        f"{shown(float(lengths[i]))}."
    )
    return Finding(text=text, cells=[("crude_scores", i, j), ("crude_scores", i, i), ("lengths", j, 0)])


def _symmetric(made: _Matrices) -> Finding:
    scores_NN = made.scores.numbers
    i, j = _largest_pair(scores_NN)
    if i == j:
        return Finding(text="Scores are symmetric, which a single token cannot show.")
    a, b = made.x.rows[i], made.x.rows[j]
    text = (
        f"Scores are symmetric. The score of “{a}” with “{b}” is {_score(scores_NN, i, j)}, and that of “{b}” with “{a}” "
        f"is {_score(scores_NN, j, i)} too. What a token looks for and what it is found by should be able to differ; here "
        "they are the same."
    )
    return Finding(text=text, cells=[("crude_scores", i, j), ("crude_scores", j, i)])


def _unordered(example: Example, made: _Matrices) -> Finding:
    last = example.order[0]
    cells = [("crude", last, c) for c in range(len(made.mixed.columns))]
    cells += [("crude_shuffled", 0, c) for c in range(len(made.mixed.columns))]
    text = (
        f"Order does not count. After shuffling the tokens, “{example.tokens[last]}” has the same output: a sentence and its bag "
        "of words have the same result."
    )
    return Finding(text=text, cells=cells)


def _largest_pair(scores_NN: Tensor) -> tuple[int, int]:
    """The largest score between two tokens."""
    if len(scores_NN) == 1:
        return 0, 0
    others_NN = scores_NN.clone().fill_diagonal_(-float("inf"))
    i, j = divmod(int(others_NN.argmax()), len(scores_NN))
    return i, j


def _score(scores_NN: Tensor, i: int, j: int) -> str:
    return shown(float(scores_NN[i, j]))
