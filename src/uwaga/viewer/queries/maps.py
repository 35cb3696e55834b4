"""What a page shows: sides, layers, heads, axes and their tokens or words, and a picture."""

from typing import Any

import numpy as np

from uwaga._base.options import Integer, Text
from uwaga.viewer.messages import Reply, RequestError
from uwaga.viewer.queries.heads import DIFFERENCE, WRITTEN, HeadResolver
from uwaga.viewer.queries.raster import TILE
from uwaga.viewer.queries.result import ViewResult
from uwaga.viewer.queries.statistics import titles
from uwaga.viewer.request_table import Merge, Specials, in_range, one_of, request
from uwaga.viewer.shown import AXES

_MAX_ITEMS = 200_000
_LEAST_WORDS, _MOST_WORDS = 3, 60  # of a short text: what a small map has a cell for each of, with special tokens


@request(saved=True)
def items(
    result: ViewResult, *, side: Text, stack: Text, merge: Merge, specials: Specials, first: Integer, count: Integer
) -> Reply:
    """Return the tokens or words along an axis."""
    resolver = result.resolver
    one_of("side", side, resolver.ids)
    axis = resolver.axis(side, one_of("stack", stack, resolver.stacks(side)), merge, specials)
    in_range("first", first, 0, len(axis) + 1)
    last = min(first + in_range("count", count, 0, _MAX_ITEMS + 1), len(axis))
    meta = {
        "labels": axis.labels[first:last],
        "no_space_before": [int(has_no_space) for has_no_space in axis.no_space_before[first:last]],
        "specials": [at for at in axis.specials if first <= at < last],
        "unknown": [at for at in axis.unknown if first <= at < last],
        "breaks": [[at, lines] for at, lines in axis.breaks.items() if first <= at < last],
        "total": len(axis),
    }
    return Reply(meta=meta, arrays=(axis.spans[first:last],))


@request(saved=True)
def picture(result: ViewResult) -> Reply:
    """Return what a model of pictures saw."""
    pixels = result.view.pixels
    if pixels is None:
        raise RequestError("this view has none")
    return Reply(meta={}, arrays=(pixels,))


def describe(resolver: HeadResolver) -> dict[str, Any]:
    """Return sides, layers, heads and axes, and where a page opens."""
    sides = [_side(resolver, side) for side in resolver.ids]
    meta = {
        "title": resolver.view.title,
        "tile": TILE,
        "live": True,
        "statistics": titles(),
        "sides": sides,
        "start": _start(resolver) if sides else None,
    }
    view = resolver.view
    if view.pixels is not None:
        height, width = view.pixels.shape
        grids = {
            stack: {"rows": grid.rows, "columns": grid.columns, "first": grid.first}
            for stack, grid in view.grids.items()
        }
        meta["picture"] = {"width": width, "height": height, "grids": grids}
    if view.answer is not None:
        meta["answer"] = view.answer
    return meta


def _start(resolver: HeadResolver) -> dict[str, Any]:
    """Return where a page opens.

    A decoder with cross-attention opens on that: what it writes is the story, and what it reads of the text its reason.
    A picture opens on the last layer, which has gathered most.
    """
    names = list(resolver.maps("0"))
    if grids := resolver.view.grids:
        kind, layer = [name for name in names if name[0] in grids][-1]
        return {"side": "0", "kind": kind, "layer": layer, "head": 0, "merge": "tokens"}
    kind, layer = next((name for name in names if name[0] == "cross"), names[0])
    return {"side": "0", "kind": kind, "layer": layer, "head": 0, "merge": _merge(resolver, kind)}


def _merge(resolver: HeadResolver, kind: str) -> str:
    """Return how a text opens: a short one in words, if all sides have the same ones."""
    sides = [side for side in resolver.ids if side != DIFFERENCE]
    # A decoder writes tokens, not words, and the letters of one word stay apart.
    if kind == "cross" or not all(resolver.side(side).sources for side in sides):
        return "tokens"
    axes = [resolver.axis(side, AXES[kind][0], "words", "show") for side in sides]
    is_short = all(_LEAST_WORDS <= len(axis) - len(axis.specials) <= _MOST_WORDS for axis in axes)
    is_comparable = all(np.array_equal(axes[0].spans, axis.spans) for axis in axes)
    return "words" if is_short and is_comparable else "tokens"


def _side(resolver: HeadResolver, side: str) -> dict[str, Any]:
    shown, names = resolver.side(side), resolver.maps(side)
    title, model = shown.title, shown.model
    if side == DIFFERENCE:
        title, model = (
            " minus ".join(dict.fromkeys(getattr(one, name) for one in resolver.view.sides))
            for name in ("title", "model")
        )
    return {
        "id": side,
        "title": title,
        "model": model,
        "text_title": shown.title,
        "signed": side == DIFFERENCE,
        "maps": [
            {
                "kind": kind,
                "layer": layer,
                "heads": resolver.heads(side, (kind, layer)),
                "sees": resolver.sees(side, (kind, layer)),
            }
            for kind, layer in names
        ],
        "stacks": {stack: _stack(resolver, side, stack) for stack in resolver.stacks(side)},
        "kinds": {
            kind: {"queries": WRITTEN if kind == "cross" and shown.writes else AXES[kind][0], "keys": AXES[kind][1]}
            for kind, _ in names
        },
    }


def _stack(resolver: HeadResolver, side: str, stack: str) -> dict[str, Any]:
    """Count the tokens, words, special tokens and unknown tokens of an axis."""
    shown, read = resolver.side(side), "decoder" if stack == WRITTEN else stack
    words = len(resolver.axis(side, stack, "words", "show"))
    text = shown.token_text(read)
    counts = {"tokens": shown.sizes[read], "words": words, "specials": sum(text.special), "unknown": sum(text.unknown)}
    return counts | ({"unknown_token": shown.tokens[read][text.unknown.index(True)]} if any(text.unknown) else {})
