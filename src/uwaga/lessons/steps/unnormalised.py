"""Attention without softmax: X X^T X and its four shortcomings, tokens and features alike, and (Q K^T) V = Q (K^T V).

Letters: N tokens, M width of a token's vector, D width of queries and keys, E of values.
"""

import torch
from torch import Tensor

from uwaga._base.languages import integer, significant
from uwaga.lessons.compute import CLEAR, clearest, leads, unnormalised
from uwaga.lessons.document import Chart, LessonFinding, LessonStep, Section, shown
from uwaga.lessons.matrix import EVERY, Matrix, by_columns, given, made, typed
from uwaga.lessons.page import Page
from uwaga.lessons.question import question, which_token

_LENGTHS = (100, 1_000, 10_000, 100_000)


def crude(page: Page) -> LessonStep:
    example, tokens = page.example, page.example.tokens
    x = page.matrix("x", typed(example.x_NM, tokens, example.width_names))
    scores = page.matrix("crude_scores", x @ x.T)
    sums = page.matrix("crude_sums", scores.total(page.text("sum")))
    lengths = page.matrix("lengths", x.length(page.text("length")))
    mixed = page.matrix("crude", (scores @ x).by_library(unnormalised(x.numbers, x.numbers, x.numbers)))
    shuffled_NM = x.numbers[list(example.order)]
    shuffled = page.matrix(
        "crude_shuffled",
        mixed[example.order, EVERY].copied().by_library(unnormalised(shuffled_NM, shuffled_NM, shuffled_NM)),
        note=page.text("moved", row_of=example.order.index(0) + 1),
    )
    # A token that scores another higher than itself is the more surprising one.
    excess_NN = scores.numbers - scores.numbers.diagonal()[:, None]
    i = clearest(excess_NN.amax(-1), leads(scores.numbers) >= CLEAR)
    return page.step(
        page.section("scores", scores, sums),
        page.section("input", x, lengths),
        page.section("weighted", mixed),
        page.section(
            "shortcomings",
            shuffled,
            findings=(_sums(page, sums), _dominated(page, excess_NN), _symmetric(page), _unordered(page)),
            controls=("order",),
        ),
        pictures=(page.picture("arcs", "look", scores),),
        question=which_token(
            page,
            scores,
            i,
            page.text("question", tokens=tokens[i]),
            page.text("why"),
            ("crude_scores", "crude_sums", "crude", "crude_shuffled"),
            tapped=True,
        ),
        code="uwaga.attention(X, X, X, scale=1.0, normalize=None)",
    )


def _sums(page: Page, sums: Matrix) -> LessonFinding:
    listed = [shown(number) for number in sums.numbers[:, 0].tolist()]
    key = "sum_to_one" if all(text == "1.00" for text in listed) else "sum_to_any"
    return page.finding(key, [("crude_sums", i, 0) for i in range(len(listed))], listed=", ".join(listed))


def _dominated(page: Page, excess_NN: Tensor) -> LessonFinding:
    """The token whose score with a longer vector exceeds the score with itself the most."""
    scores_NN, lengths, tokens = page["crude_scores"].numbers, page["lengths"].numbers[:, 0], page.example.tokens
    i, j = divmod(int(excess_NN.argmax()), len(scores_NN))
    if float(excess_NN[i, j]) <= 0:
        return page.finding("none_dominates", [("lengths", int(lengths.argmax()), 0)])
    return page.finding(
        "dominates",
        [("crude_scores", i, j), ("crude_scores", i, i), ("lengths", j, 0)],
        rows=tokens[i],
        scores=shown(float(scores_NN[i, j])),
        rows2=tokens[j],
        scores2=shown(float(scores_NN[i, i])),
        lengths=shown(float(lengths[j])),
        lengths2=shown(float(lengths[i])),
    )


def _symmetric(page: Page) -> LessonFinding:
    """The largest score between two tokens, both ways."""
    scores_NN, tokens = page["crude_scores"].numbers, page.example.tokens
    if len(tokens) == 1:
        return page.finding("one_token")
    i, j = divmod(int(scores_NN.clone().fill_diagonal_(-torch.inf).argmax()), len(tokens))
    if i == j:
        return page.finding("one_token")
    return page.finding(
        "symmetric",
        [("crude_scores", i, j), ("crude_scores", j, i)],
        a=tokens[i],
        b=tokens[j],
        scores=shown(float(scores_NN[i, j])),
        scores2=shown(float(scores_NN[j, i])),
    )


