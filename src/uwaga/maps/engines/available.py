"""The engines of maps by name, and the choice between them."""

from types import ModuleType

from uwaga.maps.engines import cpu, reference, triton
from uwaga.ops.attention.call import Call
from uwaga.ops.engine_choice import Choice, named, refusals

_ENGINES: dict[str, ModuleType] = {"cpu": cpu, "reference": reference, "triton": triton}
# In order of preference; the last one refuses no call. Triton's interpreter serves CPU tensors, but only by name.
_ORDER, _ORDER_ON_DEVICE = ("cpu", "reference"), ("triton", "reference")
_WHY = {
    "cpu": "native kernels on the CPU",
    "reference": "plain PyTorch: no faster engine of maps serves this call",
    "triton": "Triton kernels on the GPU",
}
NAMES = tuple(sorted(_ENGINES))


def choose(call: Call, impl: str | None) -> ModuleType:
    """The named engine, or the first one that does not refuse the call.

    Raises:
        ValueError: no engine has this name, or it refuses the call: a named engine has no fallback.
    """
    if impl is not None:
        return _ENGINES[named(impl, NAMES, lambda name: _refusal(call, name), function="AttentionMap", what="map")]
    order = _ORDER if call.query.device.type == "cpu" else _ORDER_ON_DEVICE
    return next(_ENGINES[name] for name in order if _refusal(call, name) is None)


def explain(call: Call, engine: ModuleType) -> Choice:
    """The engine that serves a map, why, and why each other one would not."""
    return Choice(name(engine), _WHY[name(engine)], refusals(_ENGINES, lambda other: _refusal(call, other)))


def _refusal(call: Call, name: str) -> str | None:
    why: str | None = _ENGINES[name].refusal(call)
    return why


def name(engine: ModuleType) -> str:
    """The name of an engine."""
    return next(key for key, module in _ENGINES.items() if module is engine)


def restored(call: Call, impl: str) -> ModuleType:
    """The named engine, as after unpickling; the first other one where it refuses the call on this machine."""
    return choose(call, impl if _ENGINES[impl].refusal(call) is None else None)
