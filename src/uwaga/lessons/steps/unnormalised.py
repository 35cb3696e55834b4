"""Attention without softmax: X X^T X and its four shortcomings, tokens and features alike, and (Q K^T) V = Q (K^T V).

Letters: N tokens, M width of a token's vector, D width of queries and keys, E of values.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from uwaga._base.languages import significant, tr, tr_n
from uwaga.lessons import provenance
from uwaga.lessons.compute import OneHead, matmul, scores, unnormalised
from uwaga.lessons.document import Chart, Illustration, LessonFinding, LessonStep, Section, shown
from uwaga.lessons.example import Example
from uwaga.lessons.matrix import Matrix
from uwaga.lessons.provenance import cell


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
        title=tr("X, the tokens"),
        formula=tr("a row of numbers per token"),
        rows=example.tokens,
        columns=example.width_names,
        numbers=example.x_NM,
        source=provenance.typed(),
    )


def step(example: Example, made: Crude) -> LessonStep:
    return LessonStep(
        id="crude",
        title=tr("Crude attention: X Xᵀ X"),
        text=(
            tr(
                "To understand “it”, a reader looks back at other words. Attention lets every word look at all words at once:"
                " each is a row of numbers, its embedding, and the score of two words is the dot product of their rows."
            ),
            tr(
                "The output of a word is the sum of all rows, each multiplied by its score. One X is used three times, as what"
                " asks, what is asked and what is given: X^Q, X^K and X^V. That is self-attention."
            ),
        ),
        told=(
            tr(
                "Nothing is learned here: there is no number that training could move. The other shortcomings can be seen in the"
                " numbers below. The list under each step keeps them all, and measures them again after each remedy."
            ),
        ),
        pictures=(Illustration(kind="arcs", title=tr("Words that look at each other"), matrices=(made.scores,)),),
        sections=(
            Section(title=tr("Scores: X Xᵀ"), matrices=(made.scores, made.sums)),
            Section(title=tr("The input"), matrices=(made.x, made.lengths)),
            Section(title=tr("Weighted sums: (X Xᵀ) X"), matrices=(made.mixed,)),
            Section(
                title=tr("Its shortcomings"),
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
            title=tr("Scores X Xᵀ"),
            formula="s(i, j) = xᵢ · xⱼ",
            rows=tokens,
            columns=tokens,
            numbers=scores_NN,
            source=provenance.dot(cell("x", "i", "m"), cell("x", "j", "m"), m),
        ),
        sums=Matrix(
            id="crude_sums",
            title=tr("Sum of each row"),
            formula="Σⱼ s(i, j)",
            rows=tokens,
            columns=(tr("sum"),),
            numbers=scores_NN.sum(-1, keepdim=True),
            source=provenance.total(cell("crude_scores", "i", "m"), n),
        ),
        lengths=Matrix(
            id="lengths",
            title=tr("Length of each vector"),
            formula="√ Σ x²",
            rows=tokens,
            columns=(tr("length"),),
            numbers=x_NM.norm(dim=-1, keepdim=True),
            source=provenance.length(cell("x", "i", "m"), m),
        ),
        mixed=Matrix(
            id="crude",
            title="X Xᵀ X",
            formula="Σⱼ s(i, j) xⱼ",
            rows=tokens,
            columns=widths,
            numbers=unnormalised(x_NM, x_NM, x_NM),
            source=provenance.dot(cell("crude_scores", "i", "m"), cell("x", "m", "j"), n),
        ),
        shuffled=Matrix(
            id="crude_shuffled",
            title=tr("X Xᵀ X of the same tokens in another order"),
            formula=tr("the rows of X Xᵀ X, reordered"),
            rows=[tokens[place] for place in example.order],
            columns=widths,
            numbers=unnormalised(shuffled_NM, shuffled_NM, shuffled_NM),
            source=provenance.copy(cell("crude", provenance.picked(example.order, "i"), "j")),
            note=tr("The token of row 1 above is in row {row_of} here.", row_of=row_of[0] + 1),
        ),
    )


def _sums(made: Crude) -> LessonFinding:
    sums = made.sums.numbers[:, 0].tolist()
    listed = ", ".join(shown(number) for number in sums)
    if all(shown(number) == "1.00" for number in sums):
        text = tr("Rows need not sum to 1; with these numbers they happen to: {listed}.", listed=listed)
    else:
        text = tr(
            "Rows do not sum to 1. They sum to {listed}: the size of an output depends on the number of tokens.",
            listed=listed,
        )
    return LessonFinding(text=text, cells=[("crude_sums", i, 0) for i in range(len(sums))])


def _dominated(made: Crude) -> LessonFinding:
    """The token whose score with a longer vector exceeds the score with itself the most."""
    scores_NN, lengths = made.scores.numbers, made.lengths.numbers[:, 0]
    excess_NN = scores_NN - scores_NN.diagonal()[:, None]
    i, j = divmod(int(excess_NN.argmax()), len(scores_NN))
    if float(excess_NN[i, j]) <= 0:
        text = tr("Long vectors dominate. With these numbers none does: make one row of X larger to see the effect.")
        return LessonFinding(text=text, cells=[("lengths", int(lengths.argmax()), 0)])
    text = tr(
        "Long vectors dominate. “{rows}” has the score {scores} with “{rows2}” and only {scores2} with itself, since the"
        " vector of “{rows2}” has length {lengths} and its own {lengths2}.",
        rows=made.x.rows[i],
        scores=_score(scores_NN, i, j),
        rows2=made.x.rows[j],
        scores2=_score(scores_NN, i, i),
        lengths=shown(float(lengths[j])),
        lengths2=shown(float(lengths[i])),
    )
    return LessonFinding(text=text, cells=[("crude_scores", i, j), ("crude_scores", i, i), ("lengths", j, 0)])


def _symmetric(made: Crude) -> LessonFinding:
    scores_NN = made.scores.numbers
    i, j = _largest_pair(scores_NN)
    if i == j:
        return LessonFinding(text=tr("Scores are symmetric, which a single token cannot show."))
    a, b = made.x.rows[i], made.x.rows[j]
    text = tr(
        "Scores are symmetric. The score of “{a}” with “{b}” is {scores}, and that of “{b}” with “{a}” is {scores2} too."
        " What a token looks for and what it is found by should be able to differ; here they are the same.",
        a=a,
        b=b,
        scores=_score(scores_NN, i, j),
        scores2=_score(scores_NN, j, i),
    )
    return LessonFinding(text=text, cells=[("crude_scores", i, j), ("crude_scores", j, i)])


def _unordered(example: Example, made: Crude) -> LessonFinding:
    last = example.order[0]
    cells = [("crude", last, c) for c in range(len(made.mixed.columns))]
    cells += [("crude_shuffled", 0, c) for c in range(len(made.mixed.columns))]
    text = tr(
        "Order does not count. After shuffling the tokens, “{tokens}” has the same output: a sentence and its bag of"
        " words have the same result.",
        tokens=example.tokens[last],
    )
    return LessonFinding(text=text, cells=cells)


def _largest_pair(scores_NN: Tensor) -> tuple[int, int]:
    """The largest score between two tokens."""
    if len(scores_NN) == 1:
        return 0, 0
    others_NN = scores_NN.clone().fill_diagonal_(-float("inf"))
    i, j = divmod(int(others_NN.argmax()), len(scores_NN))
    return i, j


def _score(scores_NN: Tensor, i: int, j: int) -> str:
    return shown(float(scores_NN[i, j]))


def alike_step(example: Example, made: Crude) -> LessonStep:
    """X X^T compares tokens, X^T X features; both on the same numbers."""
    x_NM, widths = example.x_NM, example.width_names
    n, m = x_NM.shape
    features = Matrix(
        id="feature_products",
        title=tr("Xᵀ X, features with features"),
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
    return LessonStep(
        id="alike",
        title=tr("Tokens alike, features alike: X Xᵀ and Xᵀ X"),
        text=(
            tr(
                "X Xᵀ multiplies rows of X: how alike two tokens are. Xᵀ X multiplies its columns: how alike two features are,"
                " over all tokens. Both are made of the same numbers."
            ),
            tr("So crude attention can be computed in two orders: by tokens, (X Xᵀ) X, or by features, X (Xᵀ X)."),
        ),
        pictures=(Illustration(kind="arcs", title=features.title, matrices=(features,)),),
        sections=(
            Section(title=tr("The input"), matrices=(made.x,)),
            Section(
                title=tr("Both tables"),
                matrices=(made.scores, features),
                findings=(_traces(made.scores, features),),
            ),
            Section(
                title=tr("Crude attention by features"),
                matrices=(by_features,),
                findings=(_same_in_both_orders(by_features, made.mixed),),
            ),
            _covariance(example, made.x),
        ),
        code="X.T @ X",
    )


def _traces(tokens: Matrix, features: Matrix) -> LessonFinding:
    by_token, by_feature = (float(each.numbers.diagonal().sum()) for each in (tokens, features))
    text = tr(
        "The diagonals have the same sum, the sum of all squared numbers of X: {by_token} over the tokens, {by_feature}"
        " over the features.",
        by_token=shown(by_token),
        by_feature=shown(by_feature),
    )
    return LessonFinding(
        text=text, cells=[(each.id, i, i) for each in (tokens, features) for i in range(len(each.rows))]
    )


def _same_in_both_orders(one: Matrix, other: Matrix) -> LessonFinding:
    furthest = float((one.numbers - other.numbers).abs().max())
    text = (
        tr("Both orders give the same output, to the last bit.")
        if furthest == 0
        else tr("Both orders give the same output; the largest difference is {apart}.", apart=significant(furthest, 1))
    )
    return LessonFinding(text=text, cells=[(one.id, 0, 0), (other.id, 0, 0)])


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
            title=tr("Mean of each feature"),
            formula="μ(a) = Σᵢ x(i, a) / n",
            rows=(tr("mean"),),
            columns=widths,
            numbers=mean_1M,
            source=provenance.mean(cell("x", "m", "j"), n),
        ),
        Matrix(
            id="centred",
            title=tr("Centred X"),
            formula="x(i, a) - μ(a)",
            rows=example.tokens,
            columns=widths,
            numbers=centred_NM,
            source=provenance.minus(cell("x", "i", "j"), cell("feature_means", 0, "j")),
        ),
        Matrix(
            id="centred_products",
            title=tr("Products of the centred features"),
            formula="Σᵢ (x(i, a) - μ(a)) (x(i, b) - μ(b))",
            rows=widths,
            columns=widths,
            numbers=products_MM,
            source=provenance.dot(cell("centred", "m", "i"), cell("centred", "m", "j"), n),
        ),
        Matrix(
            id="covariance",
            title=tr("Covariance"),
            formula="Σᵢ (x(i, a) - μ(a)) (x(i, b) - μ(b)) / n",
            rows=widths,
            columns=widths,
            numbers=products_MM / n,
            source=provenance.scaled(cell("centred_products", "i", "j"), 1 / n, f"1/{n}"),
        ),
    )
    return Section(
        title=tr("Centred, Xᵀ X / n is the covariance"),
        text=(tr("Subtract from each feature its mean over the tokens, and divide by the number of tokens."),),
        matrices=matrices,
        findings=(_together(matrices[-1], m),),
        folded=True,
    )


def _together(covariance: Matrix, m: int) -> LessonFinding:
    if m == 1:
        return LessonFinding(
            text=tr(
                "With one feature, the covariance is its variance: {numbers}.",
                numbers=shown(float(covariance.numbers[0, 0])),
            ),
            cells=[(covariance.id, 0, 0)],
        )
    others_MM = covariance.numbers.abs().fill_diagonal_(-1.0)
    a, b = sorted(divmod(int(others_MM.argmax()), m))
    result = float(covariance.numbers[a, b])
    first, second = covariance.rows[a], covariance.rows[b]
    if abs(result) < 1e-6:
        text = tr("Of these tokens, no two features vary together: {found}.", found=shown(result))
    elif result > 0:
        text = tr(
            "Of these tokens, “{first}” and “{second}” vary together the most, in the same direction: {found}.",
            first=first,
            second=second,
            found=shown(result),
        )
    else:
        text = tr(
            "Of these tokens, “{first}” and “{second}” vary together the most, in opposite directions: {found}.",
            first=first,
            second=second,
            found=shown(result),
        )
    return LessonFinding(text=text, cells=[(covariance.id, a, b)])


_LENGTHS = (100, 1_000, 10_000, 100_000)


def linear_step(example: Example, head: OneHead, known: dict[str, Matrix]) -> LessonStep:
    """(Q K^T) V, and the same as Q (K^T V)."""
    q_ND, k_ND, v_NE = head.q_ND, head.k_ND, head.v_NE
    (n, d), e = q_ND.shape, v_NE.shape[1]
    columns = known["v"].columns
    sums = Matrix(
        id="score_totals",
        title=tr("Sum of each row"),
        formula="Σⱼ s(i, j)",
        rows=example.tokens,
        columns=(tr("sum"),),
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
        rows=known["k"].columns,
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
    return LessonStep(
        id="linear",
        title=tr("Without softmax: (Q Kᵀ) V = Q (Kᵀ V)"),
        text=(
            tr(
                "Leave softmax out, and the scores themselves are the weights, negative ones too, and a row may sum to any"
                " number."
            ),
            tr(
                "What is gained: products of matrices can be computed in any order. With softmax that is impossible, since exp"
                " needs each single score."
            ),
        ),
        told=(tr("Kᵀ V is a table of one size, whatever the number of tokens."),),
        pictures=(
            Illustration(
                kind="shapes", title="(Q Kᵀ) V", labels=("Q Kᵀ", "V", "(Q Kᵀ) V"), sizes=((n, n), (n, e), (n, e))
            ),
            Illustration(
                kind="shapes", title="Q (Kᵀ V)", labels=("Q", "Kᵀ V", "Q (Kᵀ V)"), sizes=((n, d), (d, e), (n, e))
            ),
        ),
        sections=(
            Section(
                title=tr("By tokens: (Q Kᵀ) V"),
                matrices=(known["scores"], sums, known["v"], by_tokens),
                findings=(_negative(known["scores"]), _beyond(example, by_tokens, known["v"])),
            ),
            Section(
                title=tr("By features: Q (Kᵀ V)"),
                matrices=(known["q"], summary, by_features),
                findings=(_same_in_both_orders(by_features, by_tokens),),
            ),
            _multiplications(n, d, e),
        ),
        code="uwaga.attention(q, k, v, scale=1.0, normalize=None)",
    )


def _negative(weights: Matrix) -> LessonFinding:
    numbers_NN = weights.numbers
    count, most = int((numbers_NN < 0).sum()), numbers_NN.numel()
    if count == 0:
        return LessonFinding(
            text=tr("None of these {most} weights is negative; with other numbers some would be.", most=most)
        )
    i, j = divmod(int(numbers_NN.argmin()), len(numbers_NN))
    text = tr(
        "{count} of {most} weights are negative. The smallest, {numbers}, subtracts the value of “{columns}” from the"
        " output of “{rows}”.",
        count=count,
        most=most,
        numbers=shown(float(numbers_NN[i, j])),
        columns=weights.columns[j],
        rows=weights.rows[i],
    )
    return LessonFinding(text=text, cells=[(weights.id, i, j)])


def _beyond(example: Example, output: Matrix, values: Matrix) -> LessonFinding:
    """The output number that is furthest outside the range of the values of its column: shares cannot give one."""
    low_E, high_E = values.numbers.amin(0), values.numbers.amax(0)
    beyond_NE = torch.maximum(output.numbers - high_E, low_E - output.numbers)
    i, c = divmod(int(beyond_NE.argmax()), len(output.columns))
    low, high, result = (shown(float(each)) for each in (low_E[c], high_E[c], output.numbers[i, c]))
    column, token = output.columns[c], example.tokens[i]
    if float(beyond_NE[i, c]) <= 1e-5:
        text = tr(
            "With shares an output always lies among the values. Here it does so too: {column} of “{token}” is {found}.",
            column=column,
            token=token,
            found=result,
        )
    else:
        text = tr(
            "Why one wants shares: with them an output lies among the values. {column} is between {low} and {high} for all"
            " tokens, but the output of “{token}” has {found}.",
            column=column,
            low=low,
            high=high,
            token=token,
            found=result,
        )
    return LessonFinding(text=text, cells=[(output.id, i, c)])


def _multiplications(n: int, d: int, e: int) -> Section:
    lengths = (n, *_LENGTHS)
    counts = [(length, length * length * (d + e), 2 * length * d * e) for length in lengths]
    matrix = Matrix(
        id="multiplications",
        title=tr("Multiplications"),
        formula=tr("n² ({d} + {e}) and 2 n · {d} · {e}", d=d, e=e),
        rows=[tr_n("{count} token", "{count} tokens", length) for length in lengths],
        columns=(tr("tokens"), "(Q Kᵀ) V", "Q (Kᵀ V)"),
        numbers=torch.tensor(counts, dtype=torch.float64).float(),
        source=provenance.by_column(
            (
                provenance.given(tr("The tokens of the lesson, and lengths to compare.")),
                provenance.given(tr("n² · {d} for the scores, and n² · {e} for the weighted values.", d=d, e=e)),
                provenance.given(tr("n · {d} · {e} for Kᵀ V, and as many for its product with Q.", d=d, e=e)),
            )
        ),
        shade="none",
        digits=0,
    )
    _, by_tokens, by_features = counts[0]
    numbers = {
        "first": by_tokens,
        "second": by_features,
        "many": _LENGTHS[-1],
        "many_first": counts[-1][1],
        "many_second": counts[-1][2],
    }
    if by_tokens < by_features:
        text = tr_n(
            "For the {count} token of the lesson the first order needs fewer: {first} and {second} multiplications. For {many} tokens it"
            " is {many_first} and {many_second}.",
            "For the {count} tokens of the lesson the first order needs fewer: {first} and {second} multiplications. For {many} tokens it"
            " is {many_first} and {many_second}.",
            n,
            **numbers,
        )
    elif by_tokens > by_features:
        text = tr_n(
            "For the {count} token of the lesson the second order needs fewer: {first} and {second} multiplications. For {many} tokens it"
            " is {many_first} and {many_second}.",
            "For the {count} tokens of the lesson the second order needs fewer: {first} and {second} multiplications. For {many} tokens it"
            " is {many_first} and {many_second}.",
            n,
            **numbers,
        )
    else:
        text = tr_n(
            "For the {count} token of the lesson both need the same: {first} and {second} multiplications. For {many} tokens it is"
            " {many_first} and {many_second}.",
            "For the {count} tokens of the lesson both need the same: {first} and {second} multiplications. For {many} tokens it is"
            " {many_first} and {many_second}.",
            n,
            **numbers,
        )
    finding = LessonFinding(text=text, cells=[(matrix.id, row, c) for row in (0, len(lengths) - 1) for c in (1, 2)])
    chart = Chart(
        title=tr("The number of multiplications"),
        matrix=matrix.id,
        lines=(1, 2),
        description=text,
        x_title=tr("tokens"),
        y_title=tr("multiplications"),
        log_x=True,
        log_y=True,
    )
    return Section(title=tr("The number of multiplications"), matrices=(matrix,), charts=(chart,), findings=(finding,))
