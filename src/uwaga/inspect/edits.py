"""Describe changes of a model's attention as plain data: scaled heads, cut links, replaced weights, patched operands.

`uwaga.edit` applies them. They can be checked, compared, written as JSON and printed as Python.

Letters: B batch, H query heads, Q queries, K keys, P positions, D query/key width, E value width.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated, Any, Literal, NamedTuple, TypeGuard

from annotated_types import Ge, Le
from torch import Tensor

from uwaga._base.arguments import check, choice
from uwaga._base.options import Integer, ListOf, Real, options, read
from uwaga._base.terminal import short
from uwaga.nn.attention_id import KINDS

OPERANDS = ("query", "key", "value", "output")
MAX_CHANGES = 10_000  # of one description read from JSON
MAX_POSITION = 2**31 - 1

HeadKey = tuple[str, int, int | None]  # kind, layer, head; None: all heads of the layer
Positions = Sequence[int] | int | None


class Where(NamedTuple):
    """Name one head of an attention layer, or with head=None all its heads."""

    kind: str  # "encoder", "decoder" or "cross"
    layer: int
    head: int | None

    def __str__(self) -> str:
        return f"({self.kind!r}, {self.layer}, {self.head})"


@dataclass(frozen=True, slots=True)
class Links:
    """Select the links from some queries to some keys, to block or weaken them.

    In `scores` they are blocked before softmax: their weights become 0, and the other weights of the row grow until it sums to 1 (the
    attention knockout of Geva et al., "Dissecting Recall of Factual Associations in Auto-Regressive Language Models", 2023,
    section 5). A row without any other key gives zeros. In `weights` their weights are multiplied by `factor` after softmax;
    the other weights of the row stay, and it no longer sums to 1.

    Args:
        queries: positions in the text, from 0: a list or one position; None: all.
        keys: positions of the keys, in the same form; in cross-attention, positions in the encoder's text.
        factor: the number that multiplies the weights after softmax; `scores` accepts only 0.

    Raises:
        ValueError: positions that are not integers from 0, or a factor that is not finite.
    """

    queries: Positions = None
    keys: Positions = None
    factor: float = 0.0

    def __post_init__(self) -> None:
        for name in ("queries", "keys"):
            object.__setattr__(self, name, _positions(f"Links: {name}", getattr(self, name)))
        check(_is_finite(self.factor), f"Links: factor must be a finite number, not {short(self.factor)}")
        object.__setattr__(self, "factor", float(self.factor))

    def __repr__(self) -> str:
        last = "" if self.factor == 0 else f", factor={self.factor!r}"
        return f"uwaga.Links(queries={_text_of(self.queries)}, keys={_text_of(self.keys)}{last})"


@dataclass(frozen=True, slots=True, eq=False)
class Patch:
    """Replace vectors of a head, for activation patching.

    Vig et al., "Investigating Gender Bias in Language Models Using Causal Mediation Analysis", 2020; Meng et al., "Locating and Editing
    Factual Associations in GPT", 2022. If query heads share keys, the head of a "key" or "value" is a key head.

    Args:
        operand: "query" or "key", after rotary positions; "value"; or "output", the head's result before W_O.
        source: vectors (P, D) for all texts of a batch, or (B, P, D) for each text; E wide for "value" and "output". Those of another
            text are in `uwaga.inspect.activations`.
        positions: P positions in the text, from 0; for "key" and "value" in cross-attention, positions in the encoder's text. None:
            the first P.

    Raises:
        ValueError: another operand, a source of another shape, positions that are not P different integers from 0.
    """

    operand: str
    source: Tensor
    positions: Positions = None

    def __post_init__(self) -> None:
        choice(self.operand, "Patch: operand", OPERANDS)
        if not isinstance(self.source, Tensor) or self.source.dim() not in (2, 3):
            result = tuple(self.source.shape) if isinstance(self.source, Tensor) else type(self.source).__name__
            raise ValueError(f"Patch: source must be a tensor (P, D) or (B, P, D), not {result}")
        positions, vectors = _positions("Patch: positions", self.positions), self.source.shape[-2]
        positions = tuple(range(vectors)) if positions is None else positions
        check(
            len(positions) == vectors,
            f"Patch: there are {len(positions)} positions for {vectors} vectors of the source",
        )
        object.__setattr__(self, "positions", positions)

    def __repr__(self) -> str:
        return f"uwaga.Patch({self.operand!r}, <tensor {tuple(self.source.shape)}>, {_text_of(self.positions)})"


_Number = Annotated[Integer, Ge(0), Le(MAX_POSITION)]


@options
class _Head:
    kind: Literal["encoder", "decoder", "cross"]
    layer: _Number
    head: _Number | None

    @property
    def key(self) -> HeadKey:
        return self.kind, self.layer, self.head


@options
class _HeadEntry(_Head):
    value: Real | Literal["mean"]


@options
class _ScoresEntry(_Head):
    queries: ListOf[_Number] | None
    keys: ListOf[_Number] | None


@options
class _WeightsEntry(_ScoresEntry):
    factor: Real = 0.0


@options
class _DescribedEdits:
    heads: ListOf[_HeadEntry] = field(default_factory=list)
    scores: ListOf[_ScoresEntry] = field(default_factory=list)
    weights: ListOf[_WeightsEntry] = field(default_factory=list)


Ablation = float | str | Tensor
WeightChange = Links | Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Edits:
    """Describe changes of a model's attention, applied by `uwaga.edit(model, edits)` or by `uwaga.edit` with the same arguments.

    Every key is (kind, layer, head) as in the maps of a recording, kind "encoder", "decoder" or "cross", and head None for all.

    Args:
        heads: changes of a head's output before W_O. A number multiplies it; 0.0 ablates the head. "mean" replaces it by its mean over
            all tokens of the batch in the same pass, without padding. A tensor (E,) replaces it by that vector.
        scores: one or several `Links` that are blocked before softmax.
        weights: one or several `Links` that are weakened after softmax; or a matrix (Q, K) or (B, Q, K) in place of the weights.
        patch: one or several `Patch`.

    Within a layer, queries, keys and values are patched first; then come scores, weights, patches of outputs, and heads.

    Raises:
        ValueError: a key or a value of another form; the message has it.
    """

    heads: Mapping[HeadKey, Ablation] = field(default_factory=dict)
    scores: Mapping[HeadKey, Links | Sequence[Links]] = field(default_factory=dict)
    weights: Mapping[HeadKey, WeightChange | Sequence[WeightChange]] = field(default_factory=dict)
    patch: Mapping[HeadKey, Patch | Sequence[Patch]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("heads", "scores", "weights", "patch"):
            changes = getattr(self, name)
            if not isinstance(changes, Mapping):
                raise ValueError(f"edit: {name} must be a dict from (kind, layer, head), not {type(changes).__name__}")
            checked = {_where(name, key): _changes(name, key, value) for key, value in changes.items()}
            object.__setattr__(self, name, checked)
        for where, links in self.scores.items():
            if any(link.factor != 0 for link in links):  # type: ignore[union-attr]
                raise ValueError(
                    f"edit: scores {where}: Links with a factor belong to weights: before softmax links are only blocked"
                )
        for where, changes in self.weights.items():
            for change in changes:  # type: ignore[union-attr]
                if isinstance(change, Tensor) and change.dim() not in (2, 3):
                    raise ValueError(
                        f"edit: weights {where}: a matrix must be (Q, K) or (B, Q, K), not {tuple(change.shape)}"
                    )

    def wheres(self) -> list[Where]:
        """Return all changed heads, each once."""
        return list(dict.fromkeys(chain(self.heads, self.scores, self.weights, self.patch)))  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return bool(self.wheres())

    def __repr__(self) -> str:
        return f"Edits({', '.join(self._arguments())})"

    def to_dict(self) -> dict[str, list[dict[str, Any]]]:
        """Return a description that json can write and `from_dict` reads.

        Raises:
            ValueError: a change holds a tensor.

        >>> Edits(heads={("encoder", 0, 1): 0.0}).to_dict()
        {'heads': [{'kind': 'encoder', 'layer': 0, 'head': 1, 'value': 0.0}], 'scores': [], 'weights': []}
        """
        self._check_plain("to_dict")
        result: dict[str, list[dict[str, Any]]] = {"heads": [], "scores": [], "weights": []}
        for where, value in self.heads.items():
            result["heads"].append(Where(*where)._asdict() | {"value": value})
        for name, changes in (("scores", self.scores), ("weights", self.weights)):
            for where, several in changes.items():
                for links in several:  # type: ignore[union-attr]
                    entry = Where(*where)._asdict()
                    for side in ("queries", "keys"):
                        positions = getattr(links, side)
                        entry[side] = None if positions is None else list(positions)
                    result[name].append(entry | ({"factor": links.factor} if name == "weights" else {}))  # type: ignore[union-attr]
        return result

    @staticmethod
    def from_dict(described: object) -> "Edits":
        """Read a description that `to_dict` made; it may be untrusted.

        Raises:
            ValueError: a description of another form; the message has the entry.
        """
        table = read(_DescribedEdits, described, path="Edits", noun="dict")
        if (count := len(table.heads) + len(table.scores) + len(table.weights)) > MAX_CHANGES:
            raise ValueError(f"Edits: a description has {count} changes, more than {MAX_CHANGES}")
        heads: dict[HeadKey, Ablation] = {}
        for number, entry in enumerate(table.heads):
            check(entry.key not in heads, f"Edits: heads[{number}] changes {Where(*entry.key)} a second time")
            heads[entry.key] = entry.value
        links: dict[str, dict[HeadKey, list[Links]]] = {"scores": {}, "weights": {}}
        for name, of_heads in links.items():
            for entry in getattr(table, name):
                factor = getattr(entry, "factor", 0.0)
                of_heads.setdefault(entry.key, []).append(Links(entry.queries, entry.keys, factor))
        return Edits(heads=heads, **links)  # type: ignore[arg-type]

    def as_python(self, model: str = "model") -> str:
        """Return the line of Python that makes these edits. Raises ValueError: a change holds a tensor.

        >>> print(Edits(heads={("decoder", 4, 5): 0.0}).as_python())
        with uwaga.edit(model, heads={('decoder', 4, 5): 0.0}) as edits:
        """
        self._check_plain("as_python")
        return f"with uwaga.edit({', '.join([model, *self._arguments()])}) as edits:"

    def _arguments(self) -> list[str]:
        values = []
        for name in ("heads", "scores", "weights", "patch"):
            pairs = [f"{where}: {_shown(value)}" for where, value in getattr(self, name).items()]
            if pairs:
                values.append(f"{name}={{{', '.join(pairs)}}}")
        return values

    def _check_plain(self, method: str) -> None:
        for name in ("heads", "weights", "patch"):
            for where, value in getattr(self, name).items():
                changes = value if isinstance(value, tuple) else (value,)
                if any(isinstance(change, Tensor | Patch) for change in changes):
                    raise ValueError(f"Edits.{method}: {name} {where} holds a tensor, which cannot be described")


def _where(name: str, key: object) -> Where:
    is_triple = isinstance(key, tuple) and len(key) == 3
    if not is_triple or key[0] not in KINDS or not _is_count(key[1]) or not (key[2] is None or _is_count(key[2])):  # type: ignore[index]
        rule = '(kind, layer, head) with kind "encoder", "decoder" or "cross", numbers from 0, and head None for all'
        raise ValueError(f"edit: a key of {name} must be {rule}, not {short(key)}")
    return Where(*key)  # type: ignore[misc]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_POSITION


def _ablation(key: object, value: object) -> Ablation:
    if isinstance(value, Tensor):
        if value.dim() == 1 and value.is_floating_point():
            return value
    elif isinstance(value, str):
        if value == "mean":
            return value
    elif _is_finite(value):
        return float(value)
    shown = f"a tensor {tuple(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else short(value)
    raise ValueError(f'edit: heads {short(key)} must be a finite number, "mean" or a floating tensor (E,), not {shown}')


# What the values of each kind of change may be, and their description for messages.
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "scores": ((Links,), "uwaga.Links"),
    "weights": ((Links, Tensor), "uwaga.Links or a matrix"),
    "patch": ((Patch,), "uwaga.Patch"),
}


def _changes(name: str, key: object, value: Any) -> Ablation | tuple[Any, ...]:
    if name == "heads":
        return _ablation(key, value)
    types, described = _TYPES[name]
    changes = tuple(value) if isinstance(value, list | tuple) else (value,)
    wrong = [change for change in changes if not isinstance(change, types)]
    if wrong or not changes:
        result = type(wrong[0]).__name__ if wrong else "an empty list"
        raise ValueError(f"edit: {name} {short(key)} must be {described}, or a list of them, not {result}")
    return changes


def _positions(name: str, positions: object) -> tuple[int, ...] | None:
    if positions is None:
        return None
    if isinstance(positions, Tensor) and positions.dim() <= 1:
        positions = positions.tolist()
    several = (positions,) if isinstance(positions, int) else positions
    if isinstance(several, str | bytes | Mapping) or not isinstance(several, Iterable):
        raise ValueError(f"{name} must be integers from 0, or None for all, not {short(positions)}")
    result = tuple(several)
    wrong = [position for position in result if not _is_count(position)]
    if wrong:
        raise ValueError(f"{name} must be integers from 0, not {short(wrong[0])}")
    if len(set(result)) < len(result):
        repeated = next(position for position, count in Counter(result).items() if count > 1)
        raise ValueError(f"{name} must be different integers, and {repeated} is listed twice")
    return result


def _is_finite(x: object) -> TypeGuard[float]:
    return isinstance(x, int | float) and not isinstance(x, bool) and abs(x) <= sys.float_info.max


def _text_of(positions: Positions) -> str:
    return "None" if positions is None else repr(list(positions))  # type: ignore[arg-type]


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_shown, value))}]"
    return f"<tensor {tuple(value.shape)}>" if isinstance(value, Tensor) else repr(value)
