"""GTE (Zhang et al. 2024), NomicBERT (Nussbaum et al. 2024) and Jina v3 (Sturua et al. 2024): BERT with rotary positions.

Names are those of the authors' files, which transformers reads and writes too (its conversion_mapping.py).
"""

from dataclasses import replace
from functools import partial
from typing import Any

from uwaga._base.errors import OwnCodeError
from uwaga._base.terminal import printable
from uwaga.models.checkpoints import config_json, rope_parameters
from uwaga.models.checkpoints.config_json import Key, ModelSize, keys
from uwaga.models.families import bert
from uwaga.models.families.family import File, classes, layers, without

_GTE_KEYS = bert.BERT_KEYS | keys(
    vocab_size=250048, head_dim=None, max_position_embeddings=8192, type_vocab_size=1, pad_token_id=1, attention_probs_dropout_prob=0.0,
)  # fmt: skip
_NOMIC_KEYS = bert.BERT_KEYS | keys(
    vocab_size=30528, head_dim=None, hidden_act="silu", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    max_position_embeddings=2048, type_vocab_size=Key("type_vocab_size", 2, ModelSize),
)  # fmt: skip
_JINA_KEYS = bert.BERT_KEYS | keys(
    vocab_size=250002, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, head_dim=None, intermediate_size=4096,
    max_position_embeddings=8194, type_vocab_size=Key("type_vocab_size", 1, ModelSize), layer_norm_eps=1e-5, pad_token_id=1,
)  # fmt: skip
# transformers reads no size of a NomicBERT from the keys of its authors' code, and takes its defaults: those of v1.5, which say this.
_NOMIC_OWN: dict[str, tuple[object, ...]] = {
    "n_embd": (768,), "n_head": (12,), "n_inner": (3072,), "n_layer": (12,), "activation_function": ("swiglu",), "causal": (False,),
    "layer_norm_epsilon": (1e-12,), "prenorm": (False,), "parallel_block": (False,), "use_rms_norm": (False, None),
    "qkv_proj_bias": (False,), "mlp_fc1_bias": (False,), "mlp_fc2_bias": (False,), "rotary_emb_base": (1000,),
    "rotary_emb_fraction": (1.0,), "rotary_emb_interleaved": (False,), "rotary_emb_scale_base": (None,), "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
}  # fmt: skip


def _settle(base: float, settings: dict[str, Any], file: File) -> None:
    bert.settle(settings, file)
    settings["d_k"] = settings["d_k"] or config_json.head_width(settings, file.where)
    rope = rope_parameters.read(file.config, file.where, base, settings["max_position_embeddings"])
    settings.setdefault("ropes", (rope,) * settings["num_layers"])


def _settle_nomic(settings: dict[str, Any], file: File) -> None:
    if "hidden_size" not in file.config:
        for name, values in _NOMIC_OWN.items():
            if file.config.get(name, values[0]) not in values:
                found = f"{name} is {printable(repr(file.config[name]))}, a key of the authors' own code"
                rule = f"transformers reads none of these and has the sizes of v1.5, where it is {values[0]!r}"
                raise OwnCodeError(f"{file.where}: {found}; {rule}")
    _settle(1000.0, settings, file)


_FIXED = {"embedding_norm": True, "lm_head_bias": True}
_QKV = "attention.(query|key|value)"
_NAMES = without(bert.EMBEDDINGS, "embeddings.position_embeddings") | bert.TYPES | bert.POOLER
_GTE = replace(
    bert.BERT,
    extra=("labels", "ropes"),
    only={"position_embedding_type": ("absolute", "rope", "rotary", None)},
    unread=bert.UNREAD,
)


def _flash_names(attention: str, feed_forward: dict[str, str]) -> dict[str, str]:
    """Return the names of weights that NomicBERT and Jina v3 have in common."""
    return without(_NAMES, "embeddings.LayerNorm") | {"emb_ln": "embeddings.norm"} | layers(
        "encoder.layers.{n}", "encoder.layers.{n}", {
            f"{attention}.Wqkv": _QKV,
            f"{attention}.out_proj": "attention.output",
            **{f"mlp.{theirs}": f"feed_forward.{ours}" for theirs, ours in feed_forward.items()},
            "norm1": "attention_norm",
            "norm2": "feed_forward_norm",
        },
    )  # fmt: skip


FAMILIES = {
    "gte": replace(
        _GTE,
        keys=_GTE_KEYS,
        fixed=_FIXED | {"gated": True, "feed_forward_bias": False, "down_bias": True, "head_activation": "gelu"},
        names=_NAMES | {
            **layers("encoder.layer.{n}", "encoder.layers.{n}", {
                "attention.qkv_proj": _QKV,
                "attention.o_proj": "attention.output",
                "attn_ln": "attention_norm",
                "mlp.up_gate_proj": "feed_forward.(up|gate)",
                "mlp.down_proj": "feed_forward.down",
                "mlp_ln": "feed_forward_norm",
            }),
            "lm_head.dense": "lm_head.dense",
            "lm_head.norm": "lm_head.norm",
            "classifier": "sequence.output/tokens.output",
        },
        prefix="gte.",
        old_prefixes=("new.",),
        logits=("lm_head.decoder", "lm_head.decoder.bias"),
        architectures=classes("Gte", bert.POOLED_HEADS),
        tokenizer="XLMRobertaTokenizer",
        settle=partial(_settle, 160000.0),
    ),
    "jina_embeddings_v3": replace(
        _GTE,
        keys=_JINA_KEYS,
        fixed=_FIXED | {"head_activation": "gelu", "classifier": "tanh"},
        names=_flash_names("mixer", {"fc1": "up", "fc2": "down"}) | bert.ROBERTA_HEADS,
        prefix="roberta.",
        logits=("lm_head.decoder", "lm_head.bias"),
        architectures=classes("JinaEmbeddingsV3", bert.HEADS),
        tokenizer="XLMRobertaTokenizer",
        settle=partial(_settle, 20000.0),
    ),
    "nomic_bert": replace(
        _GTE,
        keys=_NOMIC_KEYS,
        fixed=_FIXED | {"gated": True, "qkv_bias": False, "output_bias": False, "feed_forward_bias": False},
        names=_flash_names("attn", {"fc11": "up", "fc12": "gate", "fc2": "down"}) | {
            "cls.predictions.transform.dense": "lm_head.dense",
            "cls.predictions.transform.layer_norm": "lm_head.norm",
            "classifier": "sequence.output/tokens.output",
        },
        prefix="nomic_bert.",
        logits=("cls.predictions.decoder", "cls.predictions.bias"),
        architectures=classes("NomicBert", bert.POOLED_HEADS),
        settle=_settle_nomic,
    ),
}  # fmt: skip
