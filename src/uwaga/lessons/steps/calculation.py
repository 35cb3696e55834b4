"""The six steps of the calculation: Q, K and V; scores; 1/sqrt(d_k); softmax; weighted values; their sum.

Letters: N tokens, M width of a token's vector, D width of queries and keys, E of values.
"""

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from uwaga._base.languages import significant, tr
from uwaga.lessons import provenance
from uwaga.lessons.compute import OneHead, dense, layer_of, matmul, scores, trace_layer
from uwaga.lessons.document import Illustration, LessonFinding, LessonStep, Matrix, Section, shown
from uwaga.lessons.example import Example, numbered
from uwaga.lessons.provenance import cell
from uwaga.maps.attended import Attended, attend
from uwaga.ops.attention.api import attention


class Projected(NamedTuple):
    """The learned matrices, and the projections of X by them."""

    wq: Matrix
    wk: Matrix
    wv: Matrix
    q: Matrix
    k: Matrix
    v: Matrix


def project(example: Example, head: OneHead) -> Projected:
    q, k, v = head.q_ND, head.k_ND, head.v_NE
    return Projected(
        _weight(example, "wq", "W_Q", example.wq_MD, "q"),
        _weight(example, "wk", "W_K", example.wk_MD, "k"),
        _weight(example, "wv", "W_V", example.wv_ME, "v"),
        _projection(example, "q", tr("Q, what each token looks for"), q, "wq"),
        _projection(example, "k", tr("K, what each token can be found by"), k, "wk"),
        _projection(example, "v", tr("V, what each token gives"), v, "wv"),
    )


def projection_step(example: Example, x: Matrix, projected: Projected) -> LessonStep:
    return LessonStep(
        id="vectors",
        title=tr("Three roles: Q, K and V"),
        number=tr("{place} of {count}", place=1, count=6),
        text=(
            tr(
                "In self-attention a token plays three roles: it looks for something (query), it can be found by something"
                " (key), and it gives something (value). Three matrices project its embedding into other spaces: one X, three"
                " uses, Q = X W_Q, K = X W_K and V = X W_V."
            ),
            tr("In a trained model they are learned; here they are chosen so that the calculation is easy to follow."),
        ),
        told=(
            tr(
                "Books write the same by columns: E(w) is the embedding of word w as a column, and W, turned on its side, is"
                " {d} × {m}, so that W E(w) is {d} × {m} · {m} × 1 = {d} × 1. It is one column of (X W)ᵀ.",
                d=example.wq_MD.shape[1],
                m=example.x_NM.shape[1],
            ),
        ),
        pictures=(
            Illustration(
                kind="rows",
                title=tr("One word in its three roles"),
                matrices=(x, projected.q, projected.k, projected.v),
                labels=("X", "Q", "K", "V"),
            ),
        ),
        sections=(
            _widths(example),
            Section(title=tr("The input"), matrices=(x,)),
            Section(title=tr("Three matrices"), matrices=(projected.wq, projected.wk, projected.wv)),
            Section(
                title=tr("All tokens at once: X W"),
                form="matrix",
                matrices=(projected.q, projected.k, projected.v),
                text=(tr("One product of matrices gives the queries of all tokens, one the keys, one the values."),),
            ),
            Section(
                title=tr("Token by token: xᵢ W_Q"),
                form="token",
                matrices=(_projection_products(example, projected),),
                text=(tr("Each number of the token scales its row of W_Q; down each column the products sum to qᵢ."),),
            ),
        ),
        code="q, k, v = layer.project(X, X, X)     # uwaga.nn.MultiHeadAttention",
    )


def _weight(example: Example, id: str, title: str, numbers: Tensor, letter: str) -> Matrix:
    return Matrix(
        id=id,
        title=title,
        formula=tr("chosen, not learned"),
        rows=example.width_names,
        columns=numbered(letter, numbers.shape[1]),
        numbers=numbers,
        source=provenance.typed(),
        field=id,
    )


