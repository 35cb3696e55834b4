"""The six steps of the calculation: Q, K and V; scores; 1/sqrt(d_k); softmax; weighted values; their sum.

Letters: N tokens, M width of a token's vector, D width of queries and keys, E of values.
"""

import math

import torch

from uwaga._base.languages import decimal, significant
from uwaga.lessons import compute, ledger
from uwaga.lessons.compute import CLEAR, apart, at_largest, attended, clearest, leads
from uwaga.lessons.document import Illustration, LessonFinding, LessonStep, Question, Section, shown
from uwaga.lessons.example import numbered
from uwaga.lessons.matrix import Matrix, made, rule, typed
from uwaga.lessons.page import Page
from uwaga.lessons.question import largest, names_of, question, ranges, which_token
from uwaga.lessons.steps import learning, scaling
from uwaga.ops.attention.api import attention


def vectors(page: Page) -> LessonStep:
    example, x = page.example, page["x"]
    (m, d), e = example.wq_MD.shape, example.wv_ME.shape[1]
    weights = [
        page.matrix(f"w{letter}", typed(numbers, x.columns, numbered(letter, numbers.shape[1])))
        for letter, numbers in (("q", example.wq_MD), ("k", example.wk_MD), ("v", example.wv_ME))
    ]
    q, k, v = (page.matrix(letter, x @ weight) for letter, weight in zip("qkv", weights, strict=True))
    products = page.matrix("q_products", x.weighing(weights[0]))
    count = sum(weight.numbers.numel() for weight in weights)
    return page.step(
        _widths(page),
        page.section("input", x),
        page.section("three", *weights),
        page.section("together", q, k, v, form="matrix"),
        page.section("each", products, form="token"),
        place=1,
        values={"d": d, "m": m},
        pictures=(page.picture("rows", "roles", x, q, k, v, labels=("X", "Q", "K", "V")),),
        question=question(page, (), choices=("W_Q", "W_V", page.text("both")), asks={"m": m, "d": d, "e": e}),
        ledger=(page.problem("learned", page.text("parameters", count=count), learning.losses_at_start(example)),),
        code="q, k, v = layer.project(X, X, X)     # uwaga.nn.MultiHeadAttention",
    )


def _widths(page: Page) -> Section:
    """Return the section on widths: queries and keys share one, values may have another."""
    example = page.example
    n, d, e = len(example.tokens), example.wq_MD.shape[1], example.wv_ME.shape[1]
    other = d + 1
    try:
        attention(torch.zeros(n, d), torch.zeros(n, other), torch.zeros(n, e))
        raise AssertionError("operands of different widths were accepted")
    except ValueError as error:
        said = str(error).partition("\n")[0]

    def shapes(key: str, labels: tuple[str, ...], *sizes: tuple[int, int]) -> Illustration:
        return page.picture("shapes", key, labels=labels, sizes=sizes)

    return page.section(
        "widths",
        told=True,
        values={"d": d, "other": other, "n": n, "e": e, "said": said},
        pictures=(
            shapes("fits", ("Q", "Kᵀ", "Q Kᵀ"), (n, d), (d, n), (n, n)),
            shapes("misfits", ("Q", "Kᵀ", ""), (n, d), (other, n), (0, 0)),
            shapes("fits", ("A", "V", "A V"), (n, n), (n, e), (n, e)),
        ),
    )


def scores(page: Page) -> LessonStep:
    q, k, n = page["q"], page["k"], len(page.example.tokens)
    raw = page.matrix("scores", q @ k.T)
    columns = [f"{a}·{b}" for a, b in zip(q.columns, k.columns, strict=True)]
    source = rule("product", q.at("c", "j"), k.at())
    products = page.matrix("score_products", made(q.numbers[:, None] * k.numbers, k.rows, columns, source))
    one_by_one = torch.stack([compute.scores(query[None], k.numbers).T for query in q.numbers])
    sums = page.matrix("score_sums", products.total(page.text("score")).by_library(one_by_one))
    i = _asked_about(raw)
    return page.step(
        page.section("together", q, k, raw, form="matrix"),
        page.section("each", products, sums, form="token"),
        _bilinear_form(page),
        place=2,
        told=(_roles(page), page.text("as_matrices", d=len(q.columns), n=n)),
        pictures=(page.picture("arcs", "looks_for", raw),),
        question=which_token(
            page,
            raw,
            i,
            ("scores", "score_products", "score_sums", "x_form", "form_scores"),
            tapped=True,
            tokens=page.example.tokens[i],
        ),
        ledger=(
            ledger.row_sums(page, raw.numbers),
            ledger.two_ways(page, raw.numbers),
            ledger.variances(page, scaling.measured(page.example.seed)[0][:, [0, 1]]),
            page.problem("cost", page.text("pairs", n=n, pairs=n * n), (n,)),
        ),
        code="uwaga.attention(q, k, torch.eye(len(k)), scale=1.0, normalize=None)",
    )


