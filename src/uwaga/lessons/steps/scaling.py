"""Why scores are scaled by 1/sqrt(d_k): measured on random vectors. Letters: Q queries, K keys, D their width."""

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from uwaga._base.languages import cached, integer, significant, tr
from uwaga.lessons import provenance
from uwaga.lessons.compute import dense, matmul, scores
from uwaga.lessons.document import Chart, Illustration, LessonFinding, LessonStep, Section, shown
from uwaga.lessons.matrix import Matrix
from uwaga.maps.map import AttentionMap
from uwaga.ops.attention.api import attention

_WIDTHS = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
_QUERIES, _KEYS, _DRAWS = 256, 32, 16
_PAIRS, _DERIVED_WIDTH, _TABLE_WIDTH = 16_384, 64, 8


class _Softmax(NamedTuple):
    """Properties of a softmax over random scores, over all queries."""

    entropy: float  # mean, as a fraction of the largest possible, log K
    largest: float  # weight, mean
    gradient: float  # median norm of the gradient with respect to a query's scores


def step(seed: int) -> LessonStep:
    variance, softmax = _measured(seed)
    derivation = _derivation(seed)
    terms = derivation.matrices[0]
    return LessonStep(
        id="root",
        title=tr("Why √d_k"),
        text=(
            tr(
                "Let the numbers of queries and keys be random, with mean 0 and variance 1. Then q · k is a sum of d_k such"
                " products, and its variance is d_k. Here it is measured."
            ),
        ),
        pictures=(
            Illustration(
                kind="circles",
                title=tr("The variance of q · k as a table of its terms, E[qₚ kₚ qᵣ kᵣ]"),
                description=terms.note,
                matrices=(terms,),
            ),
        ),
        sections=(derivation, _variance(variance), _saturation(softmax), _gradients(softmax)),
        code="uwaga.attend(q, k, v, scale=1.0).map.entropy(normalize=True).mean()",
        head={
            "statistic": "peak",
            "sense": "largest",
            "why": tr("the head with the largest weights: a trained head can be saturated because that is useful"),
        },
    )


@cached(8)
def _derivation(seed: int) -> Section:
    """Each line of the derivation, and what is measured for it."""
    generator = torch.Generator().manual_seed(seed)
    q_QD, k_QD = (torch.randn(_PAIRS, _DERIVED_WIDTH, generator=generator) for _ in range(2))
    terms_QD = q_QD * k_QD
    dots_Q, table = terms_QD.sum(-1), _terms(terms_QD, seed)
    cross = (dots_Q.square() - terms_QD.square().sum(-1)).mean() / (_DERIVED_WIDTH * (_DERIVED_WIDTH - 1))
    lines = (
        (tr("mean of q k"), 0.0, terms_QD.mean()),
        (tr("variance of q k"), 1.0, terms_QD.var()),
        (tr("mean of (q₁ k₁)(q₂ k₂)"), 0.0, cross),
        (tr("variance of q · k, d_k = {d}", d=_DERIVED_WIDTH), float(_DERIVED_WIDTH), dots_Q.var()),
        (tr("variance of q · k / √{d}", d=_DERIVED_WIDTH), 1.0, (dots_Q / math.sqrt(_DERIVED_WIDTH)).var()),
    )
    matrix = Matrix(
        id="derived",
        title=tr("Derived and measured"),
        formula=tr(
            "over {pairs} pairs of random vectors of width {derived_width}",
            pairs=_PAIRS,
            derived_width=_DERIVED_WIDTH,
        ),
        rows=[name for name, _, _ in lines],
        columns=(tr("derived"), tr("measured")),
        numbers=torch.tensor([(expected, float(value)) for _, expected, value in lines]),
        source=provenance.by_column(
            (
                provenance.given(tr("What the line of the derivation says.")),
                provenance.given(
                    tr("Measured over {pairs} pairs of random vectors, seed {seed}.", pairs=_PAIRS, seed=str(seed))
                ),
            )
        ),
        shade="none",
        digits=4,
    )
    return Section(
        title=tr("Derived, line by line"),
        text=(
            tr("1. q and k are independent, with mean 0: E[q k] = E[q] E[k] = 0."),
            tr("2. Their variance is 1: Var(q k) = E[q² k²] = E[q²] E[k²] = 1 · 1 = 1."),
            tr(
                "3. Two different terms of the sum are independent: E[(q₁ k₁)(q₂ k₂)] = E[q₁] E[k₁] E[q₂] E[k₂] = 0. The cross"
                " terms vanish."
            ),
            tr(
                "4. Var(q · k) = E[(Σₚ qₚ kₚ)(Σᵣ qᵣ kᵣ)] = Σₚ Σᵣ E[qₚ kₚ qᵣ kᵣ]: a square table of d_k × d_k terms. On its"
                " diagonal, p = r, each is 1; elsewhere, p ≠ r, each is 0. So they sum to d_k."
            ),
            tr("5. Dividing by √d_k divides the variance by d_k: Var(q · k / √d_k) = d_k / d_k = 1."),
        ),
        matrices=(replace(table, note=_sum_of(table)), matrix),
        controls=("seed",),
    )


