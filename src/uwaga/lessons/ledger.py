"""The thread of the lesson: what is wrong with crude attention, measured, and measured again after each remedy.

Each function gives a problem as it stands at the step of the page. Letters: N tokens, M width of a token's vector.
"""

from collections.abc import Callable

from torch import Tensor

from uwaga.lessons.compute import at_largest, attended, layer_of, projected, scores
from uwaga.lessons.document import Problem, shown
from uwaga.lessons.example import Example
from uwaga.lessons.page import Page

_TIMES = 4.0  # that the longest vector is made longer


def longest(example: Example) -> tuple[int, Tensor, Tensor]:
    """Return the token of the longest vector, X, and X with this vector several times as long."""
    j = int(example.x_NM.norm(dim=-1).argmax())
    longer_NM = example.x_NM.clone()
    longer_NM[j] *= _TIMES
    return j, example.x_NM, longer_NM


def weights_on(example: Example, j: int, x_NM: Tensor) -> Tensor:
    """Return the weights (N,) of all tokens on token j, with one head."""
    return attended(*projected(layer_of(example, heads=1), x_NM), example.scale)[1][:, j]


def long_by_scores(page: Page) -> Problem:
    def share(j: int, x_NM: Tensor) -> float:
        sizes_NN = scores(x_NM, x_NM).abs()
        return float((sizes_NN[:, j] / sizes_NN.sum(-1).clamp(min=1e-30)).mean())

    return _long(page, share)


def long_by_weights(page: Page, norm: Callable[[Tensor], Tensor] | None = None) -> Problem:
    """Measure how much weight the longest vector gets. norm: the remedy that X goes through first."""

    def weight(j: int, x_NM: Tensor) -> float:
        return float(weights_on(page.example, j, x_NM if norm is None else norm(x_NM)).mean())

    return _long(page, weight, is_remedy=norm is not None)


def _long(page: Page, measure: Callable[[int, Tensor], float], *, is_remedy: bool = False) -> Problem:
    """Measure how much of a row the longest vector takes, as it is and made longer."""
    j, x_NM, longer_NM = longest(page.example)
    before, after = measure(j, x_NM), measure(j, longer_NM)
    text = page.text(
        "takes_of_a_row", token=page.example.tokens[j], before=shown(before), times=f"{_TIMES:.0f}", after=shown(after)
    )
    return page.problem("long", text, (before, after), solved=is_remedy and abs(after - before) < 0.01)


def row_sums(page: Page, numbers_NN: Tensor, *, solved: bool = False) -> Problem:
    sums = numbers_NN.sum(-1).tolist()
    low, high = shown(min(sums)), shown(max(sums))
    text = low if low == high else page.text("low_to_high", low=low, high=high)
    return page.problem("shares", page.text("rows_sum_to", sums=text), sums, solved=solved)


def two_ways(page: Page, scores_NN: Tensor) -> Problem:
    apart_NN = (scores_NN - scores_NN.T).abs()
    i, j = at_largest(apart_NN)
    text, both = (
        page.text("two_ways_differ", apart=shown(apart_NN[i, j])),
        (float(scores_NN[i, j]), float(scores_NN[j, i])),
    )
    return page.problem("symmetric", text, both, solved=bool(apart_NN[i, j] > 0))


def moved(page: Page, apart: Tensor, *, solved: bool = False) -> Problem:
    most = float(apart.abs().max())
    most = 0.0 if most < 1e-5 else most
    return page.problem("order", page.text("shuffle_differs", apart=shown(most)), (most,), solved=solved)


def variances(page: Page, measured: Tensor, *, solved: bool = False) -> Problem:
    """Measure the variance of scores at the smallest and the largest width. measured: a row for each width, with the
    variance of scores."""
    (width, variance), (width2, variance2) = measured[[0, -1]].tolist()
    text = page.text(
        "variance_at",
        width=f"{width:.0f}",
        variance=shown(variance),
        width2=f"{width2:.0f}",
        variance2=shown(variance2),
    )
    return page.problem("wide", text, (variance, variance2), solved=solved)


def later(page: Page, weights_NN: Tensor, *, solved: bool = False) -> Problem:
    share = float(weights_NN.triu(1).sum() / len(weights_NN))
    return page.problem("later", page.text("on_later_words", later=shown(share)), (share,), solved=solved)