def _asked_about(scores: Matrix) -> int:
    """Return the token that the question about scores asks about, and the next questions do not."""
    return clearest(scores.numbers.amax(-1), leads(scores.numbers) >= CLEAR)


def _roles(page: Page) -> str:
    """Return whether the scores of these numbers are symmetric."""
    scores_NN, tokens = page["scores"].numbers, page.example.tokens
    i, j = at_largest((scores_NN - scores_NN.T).abs())
    there, back = shown(scores_NN[i, j]), shown(scores_NN[j, i])
    if there == back:
        return page.text("symmetric")
    return page.text("not_symmetric", a=tokens[i], b=tokens[j], there=there, back=back)


def _bilinear_form(page: Page) -> Section:
    """Return the bilinear form W_Q W_K^T, which gives the scores without Q and K."""
    x, widths = page["x"], page["x"].columns
    form = page.matrix("form", page["wq"] @ page["wk"].T)
    half = page.matrix("x_form", x.times(form))
    whole = page.matrix("form_scores", half @ x.T)
    furthest = apart(whole.numbers, page["scores"].numbers)
    a, b = at_largest(form.numbers.abs())
    largest_entry = shown(form.numbers[a, b])
    return page.section(
        "bilinear",
        form,
        half,
        whole,
        folded=True,
        findings=(
            page.finding("entry", [("form", a, b)], form=largest_entry, widths=widths[a], widths2=widths[b]),
            page.finding("both_ways", [("form_scores", 0, 0), ("scores", 0, 0)], furthest=significant(furthest, 1)),
        ),
    )


def scale(page: Page) -> LessonStep:
    example, raw = page.example, page["scores"]
    d, is_scaled = example.wq_MD.shape[1], example.scaled
    scaled = page.matrix(
        "scaled",
        raw.scaled(example.scale, example.scale_text),
        "scaled" if is_scaled else "not_scaled",
        say=example.scale_text,
    )
    told = page.text("divided", d=d, d2=shown(math.sqrt(d))) if is_scaled else page.text("switched_off")
    labels = ("Q Kᵀ", f"Q Kᵀ / √{d}" if is_scaled else "Q Kᵀ")
    return page.step(
        Section(title="", matrices=(raw, scaled), controls=("scaled",)),
        title=page.text("title" if is_scaled else "title_unscaled"),
        place=3,
        told=(told,),
        pictures=(page.picture("rows", "of_a_word", raw, scaled, labels=labels),),
        question=_scale_question(page, d),
        ledger=(ledger.variances(page, scaling.measured(example.seed)[0][:, [0, 2]], solved=is_scaled),),
        code="uwaga.attention(q, k, torch.eye(len(k))"
        + (", normalize=None)     # the default is scale=1/√d_k" if is_scaled else ", scale=1.0, normalize=None)"),
    )


def _scale_question(page: Page, d: int) -> Question | None:
    scores, tokens = page["scores"].numbers, page.example.tokens
    others = scores.abs().clone()
    if len(scores) > 1:  # the largest would tell the answer of the step before
        others[_asked_about(page["scores"])] = -1.0
    i, j = at_largest(others)
    value, after = float(scores[i, j]), shown(page["scaled"].numbers[i, j])
    return question(
        page,
        ("scaled",),
        (("scaled", i, j),),
        [after, shown(value), shown(value / d), shown(value / d**0.5)],
        asks={"tokens": tokens[i], "tokens2": tokens[j], "value": shown(value), "d": d},
        why={"d": d, "after": after} if page.example.scaled else page.text("why_unscaled", after=after),
    )


