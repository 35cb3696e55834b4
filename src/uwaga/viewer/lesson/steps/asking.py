"""Steps 2 to 4 of 6: scores, 1/sqrt(d_k), softmax. Letters: N tokens, M width of a token's vector, D inner width."""

import math
from typing import NamedTuple

import torch

from uwaga.viewer.lesson import sources
from uwaga.viewer.lesson.computing import OneHead, scores, times
from uwaga.viewer.lesson.example import Example
from uwaga.viewer.lesson.parts import Finding, Matrix, Section, Step, shown
from uwaga.viewer.lesson.sources import cell
from uwaga.viewer.lesson.steps.learned import Learned


class Asked(NamedTuple):
    """What the queries find at the keys."""

    raw: Matrix
    scaled: Matrix
    exponentials: Matrix
    weights: Matrix


def asked(example: Example, head: OneHead) -> Asked:
    tokens, n, d = example.tokens, len(example.tokens), head.q_ND.shape[1]
    scaled_NN = head.scores_NN * head.scale
    exponentials_NN = (scaled_NN - scaled_NN.amax(-1, keepdim=True)).exp()
    say = f"1/√{d}" if example.scaled else "1"
    return Asked(
        raw=Matrix(
            id="scores",
            title="Scores Q Kᵀ",
            formula="s(i, j) = qᵢ · kⱼ",
            rows=tokens,
            columns=tokens,
            numbers=head.scores_NN,
            source=sources.dot(cell("q", "i", "m"), cell("k", "j", "m"), d),
        ),
        scaled=Matrix(
            id="scaled",
            title="Scores, scaled" if example.scaled else "Scores, not scaled",
            formula=f"s(i, j) · {say}",
            rows=tokens,
            columns=tokens,
            numbers=scaled_NN,
            source=sources.scaled(cell("scores", "i", "j"), head.scale, say),
        ),
        exponentials=Matrix(
            id="exponentials",
            title="Exponentials",
            formula="exp(s(i, j) - the row's largest)",
            rows=tokens,
            columns=tokens,
            numbers=exponentials_NN,
            source=sources.exponential(cell("scaled", "i", "j"), cell("scaled", "i", "m"), n),
            shade="share",
            note="Taking the largest away changes no weight, and keeps exp from growing without bound.",
        ),
        weights=Matrix(
            id="weights",
            title="Weights A",
            formula="a(i, j) = exp(s(i, j)) / Σⱼ exp(s(i, j))",
            rows=tokens,
            columns=tokens,
            numbers=head.weights_NN,
            source=sources.share(cell("exponentials", "i", "j"), cell("exponentials", "i", "m"), n),
            shade="share",
        ),
    )


def scoring(example: Example, made: Learned, found: Asked) -> Step:
    return Step(
        id="scores",
        title="Scores: Q Kᵀ",
        number="2 of 6",
        text=(
            "Every query meets every key: the sum of the products of their numbers says how well they fit.",
            "Now to look and to be found are different: the table is not symmetric any more.",
        ),
        sections=(
            Section(title="All at once: Q Kᵀ", form="matrix", matrices=(made.q, made.k, found.raw)),
            Section(
                title="Token by token: qᵢ · kⱼ",
                form="token",
                matrices=_by_token(example, made, found),
                text=("The products of one query with every key; along each row they sum to its score.",),
            ),
            _between(example, made, found),
        ),
        code="uwaga.attention(q, k, torch.eye(len(k)), scale=1.0, normalize=None)",
    )


def scaling(example: Example, head: OneHead, found: Asked) -> Step:
    d = head.q_ND.shape[1]
    if example.scaled:
        text = f"Queries and keys have {d} numbers here, so each score is divided by √{d} = {shown(math.sqrt(d))}."
    else:
        text = "Scaling is switched off: scores stay as they are, which is scale=1.0."
    return Step(
        id="scale",
        title="Scale: 1/√d_k",
        number="3 of 6",
        text=(text, "The wider queries and keys are, the larger their products grow. “Why √d_k” measures it."),
        sections=(Section(title="", matrices=(found.raw, found.scaled), controls=("scaled",)),),
        code="scale=None     # 1/√d_k, which is what uwaga.attention does unless told otherwise",
    )


