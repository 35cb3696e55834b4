"""The original Transformer (Vaswani et al., "Attention Is All You Need", 2017): Marian (Junczys-Dowmunt et al. 2018) as in transformers, and
our own with further settings. Without an encoder it is a language model (Liu et al., "Generating Wikipedia by Summarizing Long Sequences", 2018).

A model that transformers does not have is saved under Marian's names of weights; config.json then has our model_type and keys.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Generator, Tensor
from torch.nn import init

from uwaga._base.options import field_rules
from uwaga.models.checkpoints.config_json import Key, LayerCount, ModelSize, keys
from uwaga.models.configuration import Config
from uwaga.models.families.family import Draw, Family, File, layers

_KEYS = keys(
    vocab_size=58101, decoder_vocab_size=None, d_model=1024, encoder_layers=12, decoder_layers=Key("num_decoder_layers", 12, ModelSize),
    encoder_attention_heads=16, decoder_attention_heads=Key("num_decoder_heads", 16, ModelSize), encoder_ffn_dim=4096,
    decoder_ffn_dim=Key("decoder_d_ff", 4096, ModelSize), activation_function="gelu", scale_embedding=False, dropout=0.1,
    attention_dropout=0.0, activation_dropout=0.0, eos_token_id=0, pad_token_id=58100, decoder_start_token_id=58100,
)  # fmt: skip
# The settings of a model that is not Marian, with the values of the paper's base model (table 3); keys have the same names.
_BASE = {
    "vocab_size": 37000, "decoder_vocab_size": None, "d_model": 512, "num_layers": 6, "num_decoder_layers": 6, "num_heads": 8,
    "num_decoder_heads": None, "d_ff": 2048, "decoder_d_ff": None, "activation": "relu", "norm": "post", "norm_eps": 1e-5,
    "position_encoding": "sinusoidal", "alibi_slopes": None, "sinusoid_layout": "interleaved", "scale_embedding": True,
    "tie_word_embeddings": True, "lm_head_bias": False, "dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0,
    "pad_token_id": None, "decoder_start_token_id": 0,
}  # fmt: skip
_RULES = field_rules(Config) | {"num_layers": LayerCount}
_OWN_KEYS = {name: Key(name, default, _RULES[name]) for name, default in _BASE.items()}
_OWN_KEYS["eos_token_ids"] = Key("eos_token_ids", 0)
_OF_HEAD = ("lm_head.weight", "final_logits_bias")
# Settings by which Marian differs from others.
_MARIAN = {
    "norm": "post", "norm_eps": 1e-5, "position_encoding": "sinusoidal", "sinusoid_layout": "halves", "tie_word_embeddings": True,
    "lm_head_bias": True,
}  # fmt: skip


def _settle_marian(settings: dict[str, Any], file: File) -> None:
    is_shared = file.config.get("share_encoder_decoder_embeddings", True)
    settings["decoder_vocab_size"] = None if is_shared else settings["decoder_vocab_size"] or settings["vocab_size"]
    _settle(settings, file)


def _settle(settings: dict[str, Any], file: File) -> None:
    if not settings["num_layers"]:
        settings |= {"is_causal": True, "num_layers": settings["num_decoder_layers"], "num_decoder_layers": 0}
    has_both = settings["num_decoder_layers"] > 0
    if not has_both and not settings.get("is_causal"):
        settings["outputs"] = ()
    elif file.names is not None:
        # A tied head without a bias has no weight by which a file shows it; Marian always has a head.
        is_tied = settings["tie_word_embeddings"] and not settings["lm_head_bias"]
        is_there = settings["model_type"] == "marian" or is_tied or any(map(file.has, _OF_HEAD))
        settings["outputs"] = ("logits",) if is_there else ()
    settings.setdefault("embedding_dropout", settings["dropout"])
    if settings["pad_token_id"] is not None:
        settings["never_generated"] = (settings["pad_token_id"],)
    is_marian = has_both and all(settings[name] == value for name, value in _MARIAN.items())
    settings["model_type"] = "marian" if is_marian else "uwaga-transformer"


def _write_marian(config: Config) -> dict[str, object]:
    return {
        "decoder_vocab_size": config.output_vocab_size,
        "decoder_attention_heads": config.num_decoder_heads or config.num_heads,
        "decoder_ffn_dim": config.decoder_d_ff or config.d_ff,
        "share_encoder_decoder_embeddings": config.decoder_vocab_size is None,
        "is_encoder_decoder": True,
        "tie_word_embeddings": True,
    }


def _write(config: Config) -> dict[str, object]:
    layers_of = {"num_layers": 0, "num_decoder_layers": config.num_layers} if config.is_causal else {}
    return {"architectures": ["Transformer"], **layers_of}


def _names(config: Config) -> Mapping[str, str]:
    shared = {"model.shared": "embeddings.token_embedding"}
    our_names = {
        f"model.{x}.embed_tokens": f"{y}.token_embedding"
        for x, y in (("encoder", "embeddings"), ("decoder", "decoder_embeddings"))
    }
    names = our_names if config.decoder_vocab_size else shared
    for stack in ("encoder", "decoder"):
        names |= layers(f"model.{stack}.layers.{{n}}", f"{stack}.layers.{{n}}", {
            **{f"{theirs}.{short}_proj": f"{ours}.{part}"
               for theirs, ours in (("self_attn", "attention"), ("encoder_attn", "cross_attention"))
               for short, part in (("q", "query"), ("k", "key"), ("v", "value"), ("out", "output"))},
            "self_attn_layer_norm": "attention_norm",
            "encoder_attn_layer_norm": "cross_attention_norm",
            "fc1": "feed_forward.up",
            "fc2": "feed_forward.down",
            "final_layer_norm": "feed_forward_norm",
        })  # fmt: skip
        names[f"model.{stack}.layer_norm"] = f"{stack}.norm"
    return names | {"final_logits_bias": "lm_head.bias~"}


def _initial(config: Config) -> Draw:
    """Draw as the authors' tensor2tensor: Glorot and Bengio's uniform distribution, embeddings of deviation 1 / root of M."""

    def draw(name: str, weight: Tensor, generator: Generator) -> Any:
        if name.endswith("token_embedding.weight"):
            return init.normal_(weight, std=config.d_model**-0.5, generator=generator)
        return init.xavier_uniform_(weight, generator=generator)

    return draw


_UWAGA = Family(
    keys=_OWN_KEYS,
    outputs=("logits",),
    names=_names,
    logits=("lm_head", ""),
    architectures={"Transformer": ("logits",)},
    any_class=True,
    tied=dict.fromkeys(
        (f"model.{stack}.embed_tokens.weight" for stack in ("encoder", "decoder")), "model.shared.weight"
    ),
    unread={
        f"model.{stack}.embed_positions.weight": "sinusoidal positions are computed" for stack in ("encoder", "decoder")
    },
    settle=_settle,
    write=_write,
    initial=_initial,
)
FAMILIES = {
    "marian": replace(
        _UWAGA,
        keys=_KEYS,
        fixed=_MARIAN,
        only={"tie_word_embeddings": (True,), "is_causal": (True,), "is_encoder_decoder": (True,)},
        architectures={"MarianMTModel": ("logits",)},
        tokenizer="MarianTokenizer",
        settle=_settle_marian,
        write=_write_marian,
    ),
    "uwaga-transformer": _UWAGA,
}  # fmt: skip