def _terms(terms_QD: Tensor, seed: int) -> Matrix:
    """Each term of the double sum over p and r, measured."""
    size = _TABLE_WIDTH
    some_QD = terms_QD[:, :size].contiguous()
    numbers = matmul(some_QD.T.contiguous(), some_QD) / len(some_QD)
    return Matrix(
        id="variance_terms",
        title=tr("E[qₚ kₚ qᵣ kᵣ], measured"),
        formula=tr("a row for p, a column for r, d_k = {size}", size=size),
        rows=[f"p = {p + 1}" for p in range(size)],
        columns=[f"r = {r + 1}" for r in range(size)],
        numbers=numbers,
        source=provenance.given(
            tr("Measured over {pairs} pairs of random vectors, seed {seed}.", pairs=f"{_PAIRS:,}", seed=seed)
        ),
    )


def _sum_of(table: Matrix) -> str:
    numbers = table.numbers
    diagonal, all = float(numbers.diagonal().sum()), float(numbers.sum())
    return tr(
        "Ones on the diagonal, zeros elsewhere: the diagonal sums to {diagonal}, the whole table to {all}, and d_k is {size}.",
        diagonal=shown(diagonal),
        all=shown(all),
        size=len(numbers),
    )


@cached(8)
def _measured(seed: int) -> tuple[Matrix, Matrix]:
    generator = torch.Generator().manual_seed(seed)
    variances, shapes = [], []
    for width in _WIDTHS:
        q_QD, k_KD = (torch.randn(n, width, generator=generator) for n in (_QUERIES, _KEYS))
        # The variance is measured on more keys: with few, the estimate has a large error.
        many_KD = torch.cat((k_KD, torch.randn(_QUERIES - _KEYS, width, generator=generator)))
        result = scores(q_QD, many_KD)
        variances.append((width, float(result.var()), float(result.var() / width)))
        value_RKE = torch.randn(_DRAWS, _KEYS, 1, generator=generator)
        unscaled, scaled = (_softmax(q_QD, k_KD, value_RKE, scale) for scale in (1.0, 1.0 / math.sqrt(width)))
        shapes.append((width, *(value for pair in zip(unscaled, scaled, strict=True) for value in pair)))
    say = tr(
        "Measured over {queries} pairs of random vectors, seed {seed}.", queries=_QUERIES * _QUERIES, seed=str(seed)
    )
    variance = Matrix(
        id="variance",
        title=tr("Variance of q · k"),
        formula=tr("mean over pairs of (q · k - mean)²"),
        rows=[f"d = {integer(width)}" for width in _WIDTHS],
        columns=("d_k", "Var(q · k)", "Var(q · k / √d_k)"),
        numbers=torch.tensor(variances),
        source=provenance.given(say),
        shade="none",
    )
    say = tr(
        "Measured over {queries} queries and {value} keys, seed {seed}. Entropy and largest weight are means over the"
        " queries; gradient is the median, of the length of autograd's gradient with respect to a query's scores, over"
        " {draws} draws of values.",
        queries=_QUERIES,
        value=_KEYS,
        seed=str(seed),
        draws=_DRAWS,
    )
    softmax = Matrix(
        id="saturation",
        title=tr("Softmax over {value} keys", value=_KEYS),
        formula=tr("over all queries"),
        rows=[f"d = {integer(width)}" for width in _WIDTHS],
        columns=(
            "d_k",
            tr("entropy"),
            tr("… scaled"),
            tr("largest weight"),
            tr("… scaled"),
            tr("gradient"),
            tr("… scaled"),
        ),
        numbers=torch.tensor(shapes),
        source=provenance.given(say),
        shade="none",
        digits=4,
    )
    return variance, softmax