def _projection(example: Example, id: str, title: str, numbers: Tensor, weight: str) -> Matrix:
    return Matrix(
        id=id,
        title=title,
        formula=f"{id.upper()} = X W_{id.upper()}",
        rows=example.tokens,
        columns=numbered(id, numbers.shape[1]),
        numbers=numbers,
        source=provenance.dot(cell("x", "i", "m"), cell(weight, "m", "j"), example.x_NM.shape[1]),
    )


def _widths(example: Example) -> Section:
    """Why queries and keys have one width, and values may have another: the product that cannot be formed."""
    n, d, e = len(example.tokens), example.wq_MD.shape[1], example.wv_ME.shape[1]
    other = d + 1
    try:
        attention(torch.zeros(n, d), torch.zeros(n, other), torch.zeros(n, e))
        raise AssertionError("operands of different widths were accepted")
    except ValueError as error:
        said = str(error).partition("\n")[0]
    return Section(
        title=tr("Two widths that must agree, and one that need not"),
        told=True,
        text=(
            tr(
                "Every number of a query meets one of a key, so W_Q and W_K have the same width d_k = {d}. With keys of length"
                " {other} the product could not be formed: {n}×{d} · {other}×{n}. uwaga.attention says: {said}",
                d=d,
                other=other,
                n=n,
                said=said,
            ),
            tr(
                "A value meets no query: its weight is one number and multiplies the whole vector, so d_v is free:"
                " {n}×{n} · {n}×{e} = {n}×{e}.",
                n=n,
                e=e,
            ),
        ),
        pictures=(
            Illustration(kind="shapes", title=tr("Fits"), labels=("Q", "Kᵀ", "Q Kᵀ"), sizes=((n, d), (d, n), (n, n))),
            Illustration(
                kind="shapes", title=tr("Does not fit"), labels=("Q", "Kᵀ", ""), sizes=((n, d), (other, n), (0, 0))
            ),
            Illustration(kind="shapes", title=tr("Fits"), labels=("A", "V", "A V"), sizes=((n, n), (n, e), (n, e))),
        ),
    )


def _projection_products(example: Example, projected: Projected) -> Matrix:
    return Matrix(
        id="q_products",
        title=tr("Products of xᵢ and W_Q"),
        formula="x(i, m) W_Q(m, d)",
        rows=example.width_names,
        columns=projected.q.columns,
        numbers=example.x_NM[:, :, None] * example.wq_MD,
        source=provenance.product(cell("x", "c", "i"), cell("wq", "i", "j")),
    )


class Scored(NamedTuple):
    """Scores and weights, from raw to normalised."""

    raw: Matrix
    scaled: Matrix
    exponentials: Matrix
    weights: Matrix


def score(example: Example, head: OneHead) -> Scored:
    tokens, n, d = example.tokens, len(example.tokens), head.q_ND.shape[1]
    scaled_NN = head.scores_NN * head.scale
    exponentials_NN = (scaled_NN - scaled_NN.amax(-1, keepdim=True)).exp()
    say = f"1/√{d}" if example.scaled else "1"
    return Scored(
        raw=Matrix(
            id="scores",
            title=tr("Scores Q Kᵀ"),
            formula="s(i, j) = qᵢ · kⱼ",
            rows=tokens,
            columns=tokens,
            numbers=head.scores_NN,
            source=provenance.dot(cell("q", "i", "m"), cell("k", "j", "m"), d),
        ),
        scaled=Matrix(
            id="scaled",
            title=tr("Scores, scaled") if example.scaled else tr("Scores, not scaled"),
            formula=f"s(i, j) · {say}",
            rows=tokens,
            columns=tokens,
            numbers=scaled_NN,
            source=provenance.scaled(cell("scores", "i", "j"), head.scale, say),
        ),
        exponentials=Matrix(
            id="exponentials",
            title=tr("Exponentials"),
            formula=tr("exp(s(i, j) - the row's largest)"),
            rows=tokens,
            columns=tokens,
            numbers=exponentials_NN,
            source=provenance.exponential(cell("scaled", "i", "j"), cell("scaled", "i", "m"), n),
            shade="share",
            note=tr("Subtracting the largest changes no weight, and prevents overflow of exp."),
        ),
        weights=Matrix(
            id="weights",
            title=tr("Weights A"),
            formula="a(i, j) = exp(s(i, j)) / Σⱼ exp(s(i, j))",
            rows=tokens,
            columns=tokens,
            numbers=head.weights_NN,
            source=provenance.share(cell("exponentials", "i", "j"), cell("exponentials", "i", "m"), n),
            shade="share",
        ),
    )


