"""From a call and an engine's name to the result, by the shortest way that the surroundings allow."""

from torch import Tensor

from uwaga._base.eager import is_eager, is_plain
from uwaga.ops.attention import available, eager, gradients, schema
from uwaga.ops.attention.spec import Call


def run(call: Call, engine: str) -> tuple[Tensor, Tensor | None]:
    """The output (B, H, Q, E) and the lse (B, H, Q), None where nobody asked for it.

    PyTorch's own kernels are traced and differentiated by PyTorch itself. For the others: in plain eager mode the
    engine is called as it is; under torch.compile, torch.func, a dispatch mode or a tensor subclass it is a registered
    operator.
    """
    if engine == "torch":
        return available.engine(engine).attend(call)
    if is_eager() and all(map(is_plain, gradients.operands(call))):
        if engine == "cpu":
            return eager.run(call, engine)
        return available.engine(engine).attend(call)
    return schema.run(call, engine)
