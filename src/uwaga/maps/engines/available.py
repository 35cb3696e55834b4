"""The engines of maps by name, and the choice between them."""

from types import ModuleType

from uwaga.maps.engines import cpu, reference
from uwaga.ops.attention.call import Call

# In order of preference; the last one refuses no call.
_ENGINES: dict[str, ModuleType] = {"cpu": cpu, "reference": reference}
NAMES = tuple(sorted(_ENGINES))


def choose(call: Call, impl: str | None) -> ModuleType:
    """The named engine, or the first one that does not refuse the call.

    Raises:
        ValueError: no engine has this name, or it refuses the call: a named engine has no fallback.
    """
    if impl is None:
        return next(engine for engine in _ENGINES.values() if engine.refusal(call) is None)
    if impl not in _ENGINES:
        raise ValueError(f"AttentionMap: impl must be one of {', '.join(map(repr, NAMES))} or None, not {impl!r}")
    if (why := _ENGINES[impl].refusal(call)) is not None:
        raise ValueError(f"AttentionMap: engine {impl!r} cannot serve this map: {why}")
    return _ENGINES[impl]


def name(engine: ModuleType) -> str:
    """The name of an engine."""
    return next(known for known, module in _ENGINES.items() if module is engine)


def restored(call: Call, impl: str) -> ModuleType:
    """The named engine, as after unpickling; the first other one where it refuses the call on this machine."""
    return choose(call, impl if _ENGINES[impl].refusal(call) is None else None)