def scores_step(example: Example, projected: Projected, scored: Scored) -> LessonStep:
    return LessonStep(
        id="scores",
        title=tr("Scores: Q Kᵀ"),
        number=tr("{place} of {count}", place=2, count=6),
        text=(
            tr(
                "Every query is compared with every key: their dot product, the sum of the products of their numbers, is their score."
            ),
        ),
        told=(
            _roles(example, scored),
            tr(
                "As matrices: Scores[i, :] = qᵢ Kᵀ is 1×{d} · {d}×{n} = 1×{n}, and Kᵀ[:, j] is the key of token j.",
                d=projected.q.numbers.shape[1],
                n=len(example.tokens),
            ),
        ),
        pictures=(_arcs(tr("What a word looks for"), scored.raw),),
        sections=(
            Section(title=tr("All at once: Q Kᵀ"), form="matrix", matrices=(projected.q, projected.k, scored.raw)),
            Section(
                title=tr("Token by token: qᵢ · kⱼ"),
                form="token",
                matrices=_score_products(example, projected, scored),
                text=(tr("The products of one query with every key; along each row they sum to its score."),),
            ),
            _bilinear_form(example, projected, scored),
        ),
        code="uwaga.attention(q, k, torch.eye(len(k)), scale=1.0, normalize=None)",
    )


def _roles(example: Example, scored: Scored) -> str:
    """Whether the scores of these numbers are symmetric."""
    scores_NN = scored.raw.numbers
    apart_NN = (scores_NN - scores_NN.T).abs()
    i, j = divmod(int(apart_NN.argmax()), len(scores_NN))
    there, back = shown(float(scores_NN[i, j])), shown(float(scores_NN[j, i]))
    if there == back:
        return tr(
            "A token looks for something by its query and is found by its key. So the table need not be symmetric; with these numbers"
            " it is."
        )
    a, b = example.tokens[i], example.tokens[j]
    return tr(
        "A token looks for something by its query and is found by its key: the table is no longer symmetric. “{a}” has a score of"
        " {there} with “{b}”, and “{b}” one of {back} with “{a}”.",
        a=a,
        b=b,
        there=there,
        back=back,
    )


def scale_step(example: Example, head: OneHead, scored: Scored) -> LessonStep:
    d = head.q_ND.shape[1]
    if example.scaled:
        text = tr(
            "Queries and keys have length {d} here, so each score is divided by √{d} = {d2}.",
            d=d,
            d2=shown(math.sqrt(d)),
        )
    else:
        text = tr("Scaling is switched off: scores stay as they are, which is scale=1.0.")
    return LessonStep(
        id="scale",
        title=tr("Scale: 1/√d_k") if example.scaled else tr("Scale: none"),
        number=tr("{place} of {count}", place=3, count=6),
        text=(tr("The wider queries and keys are, the larger their products grow. “Why √d_k” measures it."),),
        told=(text,),
        pictures=(
            Illustration(
                kind="rows",
                title=tr("The scores of a word"),
                matrices=(scored.raw, scored.scaled),
                labels=("Q Kᵀ", f"Q Kᵀ / √{d}" if example.scaled else "Q Kᵀ"),
            ),
        ),
        sections=(Section(title="", matrices=(scored.raw, scored.scaled), controls=("scaled",)),),
        code="uwaga.attention(q, k, torch.eye(len(k))"
        + (", normalize=None)     # the default is scale=1/√d_k" if example.scaled else ", scale=1.0, normalize=None)"),
    )


