"""Shape checks: binds the letters of docs/contributors/glossary.md to the sizes of several tensors, and reports the first contradiction."""

from collections.abc import Sequence
from dataclasses import dataclass

from uwaga._base.errors import ShapeError

# The letters in words, for error messages.
WORDS = {
    "B": "batch",
    "H": "query heads",
    "G": "key heads",
    "Q": "queries",
    "K": "keys",
    "D": "head width",
    "E": "value width",
    "L": "distances",
    "M": "model width",
    "W": "output width",
    "N": "packed tokens",
    "R": "ragged rows",
    "R+1": "row offsets",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedShape:
    """A tensor's name, shape and one letter per dimension ("": a dimension that is not checked)."""

    name: str
    shape: tuple[int, ...]
    letters: tuple[str, ...]

    @staticmethod
    def of(name: str, shape: Sequence[int], letters: str) -> "NamedShape":
        return NamedShape(name=name, shape=tuple(shape), letters=tuple(letters.split()))


def bind(operation: str, tensors: Sequence[NamedShape]) -> dict[str, int]:
    """Return the size of every letter. Raises ShapeError at the first tensor whose rank or size disagrees with an earlier one."""
    sizes: dict[str, int] = {}
    first: dict[str, str] = {}
    for tensor in tensors:
        if len(tensor.shape) != len(tensor.letters):
            rule = f"{tensor.name} needs {len(tensor.letters)} dimensions ({', '.join(tensor.letters)})"
            raise shape_error(operation, rule, tensors, tensor.name, f"has rank {len(tensor.shape)}")
        for letter, size in zip(tensor.letters, tensor.shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                rule = f"{tensor.name} and {first[letter]} disagree on {_word(letter)} {letter}"
                note = f"{letter} was {sizes[letter]} from {first[letter]}"
                raise shape_error(operation, rule, tensors, tensor.name, note)
            first.setdefault(letter, tensor.name)
    return sizes


def shape_error(operation: str, rule: str, tensors: Sequence[NamedShape], culprit: str, note: str) -> ShapeError:
    """Return the error to raise: the rule in words, then a table of the tensors with an arrow at the culprit."""
    rows = [(t.name, str(t.shape), _bound(t)) for t in tensors]
    width_of_name = max(len(name) for name, _, _ in rows)
    width_of_shape = max(len(shape) for _, shape, _ in rows)
    width_of_bound = max(len(bound) for _, _, bound in rows)
    lines = [f"{operation}: {rule}"]
    for name, shape, bound in rows:
        line = f"  {name:<{width_of_name}}  {shape:<{width_of_shape}}   {bound:<{width_of_bound}}"
        lines.append((line + f"   <- {note}" if name == culprit else line).rstrip())
    return ShapeError("\n".join(lines))


def _word(letter: str) -> str:
    return WORDS.get(letter) or WORDS.get(letter.rstrip("0123456789"), "dimension")


def _bound(tensor: NamedShape) -> str:
    if len(tensor.shape) != len(tensor.letters):
        return ""
    return " ".join(f"{f'{x}={n}':<4}" for x, n in zip(tensor.letters, tensor.shape, strict=True) if x).rstrip()
