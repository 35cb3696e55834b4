"""Tokens as labels of a figure: without tokenizer marks, shortened, and only every n-th where there are too many.

Letters: T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from uwaga.plots.figures import NORMAL, SMALL, import_matplotlib, size_in_points

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_LENGTH = 16  # characters of a label
GAP = 5.0  # points between labels, and between labels and lines
LINE_HEIGHT = 1.25  # in font sizes
_VISIBLE = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "": "(empty)", " ": "(space)"}


class TextStyle(NamedTuple):
    """Font and placement of a row of labels. Lengths in points."""

    font: float  # size
    spacing: float  # from one label to the next
    half_height: float  # half of the height that the labels take, with a gap
    rotation: int  # degrees


def clean(token: str) -> str:
    """Return a token as one short line. The marks for white space of GPT-2 and SentencePiece are replaced.

    >>> clean("Ġattention"), clean("\\n"), clean("Ġ"), clean("donaudampfschifffahrt")
    ('attention', '\\\\n', '(space)', 'donaudampfschif…')
    """
    token = token.replace("Ġ", " ").replace("▁", " ").replace("Ċ", "\n")
    token = token.strip(" ") or token[:1]
    token = _VISIBLE.get(token, "".join(_VISIBLE.get(c, c) if c != " " else c for c in token))
    return token if len(token) <= MAX_LENGTH else token[: MAX_LENGTH - 1] + "…"


def layer_name(key: object) -> str:
    """Return the name of a layer, from its number or from its key in a mapping.

    >>> layer_name(3), layer_name(("decoder", 3))
    ('layer 3', 'decoder 3')
    """
    return f"layer {key}" if isinstance(key, int) else " ".join(map(str, key if isinstance(key, tuple) else (key,)))


def label_step(count: int, points: float, font: float = SMALL) -> int:
    """Return the n of 1, 2, 5, 10, ... such that every n-th label fits along so many points.

    >>> [label_step(count, points=200.0) for count in (10, 26, 50, 1000)]
    [1, 1, 2, 50]
    """
    fit = max(1.0, points / (font * LINE_HEIGHT))
    size = 1
    while True:
        for factor in (1, 2, 5):
            if count <= fit * size * factor:
                return size * factor
        size *= 10


def check_count(operation: str, name: str, tokens: Sequence[str] | None, count: int, axis: str) -> None:
    """Raise ValueError if there are labels, but not one for each query or key."""
    if tokens is not None and len(tokens) != count:
        raise ValueError(
            f"{operation}: {name} must have one label for each of the {count} {axis}, not {len(tokens)} labels"
        )


def label_axes(ax: Axes, queries: Sequence[str] | None, keys: Sequence[str] | None) -> None:
    """Write tokens along both axes of a matrix, or positions if there are no tokens."""
    width, height = size_in_points(ax)
    for axis, tokens, points, rotation in ((ax.xaxis, keys, width, 90), (ax.yaxis, queries, height, 0)):
        if tokens is None:
            axis.set_major_locator(
                import_matplotlib("matplotlib.ticker").MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True)
            )
            axis.set_tick_params(labelsize=SMALL)
        else:
            shown = range(0, len(tokens), label_step(len(tokens), points))
            # Without parse_math, a token with two dollar signs would be set as a formula.
            axis.set_ticks(
                shown, [clean(tokens[t]) for t in shown], fontsize=SMALL, rotation=rotation, parse_math=False
            )
            axis.set_tick_params(length=1.5, pad=1.5)


def fit(words: Sequence[str], spacing: float) -> TextStyle:
    """Return the style of words in a row, `spacing` points apart. The words are horizontal if they fit, else vertical,
    else in a smaller font, else further apart."""
    flat = width(words, NORMAL) + GAP
    if flat <= spacing:
        return TextStyle(NORMAL, max(flat, 2 * NORMAL), NORMAL / 2 + GAP, 0)
    font = min(NORMAL, max(SMALL, spacing / LINE_HEIGHT))
    return TextStyle(font, font * LINE_HEIGHT, width(words, font) / 2 + GAP, 90)


def width(words: Sequence[str], font: float) -> float:
    """Return the width of the longest of the words, in points."""
    measure = import_matplotlib("matplotlib.textpath").text_to_path.get_text_width_height_descent
    properties = import_matplotlib("matplotlib.font_manager").FontProperties(size=font)
    return max((measure(word, properties, False)[0] for word in words), default=0.0)