def softmax_step(example: Example, scored: Scored) -> LessonStep:
    weights_NN = scored.weights.numbers
    i = int(weights_NN.amax(-1).argmax())
    j = int(weights_NN[i].argmax())
    sums = ", ".join(shown(number) for number in weights_NN.sum(-1).tolist())
    return LessonStep(
        id="softmax",
        title=tr("Softmax: scores to shares"),
        number=tr("{place} of {count}", place=4, count=6),
        text=(
            tr(
                "exp makes every score positive and increases their differences; divided by its row's sum, each is a share of 1."
            ),
        ),
        pictures=(_arcs(tr("The shares of a word"), scored.weights),),
        sections=(
            Section(title=tr("All at once"), matrices=(scored.scaled, scored.exponentials, scored.weights)),
            Section(
                title=tr("What has changed"),
                findings=(
                    LessonFinding(
                        text=tr("Every row sums to 1 now: {sums}.", sums=sums),
                        cells=[("weights", row, c) for row in range(len(weights_NN)) for c in range(len(weights_NN))],
                    ),
                    _still_long(example),
                    LessonFinding(
                        text=tr(
                            "The largest share: “{tokens}” gives “{tokens2}” {weights} of its attention.",
                            tokens=example.tokens[i],
                            tokens2=example.tokens[j],
                            weights=shown(float(weights_NN[i, j])),
                        ),
                        cells=[("weights", i, j)],
                    ),
                ),
            ),
        ),
        code=f"uwaga.attend(q, k, v{example.scale_argument}).map.to_dense()",
    )


def _still_long(example: Example) -> LessonFinding:
    """What softmax does not remove: the weights on the longest vector as it is, and four times as long."""
    j, before_N, after_N = longer(example)
    return LessonFinding(
        text=tr(
            "Long vectors still dominate. “{token}” has the weights {before}; four times as long it has {after}.",
            token=example.tokens[j],
            before=", ".join(map(shown, before_N.tolist())),
            after=", ".join(map(shown, after_N.tolist())),
        ),
        cells=[("weights", i, j) for i in range(len(example.tokens))],
    )


def longer(example: Example, times: float = 4.0) -> tuple[int, Tensor, Tensor]:
    """The token of the longest vector, all weights on it, and all weights on it with its vector several times as long."""
    j = int(example.x_NM.norm(dim=-1).argmax())
    x_NM = example.x_NM.clone()
    x_NM[j] *= times
    before_NN, after_NN = (
        dense(trace.map) for trace in map(functools.partial(_attended, example), (example.x_NM, x_NM))
    )
    return j, before_NN[:, j], after_NN[:, j]


def _attended(example: Example, x_NM: Tensor) -> Attended:
    trace = trace_layer(layer_of(example, heads=1), x_NM)
    q_ND, k_ND, v_NE = trace.query_HND[0], trace.key_HND[0], trace.value_HNE[0]
    return attend(q_ND, k_ND, v_NE, scale=None if example.scaled else 1.0)


def _score_products(example: Example, projected: Projected, scored: Scored) -> tuple[Matrix, Matrix]:
    q_ND, k_ND = projected.q.numbers, projected.k.numbers
    products = Matrix(
        id="score_products",
        title=tr("Products of qᵢ with every key"),
        formula="q(i, d) k(j, d)",
        rows=example.tokens,
        columns=[f"{q}·{k}" for q, k in zip(projected.q.columns, projected.k.columns, strict=True)],
        numbers=q_ND[:, None] * k_ND,
        source=provenance.product(cell("q", "c", "j"), cell("k", "i", "j")),
    )
    one_by_one = Matrix(
        id="score_sums",
        title=tr("Their sums"),
        formula="Σ q(i, d) k(j, d)",
        rows=example.tokens,
        columns=(tr("score"),),
        # One query at a time: the same operation, called N times.
        numbers=torch.stack([scores(query[None], k_ND).T for query in q_ND]),
        source=provenance.total(cell("score_products", "i", "m", "c"), q_ND.shape[1]),
    )
    return products, one_by_one


