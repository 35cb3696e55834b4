"""A small random model of every model type of the family tables, thrice: here, in transformers, and there in float64.

A case is a model type with one of the classes of its table, or with a row of VARIANTS. A type that a table adds has its cases without a line
here, unless its smallest model needs a setting of its own.

Letters: B batch, Q tokens.
"""

import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

import torch
import transformers
from safetensors import safe_open
from tiny_transformer import drawn
from torch import Tensor, nn

from uwaga import models
from uwaga.models import families
from uwaga.models.families.family import File
from uwaga.models.transformer import Output, Transformer

VOCABULARY, PADDING, END = 40, 1, 3
WHERE = "model/config.json"
LABELS = tuple(f"class {n}" for n in range(14))
# By the names of our settings. PyTorch's "gelu_tanh" and "silu" give equal bits in any batch where d_ff is a multiple of 64.
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY, "d_model": 24, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 4, "num_decoder_heads": 2,
    "num_kv_heads": 2, "d_k": 8, "d_ff": 64, "decoder_d_ff": 128, "embedding_size": 16, "type_vocab_size": 3, "norm_eps": 1e-3,
    "max_position_embeddings": 40, "num_buckets": 8, "max_distance": 12,
    "query_pre_attn_scalar": 20, "softcap": 2.0, "logit_softcap": 3.0, "band": 4, "pad_token_id": PADDING, "eos_token_ids": END,
    "decoder_start_token_id": PADDING,
}  # fmt: skip

