"""GPT-2 (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019), and its relative with a band.

With a band, every second layer attends to the last tokens alone: "alternating dense and locally banded sparse attention patterns in the
layers" (Brown et al., "Language Models are Few-Shot Learners", 2020, section 2.1; Child et al., "Generating Long Sequences with Sparse
Transformers", 2019). The first layer is dense. Under the name gpt2, transformers would load such a model and compute something else.
"""

from dataclasses import replace
from typing import Any

from torch import Generator, Tensor
from torch.nn import init

from uwaga._base.options import Switch
from uwaga.models.checkpoints.config_json import Key, ModelSize, keys
from uwaga.models.configuration import Config
from uwaga.models.families.family import Draw, Family, File, layers

_KEYS = keys(
    vocab_size=50257, n_positions=1024, n_embd=768, n_layer=12, n_head=12, n_inner=None, activation_function="gelu_new",
    layer_norm_epsilon=1e-5, resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1, scale_attn_weights=Key("scale_attn_weights", True, Switch),
    scale_attn_by_inverse_layer_idx=False, tie_word_embeddings=True, eos_token_id=50256, pad_token_id=None,
)  # fmt: skip


def _settle(settings: dict[str, Any], file: File) -> None:
    settings["d_ff"] = settings["d_ff"] or 4 * settings["d_model"]
    width = settings["d_model"] / settings["num_heads"]
    settings.setdefault("scale", width**-0.5 if settings.pop("scale_attn_weights") else 1.0)
    band = settings.pop("band", None)
    if band is not None:
        settings["model_type"] = "uwaga-gpt3"
        settings["windows"] = tuple(band if n % 2 else None for n in range(settings["num_layers"]))
    if settings["tie_word_embeddings"] and file.names is not None:
        settings["outputs"] = ("logits",)


def _write(config: Config) -> dict[str, object]:
    # transformers writes null for the default, 4 * n_embd.
    written: dict[str, object] = {"n_inner": None if config.d_ff == 4 * config.d_model else config.d_ff}
    written["scale_attn_weights"] = config.scale != 1.0
    return written | ({"uwaga_band": config.windows[1]} if config.windows else {})


def _initial(config: Config) -> Draw:
    """Draw as section 2.3: maps into the residual stream are divided by the root of their number."""
    added = ("attention.output.weight", "feed_forward.down.weight")
    residual = 0.02 * (2 * config.num_layers) ** -0.5

    def draw(name: str, weight: Tensor, generator: Generator) -> None:
        init.normal_(weight, std=residual if name.endswith(added) else 0.02, generator=generator)

    return draw


_GPT2 = Family(
    keys=_KEYS,
    fixed={"is_causal": True, "norm": "pre", "position_encoding": "learned"},
    extra=("band", "scale"),
    outputs=("logits",),
    only={"is_causal": (True,), "is_decoder": (False, True)},
    names={
        "wte": "embeddings.token_embedding",
        "wpe": "embeddings.positions",
        **layers("h.{n}", "decoder.layers.{n}", {
            "ln_1": "attention_norm",
            "attn.c_attn": "attention.(query|key|value)^",
            "attn.c_proj": "attention.output^",
            "ln_2": "feed_forward_norm",
            "mlp.c_fc": "feed_forward.up^",
            "mlp.c_proj": "feed_forward.down^",
        }),
        "ln_f": "decoder.norm",
    },
    prefix="transformer.",
    logits=("lm_head", "lm_head.bias"),
    architectures={"GPT2Model": (), "GPT2LMHeadModel": ("logits",)},
    tokenizer="GPT2Tokenizer",
    any_class=True,
    unread={
        "h.{n}.attn.bias": "the causal mask; a buffer of transformers before 4.34",
        "h.{n}.attn.masked_bias": "the score of a masked key; a buffer of transformers before 4.34",
    },
    settle=_settle,
    write=_write,
    initial=_initial,
)  # fmt: skip
FAMILIES = {
    "gpt2": _GPT2,
    "uwaga-gpt3": replace(_GPT2, keys=_KEYS | {"uwaga_band": Key("band", 128, ModelSize)}, tokenizer=None),
}