def _unordered(page: Page) -> LessonFinding:
    last, columns = page.example.order[0], range(len(page["crude"].columns))
    cells = [("crude", last, c) for c in columns] + [("crude_shuffled", 0, c) for c in columns]
    return page.finding("unordered", cells, tokens=page.example.tokens[last])


def alike(page: Page) -> LessonStep:
    """X X^T compares tokens, X^T X features; both on the same numbers."""
    x, scores, mixed = page["x"], page["crude_scores"], page["crude"]
    n, m = x.numbers.shape
    features = page.matrix("feature_products", x.T.times(x))
    by_features = page.matrix("crude_by_features", x.times(features))
    return page.step(
        page.section("input", x),
        page.section("tables", scores, features, findings=(_traces(page, scores, features),)),
        page.section("by_features", by_features, findings=(_same(page, by_features, mixed),)),
        _covariance(page),
        pictures=(page.picture("arcs", "features", features),),
        question=question(
            page,
            page.text("question", n=n, m=m),
            [str(m * m), str(n * n), str(n * m)],
            [0],
            page.text("why", m=m, m2=m * m, n=n, n2=n * n),
            ("feature_products",),
            (("feature_products", 0, 0),),
            about_sizes=True,
        ),
        code="X.T @ X",
    )


def _traces(page: Page, tokens: Matrix, features: Matrix) -> LessonFinding:
    by_token, by_feature = (shown(float(each.numbers.diagonal().sum())) for each in (tokens, features))
    cells = [(each.id, i, i) for each in (tokens, features) for i in range(len(each.rows))]
    return page.finding("traces", cells, by_token=by_token, by_feature=by_feature)


def _same(page: Page, one: Matrix, other: Matrix) -> LessonFinding:
    """That both orders of the products give one output."""
    furthest = float((one.numbers - other.numbers).abs().max())
    key = "same" if furthest else "same_exactly"
    return page.finding(key, [(one.id, 0, 0), (other.id, 0, 0)], apart=significant(furthest, 1))


def _covariance(page: Page) -> Section:
    """The covariance of the features."""
    x, n = page["x"], len(page.example.tokens)
    means = page.matrix("feature_means", x.mean(page.text("mean"), axis=0))
    centred = page.matrix("centred", x - means[0, EVERY])
    products = page.matrix("centred_products", centred.T.times(centred))
    # Divided, and not multiplied by 1/n, which would be rounded twice.
    covariance = products.scaled(1 / n, f"1/{n}").by_library(products.numbers / n)
    covariance = page.matrix("covariance", covariance)
    return page.section(
        "centring", means, centred, products, covariance, findings=(_together(page, covariance),), folded=True
    )


def _together(page: Page, covariance: Matrix) -> LessonFinding:
    m = len(covariance.rows)
    if m == 1:
        variance = shown(float(covariance.numbers[0, 0]))
        return page.finding("one_feature", [(covariance.id, 0, 0)], numbers=variance)
    a, b = sorted(divmod(int(covariance.numbers.abs().fill_diagonal_(-1.0).argmax()), m))
    found = float(covariance.numbers[a, b])
    return page.finding(
        "apart" if abs(found) < 1e-6 else "together" if found > 0 else "opposite",
        [(covariance.id, a, b)],
        first=covariance.rows[a],
        second=covariance.rows[b],
        found=shown(found),
    )


