"""A table of the heads with the most extreme statistics, for the terminal."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from rich.table import Table

    from uwaga.viewer.messages import Service

# Statistics and the titles of their columns, and whether large (+1) or small (-1) values are the extreme ones.
COLUMNS = {
    "entropy": ("entropy", -1),
    "peak": ("peak", +1),
    "distance": ("distance", +1),
    "sink": ("first", +1),
    "previous_token": ("prev.", +1),
    "duplicate_token": ("duplicate", +1),
    "induction": ("induction", +1),
}
_ROWS = 12


class Head(NamedTuple):
    """A head and its statistics; None for one that is not known."""

    kind: str
    layer: int
    head: int
    statistics: Mapping[str, float | None]


class Heads(NamedTuple):
    """The statistics of the heads of a model that were computed within the time limit."""

    heads: list[Head]
    total: int
    is_sampled: bool  # some values are means over a sample of the queries


def head_statistics(service: "Service", seconds: float) -> Heads:
    """Statistics of the heads of the first model, of as many layers as take `seconds` to compute, at least one."""
    side = service.answer({"request": "about"}).meta["sides"][0]
    until = time.monotonic() + seconds
    results: list[Head] = []
    is_sampled = False
    for number, each in enumerate(side["maps"]):
        if number and time.monotonic() >= until:
            break
        request = {"request": "statistics", "side": side["id"], "kind": each["kind"], "layer": each["layer"]}
        meta = service.answer(request).meta
        while meta["complete"] < 1 and time.monotonic() < until:
            meta = service.answer(request).meta
        is_sampled |= meta["sampled"] is not None
        results += _of_layer(each["kind"], each["layer"], meta["columns"])
    return Heads(results, sum(each["heads"] for each in side["maps"]), is_sampled)


def _of_layer(kind: str, layer: int, columns: Mapping[str, Sequence[float | None]]) -> Iterator[Head]:
    for head, values in enumerate(zip(*columns.values(), strict=True)):
        if any(value is not None for value in values):  # else the head is not computed yet
            yield Head(kind, layer, head, dict(zip(columns, values, strict=True)))


def most_extreme(heads: Sequence[Head], rows: int = _ROWS) -> list[tuple[Head, set[str]]]:
    """The `rows` most extreme heads, in the order of layers, each with the statistics of which it is the extreme.

    Taken in turn from the ranking of each statistic, until there are `rows` heads.
    """
    rankings = {name: _ranking(heads, name, sign) for name, (_, sign) in COLUMNS.items()}
    chosen: dict[int, set[str]] = {}
    for place in range(len(heads)):
        for name, order in rankings.items():
            if place < len(order) and (order[place] in chosen or len(chosen) < rows):
                # Only the first of a ranking is marked.
                chosen.setdefault(order[place], set()).update([name] if place == 0 else [])
        if len(chosen) >= rows:
            break
    return [(heads[number], chosen[number]) for number in sorted(chosen)]


def _ranking(heads: Sequence[Head], name: str, sign: int) -> list[int]:
    """The indices of the heads, most extreme first, without those whose value is unknown or not finite."""
    known: dict[int, float] = {}
    for number, head in enumerate(heads):
        value = head.statistics.get(name)
        if value is not None and math.isfinite(value):
            known[number] = value
    return sorted(known, key=lambda number: -sign * known[number])


def table(heads: Heads) -> "Table":
    """The most extreme heads as a table; the extreme values are bold."""
    from rich import box
    from rich.table import Table

    shown = most_extreme(heads.heads)
    names = [name for name in COLUMNS if any(head.statistics.get(name) is not None for head, _ in shown)]
    table = Table(title=_title(heads, len(shown)), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    table.add_column("layer", no_wrap=True)
    table.add_column("head", justify="right", no_wrap=True)
    for name in names:
        table.add_column(COLUMNS[name][0], justify="right", no_wrap=True)
    for head, marks in shown:
        cells = (_cell(head.statistics.get(name), bold=name in marks) for name in names)
        table.add_row(f"{head.kind} {head.layer}", str(head.head), *cells)
    return table


def _title(heads: Heads, shown: int) -> str:
    known = "" if len(heads.heads) == heads.total else f" ({len(heads.heads)} computed)"
    sampled = ", from a sample of the queries" if heads.is_sampled else ""
    return f"{shown} of {heads.total} heads{known}, those with the most extreme statistics{sampled}"


def _cell(value: Any, *, bold: bool) -> str:
    if value is None:
        return "-"
    text = f"{value:.1f}" if abs(value) >= 100 else f"{value:.3f}"
    return f"[bold]{text}[/]" if bold else text
