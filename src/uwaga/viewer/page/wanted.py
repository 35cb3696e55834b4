"""What a saved page holds: questions, the most needed first, made from what the desk says about itself."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Question = dict[str, object]
Exact = Mapping[str, object] | tuple[str, int, int] | tuple[str, int, int, tuple[int, int], tuple[int, int]]

_ITEMS = 200_000  # of one answer, as the page asks for them
_SIDES = (256, 128, 64, 32)  # cells; no more than a tile has
_MOST_EXACT = 1 << 24  # weights: a page that is opened at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Questions that are in the page together or not at all.

    choices: the same in falling size: the first one that fits is taken.
    needed: the last choice is in the page whatever it takes.
    """

    choices: tuple[tuple[Question, ...], ...]
    needed: bool = False


def canonical(question: Mapping[str, object]) -> str:
    """The text by which a page knows a question; the same as `canonical` of front/wire.js."""
    return json.dumps(question, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def groups(about: Mapping[str, Any]) -> Iterator[Group]:
    """Everything that a page may hold, the most needed first."""
    yield Group(choices=(tuple(_items(about)),), needed=True)
    yield Group(choices=(tuple(_statistics(about)),), needed=True)
    if about["lesson"]:
        yield Group(choices=(({"ask": "lesson"},),), needed=True)
    for merge, specials in _variants(about):
        plain = (merge, specials) == ("tokens", "show")
        seen = {"merge": merge, "specials": specials}
        yield Group(choices=(tuple(_overviews(about, {"how": "mass", **seen})),), needed=plain)
        yield Group(choices=_coarse(about, "mass", seen), needed=plain)
        if plain:
            yield Group(choices=(tuple(_overviews(about, {"how": "max", **seen})),))
            yield Group(choices=_coarse(about, "max", seen))


def exact_questions(about: Mapping[str, Any], exact: Exact) -> list[Question]:
    """The questions whose replies are the exact weights of a head, or of a block of it.

    Args:
        exact: a question as it is; or (kind, layer, head), or (kind, layer, head, rows, columns) with the ranges
            (start, stop) of their tokens; of the first side.

    Raises:
        ValueError: a head or tokens that there are not; more weights than a page takes.
    """
    if isinstance(exact, Mapping):
        return [dict(exact)]
    if len(exact) not in (3, 5):
        rule = "(kind, layer, head) or (kind, layer, head, rows, columns)"
        raise ValueError(f"view: exact weights are named by {rule}, not {exact!r}")
    kind, layer, head, *ranges = exact
    side = about["sides"][0]
    heads = {(each["kind"], each["layer"]): each["heads"] for each in side["maps"]}
    if not 0 <= head < heads.get((kind, layer), 0):
        raise ValueError(f"view: there is no {kind} {layer} with a head {head}")
    where = {"side": side["id"], "kind": kind, "layer": layer, "head": head, "merge": "tokens", "specials": "show"}
    sizes = _sizes(side, kind, where)
    rows, columns = (
        _tiles(f"{kind} {layer}", name, *span, size, about["tile"])
        for name, span, size in zip(("queries", "keys"), ranges or [(0, size) for size in sizes], sizes, strict=True)
    )
    if len(rows) * len(columns) * about["tile"] ** 2 > max(_MOST_EXACT, about["tile"] ** 2):
        raise ValueError(
            f"view: {kind} {layer}, head {head} has more exact weights than the {_MOST_EXACT:,} that a page takes: "
            "name the rows and columns"
        )
    return [_tile(where, "mass", 0, row, column) for row in rows for column in columns]


def _tiles(where: str, name: str, start: int, stop: int, size: int, tile: int) -> range:
    if not 0 <= start < stop <= size:
        raise ValueError(f"view: {where} has {size} {name}, and so none from {start} to {stop}")
    return range(start // tile, (stop - 1) // tile + 1)


def _items(about: Mapping[str, Any]) -> Iterator[Question]:
    for side in about["sides"]:
        for stack, counts in side["stacks"].items():
            for merge, specials in _variants(about):
                count = counts[merge] - (counts["specials"] if specials == "hide" else 0)
                for first in range(0, max(count, 1), _ITEMS):
                    where = {"side": side["id"], "stack": stack, "merge": merge, "specials": specials}
                    yield {"ask": "items", **where, "first": first, "count": _ITEMS}


def _statistics(about: Mapping[str, Any]) -> Iterator[Question]:
    for where in _layers(about):
        yield {"ask": "statistics", **where}


def _overviews(about: Mapping[str, Any], how: Mapping[str, object]) -> Iterator[Question]:
    for where in _layers(about):
        yield {"ask": "overview", **where, **how}


def _coarse(about: Mapping[str, Any], how: str, seen: Mapping[str, str]) -> tuple[tuple[Question, ...], ...]:
    """Every head's whole map as one tile, of several sizes."""
    found: list[tuple[Question, ...]] = []
    for most in _SIDES:
        questions = tuple(_whole(about, how, seen, min(most, about["tile"])))
        if questions and questions not in found:
            found.append(questions)
    return tuple(found)


def _whole(about: Mapping[str, Any], how: str, seen: Mapping[str, str], most: int) -> Iterator[Question]:
    for side in about["sides"]:
        for each in side["maps"]:
            level = _level(max(_sizes(side, each["kind"], seen)), most)
            if level == 0 and how == "max":
                continue  # the weights themselves, which are asked for as "mass"
            for head in range(each["heads"]):
                where = {"side": side["id"], "kind": each["kind"], "layer": each["layer"], "head": head, **seen}
                yield _tile(where, how, level, 0, 0)


def _tile(where: Mapping[str, object], how: str, level: int, row: int, column: int) -> Question:
    return {"ask": "tile", **where, "how": how, "level": level, "row": row, "column": column}


def _level(size: int, most: int) -> int:
    """The finest one at which so many items are at most that many cells."""
    return max(0, ((size - 1) // most).bit_length()) if size > 0 else 0


def _sizes(side: Mapping[str, Any], kind: str, seen: Mapping[str, object]) -> tuple[int, int]:
    """Queries and keys of a kind's maps, in items."""
    axes = side["kinds"][kind]
    counts = [side["stacks"][axes[axis]] for axis in ("queries", "keys")]
    queries, keys = (each[seen["merge"]] - (each["specials"] if seen["specials"] == "hide" else 0) for each in counts)
    return queries, keys


def _layers(about: Mapping[str, Any]) -> Iterator[Question]:
    for side in about["sides"]:
        for each in side["maps"]:
            yield {"side": side["id"], "kind": each["kind"], "layer": each["layer"]}


def _variants(about: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Ways to see the axes that differ, the plain one first."""
    stacks = [counts for side in about["sides"] for counts in side["stacks"].values()]
    merges = ["tokens", *(["words"] if any(each["words"] != each["tokens"] for each in stacks) else [])]
    specials = ["show", *(["hide"] if any(each["specials"] for each in stacks) else [])]
    return [(merge, special) for merge in merges for special in specials]