def linear(page: Page) -> LessonStep:
    """(Q K^T) V, and the same as Q (K^T V)."""
    q, k, v, scores = page["q"], page["k"], page["v"], page["scores"]
    (n, d), e = q.numbers.shape, len(v.columns)
    sums = page.matrix("score_totals", scores.total(page.text("sum")))
    by_tokens = (scores @ v).by_library(unnormalised(q.numbers, k.numbers, v.numbers))
    by_tokens = page.matrix("linear_output", by_tokens)
    summary = page.matrix("keys_values", k.T.times(v))
    by_features = page.matrix("linear_by_features", q.times(summary))
    orders = ("(Q Kᵀ) V", "Q (Kᵀ V)")
    shapes = (("Q Kᵀ", "V", orders[0]), ((n, n), (n, e), (n, e))), (("Q", "Kᵀ V", orders[1]), ((n, d), (d, e), (n, e)))
    multiplied = _multiplications(page, n, d, e)
    first, second = multiplied.matrices[0].numbers[0, 1:].tolist()
    return page.step(
        page.section(
            "by_tokens",
            scores,
            sums,
            v,
            by_tokens,
            findings=(_negative(page, scores), _beyond(page, by_tokens, v)),
        ),
        page.section("by_features", q, summary, by_features, findings=(_same(page, by_features, by_tokens),)),
        multiplied,
        pictures=[
            page.picture("shapes", f"order_{which + 1}", labels=labels, sizes=sizes)
            for which, (labels, sizes) in enumerate(shapes)
        ],
        question=question(
            page,
            page.text("question", n=n),
            (*orders, page.text("same_number")),
            [2 if first == second else int(second < first)],
            page.text("why", counts=integer(first), orders=orders[0], counts2=integer(second), orders2=orders[1]),
            ("multiplications",),
            (("multiplications", 0, 1), ("multiplications", 0, 2)),
        ),
        code="uwaga.attention(q, k, v, scale=1.0, normalize=None)",
    )


def _negative(page: Page, weights: Matrix) -> LessonFinding:
    numbers_NN = weights.numbers
    count, most = int((numbers_NN < 0).sum()), numbers_NN.numel()
    if count == 0:
        return page.finding("none_negative", most=most)
    i, j = divmod(int(numbers_NN.argmin()), len(numbers_NN))
    return page.finding(
        "negative",
        [(weights.id, i, j)],
        count=count,
        most=most,
        numbers=shown(float(numbers_NN[i, j])),
        columns=weights.columns[j],
        rows=weights.rows[i],
    )


def _beyond(page: Page, output: Matrix, values: Matrix) -> LessonFinding:
    """The output number that is furthest outside the range of the values of its column: shares cannot give one."""
    low_E, high_E = values.numbers.amin(0), values.numbers.amax(0)
    beyond_NE = torch.maximum(output.numbers - high_E, low_E - output.numbers)
    i, c = divmod(int(beyond_NE.argmax()), len(output.columns))
    low, high, found = (shown(float(each)) for each in (low_E[c], high_E[c], output.numbers[i, c]))
    return page.finding(
        "within" if float(beyond_NE[i, c]) <= 1e-5 else "beyond",
        [(output.id, i, c)],
        column=output.columns[c],
        token=page.example.tokens[i],
        low=low,
        high=high,
        found=found,
    )


def _multiplications(page: Page, n: int, d: int, e: int) -> Section:
    lengths = (n, *_LENGTHS)
    counts = [(length, length * length * (d + e), 2 * length * d * e) for length in lengths]
    matrix = page.matrix(
        "multiplications",
        made(
            torch.tensor(counts, dtype=torch.float64).float(),
            [page.counted("tokens_of", length) for length in lengths],
            (page.text("tokens"), "(Q Kᵀ) V", "Q (Kᵀ V)"),
            by_columns(
                [given(page.text(key, d=d, e=e)) for key in ("compared", "by_tokens_given", "by_features_given")]
            ),
            shade="none",
            digits=0,
        ),
        d=d,
        e=e,
    )
    _, first, second = counts[0]
    _, many_first, many_second = counts[-1]
    text = page.counted(
        "first_fewer" if first < second else "second_fewer" if first > second else "equal",
        n,
        first=first,
        second=second,
        many=_LENGTHS[-1],
        many_first=many_first,
        many_second=many_second,
    )
    chart = Chart(
        title=page.text("number_of"),
        matrix=matrix.id,
        lines=(1, 2),
        description=text,
        x_title=page.text("tokens"),
        y_title=page.text("multiplied"),
        log_x=True,
        log_y=True,
    )
    cells = [(matrix.id, row, c) for row in (0, len(lengths) - 1) for c in (1, 2)]
    return page.section("number_of", matrix, charts=(chart,), findings=(LessonFinding(text=text, cells=cells),))
