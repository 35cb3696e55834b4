"""Vision transformers of transformers: the tokens before their patches, and their grids of patches."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from uwaga._base.arguments import check
from uwaga._base.errors import CheckpointError
from uwaga.inspect.patches import PatchGrid
from uwaga.integrations.transformers.inside import outermost

# The names of the tokens before registers (Darcet et al., "Vision Transformers Need Registers", 2024) and patches, by model_type.
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
    """Return the outermost vision transformers of these families in a model."""
    return [module for _, module in outermost(model, lambda module: module.config.model_type in _SPECIAL)]


def vision_part(model: nn.Module, folder: Path) -> Any:
    """Return the one vision transformer in the model of a directory. Raises CheckpointError: there is none, or several."""
    found = vision_models(model)
    if len(found) != 1:
        rule = f"{type(model).__name__} reads no images that can be watched" if not found else f"it has {len(found)}"
        raise CheckpointError(f"{folder}: {rule}; a vision transformer is one of {', '.join(FAMILIES)}")
    return found[0]


def token_names(module: Any, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> list[str] | None:
    """Return the names of the tokens that a vision transformer makes of its input; None if the input has no pixels."""
    pixel_values = arguments[0] if arguments else options.get("pixel_values")
    if not isinstance(pixel_values, Tensor) or pixel_values.dim() < 2:
        return None
    return _grid(module.config, pixel_values).tokens


def _grid(config: Any, pixel_values: Tensor) -> PatchGrid:
    size = config.patch_size
    height, width = (size, size) if isinstance(size, int) else tuple(size)
    rows, columns = pixel_values.shape[-2] // height, pixel_values.shape[-1] // width
    if rows < 1 or columns < 1:
        size = f"{pixel_values.shape[-1]} by {pixel_values.shape[-2]} pixels"
        raise ValueError(f"patch_grid: an image of {size} (width by height) has no patch of {width} by {height}")
    registers = [f"[REG {n}]" for n in range(getattr(config, "num_register_tokens", 0))]
    special = (*_SPECIAL[config.model_type], *registers)
    return PatchGrid(rows=rows, columns=columns, special=special, patch_size=(height, width))
