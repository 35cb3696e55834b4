"""Tokens as labels that stay legible: cleaned, cut, and thinned where there are too many.

Letters: T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from uwaga.plots.figures import NORMAL, SMALL, need, size_in_points

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LONGEST = 16  # characters of a label
CLEAR = 5.0  # points between words, and between words and lines
LINE = 1.25  # height of a line of text, in font sizes
_VISIBLE = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "": "(empty)", " ": "(space)"}


class Text(NamedTuple):
    """How words are written."""

    font: float  # points, as what follows
    spacing: float  # from one word to the next
    half: float  # half of what a word takes across its line, and some air
    turned: int  # degrees
    sides: tuple[str, str] = ("center", "center")


def clean(token: str) -> str:
    """A token as one short line. GPT-2's and SentencePiece's marks for a space become a space.

    >>> clean("Ġattention"), clean("\\n"), clean("donaudampfschifffahrt")
    ('attention', '\\\\n', 'donaudampfschif…')
    """
    token = token.replace("Ġ", " ").replace("▁", " ").replace("Ċ", "\n")
    token = token.strip(" ") or token[:1]
    token = _VISIBLE.get(token, "".join(_VISIBLE.get(c, c) if c != " " else c for c in token))
    return token if len(token) <= LONGEST else token[: LONGEST - 1] + "…"


def layer(name: object) -> str:
    """What a layer is called: by its number, or by the key of a mapping.

    >>> layer(3), layer(("decoder", 3))
    ('layer 3', 'decoder 3')
    """
    return (
        f"layer {name}" if isinstance(name, int) else " ".join(map(str, name if isinstance(name, tuple) else (name,)))
    )


def step(count: int, points: float, font: float = SMALL) -> int:
    """Every how many-th of `count` labels can be shown along so many points: 1, 2, 5, 10, 20, 50, ...

    >>> [step(count, points=200.0) for count in (10, 26, 50, 1000)]
    [1, 1, 2, 50]
    """
    fit = max(1.0, points / (font * LINE))
    size = 1
    while True:
        for factor in (1, 2, 5):
            if count <= fit * size * factor:
                return size * factor
        size *= 10


def need_one_each(operation: str, name: str, tokens: Sequence[str] | None, count: int, axis: str) -> None:
    """Raise ValueError where there are labels, but not one for each query or key."""
    if tokens is not None and len(tokens) != count:
        raise ValueError(f"{operation}: {name} must name the {count} {axis}, and there are {len(tokens)} of them")


def label_axes(ax: Axes, queries: Sequence[str] | None, keys: Sequence[str] | None) -> None:
    """Tokens along both axes of a matrix; where there are none, matplotlib's own numbers stay, whole ones only."""
    width, height = size_in_points(ax)
    for axis, tokens, points, turned in ((ax.xaxis, keys, width, 90), (ax.yaxis, queries, height, 0)):
        if tokens is None:
            axis.get_major_locator().set_params(integer=True)
            axis.set_tick_params(labelsize=SMALL)
        else:
            shown = range(0, len(tokens), step(len(tokens), points))
            # Without parse_math, a token with two dollar signs would be set as a formula.
            axis.set_ticks(shown, [clean(tokens[t]) for t in shown], fontsize=SMALL, rotation=turned, parse_math=False)
            axis.set_tick_params(length=1.5, pad=1.5)


def fit(words: Sequence[str], spacing: float) -> Text:
    """Words side by side where each has so many points: flat, else upright, else smaller, else with more room."""
    flat = width(words, NORMAL) + CLEAR
    if flat <= spacing:
        return Text(NORMAL, max(flat, 2 * NORMAL), NORMAL / 2 + CLEAR, 0)
    font = min(NORMAL, max(SMALL, spacing / LINE))
    return Text(font, font * LINE, width(words, font) / 2 + CLEAR, 90)


def width(words: Sequence[str], font: float) -> float:
    """Points that the longest of the words takes along its line."""
    measure = need("matplotlib.textpath").text_to_path.get_text_width_height_descent
    properties = need("matplotlib.font_manager").FontProperties(size=font)
    return max((measure(word, properties, False)[0] for word in words), default=0.0)


def write(ax: Axes, x: float, y: float, word: str, text: Text) -> None:
    """One word into the axes."""
    across, along = text.sides
    # Without parse_math, a token with two dollar signs would be set as a formula.
    ax.text(x, y, word, ha=across, va=along, rotation=text.turned, fontsize=text.font, parse_math=False)
