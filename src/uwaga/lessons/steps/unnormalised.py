"""Attention without softmax: X X^T X and its four shortcomings, tokens and features alike, and (Q K^T) V = Q (K^T V).

Letters: N tokens, M width of a token's vector, D width of queries and keys, E of values.
"""

import torch

from uwaga._base.languages import integer, significant
from uwaga.lessons import compute, ledger
from uwaga.lessons.compute import CLEAR, at_largest, clearest, leads
from uwaga.lessons.document import Illustration, LessonFinding, LessonStep, Question, Section, shown
from uwaga.lessons.matrix import EVERY, Matrix, by_columns, made, typed
from uwaga.lessons.page import Page
from uwaga.lessons.question import question, which_token
from uwaga.lessons.steps import learning


def crude(page: Page) -> LessonStep:
    """Return X X^T X, nothing learned."""
    example, tokens = page.example, page.example.tokens
    x = page.matrix("x", typed(example.x_NM, tokens, example.width_names))
    lengths = page.matrix("lengths", x.length(page.text("length")))
    scores = page.matrix("crude_scores", x @ x.T)
    sums = page.matrix("crude_sums", scores.total(page.text("sum")))
    mixed = page.matrix("crude", (scores @ x).by_library(_unnormalised(x, x, x)))
    shuffled = mixed[list(example.order), EVERY]
    shuffled_NM = x.numbers[list(example.order)]
    first = page.matrix(
        "crude_shuffled",
        shuffled.copied().by_library(compute.unnormalised(shuffled_NM, shuffled_NM, shuffled_NM)),
        note=page.text("row_of", row_of=example.order.index(0) + 1),
    )
    return page.step(
        page.section("scores", scores, sums),
        page.section("input", x, lengths),
        page.section("mixed", mixed),
        page.section(
            "shortcomings",
            first,
            findings=(_sums(page), _dominated(page), _symmetric(page), _unordered(page)),
            controls=("order",),
        ),
        pictures=(page.picture("arcs", "words", scores),),
        question=_most_alike(page),
        ledger=(
            page.problem("learned", page.text("parameters", count=0), learning.losses_at_start(example)),
            ledger.long_by_scores(page),
            ledger.row_sums(page, scores.numbers),
            ledger.two_ways(page, scores.numbers),
            ledger.moved(page, shuffled.numbers - first.numbers),
        ),
        code="uwaga.attention(X, X, X, scale=1.0, normalize=None)",
    )


def _unnormalised(q: Matrix, k: Matrix, v: Matrix) -> torch.Tensor:
    return compute.unnormalised(q.numbers, k.numbers, v.numbers)


def _sums(page: Page) -> LessonFinding:
    sums = page["crude_sums"].numbers[:, 0].tolist()
    names = [shown(number) for number in sums]
    key = "sums_of_1" if set(names) == {"1.00"} else "sums"
    return page.finding(key, [("crude_sums", i, 0) for i in range(len(sums))], listed=", ".join(names))


def _dominated(page: Page) -> LessonFinding:
    """Return the token whose score with a longer vector exceeds the score with itself the most."""
    scores_NN, lengths = page["crude_scores"].numbers, page["lengths"].numbers[:, 0]
    excess_NN = scores_NN - scores_NN.diagonal()[:, None]
    i, j = at_largest(excess_NN)
    if float(excess_NN[i, j]) <= 0:
        return page.finding("none_dominates", [("lengths", int(lengths.argmax()), 0)])
    return page.finding(
        "dominates",
        [("crude_scores", i, j), ("crude_scores", i, i), ("lengths", j, 0)],
        rows=page.example.tokens[i],
        scores=shown(scores_NN[i, j]),
        rows2=page.example.tokens[j],
        scores2=shown(scores_NN[i, i]),
        lengths=shown(lengths[j]),
        lengths2=shown(lengths[i]),
    )


def _symmetric(page: Page) -> LessonFinding:
    scores_NN, tokens = page["crude_scores"].numbers, page.example.tokens
    if len(tokens) == 1:
        return page.finding("symmetric_alone")
    i, j = at_largest(scores_NN.clone().fill_diagonal_(-torch.inf))
    return page.finding(
        "symmetric",
        [("crude_scores", i, j), ("crude_scores", j, i)],
        a=tokens[i],
        b=tokens[j],
        scores=shown(scores_NN[i, j]),
        scores2=shown(scores_NN[j, i]),
    )


