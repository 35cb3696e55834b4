"""rope_parameters and rope_scaling of config.json: the base and the scaling of rotary positions."""

from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Ge, Gt, Le

from uwaga._base.errors import CheckpointError
from uwaga._base.options import Positive, Real, Switch, Words
from uwaga._base.terminal import printable
from uwaga.models.checkpoints.config_json import ModelSize, setting
from uwaga.nn.rotary_scaling import RotaryScaling

_LENGTH = "original_max_position_embeddings"
_YARN = ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate")
# The keys of each type, without the base and the type: those that it needs, and those that it may have.
_OWN_KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "dynamic": (("factor",), ()),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", _LENGTH), ()),
    "yarn": (("factor", _LENGTH), _YARN),
}
_RULES: dict[str, Any] = {_LENGTH: ModelSize, "truncate": Switch}  # of all other keys: Positive
_Kind: Any = Literal[tuple(_OWN_KEYS)]
_COMMON = {"rope_theta", "rope_type", "type", "partial_rotary_factor"}


class Rope(NamedTuple):
    """Rotary positions of a layer."""

    base: float
    scaling: RotaryScaling | None = None


def read(config: Mapping[str, Any], where: str, theta: float, length: int) -> Rope:
    """Return the rotary positions of all layers: rope_scaling, or else rope_parameters, as in transformers.

    Args:
        config: config.json.
        where: its path, for messages.
        theta: the base where nothing says one.
        length: max_position_embeddings.

    Raises:
        CheckpointError: a type that is not computed, keys that the type does not have, or values of a wrong kind.

    >>> read({"rope_parameters": {"rope_type": "default", "rope_theta": 160000}}, "config.json", 10000.0, 512)
    Rope(base=160000.0, scaling=None)
    """
    name = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    values = {"rope_theta": config.get("rope_theta", theta)} | _object({name: config.get(name) or {}}, where, name)
    kind = values.get("rope_type", values.get("type", "default"))
    if _LENGTH in config and kind in ("llama3", "yarn") and values.get(_LENGTH, 1) is not None:
        values[_LENGTH] = config[_LENGTH]
    return _rope(config, values, where, name, length)


def read_by_layer_type(
    config: Mapping[str, Any], where: str, length: int, bases: Mapping[str, tuple[str, float]], scaled: Collection[str]
) -> dict[str, Rope]:
    """Return the rotary positions of each type of layers. rope_scaling changes their rope_parameters key by key, as in transformers.

    Args and Raises: as of `read`.
        bases: by layer type, if its rope_parameters have no base: the key of config.json, and the base if that key is absent too.
        scaled: the layer types that rope_scaling changes.
    """
    parameters, scaling = config.get("rope_parameters"), config.get("rope_scaling")
    if parameters is None:
        parameters = {kind: {"rope_type": "default"} for kind in bases}
    if strange := sorted(set(_object({"rope_parameters": parameters}, where, "rope_parameters")) - set(bases)):
        rule = f"rope_parameters may only have {' and '.join(bases)}, each a JSON object"
        raise CheckpointError(f"{where}: {rule}, not {', '.join(map(printable, strange))}")
    ropes = {}
    for kind, (key, base) in bases.items():
        name = f"rope_parameters.{kind}"
        values = _object({name: parameters.get(kind, {})}, where, name)
        if scaling is not None and kind in scaled:
            if kind not in parameters:
                raise CheckpointError(f"{where}: rope_scaling changes {name}, which is absent: write it there")
            values = values | _object(config, where, "rope_scaling")
            name = f"{name} with rope_scaling"
        values = {"rope_theta": config.get(key, base)} | values
        if values.get("truncate", True) is not True:
            raise CheckpointError(f"{where}: truncate of {name} is not read by transformers: leave it out")
        ropes[kind] = _rope(config, values, where, name, length)
    return ropes


def _object(config: Mapping[str, Any], where: str, name: str) -> dict[str, Any]:
    """Return the value of a key that is an object. Raises CheckpointError."""
    return setting(config, where, name, dict[str, Any], None)


def _rope(config: Mapping[str, Any], values: Mapping[str, object], where: str, name: str, length: int) -> Rope:
    """Return the rotary positions that `values` describe; `name` is the object in config.json that has them, for messages."""
    inside = f"{where}: {name}"
    key = "type" if "rope_type" not in values and "type" in values else "rope_type"
    kind = setting(values, inside, key, _Kind, "default")
    base = setting(values, inside, "rope_theta", Annotated[Real, Gt(1)], None)
    part = config.get("partial_rotary_factor") or 1.0
    setting(values, inside, "partial_rotary_factor", Annotated[Real, Ge(1), Le(1), Words("1")], part)
    options = {key: value for key, value in values.items() if key not in _COMMON}
    needed, optional = _OWN_KEYS[kind]
    if unknown := sorted(set(options) - {*needed, *optional}):
        names = ", ".join(map(printable, unknown))
        raise CheckpointError(f"{inside} of the type {kind!r} cannot have {names}")
    if kind == "default":
        return Rope(base)
    if _LENGTH in needed:
        options.setdefault(_LENGTH, length)
    present = (key for key in optional if options.get(key) is not None or (key == "truncate" and key in options))
    for key in (*needed, *present):
        options[key] = setting(options, inside, key, _RULES.get(key, Positive), None)
    options = {key: value for key, value in options.items() if value is not None}
    make: Callable[..., RotaryScaling] = RotaryScaling
    try:
        return Rope(base, make(kind=kind, **options))
    except ValueError as error:
        raise CheckpointError(f"{inside}: {error}") from error
