"""Attention without softmax: X X^T X and its four shortcomings, tokens and features alike, and (Q K^T) V = Q (K^T V).

Letters: N tokens, M width of a token's vector, D width of queries and keys, E of values.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from uwaga.viewer.lesson import provenance
from uwaga.viewer.lesson.compute import OneHead, matmul, scores, unnormalised
from uwaga.viewer.lesson.document import Finding, Matrix, Section, Step, shown
from uwaga.viewer.lesson.example import Example
from uwaga.viewer.lesson.provenance import cell
from uwaga.viewer.lesson.steps.calculation import Projected, Scored


class Crude(NamedTuple):
    """The matrices of X X^T X."""

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


def step(example: Example, made: Crude) -> Step:
    return Step(
        id="crude",
        title="Crude attention: X Xᵀ X",
        text=(
            "Each token is a row of numbers. Every token is compared with every other: their score is the sum of the products of"
            " their numbers, q · k. The output of a token is the sum of all rows, each multiplied by its score.",
            "Nothing is learned here: there is no number that training could move. And it has four shortcomings, each of which can"
            " be seen in the numbers below. The later steps remove them one by one: softmax and 1/√d_k the first two, Q and K the"
            " third, positions the fourth.",
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


def work_out(example: Example, x: Matrix) -> Crude:
    x_NM, tokens, widths = example.x_NM, example.tokens, example.width_names
    n, m = x_NM.shape
    scores_NN = scores(x_NM, x_NM)
    row_of = [example.order.index(place) for place in range(n)]
    shuffled_NM = x_NM[list(example.order)]
    return Crude(
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


def _sums(made: Crude) -> Finding:
    sums = made.sums.numbers[:, 0].tolist()
    listed = ", ".join(shown(number) for number in sums)
    if all(shown(number) == "1.00" for number in sums):
        text = f"Rows need not sum to 1; with these numbers they happen to: {listed}."
    else:
        text = f"Rows do not sum to 1. They sum to {listed}: the size of an output depends on the number of tokens."
    return Finding(text=text, cells=[("crude_sums", i, 0) for i in range(len(sums))])


def _dominated(made: Crude) -> Finding:
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


def _symmetric(made: Crude) -> Finding:
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


def _unordered(example: Example, made: Crude) -> Finding:
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


def alike_step(example: Example, made: Crude) -> Step:
    """X X^T compares tokens, X^T X features; both on the same numbers."""
    x_NM, widths = example.x_NM, example.width_names
    n, m = x_NM.shape
    features = Matrix(
        id="feature_products",
        title="Xᵀ X, features with features",
        formula="Σᵢ x(i, a) x(i, b)",
        rows=widths,
        columns=widths,
        numbers=matmul(x_NM.T.contiguous(), x_NM),
        source=provenance.dot(cell("x", "m", "i"), cell("x", "m", "j"), n),
    )
    by_features = Matrix(
        id="crude_by_features",
        title="X (Xᵀ X)",
        formula="Σ x(i, a) (Xᵀ X)(a, b)",
        rows=example.tokens,
        columns=widths,
        numbers=matmul(x_NM, features.numbers),
        source=provenance.dot(cell("x", "i", "m"), cell("feature_products", "m", "j"), m),
    )
    return Step(
        id="alike",
        title="Tokens alike, features alike: X Xᵀ and Xᵀ X",
        text=(
            "X Xᵀ multiplies rows of X: how alike two tokens are. Xᵀ X multiplies its columns: how alike two features are, over"
            " all tokens. Both are made of the same numbers.",
            "So crude attention can be computed in two orders: by tokens, (X Xᵀ) X, or by features, X (Xᵀ X).",
        ),
        sections=(
            Section(title="The input", matrices=(made.x,)),
            Section(
                title="Both tables",
                matrices=(made.scores, features),
                findings=(_traces(made.scores, features),),
            ),
            Section(
                title="Crude attention by features",
                matrices=(by_features,),
                findings=(_equal(by_features, made.mixed, "Both orders give the same output"),),
            ),
            _covariance(example, made.x),
        ),
        code="X.T @ X",
    )


def _traces(tokens: Matrix, features: Matrix) -> Finding:
    by_token, by_feature = (float(each.numbers.diagonal().sum()) for each in (tokens, features))
    text = (
        f"The diagonals have the same sum, the sum of all squared numbers of X: {shown(by_token)} over the tokens, "
        f"{shown(by_feature)} over the features."
    )
    return Finding(text=text, cells=[(each.id, i, i) for each in (tokens, features) for i in range(len(each.rows))])


def _equal(one: Matrix, other: Matrix, says: str) -> Finding:
    furthest = float((one.numbers - other.numbers).abs().max())
    text = f"{says}{', to the last bit' if furthest == 0 else f'; the largest difference is {furthest:.1g}'}."
    return Finding(text=text, cells=[(one.id, 0, 0), (other.id, 0, 0)])


def _covariance(example: Example, x: Matrix) -> Section:
    """The covariance of the features."""
    x_NM, widths = example.x_NM, example.width_names
    n, m = x_NM.shape
    mean_1M = x_NM.mean(0, keepdim=True)
    centred_NM = x_NM - mean_1M
    products_MM = matmul(centred_NM.T.contiguous(), centred_NM)
    matrices = (
        Matrix(
            id="feature_means",
            title="Mean of each feature",
            formula="Σᵢ x(i, a) / n",
            rows=("mean",),
            columns=widths,
            numbers=mean_1M,
            source=provenance.mean(cell("x", "m", "j"), n),
        ),
        Matrix(
            id="centred",
            title="X, centred",
            formula="x(i, a) - mean(a)",
            rows=example.tokens,
            columns=widths,
            numbers=centred_NM,
            source=provenance.minus(cell("x", "i", "j"), cell("feature_means", 0, "j")),
        ),
        Matrix(
            id="centred_products",
            title="Products of the centred features",
            formula="Σᵢ centred(i, a) centred(i, b)",
            rows=widths,
            columns=widths,
            numbers=products_MM,
            source=provenance.dot(cell("centred", "m", "i"), cell("centred", "m", "j"), n),
        ),
        Matrix(
            id="covariance",
            title="Covariance",
            formula="products / n",
            rows=widths,
            columns=widths,
            numbers=products_MM / n,
            source=provenance.scaled(cell("centred_products", "i", "j"), 1 / n, f"1/{n}"),
        ),
    )
    return Section(
        title="Centred, Xᵀ X / n is the covariance",
        text=("Subtract from each feature its mean over the tokens, and divide by the number of tokens.",),
        matrices=matrices,
        findings=(_together(matrices[-1], m),),
    )


def _together(covariance: Matrix, m: int) -> Finding:
    if m == 1:
        return Finding(
            text=f"With one feature, the covariance is its variance: {shown(float(covariance.numbers[0, 0]))}.",
            cells=[(covariance.id, 0, 0)],
        )
    others_MM = covariance.numbers.abs().fill_diagonal_(-1.0)
    a, b = sorted(divmod(int(others_MM.argmax()), m))
    found = float(covariance.numbers[a, b])
    first, second = covariance.rows[a], covariance.rows[b]
    how = (
        "no two features vary together"
        if abs(found) < 1e-6
        else f"“{first}” and “{second}” vary together the most, {'in the same direction' if found > 0 else 'in opposite directions'}"
    )
    return Finding(text=f"Of these tokens, {how}: {shown(found)}.", cells=[(covariance.id, a, b)])


_LENGTHS = (100, 1_000, 10_000, 100_000)


def linear_step(example: Example, head: OneHead, projected: Projected, scored: Scored) -> Step:
    """(Q K^T) V, and the same as Q (K^T V)."""
    q_ND, k_ND, v_NE = head.q_ND, head.k_ND, head.v_NE
    (n, d), e = q_ND.shape, v_NE.shape[1]
    columns = projected.v.columns
    sums = Matrix(
        id="score_totals",
        title="Sum of each row",
        formula="Σⱼ s(i, j)",
        rows=example.tokens,
        columns=("sum",),
        numbers=head.scores_NN.sum(-1, keepdim=True),
        source=provenance.total(cell("scores", "i", "m"), n),
    )
    by_tokens = Matrix(
        id="linear_output",
        title="(Q Kᵀ) V",
        formula="Σⱼ s(i, j) vⱼ",
        rows=example.tokens,
        columns=columns,
        numbers=unnormalised(q_ND, k_ND, v_NE),
        source=provenance.dot(cell("scores", "i", "m"), cell("v", "m", "j"), n),
    )
    summary = Matrix(
        id="keys_values",
        title="Kᵀ V",
        formula="Σⱼ k(j, d) v(j, e)",
        rows=projected.k.columns,
        columns=columns,
        numbers=matmul(k_ND.T.contiguous(), v_NE),
        source=provenance.dot(cell("k", "m", "i"), cell("v", "m", "j"), n),
    )
    by_features = Matrix(
        id="linear_by_features",
        title="Q (Kᵀ V)",
        formula="Σ q(i, d) (Kᵀ V)(d, e)",
        rows=example.tokens,
        columns=columns,
        numbers=matmul(q_ND, summary.numbers),
        source=provenance.dot(cell("q", "i", "m"), cell("keys_values", "m", "j"), d),
    )
    return Step(
        id="linear",
        title="Without softmax: (Q Kᵀ) V = Q (Kᵀ V)",
        text=(
            "Leave softmax out, and the scores themselves are the weights, negative ones too, and a row may sum to any number.",
            "What is gained: products of matrices can be computed in any order. Kᵀ V is a table of one size, whatever the number"
            " of tokens. With softmax that is impossible, since exp needs each single score.",
        ),
        sections=(
            Section(
                title="By tokens: (Q Kᵀ) V",
                matrices=(scored.raw, sums, projected.v, by_tokens),
                findings=(_negative(scored.raw), _beyond(example, by_tokens, projected.v)),
            ),
            Section(
                title="By features: Q (Kᵀ V)",
                matrices=(projected.q, summary, by_features),
                findings=(_equal(by_features, by_tokens, "Both orders give the same output"),),
            ),
            _multiplications(n, d, e),
        ),
        code="uwaga.attention(q, k, v, scale=1.0, normalize=None)",
    )


def _negative(weights: Matrix) -> Finding:
    numbers_NN = weights.numbers
    count, most = int((numbers_NN < 0).sum()), numbers_NN.numel()
    if count == 0:
        return Finding(text=f"None of these {most} weights is negative; with other numbers some would be.")
    i, j = divmod(int(numbers_NN.argmin()), len(numbers_NN))
    text = (
        f"{count} of {most} weights are negative. The smallest, {shown(float(numbers_NN[i, j]))}, subtracts the value of"
        f" “{weights.columns[j]}” from the output of “{weights.rows[i]}”."
    )
    return Finding(text=text, cells=[(weights.id, i, j)])


def _beyond(example: Example, output: Matrix, values: Matrix) -> Finding:
    """The output number that is furthest outside the range of the values of its column: shares cannot give one."""
    low_E, high_E = values.numbers.amin(0), values.numbers.amax(0)
    beyond_NE = torch.maximum(output.numbers - high_E, low_E - output.numbers)
    i, c = divmod(int(beyond_NE.argmax()), len(output.columns))
    low, high, found = (shown(float(each)) for each in (low_E[c], high_E[c], output.numbers[i, c]))
    column, token = output.columns[c], example.tokens[i]
    if float(beyond_NE[i, c]) <= 1e-5:
        text = f"With shares an output always lies among the values. Here it does so too: {column} of “{token}” is {found}."
    else:
        text = (
            f"Why one wants shares: with them an output lies among the values. {column} is between {low} and {high} for all"
            f" tokens, but the output of “{token}” has {found}."
        )
    return Finding(text=text, cells=[(output.id, i, c)])


def _multiplications(n: int, d: int, e: int) -> Section:
    lengths = (n, *_LENGTHS)
    counts = [(length, length * length * (d + e), 2 * length * d * e) for length in lengths]
    matrix = Matrix(
        id="multiplications",
        title="Multiplications",
        formula=f"n² ({d} + {e}) and 2 n · {d} · {e}",
        rows=[f"{length:,} tokens" if length > 1 else "1 token" for length in lengths],
        columns=("tokens", "(Q Kᵀ) V", "Q (Kᵀ V)"),
        numbers=torch.tensor(counts, dtype=torch.float64).float(),
        source=provenance.by_column(
            (
                provenance.given("The tokens of the lesson, and lengths to compare."),
                provenance.given(f"n² · {d} for the scores, and n² · {e} for the weighted values."),
                provenance.given(f"n · {d} · {e} for Kᵀ V, and as many for its product with Q."),
            )
        ),
        shade="none",
        digits=0,
    )
    _, by_tokens, by_features = counts[0]
    fewer = {
        True: "the first order needs fewer",
        False: "the second order needs fewer" if by_tokens > by_features else "both need the same",
    }[by_tokens < by_features]
    text = (
        f"For the {n} token{'s' if n > 1 else ''} of the lesson {fewer}: {by_tokens:,} and {by_features:,} multiplications. For"
        f" {_LENGTHS[-1]:,} tokens it is {counts[-1][1]:,} and {counts[-1][2]:,}."
    )
    finding = Finding(text=text, cells=[(matrix.id, row, c) for row in (0, len(lengths) - 1) for c in (1, 2)])
    return Section(title="The number of multiplications", matrices=(matrix,), findings=(finding,))