def _softmax(q_QD: Tensor, k_KD: Tensor, value_RKE: Tensor, scale: float) -> _Softmax:
    """Measured with R draws of values, each one column wide, since the gradient of the output depends on the values."""
    m = AttentionMap(q_QD, k_KD, scale=scale)
    q_RQD, k_RKD = (x.expand(len(value_RKE), -1, -1) for x in (q_QD, k_KD))
    with torch.enable_grad():
        bias_RQK = torch.zeros(len(value_RKE), len(q_QD), len(k_KD), requires_grad=True)
        output = attention(q_RQD, k_RKD, value_RKE, scale=scale, bias=bias_RQK)
        assert isinstance(output, Tensor)
        (gradient_RQK,) = torch.autograd.grad(output.sum(), bias_RQK)
    entropy = m.entropy(normalize=True)
    assert isinstance(entropy, Tensor)
    size_Q = gradient_RQK.square().sum(-1).mean(0).sqrt()
    # The median: at any width a few queries have two keys of equal score, and a large gradient; the others saturate.
    return _Softmax(float(entropy.mean()), float(dense(m).amax(-1).mean()), float(size_Q.median()))


def _variance(matrix: Matrix) -> Section:
    first, last = matrix.numbers[0].tolist(), matrix.numbers[-1].tolist()
    text = tr(
        "At d_k = {first} the variance is {first2}, at {last} it is {last2}: it grows as d_k does. Divided by √d_k it"
        " stays near 1: {first3} and {last3}.",
        first=int(first[0]),
        first2=shown(first[1]),
        last=int(last[0]),
        last2=integer(last[1]),
        first3=shown(first[2]),
        last3=shown(last[2]),
    )
    chart = Chart(
        title=tr("Variance of q · k by d_k"),
        matrix=matrix.id,
        lines=(1, 2),
        description=text,
        x_title="d_k",
        y_title=tr("variance"),
        log_x=True,
        log_y=True,
    )
    return _section(tr("The variance grows with d_k"), matrix, chart, text, ((0, 1), (-1, 1), (-1, 2)))


def _saturation(matrix: Matrix) -> Section:
    last = matrix.numbers[-1].tolist()
    text = tr(
        "Without scaling, at d_k = {last} the largest of {value} weights is {last2} on average: softmax is almost a"
        " maximum. With scaling it is {last3}. The entropy, as a fraction of the largest possible, is {last4} without and"
        " {last5} with.",
        last=int(last[0]),
        value=_KEYS,
        last2=shown(last[3]),
        last3=shown(last[4]),
        last4=shown(last[1]),
        last5=shown(last[2]),
    )
    chart = Chart(
        title=tr("Entropy and largest weight by d_k"),
        matrix=matrix.id,
        lines=(1, 2, 3, 4),
        description=text,
        x_title="d_k",
        y_title=tr("share"),
        log_x=True,
    )
    return _section(tr("Softmax saturates"), matrix, chart, text, ((-1, 1), (-1, 2), (-1, 3), (-1, 4)))


def _gradients(matrix: Matrix) -> Section:
    last = matrix.numbers[-1].tolist()
    ratio = last[6] / last[5] if last[5] > 0 else math.inf
    text = tr(
        "The gradient through a saturated softmax vanishes: its derivative is a (1 - a), and a is 0 or 1. At d_k ="
        " {last} the median gradient is {last2} without scaling and {last3} with it: {ratio} times as large.",
        last=int(last[0]),
        last2=shown(last[5]),
        last3=shown(last[6]),
        ratio=_times(ratio),
    )
    chart = Chart(
        title=tr("Gradient with respect to a score, by d_k"),
        matrix=matrix.id,
        lines=(5, 6),
        description=text,
        x_title="d_k",
        y_title=tr("median size"),
        log_x=True,
        log_y=True,
    )
    return _section(tr("Gradients vanish"), None, chart, text, ((-1, 5), (-1, 6)))


def _section(title: str, matrix: Matrix | None, chart: Chart, text: str, cells: tuple[tuple[int, int], ...]) -> Section:
    """A chart with its table; None where a section before has it."""
    last = len(_WIDTHS) - 1
    marked = [(chart.matrix, last if row < 0 else row, column) for row, column in cells]
    return Section(
        title=title,
        matrices=() if matrix is None else (matrix,),
        charts=(chart,),
        findings=(LessonFinding(text=text, cells=marked),),
    )


def _times(ratio: float) -> str:
    return integer(ratio) if ratio < 1e6 else significant(ratio, 1)
