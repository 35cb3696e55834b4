"""Models that read pictures: their maps are those of eager attention, and patches, class token and registers are where the grid says.

Letters: B pictures, H heads, K keys.
"""

import copy
from collections.abc import Callable

import pytest
import torch
from small_models import exactly
from tiny_vision import INNER, WIDE, randomized
from tolerance import assert_as_exact
from torch import Tensor, nn

import uwaga
from uwaga import AttentionMap, Causal
from uwaga.inspect import PatchGrid, image_grids, patch_grid
from uwaga.maps import SubsetMap

transformers = pytest.importorskip("transformers", reason="transformers is not installed: the extra `test` brings it")

_DINO = WIDE | {"mlp_ratio": 2}
TEXT = INNER | {
    "vocab_size": 60,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_REGISTERS = ("[CLS]", "[REG 0]", "[REG 1]", "[REG 2]")
# The configuration and the model of each family, and what is before its patches.
FAMILIES: dict[str, tuple[str, str, dict, tuple[str, ...]]] = {
    "vit": ("ViTConfig", "ViTModel", INNER, ("[CLS]",)),
    "vit with a head": ("ViTConfig", "ViTForImageClassification", INNER, ("[CLS]",)),
    "vit_msn": ("ViTMSNConfig", "ViTMSNModel", INNER, ("[CLS]",)),
    "deit": ("DeiTConfig", "DeiTModel", INNER, ("[CLS]", "[DIST]")),
    "dinov2": ("Dinov2Config", "Dinov2Model", _DINO, ("[CLS]",)),
    "dinov2 with registers": (
        "Dinov2WithRegistersConfig",
        "Dinov2WithRegistersModel",
        _DINO | {"num_register_tokens": 3},
        _REGISTERS,
    ),
    "dinov3": ("DINOv3ViTConfig", "DINOv3ViTModel", INNER | {"num_register_tokens": 3}, _REGISTERS),
    "ijepa": ("IJepaConfig", "IJepaModel", INNER, ()),
    "clip": ("CLIPVisionConfig", "CLIPVisionModel", INNER, ("[CLS]",)),
    "siglip": ("SiglipVisionConfig", "SiglipVisionModel", INNER, ()),
}


def make(family: str, **more: object) -> nn.Module:
    config, model, options, _ = FAMILIES[family]
    return made(getattr(transformers, model)(getattr(transformers, config)(**options | more)))


def made(model: nn.Module) -> nn.Module:
    model.set_attn_implementation("eager")
    return randomized(model)


def pictures(count: int, height: int = 32, width: int = 32) -> Tensor:
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def check(model: nn.Module, run: Callable[[nn.Module], object], kind: str = "encoder") -> uwaga.Recording:
    """Each map lies no farther from eager attention in float64 than twice what eager attention in float32 does, and a unit."""
    peers = run(model)
    with uwaga.watch(model) as recording:
        run(model)
    in_float64 = copy.deepcopy(model).double()
    exact = exactly(lambda: run(in_float64))
    assert len(peers) == len([layer for recorded_kind, layer in recording.maps if recorded_kind == kind])
    for layer, peer in enumerate(peers):
        assert_as_exact(recording.maps[kind, layer].to_dense(), peer, lambda layer=layer: exact()[layer])
    return recording


def attentions(*tensors: Tensor, **named: Tensor) -> Callable[[nn.Module], object]:
    def run(model: nn.Module) -> object:
        dtype = next(model.parameters()).dtype

        def cast(x: Tensor) -> Tensor:
            return x.to(dtype) if x.is_floating_point() else x

        return model(*map(cast, tensors), **{k: cast(x) for k, x in named.items()}, output_attentions=True).attentions

    return run


@pytest.mark.gate(only=lambda family: family in ("vit", "deit", "dinov2 with registers", "ijepa", "clip"))
@pytest.mark.parametrize(
    "family",
    FAMILIES,
)
def test_maps_are_eager_attention_and_tokens_have_names(family: str) -> None:
    model, pixels = make(family), pictures(2)
    recording = check(model, attentions(pixels))
    grid = patch_grid(model, pixels)
    assert (grid.rows, grid.columns, grid.special, grid.patch_size) == (4, 4, FAMILIES[family][3], (8, 8))
    assert recording.tokens == {"encoder": [grid.tokens] * 2}
    m = recording.maps["encoder", 1]
    assert m.shape[-1] == len(grid.tokens)
    dense_BHQK = m.to_dense()
    first, stop = grid.span
    looks_HIJ = grid.looks_at(m, (2, 3), picture=1)
    assert torch.equal(looks_HIJ.flatten(1), dense_BHQK[1, :, first + 11, first:stop])
    assert torch.equal(grid.looked_at(m, (0, 1), picture=1).flatten(1), dense_BHQK[1, :, first:stop, first + 1])
    assert torch.equal(grid.on_special(m, (2, 3), picture=1), dense_BHQK[1, :, first + 11, :first])
    received_BHIJ = grid.of_keys(m.received())
    assert torch.equal(received_BHIJ[1, :, 2, 3], m.received()[1, :, first + 11])


def test_other_resolutions_and_pictures_that_are_not_square() -> None:
    model, pixels = make("dinov2 with registers"), pictures(1, 40, 72)
    recording = check(model, attentions(pixels))
    grid = patch_grid(model, pixels)
    assert (grid.rows, grid.columns) == (5, 9)
    assert recording.tokens["encoder"] == [grid.tokens]
    assert grid.looks_at(recording.maps["encoder", 0], 0).shape == (4, 5, 9)


def test_the_towers_of_clip() -> None:
    clip = made(
        transformers.CLIPModel(transformers.CLIPConfig(text_config=TEXT, vision_config=INNER, projection_dim=16))
    )
    ids, pixels = torch.tensor([[1, 5, 6, 7, 2], [1, 9, 8, 7, 2]]), pictures(2)
    text = check(clip.text_model, attentions(ids))
    assert text.tokens["encoder"] == [["1", "5", "6", "7", "2"], ["1", "9", "8", "7", "2"]]
    assert float(text.maps["encoder", 0].to_dense().triu(1).abs().max()) == 0  # the text tower is causal
    picture = check(clip.vision_model, attentions(pixels))
    assert picture.tokens["encoder"][1][:2] == ["[CLS]", "0,0"]
    # Inside of the whole model, too, each has the maps of its own pass.
    with uwaga.watch(clip.vision_model) as inside, torch.no_grad():
        clip(input_ids=ids, pixel_values=pixels)
    assert torch.equal(inside.maps["encoder", 1].to_dense(), picture.maps["encoder", 1].to_dense())
    with pytest.raises(ValueError, match="watch a part of it that has one of them"), uwaga.watch(clip):
        pass


def test_words_and_patches_in_one_sequence() -> None:
    """LLaVA: which word looks at which patch, in the decoder; and the vision tower by itself."""
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**INNER),
        text_config=transformers.LlamaConfig(**TEXT),
        image_token_index=50,
    )
    model = made(transformers.LlavaForConditionalGeneration(config))
    ids = torch.tensor([[1, 5, *[50] * 16, 6, 7, 8]])
    recording = check(model, attentions(input_ids=ids, pixel_values=pictures(1)), "decoder")
    assert recording.tokens["decoder"] == [[str(token_id) for token_id in ids[0].tolist()]]
    assert recording.tokens["encoder"][0][:2] == ["[CLS]", "0,0"]
    (grid,) = image_grids(ids[0], image_token_id=50)
    assert image_grids(ids[0], 9) == []
    assert (grid.span, grid.rows) == ((2, 18), 4)
    m = recording.maps["decoder", 1]
    dense_HQK = m.to_dense()[0]
    assert torch.equal(grid.looks_at(m, 20).flatten(1), dense_HQK[:, 20, 2:18])
    pooled = m.pool([18, 21], list(grid.span)).weights[0, :, 0, 0]
    torch.testing.assert_close(pooled, dense_HQK[:, 18:21, 2:18].sum(-1).mean(-1))