_ROPE = {"rope_theta": 300.0, "factor": 4.0}
_YARN = _ROPE | {"rope_type": "yarn", "original_max_position_embeddings": 8}
_LLAMA3 = _ROPE | {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_LINEAR, _DEFAULT = _ROPE | {"rope_type": "linear"}, {"rope_type": "default", "rope_theta": 70.0}
_MSCALE = {"beta_fast": 3.0, "beta_slow": 0.5, "mscale": 0.7, "mscale_all_dim": 0.3, "truncate": False}
_BY_LAYER = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
_ROPES = {"rope_parameters": {"full_attention": _LINEAR, "sliding_attention": _DEFAULT}}
_SPARSE = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
_BIASES = {"attention_bias": True, "mlp_bias": True}
_V1_1 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
_ALBERT = {"num_hidden_layers": 3, "hidden_act": "relu"}
# Keys of config.json (of uwaga's own types, settings) by model type. "": of all its models. "class": of transformers, where it is not the one with
# logits.
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "albert": {
        "as wide": {"embedding_size": 24, "class": "AlbertModel"},
        "untied": {"tie_word_embeddings": False, **_ALBERT},
    },
    "bert": {
        "untied": {"tie_word_embeddings": False, "hidden_act": "relu"},
        "tanh": {"hidden_act": "gelu_new", "type_vocab_size": 2},
    },
    "distilbert": {"untied": {"tie_word_embeddings": False, "activation": "relu"}},
    "electra": {
        "untied": {"tie_word_embeddings": False, "hidden_act": "silu"},
        "as wide": {"embedding_size": 24, "class": "ElectraModel"},
    },
    "eurobert": {
        "tied": {"tie_word_embeddings": True, "head_dim": 10},
        "biases": _BIASES | {"hidden_act": "gelu"},
        "attention biases": {"attention_bias": True, "class": "EuroBertModel"},
    },
    "gemma2": {
        "": {"sliding_window": 4},
        "untied": _BY_LAYER | {"tie_word_embeddings": False, "attn_logit_softcapping": None, "final_logit_softcapping": None},
        "biases": {"attention_bias": True, "hidden_activation": "silu", "class": "Gemma2Model"},
        "linear": {"rope_parameters": _LINEAR},
    },
    "gemma3_text": {
        "": {"sliding_window": 4},
        "layers by default": {"num_hidden_layers": 7, "final_logit_softcapping": None},
        "ropes": _BY_LAYER | _ROPES | {"attention_bias": True, "class": "Gemma3TextModel"},
        "both ways": _BY_LAYER | {"use_bidirectional_attention": True, "sliding_window": 7, "class": "Gemma3TextModel"},
    },
    "gpt2": {
        "untied": {"tie_word_embeddings": False, "activation_function": "relu", "n_inner": None},
        "bare, untied": {"tie_word_embeddings": False, "class": "GPT2Model"},
        "by layer": {"scale_attn_by_inverse_layer_idx": True, "eos_token_id": [3, 4]},
        "unscaled": {"scale_attn_weights": False},
    },
    "gte": {
        "no types": {"type_vocab_size": 0, "hidden_act": "silu", "class": "GteModel"},
        "yarn": {"rope_parameters": _YARN, "hidden_act": "relu"},
        "untied": {"tie_word_embeddings": False},
    },
    "jina_embeddings_v3": {
        "linear": {"rope_parameters": _LINEAR, "class": "JinaEmbeddingsV3Model"},
        "untied": {"tie_word_embeddings": False, "hidden_act": "silu"},
    },
    "llama": {
        "tied": {"tie_word_embeddings": True, "hidden_act": "gelu_new"},
        "biases": _BIASES | {"eos_token_id": [2, 3]},
        "another base": {"rope_parameters": _DEFAULT},
        "linear": {"rope_parameters": _LINEAR},
        "dynamic": {"rope_parameters": _ROPE | {"rope_type": "dynamic"}},
        "version 3": {"rope_parameters": _LLAMA3, "head_dim": 16},
        "yarn": {"rope_parameters": _ROPE | {"rope_type": "yarn"}, "head_dim": 16, "class": "LlamaModel"},
        "smollm": {
            "num_attention_heads": 6, "num_key_value_heads": 6, "tie_word_embeddings": True, "rope_theta": 1e5, "rope_interleaved": False,
            "is_llama_config": True, "transformers.js_config": {"dtype": "q4"}, "head_dim": 4,
        },
    },
    "marian": {
        "": {"forced_eos_token_id": None},
        "scaled": {"scale_embedding": True, "activation_function": "swish"},
        "two vocabularies": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 44},
    },
    "mistral": {
        "": {"sliding_window": 4},
        "no window": {"sliding_window": None, "class": "MistralModel"},
        "yarn": {"rope_parameters": _YARN | {"attention_factor": 1.3}, "head_dim": 16},
        "tied": {"tie_word_embeddings": True},
    },
    "modernbert": {
        "": {"local_attention": 6, "global_attn_every_n_layers": 2, "cls_token_id": 2, "sep_token_id": 3},
        "biases": _BIASES | {"norm_bias": True, "local_attention": 4, "class": "ModernBertModel"},
        "ropes": _BY_LAYER | _ROPES | {"local_attention": 2, "hidden_activation": "silu"},
        "head": {"classifier_bias": True, "norm_bias": True, "classifier_activation": "relu", "tie_word_embeddings": False},
        "no bias of logits": {"decoder_bias": False},
    },
    "mpnet": {
        "": {"relative_attention_num_buckets": 32},
        "untied": {"tie_word_embeddings": False, "hidden_act": "relu"},
    },
    "mt5": {"1.1": _V1_1, "relu": {"feed_forward_proj": "gated-relu"}},
    "nomic_bert": {
        "another base": {"rope_parameters": _DEFAULT, "head_dim": 10, "hidden_act": "gelu", "class": "NomicBertModel"},
        "untied": {"tie_word_embeddings": False, "hidden_act": "gelu_new"},
    },
    "qwen2": {"windows": _SPARSE, "tied": {"tie_word_embeddings": True, "hidden_act": "relu"}},
    "qwen3": {
        "windows": _SPARSE | _BY_LAYER,
        "yarn": {"rope_parameters": _YARN | _MSCALE, "head_dim": 16},
        "biases": {"attention_bias": True, "tie_word_embeddings": True},
    },
    "roberta": {"silu": {"hidden_act": "silu", "pad_token_id": 3, "eos_token_id": 4}, "untied": {"tie_word_embeddings": False}},
    "t5": {
        "1.1": _V1_1,
        "bare": {"class": "T5Model"},
        "gated": {"feed_forward_proj": "gated-silu", "class": "T5EncoderModel"},
    },
    "uwaga-gpt3": {"untied": {"tie_word_embeddings": False}},
    "uwaga-transformer": {
        "pre": {"norm": "pre", "tie_word_embeddings": False, "lm_head_bias": True, "activation": "gelu", "scale_embedding": False},
        "two vocabularies": {"decoder_vocab_size": 44},
        "encoder": {"num_decoder_layers": 0},
        "decoder": {"num_layers": 0, "num_decoder_heads": None, "decoder_d_ff": None, "tie_word_embeddings": False},
        "alibi": {"position_encoding": "alibi", "num_decoder_heads": 4},
        "slopes": {"num_layers": 0, "num_decoder_heads": None, "position_encoding": "alibi", "alibi_slopes": (2.0, 0.0, 0.5, 0.25)},
    },
}  # fmt: skip


class Case(NamedTuple):
    """A model type, a class of transformers (None: of uwaga alone), and keys of config.json or settings besides those of SMALL."""

    model_type: str
    of_class: str | None
    more: dict[str, Any]


_THEIR_NAMES = frozenset(
    dir(transformers)
)  # hasattr would import the code of all these models, in each process that collects tests


def _cases() -> Iterator[tuple[str, Case]]:
    for kind in families.model_types():
        variants, table = VARIANTS.get(kind, {}), families.family_of(kind, "").architectures
        always, is_own = variants.get("", {}), kind.startswith("uwaga-")
        classes = [None] if is_own else [name for name in table if name in _THEIR_NAMES]
        # The class with logits first, then the one without a head.
        classes.sort(key=lambda name: "logits" not in table.get(name or "", ()))
        yield from ((f"{kind}-{name}" if name else kind, Case(kind, name, always)) for name in classes)
        for title, more in variants.items():
            if title:
                more = always | more
                yield f"{kind}-{title.replace(' ', '-')}", Case(kind, more.pop("class", classes[0]), more)


