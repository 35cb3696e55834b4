"""The engines of the maps by name, and which of them serves a map."""

from types import ModuleType

from uwaga.maps.engines import cpu, reference
from uwaga.ops.attention.call import Call

# In order of preference; the last one serves everything.
_ENGINES: dict[str, ModuleType] = {"cpu": cpu, "reference": reference}
NAMES = tuple(sorted(_ENGINES))


def chosen(call: Call, impl: str | None) -> ModuleType:
    """The first engine that does not refuse, or the named one.

    Raises:
        ValueError: no engine of this name, or it refuses. A named engine never falls back.
    """
    if impl is None:
        return next(engine for engine in _ENGINES.values() if engine.refusal(call) is None)
    if impl not in _ENGINES:
        raise ValueError(f"AttentionMap: no engine of maps is called {impl!r}; there are {', '.join(map(repr, NAMES))}")
    if (why := _ENGINES[impl].refusal(call)) is not None:
        raise ValueError(f"AttentionMap: engine {impl!r} cannot serve this map: {why}")
    return _ENGINES[impl]


def name(engine: ModuleType) -> str:
    """What the engine is called."""
    return next(known for known, module in _ENGINES.items() if module is engine)


def again(call: Call, impl: str) -> ModuleType:
    """The engine that served a call elsewhere, such as before pickling; another one where it is not to be had here."""
    return chosen(call, impl if _ENGINES[impl].refusal(call) is None else None)
