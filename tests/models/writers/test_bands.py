"""GPT-3's alternating dense and banded layers, an option of GPT-2."""

from pathlib import Path

import pytest
import torch

from uwaga.maps.map import AttentionMap, map_options
from uwaga.models import GPT2Config, GPT2Model, load, save
from uwaga.ops.attention.hooks import hooked, looking


def test_every_second_layer_of_a_gpt3_sees_a_band() -> None:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=30, d_model=16, num_layers=4, num_heads=2, d_ff=32, max_position_embeddings=20, band=3
    )
    model, maps = GPT2Model(config).eval(), []
    look = looking(lambda asked, _: maps.append(
        AttentionMap(asked.query, asked.key, **map_options(asked.options)).to_dense()))  # fmt: skip
    with torch.no_grad(), hooked({layer.attention: look for layer in model.layers}):
        model(torch.randint(30, (2, 9)))
    past = torch.ones(9, 9).tril().bool()
    band = past & ~torch.ones(9, 9).tril(-3).bool()
    for n, dense in enumerate(maps):
        visible = band if n % 2 else past
        assert (dense[..., visible] > 0).all()
        assert (dense[..., ~visible] == 0).all()


def test_a_band_as_wide_as_the_text_is_no_band(tmp_path: Path, transformers) -> None:
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 30,
        "d_model": 16,
        "num_layers": 2,
        "num_heads": 2,
        "d_ff": 32,
        "max_position_embeddings": 20,
    }
    banded, dense = GPT2Model(GPT2Config(band=9, **sizes)).eval(), GPT2Model(GPT2Config(**sizes)).eval()
    dense.load_state_dict(banded.state_dict())
    ids = torch.randint(30, (2, 9))
    with torch.no_grad():
        assert torch.equal(banded(ids).logits, dense(ids).logits)
    save(banded, tmp_path)
    assert load(tmp_path).config.band == 9
    # transformers would compute something else under the name gpt2.
    with pytest.raises(ValueError, match="uwaga-gpt3"):
        transformers.AutoConfig.from_pretrained(tmp_path)