def softmax(page: Page) -> LessonStep:
    example, tokens, scaled = page.example, page.example.tokens, page["scaled"]
    _, weights_NN = attended(page["q"].numbers, page["k"].numbers, page["v"].numbers, example.scale)
    exponentials = page.matrix("exponentials", scaled.exponentials(), note=page.text("largest_subtracted"))
    weights = page.matrix("weights", exponentials.shares().by_library(weights_NN))
    i = int(weights_NN.amax(-1).argmax())
    j = int(weights_NN[i].argmax())
    share, n = float(weights_NN[i, j]), len(tokens)
    sums = ", ".join(map(shown, weights_NN.sum(-1).tolist()))
    choices, right = ranges(page, share, 0.4, 0.7, lambda end: decimal(end, 1))
    return page.step(
        page.section("together", scaled, exponentials, weights),
        page.section(
            "changed",
            findings=(
                page.finding("sums", [("weights", row, c) for row in range(n) for c in range(n)], sums=sums),
                _still_long(page),
                page.finding("largest", [("weights", i, j)], tokens=tokens[i], tokens2=tokens[j], weights=shown(share)),
            ),
        ),
        place=4,
        pictures=(page.picture("arcs", "shares", weights),),
        question=question(
            page,
            ("exponentials", "weights"),
            (("weights", i, j),),
            choices,
            right,
            asks={"token": tokens[i]},
            why={"weights": shown(share)},
            ordered=True,
        ),
        ledger=(
            ledger.long_by_weights(page),
            ledger.row_sums(page, weights_NN, solved=True),
            page.problem("one", page.text("tables", count=1), (1,)),
            ledger.later(page, weights_NN),
        ),
        code=f"uwaga.attend(q, k, v{example.scale_argument}).map.to_dense()",
    )


def _still_long(page: Page) -> LessonFinding:
    """Return what softmax leaves: the weights on the longest vector, also four times as long."""
    j, x_NM, longer_NM = ledger.longest(page.example)
    before_N, after_N = (ledger.weights_on(page.example, j, each_NM) for each_NM in (x_NM, longer_NM))
    return page.finding(
        "still_long",
        [("weights", i, j) for i in range(len(before_N))],
        token=page.example.tokens[j],
        before=", ".join(map(shown, before_N.tolist())),
        after=", ".join(map(shown, after_N.tolist())),
    )


def weighted(page: Page) -> LessonStep:
    weights, v = page["weights"], page["v"]
    products = page.matrix("weighted", weights.weighing(v))
    return page.step(
        page.section("together", weights, v, form="matrix"),
        page.section("each", products, form="token"),
        place=5,
        pictures=(page.picture("arcs", "shares", weights),),
        question=_weighted_question(page),
        code="weights[i, :, None] * v",
    )


def _weighted_question(page: Page) -> Question | None:
    weights, tokens = page["weights"].numbers, page.example.tokens
    names, sizes_NN = names_of(page, tokens), page["weighted"].numbers.norm(dim=-1)
    # The weights were shown before. So a row, if there is one, whose largest weight is not on the longest weighted value; and not
    # the row of a question before.
    leads_N = leads(sizes_NN)
    worth_N = leads_N + sizes_NN.max() * (sizes_NN.argmax(-1) != weights.argmax(-1))
    worth_N[_asked_about(page["scores"])] = -1.0
    i = clearest(worth_N, leads_N >= CLEAR)
    if leads_N[i] < CLEAR:
        return None
    right = largest(sizes_NN[i])
    j = right[0]
    why = {
        "token": names[j],
        "size": shown(sizes_NN[i, j]),
        "weight": shown(weights[i, j]),
        "length": shown(page["v"].numbers[j].norm()),
    }
    asks, cells = {"tokens": tokens[i]}, (("weights", i, j),)
    return question(page, ("weighted",), cells, names, right, asks=asks, why=why, ordered=True, tap="weights")


def total(page: Page) -> LessonStep:
    example, weights, v = page.example, page["weights"], page["v"]
    q_ND, k_ND = page["q"].numbers, page["k"].numbers
    output_NE, _ = attended(q_ND, k_ND, v.numbers, example.scale)
    output = page.matrix("output", (weights @ v).by_library(output_NE))
    one_by_one = torch.stack([attended(q_D[None], k_ND, v.numbers, example.scale)[0] for q_D in q_ND])
    sums = page.matrix("output_token", page["weighted"].total(page.text("sum"), axis=0).by_library(one_by_one))
    furthest = apart(output_NE, one_by_one[:, 0])
    order_NM, shuffled_NM = compute.reordered(example, with_codes=False)
    n, e = output_NE.shape
    formula = f"attention(Q, K, V) = softmax(Q Kᵀ{'/√d_k' if example.scaled else ''}) V"
    return page.step(
        page.section("together", weights, v, output, form="matrix"),
        page.section("each", page["weighted"], sums, form="token", values={"n": n, "e": e}),
        page.section(
            "one_calculation",
            findings=(
                page.finding(
                    "agree_exactly" if furthest == 0 else "agree",
                    [("output", i, c) for i in range(n) for c in range(e)],
                    apart=significant(furthest, 1),
                ),
            ),
        ),
        place=6,
        values={"formula": formula},
        pictures=(page.picture("rows", "of_a_word", weights, output, labels=("A", "Z = A V")),),
        question=question(page, ("output", "output_token"), (("output", 0, 0),)),
        ledger=(ledger.moved(page, order_NM - shuffled_NM),),
        code=f"uwaga.attention(q, k, v{example.scale_argument})",
    )
