"""A heatmap of activation patching: which heads or positions restore the metric."""

from typing import TYPE_CHECKING

from uwaga.inspect.patching import PatchingResult
from uwaga.plots.heatmaps import heatmap

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def patching_effects(result: PatchingResult, *, head: int | None = None) -> "Figure":
    """A heatmap of the effects of `uwaga.inspect.activation_patching`: layers by heads, or layers by positions where these were patched.

    Args:
        result: what was patched; it may be incomplete.
        head: with heads and positions both, the index of the head whose positions are shown.

    Raises:
        ValueError: heads and positions were patched, and `head` is None or out of range.
    """
    effects = result.effects()
    if result.heads is not None and result.spans is not None:
        if head is None or not 0 <= head < len(result.heads):
            raise ValueError(
                f"patching_effects: heads and positions were patched: head must be 0 to {len(result.heads) - 1}, not {head}"
            )
        effects = effects[:, head : head + 1]
    matrix = effects[:, 0] if result.spans is not None else effects[..., 0]
    columns = (
        [_span_label(span) for span in result.spans]
        if result.spans is not None
        else ["all"]
        if result.heads is None
        else [str(each) for each in result.heads]
    )
    figure = heatmap(matrix, [str(layer) for layer in result.layers], key_tokens=columns)
    cells, bar = figure.axes[:2]
    cells.set_xlabel("head" if result.spans is None else "position")
    cells.set_ylabel(f"{result.kind} layer")
    bar.set_ylabel("restored part of the metric")
    return figure


def _span_label(span: list[int]) -> str:
    return str(span[0]) if len(span) == 1 else f"{span[0]}-{span[-1]}"