def softmax(example: Example, found: Asked) -> Step:
    weights_NN = found.weights.numbers
    i = int(weights_NN.amax(-1).argmax())
    j = int(weights_NN[i].argmax())
    sums = ", ".join(shown(number) for number in weights_NN.sum(-1).tolist())
    return Step(
        id="softmax",
        title="Softmax: scores to shares",
        number="4 of 6",
        text=(
            "exp makes every score positive and spreads them; divided by their row's sum they are shares of one whole.",
        ),
        sections=(
            Section(title="All at once", matrices=(found.scaled, found.exponentials, found.weights)),
            Section(
                title="What has changed",
                findings=(
                    Finding(
                        text=f"Every row sums to 1 now: {sums}.",
                        cells=[("weights", row, c) for row in range(len(weights_NN)) for c in range(len(weights_NN))],
                    ),
                    Finding(
                        text=f"The largest share: “{example.tokens[i]}” gives “{example.tokens[j]}” "
                        f"{shown(float(weights_NN[i, j]))} of its attention.",
                        cells=[("weights", i, j)],
                    ),
                ),
            ),
        ),
        code="uwaga.attend(q, k, v).map.to_dense()",
    )


def _by_token(example: Example, made: Learned, found: Asked) -> tuple[Matrix, Matrix]:
    q_ND, k_ND = made.q.numbers, made.k.numbers
    products = Matrix(
        id="score_products",
        title="Products of qᵢ with every key",
        formula="q(i, d) k(j, d)",
        rows=example.tokens,
        columns=[f"{q}·{k}" for q, k in zip(made.q.columns, made.k.columns, strict=True)],
        numbers=q_ND[:, None] * k_ND,
        source=sources.product(cell("q", "c", "j"), cell("k", "i", "j")),
    )
    one_by_one = Matrix(
        id="score_sums",
        title="Their sums",
        formula="Σ q(i, d) k(j, d)",
        rows=example.tokens,
        columns=("score",),
        # One query at a time: the same operation, asked N times.
        numbers=torch.stack([scores(query[None], k_ND).T for query in q_ND]),
        source=sources.total(cell("score_products", "i", "m", "c"), q_ND.shape[1]),
    )
    return products, one_by_one


def _between(example: Example, made: Learned, found: Asked) -> Section:
    """The bilinear form W_Q W_K^T, and that it gives the scores."""
    widths, m, d = example.width_names, example.x_NM.shape[1], made.q.numbers.shape[1]
    form_MM = times(example.wq_MD, example.wk_MD.T)
    form = Matrix(
        id="form",
        title="W_Q W_Kᵀ",
        formula="Σ W_Q(a, d) W_K(b, d)",
        rows=widths,
        columns=widths,
        numbers=form_MM,
        source=sources.dot(cell("wq", "i", "m"), cell("wk", "j", "m"), d),
    )
    half = Matrix(
        id="x_form",
        title="X (W_Q W_Kᵀ)",
        formula="what each token looks for, in the words of X",
        rows=example.tokens,
        columns=widths,
        numbers=times(example.x_NM, form_MM),
        source=sources.dot(cell("x", "i", "m"), cell("form", "m", "j"), m),
    )
    whole = Matrix(
        id="form_scores",
        title="X (W_Q W_Kᵀ) Xᵀ",
        formula="xᵢ (W_Q W_Kᵀ) xⱼᵀ",
        rows=example.tokens,
        columns=example.tokens,
        numbers=scores(half.numbers, example.x_NM),
        source=sources.dot(cell("x_form", "i", "m"), cell("x", "j", "m"), m),
    )
    furthest = float((whole.numbers - found.raw.numbers).abs().max())
    a, b = divmod(int(form_MM.abs().argmax()), m)
    return Section(
        title="The same without Q and K: the form between the tokens",
        text=(
            "qᵢ · kⱼ = (xᵢ W_Q)(xⱼ W_K)ᵀ = xᵢ (W_Q W_Kᵀ) xⱼᵀ. One matrix stands between two tokens: its entry (a, b) says how"
            " much a query's number a wants a key's number b. With the identity in its place it is the crude X Xᵀ.",
        ),
        matrices=(form, half, whole),
        findings=(
            Finding(
                text=f"The largest entry, {shown(float(form_MM[a, b]))}: “{widths[a]}” in a query looks for “{widths[b]}”.",
                cells=[("form", a, b)],
            ),
            Finding(
                text=f"Both ways give the same scores; the furthest two are {_apart(furthest)} apart.",
                cells=[("form_scores", 0, 0), ("scores", 0, 0)],
            ),
        ),
    )


def _apart(number: float) -> str:
    return "0" if number == 0 else f"{number:.1g}"
