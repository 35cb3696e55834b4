"""Models of transformers that read pictures as patches: which tokens they put before the patches, and how many patches there are."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from uwaga._base.arguments import check
from uwaga._base.errors import CheckpointError
from uwaga._base.threads import calling_here
from uwaga.inspect.patches import PatchGrid
from uwaga.integrations.transformers.inside import outermost

# By model_type, the names of what comes before the registers (Darcet et al., "Vision Transformers Need Registers", 2024) and patches.
_SPECIAL: Mapping[str, tuple[str, ...]] = {
    "clip_vision_model": ("[CLS]",),
    "deit": ("[CLS]", "[DIST]"),
    "dinov2": ("[CLS]",),
    "dinov2_with_registers": ("[CLS]",),
    "dinov3_vit": ("[CLS]",),
    "ijepa": (),
    "siglip_vision_model": (),
    "vit": ("[CLS]",),
    "vit_msn": ("[CLS]",),
}
FAMILIES = tuple(_SPECIAL)


def patch_grid(model: nn.Module, pixel_values: Tensor) -> PatchGrid:
    """Return the grid of patches into which a model cuts an image, with the names of its class token and registers.

    Args:
        model: ViT, DeiT, DINOv2 (also with registers), DINOv3, I-JEPA, ViT-MSN, or the vision tower of CLIP or SigLIP, all of
            transformers; or a model that contains one of these.
        pixel_values: (..., height, width), as the model reads them.

    Raises:
        ValueError: a model of another family, a model that contains several of these, or an image smaller than a patch.

    >>> import torch, transformers
    >>> small = transformers.Dinov2WithRegistersConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, patch_size=4)
    >>> model = transformers.Dinov2WithRegistersModel(small)
    >>> patch_grid(model, torch.zeros(1, 3, 12, 20))
    PatchGrid(rows=3, columns=5, special=('[CLS]', '[REG 0]', '[REG 1]', '[REG 2]', '[REG 3]'), start=0, patch_size=(4, 4))
    """
    found = vision_models(model)
    check(
        len(found) == 1,
        f"patch_grid: needs a model with one vision transformer of {', '.join(FAMILIES)}, and {type(model).__name__} has {len(found)}",
    )
    return _grid(found[0].config, pixel_values)


def vision_models(model: nn.Module) -> list[Any]:
    """The vision transformers of these families in a model, none inside of another one."""
    return [module for _, module in outermost(model, lambda module: module.config.model_type in _SPECIAL)]


def vision_part(model: nn.Module, folder: Path) -> Any:
    """The vision transformer in the model of a directory. Raises CheckpointError: there is not one of these."""
    found = vision_models(model)
    if len(found) != 1:
        rule = f"{type(model).__name__} reads no pictures that can be watched" if not found else f"it has {len(found)}"
        raise CheckpointError(f"{folder}: {rule}; a vision transformer is one of {', '.join(FAMILIES)}")
    return found[0]


@contextmanager
def naming(model: nn.Module, named: Callable[[list[str]], None]) -> Iterator[set[nn.Module]]:
    """A context in which `named` is called with the names of the tokens of each picture, before a vision transformer reads it. Gives all
    modules of vision transformers."""
    found = vision_models(model)
    with ExitStack() as stack:
        here = stack.enter_context(calling_here())
        for module in found:
            hook = module.register_forward_pre_hook(here(partial(_name_tokens, named)), with_kwargs=True)
            stack.callback(hook.remove)
        yield {part for module in found for part in module.modules()}


def _name_tokens(
    named: Callable[[list[str]], None], module: Any, arguments: tuple[Any, ...], by_name: Mapping[str, Any]
) -> None:
    pixel_values = arguments[0] if arguments else by_name.get("pixel_values")
    if isinstance(pixel_values, Tensor) and pixel_values.dim() >= 2:
        named(_grid(module.config, pixel_values).tokens)


def _grid(config: Any, pixel_values: Tensor) -> PatchGrid:
    size = config.patch_size
    height, width = (size, size) if isinstance(size, int) else tuple(size)
    rows, columns = pixel_values.shape[-2] // height, pixel_values.shape[-1] // width
    if rows < 1 or columns < 1:
        picture = f"{pixel_values.shape[-1]} by {pixel_values.shape[-2]} pixels"
        raise ValueError(f"patch_grid: a picture of {picture} (width by height) has no patch of {width} by {height}")
    registers = [f"[REG {n}]" for n in range(getattr(config, "num_register_tokens", 0))]
    special = (*_SPECIAL[config.model_type], *registers)
    return PatchGrid(rows=rows, columns=columns, special=special, patch_size=(height, width))
