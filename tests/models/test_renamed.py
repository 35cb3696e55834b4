"""Former names of settings, outputs and arguments of the models are refused, and the message says the present one."""

import json
from pathlib import Path

import pytest
import torch

import uwaga
from uwaga._base.errors import CheckpointError
from uwaga.models import directories
from uwaga.train import families
from uwaga.train.errors import ConfigError

RENAMED = {
    "BertConfig": {
        "vocabulary": "vocab_size",
        "width": "d_model",
        "hidden": "d_ff",
        "layers": "num_layers",
        "heads": "num_heads",
        "eps": "norm_eps",
        "padding": "pad_token_id",
        "positions": "max_position_embeddings",
        "token_types": "type_vocab_size",
        "tied": "tie_word_embeddings",
    },
    "GPT2Config": {
        "vocabulary": "vocab_size",
        "width": "d_model",
        "hidden": "d_ff",
        "layers": "num_layers",
        "heads": "num_heads",
        "eps": "norm_eps",
        "padding": "pad_token_id",
        "ends": "eos_token_ids",
        "head": "tie_word_embeddings",
        "positions": "max_position_embeddings",
        "scaled": "scale_attn_weights",
        "scaled_by_layer": "scale_attn_by_inverse_layer_idx",
    },
    "T5Config": {
        "vocabulary": "vocab_size",
        "width": "d_model",
        "hidden": "d_ff",
        "layers": "num_layers",
        "heads": "num_heads",
        "eps": "norm_eps",
        "padding": "pad_token_id",
        "ends": "eos_token_ids",
        "head": "tie_word_embeddings",
        "decoder_layers": "num_decoder_layers",
        "key_width": "d_kv",
        "start": "decoder_start_token_id",
        "scaled": "scale_decoder_outputs",
        "buckets": "num_buckets",
    },
    "TransformerConfig": {
        "vocabulary": "vocab_size",
        "width": "d_model",
        "hidden": "d_ff",
        "layers": "num_layers",
        "heads": "num_heads",
        "eps": "norm_eps",
        "padding": "pad_token_id",
        "ends": "eos_token_ids",
        "head": "tie_word_embeddings",
        "target_vocabulary": "decoder_vocab_size",
        "decoder_hidden": "decoder_d_ff",
        "decoder_layers": "num_decoder_layers",
        "decoder_heads": "num_decoder_heads",
        "positions": "position_encoding",
        "layout": "sinusoid_layout",
        "start": "decoder_start_token_id",
        "head_bias": "lm_head_bias",
        "scaled_words": "scale_embedding",
        "hidden_dropout": "activation_dropout",
    },
}
EACH = [(name, *pair) for name, names in RENAMED.items() for pair in names.items()]
OUTPUTS = {
    "BertModel": {"hidden": "last_hidden_state", "states": "hidden_states"},
    "GPT2Model": {"hidden": "last_hidden_state", "states": "hidden_states"},
    "T5Model": {"hidden": "last_hidden_state", "states": "hidden_states", "memory_states": "encoder_hidden_states"},
    "Transformer": {"hidden": "last_hidden_state", "states": "hidden_states", "memory_states": "encoder_hidden_states"},
}


@pytest.mark.parametrize(("config", "old", "new"), EACH)
def test_a_config_refuses_a_former_name(config: str, old: str, new: str) -> None:
    with pytest.raises(TypeError) as raised:
        getattr(uwaga.models, config)(**{old: 8})
    assert str(raised.value) == f"{config}: {old} is now called {new}"


@pytest.mark.parametrize(("config", "old", "new"), EACH)
def test_a_config_has_no_former_attribute(config: str, old: str, new: str) -> None:
    with pytest.raises(AttributeError) as raised:
        getattr(getattr(uwaga.models, config)(), old)
    assert str(raised.value) == f"'{config}' object has no attribute '{old}'; it is now called {new}"


@pytest.mark.parametrize(("old", "new"), RENAMED["TransformerConfig"].items())
def test_a_config_json_of_our_own_refuses_a_former_key(old: str, new: str, tmp_path: Path) -> None:
    found = json.loads((directories.bundled_folder("speller") / "config.json").read_bytes())
    found[old] = found.pop(new)
    (tmp_path / "config.json").write_text(json.dumps(found))
    (tmp_path / "model.safetensors").symlink_to(directories.bundled_folder("speller") / "model.safetensors")
    with pytest.raises(CheckpointError) as raised:
        uwaga.models.load(tmp_path)
    assert str(raised.value) == f"{tmp_path / 'config.json'}: {old} is now called {new}"


@pytest.mark.parametrize(
    ("model", "old", "new"), [(name, *pair) for name, names in OUTPUTS.items() for pair in names.items()]
)
def test_an_output_has_no_former_attribute(model: str, old: str, new: str) -> None:
    output = {
        "BertModel": lambda: uwaga.models.bert.model.BertOutput(torch.zeros(1)),
        "GPT2Model": lambda: uwaga.models.gpt2.model.GPT2Output(torch.zeros(1)),
        "T5Model": lambda: uwaga.models.t5.model.T5Output(torch.zeros(1)),
        "Transformer": lambda: uwaga.models.transformer.model.TransformerOutput(torch.zeros(1)),
    }
    getattr(uwaga.models, model)  # imports the module
    made = output[model]()
    with pytest.raises(AttributeError) as raised:
        getattr(made, old)
    assert str(raised.value) == f"'{type(made).__name__}' object has no attribute '{old}'; it is now called {new}"


@pytest.mark.parametrize("model", OUTPUTS)
def test_forward_refuses_a_former_argument(model: str) -> None:
    with pytest.raises(TypeError) as raised:
        getattr(uwaga.models, model).forward(None, torch.zeros(1), states=True)
    assert str(raised.value) == "forward: states is now called output_hidden_states"


@pytest.mark.parametrize(
    ("family", "config", "old", "new"),
    [
        (family, config, *pair)
        for family, config in (
            ("bert", "BertConfig"),
            ("gpt2", "GPT2Config"),
            ("t5", "T5Config"),
            ("transformer", "TransformerConfig"),
        )
        for pair in RENAMED[config].items()
    ],
)
def test_a_recipe_refuses_a_former_model_key(family: str, config: str, old: str, new: str) -> None:
    objective = {"bert": "masked-language-model", "gpt2": "language-model"}.get(family, "encoder-decoder")
    with pytest.raises(ConfigError) as raised:
        families.model_config({"family": family, old: 8}, objective, {})
    assert str(raised.value) == f"model: {old} is now called {new}"
