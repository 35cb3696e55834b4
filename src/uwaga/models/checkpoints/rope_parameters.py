"""rope_parameters of config.json: the base and the scaling of rotary positions, and back."""

from collections.abc import Callable
from dataclasses import fields
from typing import NamedTuple

from uwaga._base.errors import CheckpointError
from uwaga._base.options import POSITIVE, SWITCH, OptionValidator, is_number, optional
from uwaga._base.terminal import printable
from uwaga.models.checkpoints.config_json import SIZE
from uwaga.nn.rotary_scaling import KINDS, RotaryScaling

_NUMBER = optional(POSITIVE)
# The keys of each kind besides the base; required are those without None.
_KEYS: dict[str, dict[str, OptionValidator]] = {
    "default": {},
    "linear": {"factor": POSITIVE},
    "dynamic": {"factor": POSITIVE},
    "llama3": {
        "factor": POSITIVE,
        "low_freq_factor": POSITIVE,
        "high_freq_factor": POSITIVE,
        "original_max_position_embeddings": optional(SIZE),
    },
    "yarn": {
        "factor": POSITIVE,
        "original_max_position_embeddings": optional(SIZE),
        "beta_fast": _NUMBER,
        "beta_slow": _NUMBER,
        "attention_factor": _NUMBER,
        "mscale": _NUMBER,
        "mscale_all_dim": _NUMBER,
        "truncate": optional(SWITCH),
    },
}
_DEFAULTS = {each.name: each.default for each in fields(RotaryScaling)}
_COMMON = {"rope_theta", "rope_type", "type", "partial_rotary_factor"}


class Rope(NamedTuple):
    """Rotary positions of a layer."""

    base: float
    scaling: RotaryScaling | None = None


def read(where: str, default: float, max_position_embeddings: int, *parameters: object) -> Rope:
    """Of JSON objects, of which the last that has a key counts; None is none.

    Args:
        where: the file, for messages.
        default: the base where `rope_theta` is absent.
        max_position_embeddings: of the model, which is original_max_position_embeddings where that is absent.

    Raises:
        CheckpointError: a kind that is not computed, keys that its kind does not have, or values of a wrong type.

    >>> read("config.json", 10000.0, 512, None, {"rope_type": "default", "rope_theta": 160000})
    Rope(base=160000.0, scaling=None)
    """
    merged: dict[str, object] = {}
    for each in parameters:
        if not isinstance(each, dict | None):
            raise CheckpointError(f"{where}: rope_parameters must be a JSON object, not {printable(repr(each))}")
        merged |= {key: value for key, value in (each or {}).items() if value is not None}
    kind = merged.get("rope_type", merged.get("type", "default"))
    if kind not in _KEYS or merged.get("partial_rotary_factor", 1.0) != 1.0:
        given = printable(repr(kind if kind not in _KEYS else "partial_rotary_factor"))
        known = ", ".join(map(repr, _KEYS))
        raise CheckpointError(f"{where}: rotary positions of the type {given} are not supported, only {known}")
    assert isinstance(kind, str)
    base = merged.get("rope_theta", default)
    if not is_number(base) or not base > 1:
        raise CheckpointError(f"{where}: rope_theta must be a number above 1, not {printable(repr(base))}")
    own = {name: value for name, value in merged.items() if name not in _COMMON}
    if unknown := sorted(set(own) - set(_KEYS[kind])):
        names = ", ".join(map(printable, unknown))
        raise CheckpointError(f"{where}: rope_parameters of the type {kind!r} have no {names}")
    for name, validator in _KEYS[kind].items():
        if not validator.accepts(own.get(name)):
            shown = printable(repr(own.get(name)))
            raise CheckpointError(f"{where}: {name} of rope_parameters must be {validator.words}, not {shown}")
    if kind == "default":
        return Rope(float(base))
    if "original_max_position_embeddings" in _KEYS[kind]:
        own.setdefault("original_max_position_embeddings", max_position_embeddings)
    make: Callable[..., RotaryScaling] = RotaryScaling
    try:
        return Rope(float(base), make(kind=kind, **own))
    except ValueError as error:
        raise CheckpointError(f"{where}: {error}") from error


def write(rope: Rope) -> dict[str, object]:
    """
    >>> write(Rope(10000.0, RotaryScaling(kind="linear", factor=2.0)))
    {'rope_type': 'linear', 'rope_theta': 10000.0, 'factor': 2.0}
    """
    scaling = rope.scaling
    written = {"rope_type": "default" if scaling is None else scaling.kind, "rope_theta": rope.base}
    if scaling is None:
        return written
    assert scaling.kind in KINDS
    for name, validator in _KEYS[scaling.kind].items():
        value = getattr(scaling, name)
        if not validator.accepts(None) or value != _DEFAULTS[name]:
            written[name] = value
    return written
