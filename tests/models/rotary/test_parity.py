"""ModernBERT, EuroBERT, Llama, Mistral, Qwen2, Qwen3, Gemma 2 and 3 against transformers, on random checkpoints that it saved, and back.

Letters: B batch, Q tokens.
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tolerance import once
from torch import Tensor, nn

import uwaga
from uwaga._base.errors import CheckpointError
from uwaga.models import RotaryConfig, RotaryModel, generate, load, save

_SIZES = {
    "vocab_size": 40,
    "hidden_size": 24,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED = _SIZES | {"num_key_value_heads": 2}
_ROPE = {"rope_theta": 300.0, "factor": 4.0}
_GEMMA = _GROUPED | {"head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 20}
_BY_LAYER = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
_SPARSE = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
# Name of the case: class there, and what its config says.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "modernbert": ("ModernBertModel", _SIZES | {"local_attention": 6}),
    "modernbert masked": ("ModernBertForMaskedLM", _SIZES | {"local_attention": 6}),
    "modernbert with biases": (
        "ModernBertModel",
        _SIZES | {"local_attention": 4, "attention_bias": True, "mlp_bias": True, "norm_bias": True, "norm_eps": 1e-3},
    ),
    "modernbert by layer": (
        "ModernBertModel",
        _SIZES
        | {
            "local_attention": 2,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "hidden_activation": "silu",
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 500.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 70.0},
            },
        },
    ),
    "llama": ("LlamaForCausalLM", _GROUPED),
    "llama bare": ("LlamaModel", _SIZES | {"rms_norm_eps": 1e-3}),
    "llama tied": ("LlamaForCausalLM", _GROUPED | {"tie_word_embeddings": True, "hidden_act": "gelu_new"}),
    "llama with biases": (
        "LlamaForCausalLM",
        _GROUPED | {"attention_bias": True, "mlp_bias": True, "head_dim": 8, "eos_token_id": [2, 3]},
    ),
    "llama of another base": (
        "LlamaForCausalLM",
        _GROUPED | {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0}},
    ),
    "llama of interpolated positions": (
        "LlamaForCausalLM",
        _GROUPED | {"rope_parameters": _ROPE | {"rope_type": "linear"}},
    ),
    "llama of dynamic positions": (
        "LlamaForCausalLM",
        _GROUPED | {"rope_parameters": _ROPE | {"rope_type": "dynamic"}},
    ),
    "llama of version 3": (
        "LlamaForCausalLM",
        _GROUPED
        | {
            "head_dim": 16,
            "rope_parameters": _ROPE
            | {
                "rope_type": "llama3",
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        },
    ),
    "llama bare of yarn": ("LlamaModel", _GROUPED | {"head_dim": 16, "rope_parameters": _ROPE | {"rope_type": "yarn"}}),
    "smollm": (
        "LlamaForCausalLM",
        _GROUPED
        | {
            "num_attention_heads": 6,
            "tie_word_embeddings": True,
            "rope_theta": 1e5,
            "rope_interleaved": False,
            "is_llama_config": True,
            "transformers.js_config": {"dtype": "q4"},
        },
    ),
    "qwen3 of yarn": (
        "Qwen3ForCausalLM",
        _GROUPED
        | {
            "head_dim": 16,
            "rope_parameters": _ROPE
            | {
                "rope_type": "yarn",
                "original_max_position_embeddings": 16,
                "beta_fast": 3.0,
                "beta_slow": 0.5,
                "mscale": 0.7,
                "mscale_all_dim": 0.3,
                "truncate": False,
            },
        },
    ),
    "mistral of yarn": (
        "MistralForCausalLM",
        _GROUPED
        | {
            "sliding_window": 4,
            "head_dim": 16,
            "rope_parameters": _ROPE
            | {"rope_type": "yarn", "original_max_position_embeddings": 8, "attention_factor": 1.3},
        },
    ),
    "gemma2": ("Gemma2ForCausalLM", _GEMMA | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma2 untied": (
        "Gemma2ForCausalLM",
        _GEMMA
        | _BY_LAYER
        | {"tie_word_embeddings": False, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "gemma2 bare": (
        "Gemma2Model",
        _GEMMA | {"attention_bias": True, "hidden_activation": "silu", "rms_norm_eps": 1e-3},
    ),
    "gemma2 of another base": ("Gemma2ForCausalLM", _GEMMA | {"rope_parameters": _ROPE | {"rope_type": "linear"}}),
    "gemma3": ("Gemma3ForCausalLM", _GEMMA | _BY_LAYER | {"final_logit_softcapping": 3.0}),
    "gemma3 bare": (
        "Gemma3TextModel",
        _GEMMA
        | _BY_LAYER
        | {
            "attention_bias": True,
            "rms_norm_eps": 1e-3,
            "rope_parameters": {
                "full_attention": _ROPE | {"rope_type": "linear"},
                "sliding_attention": {"rope_type": "default", "rope_theta": 70.0},
            },
        },
    ),
    "gemma3 by default": ("Gemma3ForCausalLM", _GEMMA | {"num_hidden_layers": 7}),
    "gemma3 of both sides": (
        "Gemma3TextModel",
        _GEMMA | _BY_LAYER | {"use_bidirectional_attention": True, "sliding_window": 7},
    ),
    "eurobert": ("EuroBertModel", _GROUPED | {"rms_norm_eps": 1e-3, "attention_bias": True}),
    "eurobert masked": ("EuroBertForMaskedLM", _SIZES | {"mlp_bias": True, "hidden_act": "gelu"}),
    "eurobert tied": ("EuroBertForMaskedLM", _SIZES | {"tie_word_embeddings": True, "head_dim": 10}),
    "modernbert with a head of biases": (
        "ModernBertForMaskedLM",
        _SIZES
        | {
            "local_attention": 6,
            "classifier_bias": True,
            "norm_bias": True,
            "classifier_activation": "relu",
            "tie_word_embeddings": False,
        },
    ),
    "modernbert with a head without biases": (
        "ModernBertForMaskedLM",
        _SIZES | {"local_attention": 6, "decoder_bias": False},
    ),
    "mistral": ("MistralForCausalLM", _GROUPED | {"sliding_window": 4}),
    "mistral without a window": ("MistralModel", _GROUPED | {"sliding_window": None}),
    "qwen2": ("Qwen2ForCausalLM", _GROUPED | {"hidden_act": "relu"}),
    "qwen2 of windows": ("Qwen2ForCausalLM", _GROUPED | _SPARSE),
    "qwen3": ("Qwen3ForCausalLM", _GROUPED | {"head_dim": 10, "tie_word_embeddings": True}),
    "qwen3 bare": ("Qwen3Model", _GROUPED | {"head_dim": 6, "attention_bias": True}),
    "qwen3 of windows": (
        "Qwen3ForCausalLM",
        _GROUPED
        | _SPARSE
        | {"head_dim": 8, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
}
DECODERS = [name for name in CASES if "bert" not in name and "both sides" not in name]
WRITERS = [name for name in DECODERS if "bare" not in name and "without" not in name]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Twins:
    """One model thrice: here, in transformers, and there in float64."""

    folder: Path
    ours: RotaryModel
    peer: nn.Module
    exact: nn.Module


@pytest.fixture(scope="session")
def make_twins(transformers, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Twins]:
    made: dict[str, Twins] = {}

    def make(case: str) -> Twins:
        if case not in made:
            name, settings = CASES[case]
            folder = tmp_path_factory.mktemp("twins") / "theirs"
            there = getattr(transformers, name)
            model = there(there.config_class(**settings))
            generator = torch.Generator().manual_seed(1)
            for key, x in model.named_parameters():  # norms about 1, all else about 0
                centre = 1.0 if "norm" in key and key.endswith("weight") else 0.0
                with torch.no_grad():
                    x.copy_(centre + 0.3 * torch.randn(x.shape, generator=generator))
            model.save_pretrained(folder)
            exact = there.from_pretrained(folder, dtype=torch.float64).eval()
            peer = there.from_pretrained(folder).eval()
            made[case] = Twins(folder=folder, ours=load(folder), peer=peer, exact=exact)
        return made[case]

    return make


@pytest.fixture(params=CASES, ids=lambda name: name.replace(" ", "-"))
def twins(request: pytest.FixtureRequest, make_twins: Callable) -> Twins:
    return make_twins(request.param)


def draw(*shape: int) -> Tensor:
    return torch.randint(4, 40, shape, generator=torch.Generator().manual_seed(2))


def compare(twins: Twins, ours: Any, ids: Tensor, is_token: Tensor, check: Callable) -> None:
    """Every state and every logit, where there is a token."""
    given = {"input_ids": ids, "attention_mask": is_token.long(), "output_hidden_states": True}
    peer, exact = twins.peer(**given), once(lambda: twins.exact(**given))
    assert len(ours.hidden_states) == len(peer.hidden_states)
    for n, value in enumerate((*ours.hidden_states[:-1], ours.last_hidden_state)):
        check(value[is_token], peer.hidden_states[n][is_token], lambda n=n: exact().hidden_states[n][is_token])
    if ours.logits is not None and "logits" in peer:
        check(ours.logits[is_token], peer.logits[is_token], lambda: exact().logits[is_token])


@torch.no_grad()
def test_states_and_logits_are_those_of_transformers(twins: Twins, assert_as_exact: Callable) -> None:
    ids = draw(4, 17)
    ours = twins.ours(ids, output_hidden_states=True)
    compare(twins, ours, ids, torch.ones(4, 17).bool(), assert_as_exact)
    has_head = twins.ours.config.has_lm_head
    assert (ours.logits is not None) == has_head == ("For" in type(twins.peer).__name__)


@torch.no_grad()
def test_padded_rows_are_those_of_transformers(twins: Twins, assert_as_exact: Callable) -> None:
    is_token = torch.arange(17) < torch.tensor([17, 3, 9])[:, None]
    ids = draw(3, 17)
    ours = twins.ours(ids, attention_mask=is_token, output_hidden_states=True)
    if twins.ours.config.model_type == "gemma2":
        # There, in float64, padding that sees no token gets NaN, which spreads to the tokens: the rows alone are the truth.
        for row in range(3):
            alone = lambda x, row=row: x[row : row + 1, is_token[row]]  # noqa: E731
            own = ours._replace(
                hidden_states=tuple(map(alone, ours.hidden_states)),
                logits=None if ours.logits is None else alone(ours.logits),
                last_hidden_state=alone(ours.last_hidden_state),
            )
            compare(twins, own, alone(ids), alone(is_token), assert_as_exact)
    else:
        compare(twins, ours, ids, is_token, assert_as_exact)
    by_lengths = twins.ours(ids, lengths=torch.tensor([17, 3, 9]))
    assert torch.equal(by_lengths.last_hidden_state[is_token], ours.last_hidden_state[is_token])


@torch.no_grad()
def test_packed_rows_are_those_of_transformers_alone(twins: Twins, assert_as_exact: Callable) -> None:
    rows = [row[:length] for row, length in zip(draw(5, 33), (33, 1, 7, 20, 2), strict=True)]
    ours = twins.ours(uwaga.Ragged.from_list(rows)).last_hidden_state.values

    def alone(model: nn.Module) -> Tensor:
        states = [model(input_ids=row[None], output_hidden_states=True).hidden_states[-1][0] for row in rows]
        return torch.cat(states)

    assert_as_exact(ours, alone(twins.peer), lambda: alone(twins.exact))


@pytest.mark.parametrize("case", WRITERS)
@torch.no_grad()
def test_greedy_text_is_that_of_transformers(case: str, make_twins: Callable) -> None:
    twins = make_twins(case)
    prompts = [row[:length] for row, length in zip(draw(4, 12), (12, 1, 5, 8), strict=True)]
    ours = generate(twins.ours, [row.tolist() for row in prompts], max_new_tokens=12, eos_token_ids=())
    for row, written in zip(prompts, ours, strict=True):
        options = {"do_sample": False, "max_new_tokens": 12, "eos_token_id": None, "pad_token_id": 0}
        mask = torch.ones(1, len(row), dtype=torch.long)
        theirs = twins.peer.generate(row[None], attention_mask=mask, **options)[0, len(row) :]
        assert written == theirs.tolist()


@pytest.mark.parametrize("case", DECODERS)
@torch.no_grad()
def test_a_cache_gives_the_states_of_the_whole(case: str, make_twins: Callable, assert_as_exact: Callable) -> None:
    twins = make_twins(case)
    ids = draw(4, 15)
    cache = twins.ours.new_cache()
    steps = [twins.ours(ids[:, a:b], cache=cache, outputs=()).last_hidden_state for a, b in ((0, 6), (6, 7), (7, 15))]
    states = lambda model: model(input_ids=ids, output_hidden_states=True).hidden_states[-1]  # noqa: E731
    assert_as_exact(torch.cat(steps, 1), states(twins.peer), lambda: states(twins.exact))


def test_what_is_saved_here_loads_there_with_nothing_missing(twins: Twins, tmp_path: Path) -> None:
    save(twins.ours, tmp_path)
    kind = type(twins.peer)
    back, info = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    ids = draw(2, 9)
    with torch.no_grad():
        ours = twins.peer(ids, output_hidden_states=True).hidden_states
        theirs = back.eval()(ids, output_hidden_states=True).hidden_states
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    again = load(tmp_path)
    assert dataclasses.replace(again.config, kept={}) == dataclasses.replace(twins.ours.config, kept={})


def test_keys_of_transformers_4_mean_what_they_meant(make_twins: Callable, tmp_path: Path) -> None:
    old = {
        "modernbert": {"global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0},
        "llama of another base": {"rope_theta": 300.0, "rope_scaling": None},
    }
    for case, keys in old.items():
        twins = make_twins(case)
        described = json.loads((twins.folder / "config.json").read_text())
        written = {key: value for key, value in described.items() if key not in ("rope_parameters", "layer_types")}
        folder = tmp_path / case
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(written | keys))
        (folder / "model.safetensors").write_bytes((twins.folder / "model.safetensors").read_bytes())
        assert dataclasses.replace(load(folder).config, kept={}) == dataclasses.replace(twins.ours.config, kept={})


@pytest.mark.parametrize(
    ("case", "settings", "message"),
    [
        ("llama", {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "rope_type of rope_parameters must be one of 'default', 'linear', 'dynamic', 'llama3', 'yarn', not 'longrope'"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor must be 1, not 0.5"),
        ("llama", {"rope_parameters": {"rope_theta": "x"}}, "rope_parameters: rope_theta must be a number above 1, not 'x'"),
        ("llama", {"rope_parameters": [1]}, "rope_parameters must be a JSON object, not [1]"),
        ("llama", {"architectures": ["LlamaForSequenceClassification"]}, "architectures is ['LlamaForSequenceClassification']; supported: LlamaModel, LlamaForCausalLM"),
        ("llama", {"head_dim": None, "hidden_size": 25}, "hidden_size 25 is not a multiple of 4 heads"),
        ("llama", {"num_key_value_heads": 3}, "RotaryConfig: num_heads 4 is not a multiple of num_kv_heads 3"),
        ("llama", {"head_dim": 5}, "RotaryConfig: d_k must be even, not 5"),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}}, "rope_parameters: high_freq_factor must be a number above 0, not None"),
        ("llama", {"rope_parameters": {"rope_type": "linear"}}, "rope_parameters: factor must be a number above 0, not None"),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 1.0, "beta_slow": 2.0}}, "rope_parameters: RotaryScaling: beta_slow must be above 0 and at most beta_fast, not 2.0 and 1.0"),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 2.0, "high_freq_factor": 1.0}}, "rope_parameters: RotaryScaling: low_freq_factor must be above 0 and below high_freq_factor, not 2.0 and 1.0"),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "trick": 1}}, "rope_parameters of the type 'linear' cannot have trick"),
        ("llama", {"rope_theta": None, "rope_parameters": {}}, "rope_parameters: rope_theta must be a number above 1, not None"),
        ("llama", {"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "truncate": None}}, "rope_scaling: truncate must be true or false, not None"),
        ("llama", {"rope_scaling": {"rope_type": "default", "factor": 4.0}}, "rope_scaling of the type 'default' cannot have factor"),
        ("llama", {"rope_scaling": "linear"}, "rope_scaling must be a JSON object, not 'linear'"),
        ("llama", {"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope_parameters of the type 'default' cannot have full_attention"),
        ("gemma3", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rope_parameters must have full_attention and sliding_attention alone, each a JSON object, not factor, rope_type"),
        ("gemma3", {"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 2.0, "truncate": False}}}, "truncate of rope_parameters.full_attention is not read by transformers: leave it out"),
        ("modernbert", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rope_parameters must have full_attention and sliding_attention alone, each a JSON object, not factor, rope_type"),
        ("modernbert", {"rope_parameters": {"sliding_attention": None}}, "rope_parameters.sliding_attention must be a JSON object, not None"),
        ("modernbert", {"rope_parameters": {}, "rope_scaling": {"factor": 2.0}}, "rope_scaling changes rope_parameters.full_attention, which is absent: write it there"),
        ("modernbert", {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_parameters.full_attention with rope_scaling of the type 'default' cannot have factor"),
        ("modernbert", {"sliding_window": None}, "sliding_window must be a whole number from 1 to 268,435,456, not None"),
        ("llama", {"per_layer_config": {"0": {"num_attention_heads": 1}}}, "per_layer_config is {'0': {'num_attention_heads': 1}}; only None is supported"),
        ("smollm", {"rope_interleaved": True}, "rope_interleaved is True; only False is supported"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True; only False or None is supported"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0; only None is supported"),
        ("gemma3", {"sliding_window": None}, "layer_types has sliding_attention, and there is no sliding_window"),
        ("gemma3", {"sliding_window": "x"}, "sliding_window must be a whole number from 1 to 268,435,456, not 'x'"),
        ("gemma3", {"rope_parameters": [1]}, "rope_parameters must be a JSON object, not [1]"),
        ("gemma3", {"architectures": ["Gemma3ForConditionalGeneration"]}, "architectures is ['Gemma3ForConditionalGeneration']; supported: Gemma3TextModel, Gemma3ForCausalLM"),
        ("eurobert", {"architectures": ["EuroBertForSequenceClassification"]}, "architectures is ['EuroBertForSequenceClassification']; supported: EuroBertModel, EuroBertForMaskedLM"),
        ("qwen3", {"is_causal": False}, "is_causal is False; only True is supported"),
        ("mistral", {"sliding_window": "x"}, "sliding_window must be a whole number from 1 to 268,435,456, not 'x'"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 3}, "layer_types has sliding_attention, and there is no sliding_window"),
        ("qwen2", {"layer_types": ["full_attention"]}, "layer_types must be 3 of sliding_attention and full_attention, not ['full_attention']"),
        ("modernbert", {"local_attention": 1}, "local_attention must be a whole number from 2 to 268,435,456, not 1"),
        ("modernbert", {"attention_dropout": 0.1}, "attention_dropout is 0.1; only 0.0 is supported"),
        ("modernbert", {"head_dim": 8}, "head_dim must be 6, hidden_size / num_attention_heads, not 8; remove it"),
        ("modernbert", {"num_attention_heads": 5}, "hidden_size 24 is not a multiple of 5 heads"),
        ("modernbert", {"architectures": ["ModernBertForTokenClassification"]}, "architectures is ['ModernBertForTokenClassification']; supported: ModernBertModel, ModernBertForMaskedLM"),
    ],
)  # fmt: skip
def test_settings_that_are_not_computed_are_refused(
    case: str, settings: dict, message: str, make_twins: Callable, tmp_path: Path
) -> None:
    twins = make_twins(case)
    described = json.loads((twins.folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(described | settings))
    (tmp_path / "model.safetensors").write_bytes((twins.folder / "model.safetensors").read_bytes())
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path)
    assert str(caught.value) == f"{tmp_path / 'config.json'}: {message}"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"windows": (None,)}, "windows must have one for each of 2 layers, not (None,)"),
        ({"rotary_bases": (1.0, 1.0)}, "rotary_bases[0] must be a number above 1, not 1.0"),
        ({"model_type": "modernbert"}, "head_activation is of a modernbert model with has_lm_head, which needs it"),
        ({"head_activation": "gelu"}, "head_activation is of a modernbert model with has_lm_head, which needs it"),
        ({"rotary_scaling": (None,)}, "rotary_scaling must have one for each of 2 layers or none, not (None,)"),
        ({"bidirectional": True}, "bidirectional needs the model_type gemma3_text, not llama"),
        ({"softcap": 0.0}, "softcap must be a number above 0, not 0.0"),
        ({"tie_word_embeddings": True, "has_lm_head": False}, "tie_word_embeddings needs has_lm_head: a model without logits has nothing to tie"),
    ],
)  # fmt: skip
def test_settings_that_contradict_each_other(settings: dict, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        RotaryConfig(**settings)
    assert str(caught.value) == f"RotaryConfig: {message}"


@pytest.mark.parametrize(
    "settings",
    [
        {"windows": (3, None)},
        {"rotary_bases": (10.0, 20.0)},
        {"model_type": "mistral", "windows": (3, None)},
        {"model_type": "gemma2", "rotary_bases": (10.0, 20.0)},
        {"model_type": "gemma3_text", "windows": (3, 4)},
        {"model_type": "gemma3_text", "rotary_bases": (10.0, 20.0)},
        {"model_type": "qwen2", "windows": (3, 4), "qkv_bias": True},
        {"model_type": "modernbert", "has_lm_head": False, "windows": (3, 4)},
        {"model_type": "modernbert", "has_lm_head": False, "rotary_bases": (10.0, 20.0)},
    ],
)
def test_what_transformers_cannot_express_is_not_saved(settings: dict, tmp_path: Path) -> None:
    with torch.device("meta"):
        model = RotaryModel(RotaryConfig(**settings))
    with pytest.raises(CheckpointError) as caught:
        save(model, tmp_path)
    kind = model.config.model_type
    assert str(caught.value) == f"transformers has no {kind} model with these windows and rotary bases"


def test_an_encoder_has_no_cache_and_no_logits(make_twins: Callable) -> None:
    model = make_twins("modernbert").ours
    for call, message in (
        (lambda: model(draw(1, 3), cache=model.new_cache()), "a modernbert model is an encoder, and has no cache"),
        (lambda: model(draw(1, 3), outputs=["logits"]), "the model has no output logits"),
        (lambda: model.logits(torch.ones(1, 24)), "this model has no head for logits"),
        (lambda: model(draw(1, 65)), None),
    ):
        with pytest.raises(ValueError) as caught:
            call()
        assert message is None or str(caught.value) == f"RotaryModel: {message}"
    writer = make_twins("llama").ours
    for call, message in (
        (
            lambda: writer(draw(2, 3), cache=writer.new_cache(), lengths=torch.tensor([3, 1])),
            "a cache does not support padding: give Ragged ids instead of lengths or attention_mask",
        ),
        (
            lambda: writer(draw(2, 3), cache=uwaga.nn.KeyValueCache(1)),
            "the cache has 1 layers, the model 3",
        ),
    ):
        with pytest.raises(ValueError) as caught:
            call()
        assert str(caught.value) == f"RotaryModel: {message}"
