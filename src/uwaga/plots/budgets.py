"""What caches lose, by their budget: a panel for each head, a line for each policy, and the oracle's as the limit.

Letters: B budgets, L layers times heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from uwaga._base.arguments import check, choice
from uwaga.plots import figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from uwaga.inspect.cache.study import CacheStudy

_LABELS = {
    "forgotten": "weight forgotten",
    "limit": "least weight that can be forgotten",
    "error": "error of the output",
    "overlap": "kept keys among the largest weights",
    "kept": "keys read",
}
# Six of the eight colours that colour-blind readers can tell apart (Okabe & Ito, "Color Universal Design", 2008), and a brown and a grey in place of
# their yellow, which is too light for lines, and black, which is the oracle's. Markers carry the same in grey.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5c00", "#666666")
_MARKERS = "osD^v<>P"
_ORACLE = "oracle"
_PANELS = 12  # where no heads are given
_PER_ROW = 4
_WIDTH, _HEIGHT, _LEGEND = 1.7, 1.45, 1.25  # inches


def cache_budgets(
    study: CacheStudy, statistic: str = "error", *, heads: Sequence[Sequence[int]] | None = None, by: str = "budget"
) -> Figure:
    """Draw a statistic of `uwaga.inspect.cache_study` against the budget, on a logarithmic axis: a panel for each head and a line for each
    policy, the oracle's dashed in black: of "forgotten" the limit for all that read as many keys; of "error" not, since the largest weights need not
    give the nearest output.

    Args:
        study: a study of one or more budgets.
        statistic: "error", "forgotten", "overlap", "limit" or "kept"; means over the queries.
        heads: (layer, head) of the panels; None for the 12 heads whose weight the policies lose most on average, the largest first.
        by: "budget", or "kept": the mean number of keys that were read, which policies of a prompt exceed by what came after it.

    Raises:
        ValueError: an unknown statistic, head or `by`; no head.
    """
    choice(statistic, "cache_budgets: statistic", study.means)
    choice(by, "cache_budgets: by", ("budget", "kept"))
    shown: list[int] = []
    if heads is None:  # the heads whose weight the policies and budgets forget most on average
        lost = study.means["forgotten"].mean((0, 1)).nan_to_num(0.0)
        shown = torch.argsort(lost, descending=True, stable=True)[:_PANELS].tolist()
    for layer, head in heads or ():
        choice((layer, head), "cache_budgets: (layer, head)", study.heads)
        shown.append(study.heads.index((layer, head)))
    check(shown, "cache_budgets: heads must have one (layer, head) at least")
    columns = min(_PER_ROW, len(shown))
    rows = -(-len(shown) // columns)
    figure = figures.new_figure(columns * _WIDTH + _LEGEND, rows * _HEIGHT + 0.4, layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for ax, at in zip(panels, shown, strict=False):
        for line, policy in enumerate(name for name in study.policies if name != _ORACLE):
            _draw(ax, study, policy, statistic, at, by, color=_COLORS[line % 8], marker=_MARKERS[line % 8])
        if _ORACLE in study.policies:
            _draw(ax, study, _ORACLE, statistic, at, by, color="black", linestyle="--", marker=None)
        ax.set_title("layer {}, head {}".format(*study.heads[at]), fontsize=figures.NORMAL)
        ax.set_xscale("log", base=2)
        ax.set_xticks(study.budgets, [str(budget) for budget in study.budgets], minor=False)
        ax.tick_params(labelsize=figures.SMALL)
        ax.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylim(bottom=0)  # of all, once everything is drawn
    for ax in panels[len(shown) :]:
        ax.set_axis_off()
    figure.supxlabel("budget of keys" if by == "budget" else "keys read", fontsize=figures.NORMAL)
    figure.supylabel(_LABELS[statistic], fontsize=figures.NORMAL)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right upper", frameon=False, fontsize=figures.SMALL)
    return figure


def _draw(
    ax: object, study: CacheStudy, policy: str, statistic: str, at: int, by: str, *, color: str, **style: object
) -> None:
    x = study.budgets if by == "budget" else study.mean("kept", policy)[:, at].tolist()
    y = study.mean(statistic, policy)[:, at].tolist()
    ax.plot(x, y, color=color, label=policy, linewidth=1.0, markersize=3.0, **style)  # type: ignore[attr-defined]
