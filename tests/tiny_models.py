"""Random models of transformers, small enough for tests, and how close two of them must be.

Letters: B batch, N tokens of a sequence.
"""

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
import transformers
from tolerance import assert_as_exact
from torch import Tensor

VOCABULARY = 64
SHARED = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
_WIDE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
GROUPED = _WIDE | {"num_key_value_heads": 2, "max_position_embeddings": 64}
_BOTH = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64, "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}  # fmt: skip
_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "relative_attention_num_buckets": 8,
       "relative_attention_max_distance": 16, "decoder_start_token_id": 0}  # fmt: skip
_SMALL_HEADS = {"head_dim": 8, "query_pre_attn_scalar": 8}
_EXPERTS = {"head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}  # fmt: skip

ENCODERS = {
    "bert": _WIDE,
    "roberta": _WIDE | {"max_position_embeddings": 64},
    "electra": _WIDE | {"embedding_size": 32},
    "distilbert": {"dim": 32, "hidden_dim": 48, "n_layers": 3, "n_heads": 4},
    "modernbert": _WIDE | {"local_attention": 4, "global_attn_every_n_layers": 2, "cls_token_id": 1, "sep_token_id": 1},
}
DECODERS = {
    "gpt2": {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64},
    "llama": GROUPED,
    "mistral": GROUPED | {"sliding_window": 3},
    "gemma2": GROUPED | _SMALL_HEADS | {"sliding_window": 3, "attn_logit_softcapping": 2.0},
    "gemma3_text": GROUPED | _SMALL_HEADS | {"sliding_window": 3},
    "gpt_oss": GROUPED | _EXPERTS,
}
PAIRS = {"t5": _T5, "bart": _BOTH}
# What makes any family small: as many of these as its config knows.
LAYERS = [
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "encoder_layers",
    "decoder_layers",
    "num_decoder_layers",
]
_HEADS = ["num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads"]
_INNER = ["intermediate_size", "ffn_dim", "d_ff", "hidden_dim", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim"]
_SMALL = {
    **dict.fromkeys(["hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size"], 32),
    **dict.fromkeys(_INNER, 48), **dict.fromkeys(LAYERS, 2), **dict.fromkeys(_HEADS, 4),
    **dict.fromkeys(["num_experts", "num_local_experts", "n_routed_experts"], 4), "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "d_kv": 8, "head_dim": 8, "query_pre_attn_scalar": 8,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "n_positions": 64, "sliding_window": 3, "local_attention": 4,
    "global_attn_every_n_layers": 2, "attention_multiplier": 8**-0.5, "decoder_start_token_id": 1,
}  # fmt: skip


def draw(model: torch.nn.Module) -> None:
    """Norms about 1 and biases about 0, none exactly."""
    generator = torch.Generator().manual_seed(1)
    for name, x in model.named_parameters():
        centre = 1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0
        with torch.no_grad():
            x.copy_(centre + 0.3 * torch.randn(x.shape, generator=generator))


def make(family: str, options: dict, maker: type, **more: object) -> torch.nn.Module:
    """A random model in evaluation mode, with eager attention."""
    torch.manual_seed(0)
    options = SHARED | {"experts_implementation": "eager"} | options | more  # the other one has no float64
    config = transformers.AutoConfig.for_model(family, **options)
    model = maker.from_config(config, attn_implementation="eager").eval()
    for name, x in model.named_parameters():
        # As transformers starts them, weights are so small that all attend to all alike, and biases and sinks are 0.
        is_scale = "norm" in name.lower() and name.endswith("weight")
        torch.nn.init.normal_(x, 1.0 if is_scale else 0.0, 0.3)
    return model


def theirs(family: str, implementation: str = "eager") -> torch.nn.Module:
    """A random model with logits of a family of the tables above."""
    of = transformers.AutoModelForSeq2SeqLM if family in PAIRS else transformers.AutoModelForCausalLM
    model = make(
        family, (ENCODERS | DECODERS | PAIRS)[family], transformers.AutoModelForMaskedLM if family in ENCODERS else of
    )
    model.set_attn_implementation(implementation)
    return model


def implementation_of(model: Any) -> str:
    """The attention that a model of transformers computes with in this thread."""
    return model.config._attn_implementation


def offers_a_choice(model: Any) -> bool:
    """Whether a model of transformers computes with the attention that its config names."""
    return model._can_set_attn_implementation()


def small(family: str) -> dict[str, float]:
    """Options that make a family small, whatever it calls them."""
    config = transformers.AutoConfig.for_model(family)
    options = set(config.to_dict()) | set(config.attribute_map)
    return {
        name: value
        for name, value in _SMALL.items()
        if name in options and not isinstance(getattr(config, name, None), list | dict)
    }


def cached(model: torch.nn.Module, cache: object) -> dict[str, object]:
    """A cache as an argument: some models call it `cache` since transformers 5.24, and warn of the old name."""
    names = inspect.signature(model.forward).parameters
    return {"cache" if "cache" in names else "past_key_values": cache}


def tokens(batch: int, length: int, seed: int = 0) -> Tensor:
    """Random ids (B, N) without the special ones."""
    return torch.randint(2, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def oracle(model: torch.nn.Module) -> torch.nn.Module:
    """A copy in float64. Its attention is PyTorch's own where the family has no more than that: eager attention takes its
    softmax in float32, where the mask of float64 makes nan of a row that sees nothing."""
    exact = copy.deepcopy(model).double()
    if model._supports_sdpa:
        exact.set_attn_implementation("sdpa")
    return exact


def alone(ids_BN: Tensor, mask_BN: Tensor) -> list[Tensor]:
    """The sequences of a padded batch, (1, n) each, where no row sees nothing."""
    return [ids[seen][None] for ids, seen in zip(ids_BN, mask_BN.bool(), strict=True)]


def agrees(
    model: torch.nn.Module,
    run: Callable[[torch.nn.Module], Tensor],
    exact: Callable[[], Tensor] | None = None,
    *,
    stored: torch.dtype | None = None,
) -> None:
    """What `run` gives with "uwaga" lies no farther from float64 than twice what it gives with "eager" does, and a unit
    in the last place. The oracle runs the same, unless `exact` computes what is right. `stored`: tolerance.assert_as_exact."""
    in_float64 = oracle(model)
    eager = run(model)
    model.set_attn_implementation("uwaga")
    ours = run(model)
    model.set_attn_implementation("eager")
    assert type(ours) is Tensor
    assert_as_exact(ours, eager, exact or (lambda: run(in_float64)), stored=stored)
