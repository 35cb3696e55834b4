"""From the words of a question to what it is about: sides, axes and heads of an exhibit."""

from typing import NamedTuple

import numpy as np

from uwaga.maps.base import WeightMap
from uwaga.viewer.desk.arguments import Arguments
from uwaga.viewer.desk.axes import MERGES, SPECIALS, Axis, axis
from uwaga.viewer.desk.lens import Lens, comparable, difference, heads, lens
from uwaga.viewer.desk.recent import Recent
from uwaga.viewer.desk.reply import QuestionError
from uwaga.viewer.exhibit import KINDS, Exhibit, Name, Side, axes_of

DIFFERENCE = "difference"
_LENSES = 256  # heads whose normalizers are kept, O(Q) each
_MOST_LAYERS = 1 << 20


class Place(NamedTuple):
    """A head of the exhibit, or all heads of a layer, as a question names it."""

    side: str
    name: Name
    merge: str
    specials: str


class Hall:
    """An exhibit by the names that questions use."""

    def __init__(self, exhibit: Exhibit) -> None:
        self.exhibit = exhibit
        self._axes: dict[tuple[int, str, str, str], Axis] = {}
        self._lenses: Recent[Lens] = Recent(_LENSES)

    @property
    def ids(self) -> list[str]:
        """Of the sides; the difference where there is something to compare."""
        found = [str(number) for number in range(len(self.exhibit.sides))]
        return [*found, DIFFERENCE] if self.maps(DIFFERENCE) else found

    def maps(self, side: str) -> dict[Name, WeightMap]:
        """By kind and layer; of the difference those of the first side that the second has in the same shape."""
        sides = self.exhibit.sides
        if side != DIFFERENCE:
            return dict(sides[int(side)].maps)
        names = comparable(sides[0].maps, sides[1].maps) if len(sides) > 1 else []
        return {name: sides[0].maps[name] for name in names}

    def side(self, side: str) -> Side:
        """The side whose tokens are shown."""
        return self.exhibit.sides[0 if side == DIFFERENCE else int(side)]

    def place(self, arguments: Arguments) -> Place:
        """What the heads of a layer are seen as. Raises QuestionError: a layer that there is not."""
        side, name = self.layer(arguments)
        return Place(side, name, arguments.text("merge", MERGES), arguments.text("specials", SPECIALS))

    def layer(self, arguments: Arguments) -> tuple[str, Name]:
        """A side and the name of a map on it. Raises QuestionError: one that there is not."""
        side = arguments.text("side", self._sides())
        name = arguments.text("kind", KINDS), arguments.integer("layer", 0, _MOST_LAYERS)
        if name not in self.maps(side):
            raise QuestionError(f"{arguments.ask}: there is no {name[0]} layer {name[1]} on side {side}")
        return side, name

    def heads(self, side: str, name: Name) -> int:
        """H."""
        return heads(self.maps(side)[name])

    def lens(self, place: Place, head: int) -> Lens:
        """The matrix of one head, kept with what is known of its rows."""
        kept = self._lenses.get((place, head))
        return self._lenses.put((place, head), self._lens(place, head)) if kept is None else kept

    def axes(self, place: Place) -> tuple[Axis, Axis]:
        """Of the queries and the keys."""
        queries, keys = axes_of(place.name[0])
        how = place.merge, place.specials
        return self.axis(place.side, queries, *how), self.axis(place.side, keys, *how)

    def axis(self, side: str, stack: str, merge: str, specials: str) -> Axis:
        """The items along an axis."""
        number = 0 if side == DIFFERENCE else int(side)
        name = (number, stack, merge, specials)
        if name not in self._axes:
            read = self.exhibit.sides[number].pieces(stack)
            self._axes[name] = axis(read, merge=merge, specials=specials)
        return self._axes[name]

    def _sides(self) -> list[str]:
        if not self.exhibit.sides:
            raise QuestionError("there is no text to look at here, only the lesson")
        return self.ids

    def _lens(self, place: Place, head: int) -> Lens:
        if place.side != DIFFERENCE:
            return lens(self.side(place.side), place.name, head, *self.axes(place))
        both = [place._replace(side=str(number)) for number in range(2)]
        axes = [self.axes(each) for each in both]
        for one, other in zip(*axes, strict=True):
            if not np.array_equal(one.spans, other.spans):
                rule = "the two texts differ in their words or special tokens"
                raise QuestionError(f"{rule}: compare them token by token, with all tokens shown")
        lenses = [lens(self.side(each.side), each.name, head, *axes[0]) for each in both]
        return difference(*lenses)
