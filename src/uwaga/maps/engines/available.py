"""The engines of maps by name, and the choice between them."""

from types import ModuleType

from uwaga.maps.engines import cpu, reference, triton
from uwaga.ops.attention.call import Call
from uwaga.ops.attention.choose import Choice

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
    if impl is None:
        return next(engine for engine in (_ENGINES[known] for known in _order(call)) if engine.refusal(call) is None)
    if impl not in _ENGINES:
        raise ValueError(f"AttentionMap: impl must be one of {', '.join(map(repr, NAMES))} or None, not {impl!r}")
    if (why := _ENGINES[impl].refusal(call)) is not None:
        raise ValueError(f"AttentionMap: engine {impl!r} cannot serve this map: {why}")
    return _ENGINES[impl]


def explain(call: Call, engine: ModuleType) -> Choice:
    """The engine that serves a map, why, and why each other one would not."""
    refusals = {other: module.refusal(call) for other, module in _ENGINES.items()}
    refused = {other: why for other, why in refusals.items() if why is not None}
    return Choice(name(engine), _WHY[name(engine)], refused)


def _order(call: Call) -> tuple[str, ...]:
    return _ORDER if call.query.device.type == "cpu" else _ORDER_ON_DEVICE


def name(engine: ModuleType) -> str:
    """The name of an engine."""
    return next(known for known, module in _ENGINES.items() if module is engine)


def restored(call: Call, impl: str) -> ModuleType:
    """The named engine, as after unpickling; the first other one where it refuses the call on this machine."""
    return choose(call, impl if _ENGINES[impl].refusal(call) is None else None)
