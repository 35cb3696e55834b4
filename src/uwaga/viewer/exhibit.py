"""What a page shows: the maps of one text and model, or of two beside each other, and the tokens along their axes.

Letters: R rows of a batch, H query heads, Q queries, K keys, T tokens of one text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from uwaga.maps.base import WeightMap
from uwaga.maps.map import AttentionMap
from uwaga.maps.recordings.recording import Recording
from uwaga.viewer.pieces import Pieces, joined, pieces

KINDS = ("encoder", "decoder", "cross")
_OF_KIND = {"encoder": ("encoder", "encoder"), "decoder": ("decoder", "decoder"), "cross": ("decoder", "encoder")}

Name = tuple[str, int]  # kind and layer
Shown = Recording | WeightMap | Mapping[Name, WeightMap] | Mapping[int, WeightMap] | Sequence[WeightMap]
Tokens = Sequence[str] | Mapping[str, Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Side:
    """The maps of one text in one model.

    maps: by kind and layer, each (H, Q, K) of a dense map.
    tokens: of "encoder" and "decoder", a string for each; a stack that is not in it has numbers for names.
    """

    title: str
    model: str
    maps: Mapping[Name, WeightMap]
    sizes: Mapping[str, int]  # tokens per stack
    tokens: Mapping[str, Sequence[str]]
    _pieces: dict[str, Pieces] = field(default_factory=dict, repr=False)

    @property
    def stacks(self) -> list[str]:
        """Those of the axes that there are."""
        return [stack for stack in ("encoder", "decoder") if stack in self.sizes]

    def pieces(self, stack: str) -> Pieces:
        """How the tokens of a stack are read."""
        if stack not in self._pieces:
            names = self.tokens.get(stack)
            self._pieces[stack] = pieces(list(map(str, range(self.sizes[stack]))) if names is None else names)
        return self._pieces[stack]


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """One side, or two of which the second is compared with the first."""

    sides: tuple[Side, ...]
    title: str

    @classmethod
    def of(
        cls,
        shown: Shown,
        *,
        tokens: Tokens | None = None,
        title: str | None = None,
        model: str = "",
        row: int = 0,
        second: Shown | None = None,
        second_tokens: Tokens | None = None,
        second_title: str | None = None,
        second_model: str | None = None,
        second_row: int = 0,
    ) -> "Exhibit":
        """What there is to see of a recording, of a map, or of several.

        Args:
            shown: a recording; one map; several by (kind, layer), by layer, or in the order of their layers. Maps are
                (R, H, Q, K), (H, Q, K), (Q, K) or ragged.
            tokens: a string per token where a recording does not say, by "encoder" and "decoder" where there are both.
            title: what is above the page; None: the beginning of the text.
            model: what the model is called.
            row: which row of a batch.
            second, ...: the same of a second text or model, beside the first.

        Raises:
            ValueError: nothing to show, maps that do not fit each other, a row that there is not, a number of tokens that
                is not that of the maps.
        """
        first = _side(shown, tokens, title, model, row)
        if second is None:
            return cls(sides=(first,), title=first.title)
        other = _side(second, second_tokens, second_title, model if second_model is None else second_model, second_row)
        return cls(sides=(first, other), title=" | ".join(dict.fromkeys([first.title, other.title])))

    @classmethod
    def empty(cls) -> "Exhibit":
        """Nothing but the lesson."""
        return cls(sides=(), title="lesson")


def axes_of(kind: str) -> tuple[str, str]:
    """The stacks whose tokens are the queries and the keys of a kind of attention."""
    return _OF_KIND[kind]


def _side(shown: Shown, tokens: Tokens | None, title: str | None, model: str, row: int) -> Side:
    maps = {name: _one(m, name, row) for name, m in sorted(_named(shown).items(), key=_order)}
    if not maps:
        raise ValueError("view: there are no maps to show")
    sizes = _sizes(maps)
    names = _names(shown, tokens, sizes, row)
    side = Side(title="", model=model, maps=maps, sizes=sizes, tokens=names)
    return Side(title=_title(side) if title is None else title, model=model, maps=maps, sizes=sizes, tokens=names)


def _order(item: tuple[Name, object]) -> tuple[int, int]:
    return KINDS.index(item[0][0]), item[0][1]


def _named(shown: Shown) -> dict[Name, WeightMap]:
    if isinstance(shown, Recording):
        return dict(shown.maps)
    if isinstance(shown, WeightMap):
        shown = [shown]
    if not isinstance(shown, Mapping) and not (isinstance(shown, Sequence) and not isinstance(shown, str)):
        raise ValueError(f"view: there is nothing to see in a {type(shown).__name__}: give a recording, or maps")
    by_name = shown if isinstance(shown, Mapping) else dict(enumerate(shown))
    found: dict[Name, WeightMap] = {}
    for name, m in by_name.items():
        if not isinstance(m, WeightMap):
            raise ValueError(f"view: {name!r} must be a map of attention, not a {type(m).__name__}")
        key = (_guess(m), name) if isinstance(name, int) else name
        if not (isinstance(key, tuple) and len(key) == 2 and key[0] in KINDS and isinstance(key[1], int)):
            raise ValueError(f"view: maps are named by layer or by (kind, layer), such as ('encoder', 0), not {name!r}")
        found[key] = m
    return found


def _guess(m: WeightMap) -> str:
    """The kind of a map that nobody has named."""
    shape = m.shapes[0]
    if shape[-2] != shape[-1]:
        return "cross"
    return "decoder" if "Causal(" in m.describe() else "encoder"


def _one(m: WeightMap, name: Name, row: int) -> WeightMap:
    """The map (H, Q, K) of one row of a batch."""
    parts = m.parts()
    rows = m.shape[0] if parts is not None or len(m.shape) > 3 else 1
    if len(m.shape) > 4 or not 0 <= row < rows:
        raise ValueError(f"view: {' '.join(map(str, name))} has the shape {m.shape}, and no row {row}")
    if parts is not None:
        return parts[row]
    if len(m.shape) < 4:
        return m
    if isinstance(m, AttentionMap):
        return m.select(row)
    raise ValueError(f"view: a {m.kind} must have the shape (H, Q, K) or (Q, K), not {m.shape}")


def _sizes(maps: Mapping[Name, WeightMap]) -> dict[str, int]:
    """Tokens per stack."""
    found: dict[str, int] = {}
    for (kind, layer), m in maps.items():
        for stack, size in zip(_OF_KIND[kind], m.shape[-2:], strict=True):
            if found.setdefault(stack, size) != size:
                rule = f"{kind} {layer} has {size} tokens of the {stack}, and another map {found[stack]}"
                raise ValueError(f"view: the maps are not of one text: {rule}")
    return found


def _names(shown: Shown, tokens: Tokens | None, sizes: Mapping[str, int], row: int) -> dict[str, list[str]]:
    """Strings of the tokens, where they are known."""
    if tokens is None:
        known: Mapping[str, Any] = shown.tokens if isinstance(shown, Recording) else {}
        given = {stack: rows[row] for stack, rows in known.items() if stack in sizes}
    elif isinstance(tokens, Mapping):
        given = {stack: list(names) for stack, names in tokens.items()}
    elif len(sizes) == 1:
        given = {next(iter(sizes)): list(tokens)}
    else:
        raise ValueError('view: there is an encoder and a decoder: give tokens as {"encoder": ..., "decoder": ...}')
    for stack, names in given.items():
        if stack not in sizes:
            raise ValueError(f"view: there are tokens of {stack!r}, of which there is no map: {', '.join(sizes)}")
        if len(names) != sizes[stack]:
            raise ValueError(f"view: {len(names)} tokens are named, and the {stack} has {sizes[stack]}")
    return {stack: [str(name) for name in names] for stack, names in given.items()}


def _title(side: Side) -> str:
    """The beginning of the text."""
    read = side.pieces(side.stacks[0])
    words = [at for at, is_special in enumerate(read.special) if not is_special]
    text = joined(read, words[0], min(words[-1] + 1, words[0] + 40)) if words else ""
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:59] + "…"