def _bilinear_form(example: Example, projected: Projected, scored: Scored) -> Section:
    """The bilinear form W_Q W_K^T, which gives the scores without Q and K."""
    widths, m, d = example.width_names, example.x_NM.shape[1], projected.q.numbers.shape[1]
    form_MM = matmul(example.wq_MD, example.wk_MD.T)
    form = Matrix(
        id="form",
        title="W_Q W_Kᵀ",
        formula="Σ W_Q(a, d) W_K(b, d)",
        rows=widths,
        columns=widths,
        numbers=form_MM,
        source=provenance.dot(cell("wq", "i", "m"), cell("wk", "j", "m"), d),
    )
    half = Matrix(
        id="x_form",
        title="X (W_Q W_Kᵀ)",
        formula=tr("what each token looks for, in the columns of X"),
        rows=example.tokens,
        columns=widths,
        numbers=matmul(example.x_NM, form_MM),
        source=provenance.dot(cell("x", "i", "m"), cell("form", "m", "j"), m),
    )
    whole = Matrix(
        id="form_scores",
        title="X (W_Q W_Kᵀ) Xᵀ",
        formula="xᵢ (W_Q W_Kᵀ) xⱼᵀ",
        rows=example.tokens,
        columns=example.tokens,
        numbers=scores(half.numbers, example.x_NM),
        source=provenance.dot(cell("x_form", "i", "m"), cell("x", "j", "m"), m),
    )
    furthest = float((whole.numbers - scored.raw.numbers).abs().max())
    a, b = divmod(int(form_MM.abs().argmax()), m)
    return Section(
        title=tr("The same without Q and K: the bilinear form W_Q W_Kᵀ"),
        folded=True,
        text=(
            tr(
                "qᵢ · kⱼ = (xᵢ W_Q)(xⱼ W_K)ᵀ = xᵢ (W_Q W_Kᵀ) xⱼᵀ. The score is a bilinear form of the two tokens: entry (a, b)"
                " of its matrix is the weight of the product of the query token's number a and the key token's number b. With the"
                " identity it is X Xᵀ."
            ),
        ),
        matrices=(form, half, whole),
        findings=(
            LessonFinding(
                text=tr(
                    "Largest entry: {form}. A token with “{widths}” looks for “{widths2}”.",
                    form=shown(float(form_MM[a, b])),
                    widths=widths[a],
                    widths2=widths[b],
                ),
                cells=[("form", a, b)],
            ),
            LessonFinding(
                text=tr(
                    "Both ways give the same scores; the largest difference is {furthest}.", furthest=_apart(furthest)
                ),
                cells=[("form_scores", 0, 0), ("scores", 0, 0)],
            ),
        ),
    )


def _arcs(title: str, matrix: Matrix) -> Illustration:
    return Illustration(kind="arcs", title=title, matrices=(matrix,))


def _apart(number: float) -> str:
    return significant(number, 1)


class Mixed(NamedTuple):
    """The weighted values, and their sums, for all queries at once and one by one."""

    weighted: Matrix
    output: Matrix
    one_by_one: Matrix