CASES = dict(_cases())
THEIRS = {name: case for name, case in CASES.items() if case.of_class}
# The first case of each model type.
BASE = {case.model_type: name for name, case in reversed(CASES.items())}


def settings(case: Case) -> dict[str, Any]:
    """Of `uwaga.models.config`, of a type that transformers does not have."""
    keys = families.family_of(case.model_type, "").keys.values()
    small = {key.ours: SMALL[key.ours] for key in keys if key.ours in SMALL}
    return small | {"eos_token_ids": (END,)} | case.more


def described(case: Case) -> dict[str, Any]:
    """The keys of config.json, of a type that transformers has."""
    keys = families.family_of(case.model_type, "").keys
    named = {"id2label": dict(enumerate(LABELS)), "label2id": {label: n for n, label in enumerate(LABELS)}}
    return {theirs: SMALL[key.ours] for theirs, key in keys.items() if key.ours in SMALL} | named | case.more


@dataclass(frozen=True)
class Twins:
    """One model thrice, from the directory `folder`."""

    case: Case
    folder: Path
    ours: Transformer

    @cached_property
    def peer(self) -> Any:
        """The model in transformers; None: it has none."""
        if self.case.of_class is None:
            return None
        return getattr(transformers, self.case.of_class).from_pretrained(self.folder).eval()

    @cached_property
    def exact(self) -> Any:
        """The model in transformers in float64."""
        return deepcopy(self.peer).double()


@cache
def twins(name: str) -> Twins:
    """The model of a case."""
    case, folder = CASES[name], Path(mkdtemp(prefix="uwaga-twins-"))
    torch.manual_seed(0)
    if case.of_class is None:
        models.save(drawn(Transformer(models.config(case.model_type, **settings(case)))), folder)
        return Twins(case, folder, models.load(folder))
    there = getattr(transformers, case.of_class)
    model = there(there.config_class(**described(case)))
    if "5" in case.of_class and case.more.get("tie_word_embeddings") is False:
        # transformers 5 ties the head in any case, and unties it when it loads another one.
        model.lm_head.weight = nn.Parameter(torch.empty_like(model.shared.weight))
    drawn(model).save_pretrained(folder)
    # transformers loads it again, since sinusoidal positions, which are not saved, were drawn too.
    return Twins(case, folder, models.load(folder))


@cache
def _written(kind: str) -> tuple[dict[str, Any], frozenset[str]]:
    """The config.json of a small directory of a model type, and the names of its weights."""
    folder = twins(BASE[kind]).folder
    with safe_open(folder / "model.safetensors", "pt") as weights:
        return json.loads((folder / "config.json").read_text()), frozenset(weights.keys())


def read_config(kind: str, changes: dict[str, Any]) -> models.Config:
    """The config of a small directory of a model type, with other keys."""
    found, names = _written(kind)
    return families.family_of(kind, WHERE).read(kind, File(found | changes, WHERE, names), {})


def ids(*shape: int, seed: int = 2) -> Tensor:
    """Random ids without the special ones."""
    return torch.randint(5, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def named(output: Output) -> dict[str, Any]:
    """Every state and every output, by names that are those of `theirs`."""
    result: dict[str, Any] = {name: getattr(output, name) for name in ("logits", "pooled", "sequence", "tokens")}
    for name, last in (("hidden_states", output.last_hidden_state), ("encoder_hidden_states", output.memory)):
        states = getattr(output, name)
        result |= {} if states is None else {f"{name} {n}": x for n, x in enumerate((*states[:-1], last))}
    return {name: x for name, x in result.items() if x is not None}


@torch.no_grad()
def theirs(pair: Twins, model: Any, batch: Tensor, decoder_ids: Tensor | None = None, **more: Any) -> dict[str, Tensor]:
    """What transformers gives."""
    more |= {} if decoder_ids is None else {"decoder_input_ids": decoder_ids}
    output = model(input_ids=batch, output_hidden_states=True, **more)
    heads = families.family_of(pair.case.model_type, "").architectures.get(pair.case.of_class or "", ())
    result = {name: output.get("prediction_logits", output.get("logits")) for name in heads if name != "pooled"}
    result |= {"pooled": output.get("pooler_output")}
    states = {"hidden_states": output.get("decoder_hidden_states", output.get("hidden_states"))}
    states["encoder_hidden_states"] = output.get("encoder_hidden_states")
    result |= {f"{name} {n}": x for name, layers in states.items() if layers is not None for n, x in enumerate(layers)}
    found = {name: x for name, x in result.items() if x is not None}
    assert set(heads) - {"pooled"} <= found.keys()
    return found