def _unordered(page: Page) -> LessonFinding:
    last, columns = page.example.order[0], range(len(page["crude"].columns))
    cells = [(id, row, column) for id, row in (("crude", last), ("crude_shuffled", 0)) for column in columns]
    return page.finding("unordered", cells, tokens=page.example.tokens[last])


def _most_alike(page: Page) -> Question | None:
    scores = page["crude_scores"]
    # A token that scores another higher than itself is the more surprising one.
    excess_NN = scores.numbers - scores.numbers.diagonal()[:, None]
    i = clearest(excess_NN.amax(-1), leads(scores.numbers) >= CLEAR)
    covers = ("crude_scores", "crude_sums", "crude", "crude_shuffled")
    return which_token(page, scores, i, covers, tapped=True, tokens=page.example.tokens[i])


def alike(page: Page) -> LessonStep:
    """Return X X^T compares tokens, X^T X features; both on the same numbers."""
    x, (n, m) = page["x"], page["x"].numbers.shape
    features = page.matrix("feature_products", x.T.times(x))
    by_features = page.matrix("crude_by_features", x.times(features))
    sums = [float(page[id].numbers.diagonal().sum()) for id in ("crude_scores", "feature_products")]
    diagonals = [(id, i, i) for id, size in (("crude_scores", n), ("feature_products", m)) for i in range(size)]
    traces = page.finding("traces", diagonals, by_token=shown(sums[0]), by_feature=shown(sums[1]))
    return page.step(
        page.section("input", x),
        page.section("tables", page["crude_scores"], features, findings=(traces,)),
        page.section("by_features", by_features, findings=(_same_in_both_orders(page, by_features, page["crude"]),)),
        _covariance(page),
        pictures=(page.picture("arcs", "features", features),),
        question=question(
            page,
            ("feature_products",),
            (("feature_products", 0, 0),),
            [str(m * m), str(n * n), str(n * m)],
            asks={"n": n, "m": m},
            why={"m": m, "m2": m * m, "n": n, "n2": n * n},
            about_sizes=True,
        ),
        code="X.T @ X",
    )


def _same_in_both_orders(page: Page, one: Matrix, other: Matrix) -> LessonFinding:
    furthest = compute.apart(one.numbers, other.numbers)
    key, by = ("same", "") if furthest == 0 else ("nearly_same", significant(furthest, 1))
    return page.finding(key, [(one.id, 0, 0), (other.id, 0, 0)], apart=by)


def _covariance(page: Page) -> Section:
    """Return the covariance of the features."""
    x, n = page["x"], len(page.example.tokens)
    means = page.matrix("feature_means", x.mean(page.text("mean"), axis=0))
    centred = page.matrix("centred", x - means[0, EVERY])
    products = page.matrix("centred_products", centred.T.times(centred))
    covariance = page.matrix("covariance", products.scaled(1 / n, f"1/{n}").by_library(products.numbers / n))
    return page.section("centre", means, centred, products, covariance, findings=(_together(page),), folded=True)


def _together(page: Page) -> LessonFinding:
    covariance = page["covariance"]
    m = len(covariance.rows)
    if m == 1:
        return page.finding("one_feature", [("covariance", 0, 0)], numbers=shown(covariance.numbers[0, 0]))
    a, b = sorted(at_largest(covariance.numbers.abs().fill_diagonal_(-1.0)))
    result = float(covariance.numbers[a, b])
    key = "unrelated" if abs(result) < 1e-6 else "together" if result > 0 else "opposite"
    first, second = covariance.rows[a], covariance.rows[b]
    return page.finding(key, [("covariance", a, b)], first=first, second=second, found=shown(result))


_LENGTHS = (100, 1_000, 10_000, 100_000)


