"""Directories of models that read pictures: tiny random ones of transformers, with an image processor and without a network."""

from pathlib import Path
from typing import Any

import torch
from tiny_tokenizer import read_as_it_is
from torch import nn

SIDE, PATCH = 32, 8
WIDE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": SIDE, "patch_size": PATCH}
INNER = WIDE | {"intermediate_size": 48}
_TEXT = {
    "vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 20, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
_SQUARE = {"height": SIDE, "width": SIDE}
_CROPPED = {"size": {"shortest_edge": SIDE + 4}, "crop_size": _SQUARE}
# The configuration, the model, the image processor, and the options of the first and the last.
_FAMILIES: dict[str, tuple[str, str, str, dict[str, Any], dict[str, Any]]] = {
    "vit": ("ViTConfig", "ViTForImageClassification", "ViTImageProcessor", INNER, {"size": _SQUARE}),
    "dinov2": ("Dinov2Config", "Dinov2Model", "BitImageProcessor", WIDE | {"mlp_ratio": 2}, _CROPPED),
    "registers": (
        "Dinov2WithRegistersConfig", "Dinov2WithRegistersModel", "BitImageProcessor", WIDE | {"mlp_ratio": 2, "num_register_tokens": 3},
        _CROPPED,
    ),
    "clip": (
        "CLIPConfig", "CLIPModel", "CLIPImageProcessor", {"text_config": _TEXT, "vision_config": INNER, "projection_dim": 16}, _CROPPED,
    ),
    "siglip": ("SiglipConfig", "SiglipModel", "SiglipImageProcessor", {"text_config": _TEXT, "vision_config": INNER}, {"size": _SQUARE}),
}  # fmt: skip


def randomized(model: nn.Module) -> nn.Module:
    """Weights that are large enough for attention to differ from token to token."""
    generator = torch.Generator().manual_seed(0)
    for name, x in model.named_parameters():
        is_scale = "norm" in name.lower() and name.endswith("weight")
        nn.init.normal_(x, 1.0 if is_scale else 0.0, 0.3, generator=generator)
    return model.eval()


def write_vision(folder: Path, family: str = "registers", *, tokenizer: bool = False, **more: Any) -> Path:
    """Write a model of a family; `more` replaces options of its configuration."""
    import transformers

    config, model, processor, options, reads = _FAMILIES[family]
    # The default token ids of CLIP's text tower are beyond a vocabulary of 256, which transformers says on the standard error.
    made = randomized(getattr(transformers, model)(getattr(transformers, config)(**options | more)))
    made.save_pretrained(folder)
    getattr(transformers, processor)(**reads).save_pretrained(folder)
    if tokenizer:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers

        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        bytes_of = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
        bytes_of.pre_tokenizer, bytes_of.decoder = (
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            decoders.ByteLevel(),
        )
        bytes_of.save(str(folder / "tokenizer.json"))
        read_as_it_is(folder)
    return folder


def write_photo(path: Path, width: int = 80, height: int = 60, **options: Any) -> Path:
    """Write a picture without a symmetry: a ramp of each colour, and a disc."""
    import numpy as np
    from PIL import Image

    y, x = np.mgrid[0:height, 0:width]
    pixels = np.stack(
        [200 * x / width, 200 * y / height, 255 * ((x - width / 3) ** 2 + (y - height / 3) ** 2 < height**2 / 16)], -1
    )
    Image.fromarray(pixels.astype(np.uint8)).save(path, **options)
    return path
