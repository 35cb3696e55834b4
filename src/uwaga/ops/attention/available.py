"""The engines by name, and what each of them refuses."""

from types import ModuleType

from uwaga._base import native
from uwaga.ops.attention import reference
from uwaga.ops.attention.call import Call
from uwaga.ops.attention.choose import Choice, choose, order, require_name
from uwaga.ops.attention.engines import cpu, linear, torch_fused

_ENGINES: dict[str, ModuleType] = {"cpu": cpu, "linear": linear, "reference": reference, "torch": torch_fused}

# torch.compile takes the answer as a constant and does not trace into the loading of a library. This is what
# torch.compiler.assume_constant_result does, without the second that its import of the compiler costs.
native.reason_unavailable._dynamo_marked_constant = True


def engine(name: str) -> ModuleType:
    return _ENGINES[name]


def choice(call: Call, impl: str | None) -> Choice:
    """The choice with every engine's refusal."""
    refusals = {name: module.refusal(call) for name, module in _ENGINES.items()}
    return choose(softmax=call.options.softmax, is_float64=_is_float64(call), refusals=refusals, impl=impl)


def chosen(call: Call, impl: str | None) -> str:
    """The name that `choice` gives, asking no more engines than it must: this is on the path of every call."""
    if impl is not None:
        require_name(impl)
        refusals = {impl: _ENGINES[impl].refusal(call)}
        return choose(softmax=call.options.softmax, is_float64=False, refusals=refusals, impl=impl).engine
    for name in order(softmax=call.options.softmax, is_float64=_is_float64(call)):
        if _ENGINES[name].refusal(call) is None:
            return name
    raise AssertionError("the reference serves every call")


def _is_float64(call: Call) -> bool:
    return call.query.dtype.itemsize == 8