def linear(page: Page) -> LessonStep:
    """Return the step on (Q K^T) V, and the same computed as Q (K^T V)."""
    scores, (q, k, v) = page["scores"], (page[letter] for letter in "qkv")
    (n, d), e = q.numbers.shape, v.numbers.shape[1]
    sums = page.matrix("score_totals", scores.total(page.text("sum")))
    by_tokens = page.matrix("linear_output", (scores @ v).by_library(_unnormalised(q, k, v)))
    summary = page.matrix("keys_values", k.T.times(v))
    by_features = page.matrix("linear_by_features", q.times(summary))

    def shapes(*labels: str, sizes: tuple[tuple[int, int], ...]) -> Illustration:
        return Illustration(kind="shapes", title=labels[-1], labels=labels, sizes=sizes)

    return page.step(
        page.section("by_tokens", scores, sums, v, by_tokens, findings=(_negative(page), _beyond(page, by_tokens, v))),
        page.section(
            "by_features", q, summary, by_features, findings=(_same_in_both_orders(page, by_features, by_tokens),)
        ),
        _multiplications(page, n, d, e),
        pictures=(
            shapes("Q Kᵀ", "V", "(Q Kᵀ) V", sizes=((n, n), (n, e), (n, e))),
            shapes("Q", "Kᵀ V", "Q (Kᵀ V)", sizes=((n, d), (d, e), (n, e))),
        ),
        question=_fewer(page, n),
        ledger=(page.problem("cost", page.text("avoided"), (d, e)),),
        code="uwaga.attention(q, k, v, scale=1.0, normalize=None)",
    )


def _negative(page: Page) -> LessonFinding:
    scores = page["scores"]
    count, most = int((scores.numbers < 0).sum()), scores.numbers.numel()
    if count == 0:
        return page.finding("not_negative", most=most)
    i, j = at_largest(-scores.numbers)
    number, row, column = shown(scores.numbers[i, j]), scores.rows[i], scores.columns[j]
    return page.finding(
        "negative", [("scores", i, j)], count=count, most=most, numbers=number, columns=column, rows=row
    )


def _beyond(page: Page, output: Matrix, values: Matrix) -> LessonFinding:
    """Return the output that is furthest outside its column's values: shares cannot give one."""
    low_E, high_E = values.numbers.amin(0), values.numbers.amax(0)
    beyond_NE = torch.maximum(output.numbers - high_E, low_E - output.numbers)
    i, c = at_largest(beyond_NE)
    low, high, result = (shown(number) for number in (low_E[c], high_E[c], output.numbers[i, c]))
    key = "beyond" if float(beyond_NE[i, c]) > 1e-5 else "not_beyond"
    column, token = output.columns[c], page.example.tokens[i]
    return page.finding(key, [(output.id, i, c)], column=column, low=low, high=high, token=token, found=result)


def _multiplications(page: Page, n: int, d: int, e: int) -> Section:
    lengths = (n, *_LENGTHS)
    counts = [(length, length * length * (d + e), 2 * length * d * e) for length in lengths]
    matrix = page.matrix(
        "multiplications",
        made(
            torch.tensor(counts, dtype=torch.float64).float(),
            [page.counted("of_tokens", length) for length in lengths],
            (page.text("tokens"), "(Q Kᵀ) V", "Q (Kᵀ V)"),
            by_columns([page.stated(key, d=d, e=e) for key in ("lengths", "first_order", "second_order")]),
            shade="none",
            digits=0,
        ),
        d=d,
        e=e,
    )
    (_, first, second), (many, many_first, many_second) = counts[0], counts[-1]
    text = page.counted(
        "first_fewer" if first < second else "second_fewer" if first > second else "equally_many",
        n,
        first=first,
        second=second,
        many=many,
        many_first=many_first,
        many_second=many_second,
    )
    finding = LessonFinding(text=text, cells=[(matrix.id, row, c) for row in (0, len(lengths) - 1) for c in (1, 2)])
    axes = (page.text("tokens"), page.text("many"))
    chart = page.chart("number", matrix.id, (1, 2), finding, *axes, log_x=True, log_y=True)
    return page.section("number", matrix, charts=(chart,), findings=(finding,))


def _fewer(page: Page, n: int) -> Question | None:
    _, first, second = page["multiplications"].numbers[0].tolist()
    orders = ("(Q Kᵀ) V", "Q (Kᵀ V)", page.text("equal"))
    right = 2 if first == second else int(second < first)
    counts = {"counts": integer(first), "orders": orders[0], "counts2": integer(second), "orders2": orders[1]}
    cells = (("multiplications", 0, 1), ("multiplications", 0, 2))
    return question(page, ("multiplications",), cells, orders, [right], asks={"n": n}, why=counts)
