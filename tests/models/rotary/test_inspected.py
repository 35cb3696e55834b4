"""A RotaryModel is watched, edited and read by the logit lens as every model of this package."""

import pytest
import torch

import uwaga
from uwaga.inspect import logit_lens
from uwaga.models import RotaryConfig, RotaryModel, generate
from uwaga.nn import LayerSpec, MultiHeadAttention

_SIZES = {"vocab_size": 40, "d_model": 16, "num_heads": 4, "num_kv_heads": 2, "d_k": 6, "d_ff": 64}


def made(model_type: str, **settings: object) -> RotaryModel:
    torch.manual_seed(0)
    return RotaryModel(RotaryConfig(model_type=model_type, **(_SIZES | settings))).eval()


@torch.no_grad()
def test_maps_are_the_weights_that_give_the_output() -> None:
    model = made("qwen3", windows=(None, 4))
    ids = torch.arange(5, 15)[None]
    with uwaga.watch(model) as recording:
        watched = model(ids)
    assert set(recording.maps) == {("decoder", 0), ("decoder", 1)}
    assert torch.equal(watched.logits, model(ids).logits)
    weights = recording.maps["decoder", 1].to_dense()
    assert torch.allclose(weights.sum(-1), torch.ones(1, 4, 10), atol=1e-6)
    seen = torch.ones(10, 10).tril().bool() & ~torch.ones(10, 10).tril(-4).bool()
    assert bool((weights[..., ~seen] == 0).all())
    assert bool((weights[..., seen] > 0).all())
    (encoder,) = {kind for kind, _ in recorded(made("modernbert", has_lm_head=False, num_kv_heads=4))}
    assert encoder == "encoder"


def recorded(model: RotaryModel) -> list[tuple[str, int]]:
    with uwaga.watch(model) as recording:
        model(torch.arange(5, 15)[None])
    return list(recording.maps)


@torch.no_grad()
def test_a_head_that_is_switched_off_adds_nothing() -> None:
    model = made("llama", num_layers=1, windows=(None,), rotary_bases=(10000.0,))
    ids = torch.arange(5, 15)[None]
    with uwaga.edit(model, heads={("decoder", 0, 1): 0.0}):
        edited = model(ids).logits
    model.layers[0].attention.output.weight[:, 6:12] = 0.0
    assert torch.allclose(edited, model(ids).logits, atol=1e-6)


@torch.no_grad()
def test_the_last_row_of_the_logit_lens_is_the_models_own() -> None:
    model = made("mistral", windows=(3, 3))
    ids = torch.arange(5, 15)[None]
    lens = logit_lens(model, ids, top=1)
    assert torch.equal(lens.tokens[-1, ..., 0], model(ids).logits.argmax(-1))


def test_an_encoder_does_not_generate() -> None:
    with pytest.raises(ValueError) as caught:
        generate(made("modernbert", has_lm_head=False, num_kv_heads=4), [[5, 6]], max_new_tokens=2)
    assert str(caught.value) == "RotaryModel: a modernbert model is an encoder, and does not continue texts"


def test_logits_that_norms_bound_are_not_clipped() -> None:
    attention = MultiHeadAttention(16, 4, qk_norm_eps=1e-6)
    with pytest.raises(ValueError) as caught:
        attention.qk_clip(torch.ones(4), 1.0)
    assert str(caught.value) == (
        "MultiHeadAttention.qk_clip: the norms of queries and keys bound the logits of this layer already"
    )


def test_each_kind_of_map_has_its_bias() -> None:
    spec = LayerSpec(d_model=16, num_heads=4, d_ff=32, bias=False, qkv_bias=True, feed_forward_bias=True, qk_norm=True)
    names = {name for name, _ in uwaga.nn.EncoderLayer(spec).named_parameters() if name.endswith("bias")}
    maps = {f"attention.{name}.bias" for name in ("query", "key", "value")}
    assert names == maps | {"feed_forward.up.bias", "feed_forward.down.bias"}
