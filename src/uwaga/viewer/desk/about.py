"""What there is to see, in words and sizes: the first thing that a page asks."""

import sys
from typing import Any

from uwaga.viewer.desk import statistics
from uwaga.viewer.desk.hall import DIFFERENCE, Hall
from uwaga.viewer.desk.pictures import OVERVIEW, TILE
from uwaga.viewer.desk.reply import Reply
from uwaga.viewer.exhibit import axes_of


def about(hall: Hall) -> Reply:
    """Sides, layers, heads and axes, and where a page opens."""
    sides = [_side(hall, side) for side in hall.ids]
    meta = {
        # Not imported: the package's own module names what is on higher floors.
        "version": sys.modules["uwaga"].__version__,
        "title": hall.exhibit.title,
        "tile": TILE,
        "overview": OVERVIEW,
        "lesson": True,
        "live": True,
        "statistics": statistics.titles(),
        "sides": sides,
        "start": _start(hall) if sides else None,
    }
    return Reply(meta=meta)


def _start(hall: Hall) -> dict[str, Any]:
    kind, layer = next(iter(hall.maps("0")))
    return {"side": "0", "kind": kind, "layer": layer, "head": 0}


def _side(hall: Hall, side: str) -> dict[str, Any]:
    shown, names = hall.side(side), hall.maps(side)
    title, model = shown.title, shown.model
    if side == DIFFERENCE:
        title, model = (_less([getattr(each, name) for each in hall.exhibit.sides]) for name in ("title", "model"))
    return {
        "id": side,
        "title": title,
        "model": model,
        "text_title": shown.title,
        "signed": side == DIFFERENCE,
        "maps": [{"kind": kind, "layer": layer, "heads": hall.heads(side, (kind, layer))} for kind, layer in names],
        "stacks": {stack: _stack(hall, side, stack) for stack in shown.stacks},
        "kinds": {kind: dict(zip(("queries", "keys"), axes_of(kind), strict=True)) for kind, _ in names},
    }


def _stack(hall: Hall, side: str, stack: str) -> dict[str, int]:
    """How many items an axis has."""
    shown = hall.side(side)
    words = len(hall.axis(side, stack, "words", "show"))
    return {"tokens": shown.sizes[stack], "words": words, "specials": sum(shown.pieces(stack).special)}


def _less(names: list[str]) -> str:
    """What is subtracted from what; one name where both are called the same."""
    return " less ".join(dict.fromkeys(names))