def mix(example: Example, head: OneHead, projected: Projected) -> Mixed:
    n, columns = len(example.tokens), projected.v.columns
    return Mixed(
        weighted=Matrix(
            id="weighted",
            title=tr("Values by their weights, for one query"),
            formula="a(i, j) vⱼ",
            rows=example.tokens,
            columns=columns,
            numbers=head.weights_NN[:, :, None] * head.v_NE,
            source=provenance.product(cell("weights", "c", "i"), cell("v", "i", "j")),
        ),
        output=Matrix(
            id="output",
            title=tr("Output Z = A V"),
            formula="zᵢ = Σⱼ a(i, j) vⱼ",
            rows=example.tokens,
            columns=columns,
            numbers=head.output_NE,
            source=provenance.dot(cell("weights", "i", "m"), cell("v", "m", "j"), n),
        ),
        one_by_one=Matrix(
            id="output_token",
            title=tr("The sum, for one query"),
            formula="Σⱼ a(i, j) vⱼ",
            rows=(tr("sum"),),
            columns=columns,
            numbers=torch.stack([_attend_one(query[None], head) for query in head.q_ND]),
            source=provenance.total(cell("weighted", "m", "j", "c"), n),
        ),
    )


def weighting_step(scored: Scored, projected: Projected, mixed: Mixed) -> LessonStep:
    return LessonStep(
        id="weighted",
        title=tr("Weigh the values"),
        number=tr("{place} of {count}", place=5, count=6),
        text=(
            tr(
                "Each value is multiplied by the query's weight on its token. A weight is one number, and multiplies the whole"
                " vector: it says how much of the token counts, not which part of it."
            ),
        ),
        pictures=(_arcs(tr("The shares of a word"), scored.weights),),
        sections=(
            Section(title=tr("All at once"), form="matrix", matrices=(scored.weights, projected.v)),
            Section(title=tr("Token by token: a(i, j) vⱼ"), form="token", matrices=(mixed.weighted,)),
        ),
        code="weights[i, :, None] * v",
    )


def sum_step(example: Example, scored: Scored, projected: Projected, mixed: Mixed) -> LessonStep:
    furthest = float((mixed.output.numbers - mixed.one_by_one.numbers[:, 0]).abs().max())
    agree = (
        tr("Computed for all queries at once and for one query at a time, the outputs agree to the last bit.")
        if furthest == 0
        else tr(
            "Computed for all queries at once and for one query at a time, the outputs agree up to rounding, {apart}.",
            apart=significant(furthest, 1),
        )
    )
    return LessonStep(
        id="sum",
        title=tr("Sum: the output of each token"),
        number=tr("{place} of {count}", place=6, count=6),
        text=(
            tr(
                "Summed, the weighted values are the query's output. The whole calculation: {formula}.",
                formula=f"attention(Q, K, V) = softmax(Q Kᵀ{'/√d_k' if example.scaled else ''}) V",
            ),
        ),
        pictures=(
            Illustration(
                kind="rows",
                title=tr("The weights of a word, and its output"),
                matrices=(scored.weights, mixed.output),
                labels=("A", "Z = A V"),
            ),
        ),
        sections=(
            Section(title=tr("All at once: A V"), form="matrix", matrices=(scored.weights, projected.v, mixed.output)),
            Section(
                title=tr("Token by token"),
                form="token",
                matrices=(mixed.weighted, mixed.one_by_one),
                text=(
                    tr(
                        "One query: its weights times V, 1×{n} · {n}×{e} = 1×{e}.",
                        n=len(scored.weights.rows),
                        e=len(projected.v.columns),
                    ),
                ),
            ),
            Section(
                title=tr("Both are one calculation"),
                findings=(
                    LessonFinding(
                        text=agree,
                        cells=[
                            ("output", i, c)
                            for i in range(len(scored.weights.rows))
                            for c in range(len(projected.v.columns))
                        ],
                    ),
                ),
            ),
        ),
        code=f"uwaga.attention(q, k, v{example.scale_argument})",
    )


def _attend_one(query_1D: Tensor, head: OneHead) -> Tensor:
    output = attention(query_1D, head.k_ND, head.v_NE, scale=head.scale)
    assert isinstance(output, Tensor)
    return output
