"""A model with rotary positions is watched, edited and read by the logit lens as every model of this package."""

import pytest
import torch
from tiny_transformer import tiny

import uwaga
from uwaga.inspect import logit_lens
from uwaga.models import Transformer

IDS = torch.arange(5, 15)[None]


def made(model_type: str, **settings: object) -> Transformer:
    return tiny(model_type, seed=0, **{"num_kv_heads": 2, "d_k": 6, "d_ff": 64} | settings)


@torch.no_grad()
def test_maps_of_gemma_have_its_softcap_scale_and_windows() -> None:
    """Each map times the values, by hand, is what the layer's attention gave."""
    for model_type, more in (("gemma2", {"softcap": 2.0}), ("gemma3_text", {"is_causal": False, "outputs": ()})):
        model = made(model_type, scale=1 / 3, windows=(4, None), logit_softcap=3.0, **more)
        stack, kind = (model.encoder, "encoder") if model.decoder is None else (model.decoder, "decoder")
        seen: list[torch.Tensor] = []
        for layer in stack.layers:
            layer.attention.output.register_forward_hook(lambda _, given, out, seen=seen: seen.append(given[0]))
        with uwaga.watch(model, values=True) as recording:
            model(IDS)
        for n in range(2):
            weights, value = recording.maps[kind, n].to_dense(), recording.values[kind, n]
            heads = weights @ value.repeat_interleave(2, 1)
            torch.testing.assert_close(heads.transpose(1, 2).flatten(2), seen[n])
        assert bool((recording.maps[kind, 0].to_dense()[..., 9, :5] == 0).all())
        assert bool((recording.maps[kind, 1].to_dense()[..., 9, :] > 0).all())


@pytest.mark.parametrize(("model_type", "more"), [("llama", {"num_layers": 1}), ("gemma2", {"softcap": 2.0})])
@torch.no_grad()
def test_a_head_that_is_switched_off_adds_nothing(model_type: str, more: dict) -> None:
    model = made(model_type, **more)
    last = model.config.num_layers - 1
    with uwaga.edit(model, heads={("decoder", last, 1): 0.0}):
        edited = model(IDS).logits
    assert not torch.equal(edited, model(IDS).logits)
    model.decoder.layers[last].attention.output.weight[:, 6:12] = 0.0
    assert torch.allclose(edited, model(IDS).logits, atol=1e-6)


def test_the_logit_lens_refuses_what_has_norms_between_a_head_and_the_stream() -> None:
    with pytest.raises(ValueError) as caught:
        logit_lens(made("gemma3_text"), IDS)
    assert str(caught.value).startswith(
        "interpret: Transformer has no residual stream that is known here, with one final norm"
    )


@torch.no_grad()
def test_the_last_row_of_the_logit_lens_is_the_models_own() -> None:
    model = made("mistral", windows=(3, 3))
    lens = logit_lens(model, IDS, top=1)
    assert torch.equal(lens.tokens[-1, ..., 0], model(IDS).logits.argmax(-1))
