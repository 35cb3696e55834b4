"""Why scores are scaled by 1/sqrt(d_k): measured on random vectors. Letters: Q queries, K keys, D their width."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from uwaga._base.languages import decimal, integer, significant
from uwaga.lessons.compute import attention, dense, scores
from uwaga.lessons.document import LessonStep, Section, shown
from uwaga.lessons.matrix import Matrix, by_columns, made
from uwaga.lessons.page import Page
from uwaga.lessons.question import question, ranges
from uwaga.maps.map import AttentionMap

_WIDTHS = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
_QUERIES, _KEYS, _DRAWS = 256, 32, 16
_PAIRS, _DERIVED_WIDTH, _TABLE_WIDTH = 16_384, 64, 8


def root(page: Page) -> LessonStep:
    variances, saturation = measured(page.example.seed)
    terms, derived = _derivation(page)
    rule = page.stated("variance_given", queries=_QUERIES * _QUERIES, seed=str(page.example.seed))
    rows = [f"d = {integer(width)}" for width in _WIDTHS]
    names = ("d_k", "Var(q · k)", "Var(q · k / √d_k)")
    variance = page.matrix("variance", made(variances, rows, names, rule, shade="none"))
    rule = page.stated("saturation_given", queries=_QUERIES, value=_KEYS, seed=str(page.example.seed), draws=_DRAWS)
    columns = ("d_k", *page.texts("saturation_columns"))
    softmax = made(saturation, rows, columns, rule, shade="none", digits=4)
    softmax = page.matrix("saturation", softmax, value=_KEYS)
    width, largest = saturation[-1, [0, 3]].tolist()
    choices, right = ranges(page, largest, 0.2, 0.6, lambda share: decimal(share, 1))
    return page.step(
        page.section("derivation", terms, derived, controls=("seed",)),
        _variance(page, variance),
        *_softmax(page, softmax),
        pictures=(page.picture("circles", "terms", terms, description=terms.note),),
        question=question(
            page,
            ("saturation",),
            (("saturation", len(_WIDTHS) - 1, 3),),
            choices,
            right,
            asks={"measured": int(width)},
            why={"measured": shown(largest)},
            ordered=True,
        ),
        code="uwaga.attend(q, k, v, scale=1.0).map.entropy(normalize=True).mean()",
        head={"statistic": "peak", "sense": "largest", "why": page.text("why_head")},
    )


class _Derived(NamedTuple):
    terms: Tensor  # each term of the double sum over p and r, measured
    lines: tuple[float, ...]  # what is measured for each line of the derivation


@functools.lru_cache(maxsize=8)
def _derived(seed: int) -> _Derived:
    generator = torch.Generator().manual_seed(seed)
    q_QD, k_QD = (torch.randn(_PAIRS, _DERIVED_WIDTH, generator=generator) for _ in range(2))
    terms_QD = q_QD * k_QD
    dots_Q, some_DQ = terms_QD.sum(-1), terms_QD[:, :_TABLE_WIDTH].T.contiguous()
    cross = (dots_Q.square() - terms_QD.square().sum(-1)).mean() / (_DERIVED_WIDTH * (_DERIVED_WIDTH - 1))
    scaled_Q = dots_Q / math.sqrt(_DERIVED_WIDTH)
    lines = (terms_QD.mean(), terms_QD.var(), cross, dots_Q.var(), scaled_Q.var())
    return _Derived(scores(some_DQ, some_DQ) / _PAIRS, tuple(map(float, lines)))


def _derivation(page: Page) -> tuple[Matrix, Matrix]:
    """Return the table of the terms, and each line of the derivation next to what is measured for it."""
    seed, size = page.example.seed, _TABLE_WIDTH
    terms, lines = _derived(seed)
    table = made(
        terms,
        [f"p = {p + 1}" for p in range(size)],
        [f"r = {r + 1}" for r in range(size)],
        page.stated("pairs_given", pairs=f"{_PAIRS:,}", seed=seed),
    )
    diagonal, total = float(terms.diagonal().sum()), float(terms.sum())
    note = page.text("terms_sum", diagonal=shown(diagonal), all=shown(total), size=size)
    expected = (0.0, 1.0, 0.0, float(_DERIVED_WIDTH), 1.0)
    derived = made(
        torch.tensor(list(zip(expected, lines, strict=True))),
        page.texts("lines", d=_DERIVED_WIDTH),
        page.texts("derived_columns"),
        by_columns((page.stated("derived_given"), page.stated("pairs_given", pairs=_PAIRS, seed=str(seed)))),
        shade="none",
        digits=4,
    )
    return (
        page.matrix("variance_terms", table, note=note, size=size),
        page.matrix("derived", derived, pairs=_PAIRS, derived_width=_DERIVED_WIDTH),
    )


@functools.lru_cache(maxsize=8)
def measured(seed: int) -> tuple[Tensor, Tensor]:
    """Measure random vectors of each width. Returns the variance of scores, not scaled and scaled; and entropy, largest
    weight and gradient of softmax, each of both."""
    generator = torch.Generator().manual_seed(seed)
    variances, softmax = [], []
    for width in _WIDTHS:
        q_QD, k_KD = (torch.randn(n, width, generator=generator) for n in (_QUERIES, _KEYS))
        # The variance is measured on more keys: with few, the estimate has a large error.
        many_KD = torch.cat((k_KD, torch.randn(_QUERIES - _KEYS, width, generator=generator)))
        result = scores(q_QD, many_KD)
        variances.append((width, float(result.var()), float(result.var() / width)))
        value_RKE = torch.randn(_DRAWS, _KEYS, 1, generator=generator)
        both = (_softmax_of(q_QD, k_KD, value_RKE, scale) for scale in (1.0, 1.0 / math.sqrt(width)))
        softmax.append((width, *(value for pair in zip(*both, strict=True) for value in pair)))
    return torch.tensor(variances), torch.tensor(softmax)


def _softmax_of(q_QD: Tensor, k_KD: Tensor, value_RKE: Tensor, scale: float) -> tuple[float, float, float]:
    """Return mean entropy, mean largest weight and median gradient of softmax. The entropy is a fraction of the largest
    possible. The gradient is with respect to a query's scores, with R draws of values, each one column wide, since it
    depends on the values."""
    m = AttentionMap(q_QD, k_KD, scale=scale)
    q_RQD, k_RKD = (x.expand(len(value_RKE), -1, -1) for x in (q_QD, k_KD))
    with torch.enable_grad():
        bias_RQK = torch.zeros(len(value_RKE), len(q_QD), len(k_KD), requires_grad=True)
        output = attention(q_RQD, k_RKD, value_RKE, scale=scale, bias=bias_RQK)
        (gradient_RQK,) = torch.autograd.grad(output.sum(), bias_RQK)
    entropy = m.entropy(normalize=True)
    assert isinstance(entropy, Tensor)
    size_Q = gradient_RQK.square().sum(-1).mean(0).sqrt()
    # The median: at any width a few queries have two keys of equal score, and a large gradient; the others saturate.
    return float(entropy.mean()), float(dense(m).amax(-1).mean()), float(size_Q.median())


def _variance(page: Page, matrix: Matrix) -> Section:
    first, last = matrix.numbers[0].tolist(), matrix.numbers[-1].tolist()
    values = {
        "first": int(first[0]),
        "first2": shown(first[1]),
        "last": int(last[0]),
        "last2": integer(last[1]),
        "first3": shown(first[2]),
        "last3": shown(last[2]),
    }
    return _charted(page, "grows", "variance", (matrix,), (1, 2), ((0, 1), (-1, 1), (-1, 2)), values, log_y=True)


def _softmax(page: Page, matrix: Matrix) -> tuple[Section, Section]:
    last = matrix.numbers[-1].tolist()
    values: dict[str, Any] = {f"last{n}": shown(last[column]) for n, column in ((2, 3), (3, 4), (4, 1), (5, 2))}
    values |= {"last": int(last[0]), "value": _KEYS}
    saturates = _charted(
        page, "saturates", "saturation", (matrix,), (1, 2, 3, 4), ((-1, 1), (-1, 2), (-1, 3), (-1, 4)), values
    )
    ratio = last[6] / last[5] if last[5] > 0 else math.inf
    values = {"last": int(last[0]), "last2": shown(last[5]), "last3": shown(last[6])}
    values["ratio"] = integer(ratio) if ratio < 1e6 else significant(ratio, 1)
    return saturates, _charted(page, "vanish", "saturation", (), (5, 6), ((-1, 5), (-1, 6)), values, log_y=True)


def _charted(
    page: Page,
    key: str,
    id: str,
    matrices: Sequence[Matrix],
    lines: Sequence[int],
    cells: Sequence[tuple[int, int]],
    values: dict[str, Any],
    *,
    log_y: bool = False,
) -> Section:
    """Return a section with a chart of a matrix by d_k and a sentence about it. matrices: its table, unless a section
    before has it."""
    last = len(_WIDTHS) - 1
    finding = page.finding(
        f"{key}_finding", [(id, last if row < 0 else row, column) for row, column in cells], **values
    )
    chart = page.chart(f"{key}_chart", id, lines, finding, "d_k", page.text(f"{key}_axis"), log_x=True, log_y=log_y)
    return page.section(key, *matrices, charts=(chart,), findings=(finding,))