def test_pictures_that_are_not_square_and_a_tower_of_another_family() -> None:
    """Qwen2-VL: four patches are one token of the decoder, and the tower is not one that has names."""
    text = TEXT | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}
    vision = {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "patch_size": 4, "spatial_merge_size": 2}
    config = transformers.Qwen2VLConfig(text_config=text, vision_config=vision, image_token_id=50)
    model = made(transformers.Qwen2VLForConditionalGeneration(config))
    ids, thw = torch.tensor([[1, 51, *[50] * 6, 52, 6, 7, 8]]), torch.tensor([[1, 4, 6]])
    inputs = {"input_ids": ids, "image_grid_thw": thw, "mm_token_type_ids": (ids == 50).int()}
    recording = check(model, attentions(pixel_values=torch.randn(24, 3 * 2 * 4 * 4), **inputs), "decoder")
    assert recording.tokens == {"decoder": [[str(token_id) for token_id in ids[0].tolist()]]}
    (grid,) = image_grids(ids[0], 50, shapes=thw[:, 1:] // 2)
    assert grid == PatchGrid(rows=2, columns=3, start=2)
    assert hash(grid) == hash(PatchGrid(rows=2, columns=3, start=2))
    assert all(type(size) is int for size in (grid.rows, grid.columns, grid.start))
    m = recording.maps["decoder", 0]
    assert torch.equal(grid.looks_at(m, 11), m[0, :, 11, 2:8].unflatten(-1, (2, 3)))


def test_a_grid_knows_its_patches() -> None:
    grid = PatchGrid(rows=3, columns=5, special=("[CLS]",), start=7, patch_size=(14, 16))
    assert grid.first == 8
    assert grid.span == (8, 23)
    assert len(grid.tokens) == 16
    for row in range(3):
        for column in range(5):
            assert grid.cell(grid.position(row, column)) == (row, column)
            left, top, right, bottom = grid.box(row, column)
            assert grid.at_pixel(left, top) == grid.at_pixel(right - 1, bottom - 1) == (row, column)


def test_maps_of_every_kind_are_read() -> None:
    grid = PatchGrid(rows=2, columns=2, special=("[CLS]",))
    operands = (torch.randn(*shape, 4) for shape in ((5,), (3, 5), (1, 3, 5)))
    matrix, heads, batch = (AttentionMap(x, x, mask=Causal()) for x in operands)
    assert grid.looks_at(matrix, 4).shape == (2, 2)
    assert grid.looks_at(heads, (1, 1)).shape == grid.looks_at(batch, (1, 1)).shape == (3, 2, 2)
    ragged = uwaga.Ragged.from_list([torch.randn(n, 3, 4) for n in (5, 9)])
    m = AttentionMap(ragged, ragged)
    assert torch.equal(grid.looks_at(m, 0, picture=1), m[1][:, 0, 1:5].unflatten(-1, (2, 2)))
    assert grid.looks_at(SubsetMap(heads, range(5)), -1).shape == (3, 2, 2)
