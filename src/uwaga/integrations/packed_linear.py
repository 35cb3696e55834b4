"""pack_linear(): the linear maps of a model that is not ours computed by uwaga.linear, and unpack_linear(), which undoes it.

Letters: K input width, N output width.
"""

import sys
from collections.abc import Iterator

from torch import Tensor, nn

from uwaga.integrations.transformers.packed_states import linear_of_tokens


class PackedLinear(nn.Linear):
    """nn.Linear, computed by uwaga.linear. Made by `pack_linear`."""

    def forward(self, input: Tensor) -> Tensor:  # the name of nn.Linear, by which it may be called
        return linear_of_tokens(input, self.weight, self.bias)


def pack_linear(model: nn.Module) -> int:
    """Compute the linear maps of a model with uwaga.linear from now on: every nn.Linear, and every Conv1D of transformers
    (GPT-2).

        register_with_transformers()
        model = AutoModel.from_pretrained(path, attn_implementation="uwaga").eval()
        pack_linear(model)

    Each module's class becomes a subclass whose `forward` calls uwaga.linear; nothing else changes: not the parameters, which
    stay as they are, nor the keys of its state dict, hooks, ties or configuration. No packed copy of a
    weight is kept: the kernels pack it, panel by panel, inside the call, so a weight may change at any time and no memory is
    added. PyTorch computes what no engine of uwaga.linear serves, such as other devices, float64 and weights that are
    subclasses of Tensor; `uwaga.linear`'s documentation has the rule.

    Only modules whose class is exactly nn.Linear or Conv1D are taken. Subclasses compute something of their own (quantized
    maps, for example) and are left alone, and so is a module whose `forward` has been replaced on the instance, as hooks of
    accelerate do. Inside adapters of PEFT the original map and the adapter's own are taken. A second call takes what was
    added since.

    A packed model is saved, loaded, copied and pickled as before; a pickle of the whole model needs uwaga to be read.
    Rules that go by the exact class, torch.ao.quantization.quantize_dynamic and leaf modules of torch.fx among them, do not
    know the subclass: apply them before packing, or unpack first. What torch.export and torch.jit.trace record are PyTorch's own
    operators.

    Args:
        model: any module, such as a model of transformers, a SentenceTransformer, or one that DataParallel wraps.

    Returns:
        How many modules this call took.

    Raises:
        ValueError: the model has no nn.Linear and no Conv1D, packed or not.
    """
    modules = [module for module in model.modules() if type(module) in _packed_classes()]
    if not modules and next(_packed(model), None) is None:
        raise ValueError(
            f"pack_linear: {type(model).__name__} has no module whose class is exactly nn.Linear or Conv1D of transformers"
        )
    taken = [module for module in modules if "forward" not in vars(module)]
    for module in taken:
        module.__class__ = _packed_classes()[type(module)]
    return len(taken)


def unpack_linear(model: nn.Module) -> int:
    """Undo `pack_linear`: every packed module has its own class again. Without packed modules it has no effect.

    Returns:
        How many modules this call gave back.

    Raises:
        ValueError: the class or the `forward` of a packed module has been replaced since, by torch.nn.utils.parametrize or
            a hook of accelerate, for example. The message names the module, and nothing is changed.
    """
    packed = dict(_packed(model))
    originals = {after: before for before, after in _packed_classes().items()}
    for name, module in packed.items():
        if type(module) not in originals:
            what = f"its class is now {type(module).__name__}"
        elif "forward" in vars(module):
            what = "its forward has been replaced"
        else:
            continue
        raise ValueError(
            f"unpack_linear: module {name!r} was changed by other code since it was packed: {what}; undo that first"
        )
    for module in packed.values():
        module.__class__ = originals[type(module)]
    return len(packed)


def is_packed(module: nn.Module) -> bool:
    """Return whether `pack_linear` took this module."""
    return isinstance(module, tuple(_packed_classes().values()))


def _packed(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Return every packed module with its name, changed by other code or not."""
    return ((name, module) for name, module in model.named_modules() if is_packed(module))


def _packed_classes() -> dict[type[nn.Module], type[nn.Module]]:
    """Return the subclass of each class that is taken. A model with a Conv1D has imported transformers; others need not."""
    if "transformers.pytorch_utils" not in sys.modules:
        return {nn.Linear: PackedLinear}
    from transformers.pytorch_utils import Conv1D

    from uwaga.integrations.transformers.packed_conv1d import PackedConv1D

    return {nn.Linear: PackedLinear, Conv1D: PackedConv1D}
