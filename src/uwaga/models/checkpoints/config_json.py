"""What families have in common in config.json: the types of its keys, and the values of activations, eos_token_id and layer_types."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from annotated_types import Ge, Le

from uwaga._base import options
from uwaga._base.errors import CheckpointError
from uwaga._base.options import Integer, ListOf, OptionError, Words
from uwaga._base.terminal import printable

_Config = TypeVar("_Config")
# The product of two sizes, in bytes, must stay far below 2**63.
_LARGEST_SIZE = 2**28
ModelSize = Annotated[Integer, Ge(1), Le(_LARGEST_SIZE)]
ModelCount = Annotated[Integer, Ge(0), Le(_LARGEST_SIZE)]
# Lists have an entry for each layer before the weights can be counted.
_MOST_LAYERS = 2**16
LayerCount = Annotated[Integer, Ge(0), Le(_MOST_LAYERS)]
SomeLayers = Annotated[Integer, Ge(1), Le(_MOST_LAYERS)]
Ids = tuple[ModelCount, ...]
Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]
# As the file has them.
_ActivationName = Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish"]
_EosTokenId = Annotated[ModelCount | ListOf[ModelCount] | None, Words("an id, a list of ids or null")]
# Names in transformers -> ours; of several names of one function saving writes the first.
_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu",
}  # fmt: skip


# Our settings by the keys of config.json that have other names.
_OURS = {
    "activation_function": "activation", "attention_bias": "qkv_bias", "attention_probs_dropout_prob": "attention_dropout",
    "attn_logit_softcapping": "softcap", "attn_pdrop": "attention_dropout", "classifier_activation": "head_activation",
    "classifier_bias": "head_bias", "classifier_dropout_prob": "classifier_dropout", "d_kv": "d_k", "decoder_bias": "lm_head_bias",
    "dim": "d_model", "dropout_rate": "dropout", "embd_pdrop": "embedding_dropout", "encoder_attention_heads": "num_heads",
    "encoder_ffn_dim": "d_ff", "encoder_layers": "num_layers", "eos_token_id": "eos_token_ids", "final_logit_softcapping": "logit_softcap",
    "head_dim": "d_k", "hidden_act": "activation", "hidden_activation": "activation", "hidden_dim": "d_ff",
    "hidden_dropout_prob": "dropout", "hidden_size": "d_model", "intermediate_size": "d_ff", "layer_norm_eps": "norm_eps",
    "layer_norm_epsilon": "norm_eps", "mlp_bias": "feed_forward_bias", "mlp_dropout": "activation_dropout", "n_embd": "d_model",
    "n_head": "num_heads", "n_heads": "num_heads", "n_inner": "d_ff", "n_layer": "num_layers", "n_layers": "num_layers",
    "n_positions": "max_position_embeddings", "num_attention_heads": "num_heads", "num_hidden_layers": "num_layers",
    "num_key_value_heads": "num_kv_heads", "relative_attention_max_distance": "max_distance",
    "relative_attention_num_buckets": "num_buckets", "resid_pdrop": "dropout", "rms_norm_eps": "norm_eps",
    "scale_attn_by_inverse_layer_idx": "scale_by_layer",
}  # fmt: skip
# Keys that change what a model computes, of one family or another, and their only supported values.
ONLY: dict[str, tuple[object, ...]] = {
    "add_cross_attention": (False,), "add_final_layer_norm": (False,), "extra_pos_embeddings": (0,), "is_decoder": (False,),
    "is_encoder_decoder": (False,), "layer_norm_type": ("layer_norm", None), "logn_attention_scale": (False, None),
    "lora_adaptations": ([], None), "moe_every_n_layers": (0, None), "normalize_before": (False,), "normalize_embedding": (False,),
    "num_experts": (0, None), "per_layer_config": (None,), "pretraining_tp": (1, None), "pruned_heads": ({}, None),
    "quantization_config": (None,), "rope_interleaved": (False,), "static_position_embeddings": (True,),
}  # fmt: skip
# Those of code in the directories of models.
OWN_CODE = ("lora_adaptations", "moe_every_n_layers", "num_experts", "position_embedding_type")

LOCAL, GLOBAL = LAYER_TYPES = ("sliding_attention", "full_attention")


class Key(NamedTuple):
    """A key of config.json: the field of our config, the default of transformers, and the rule of the value in the file."""

    ours: str
    default: object
    kind: Any = None  # an annotation; None: that of the field, or null if that is the default


def keys(**defaults: object) -> dict[str, Key]:
    """Return keys of the usual settings with the defaults of transformers; a `Key` has another setting or rule.

    >>> keys(hidden_size=768, vocab_size=100)["hidden_size"]
    Key(ours='d_model', default=768, kind=None)
    """
    return {name: x if isinstance(x, Key) else Key(_OURS.get(name, name), x) for name, x in defaults.items()}


def setting(config: Mapping[str, Any], where: object, name: str, rule: Any, default: object) -> Any:
    """Return the value of a key, checked. Raises CheckpointError."""
    try:
        return options.read(rule, config.get(name, default), path=name)
    except OptionError as error:
        raise CheckpointError(f"{where}: {error}") from error


def head_width(settings: Mapping[str, Any], where: str) -> int:
    """Return d_model / num_heads. Raises CheckpointError if it is not a whole number."""
    width, heads = settings["d_model"], settings["num_heads"]
    if width % heads:
        raise CheckpointError(f"{where}: hidden_size {width} is not a multiple of {heads} heads")
    return int(width // heads)


def _read_eos(ids: int | list[int] | None) -> tuple[int, ...]:
    """
    >>> _read_eos(None), _read_eos(5), _read_eos([5, 6])
    ((), (5,), (5, 6))
    """
    if ids is None:
        return ()
    return tuple(ids) if isinstance(ids, list) else (ids,)


def _write_eos(ids: tuple[int, ...]) -> int | list[int] | None:
    """
    >>> _write_eos(()), _write_eos((5,)), _write_eos((5, 6))
    (None, 5, [5, 6])
    """
    if len(ids) > 1:
        return list(ids)
    return ids[0] if ids else None


def write_activation(ours: str) -> str:
    """
    >>> write_activation("gelu_tanh")
    'gelu_new'
    """
    return next(theirs for theirs, name in _ACTIVATIONS.items() if name == ours)


# Of fields whose values a file has in another form: its rule there, from there, and back.
IN_FILES: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "activation": (_ActivationName, _ACTIVATIONS.__getitem__, write_activation),
    "head_activation": (_ActivationName, _ACTIVATIONS.__getitem__, write_activation),
    "eos_token_ids": (_EosTokenId, _read_eos, _write_eos),
}


def read_layer_types(types: object, where: str, default: Sequence[str]) -> tuple[str, ...]:
    """Return `layer_types`, "sliding_attention" or "full_attention" for each layer; None: the default. Raises CheckpointError."""
    types = list(default) if types is None else types
    if not isinstance(types, list) or len(types) != len(default) or set(map(str, types)) - set(LAYER_TYPES):
        raise CheckpointError(
            f"{where}: layer_types must be {len(default)} of {' and '.join(LAYER_TYPES)}, not {printable(repr(types))}"
        )
    return tuple(types)


def windows_of(types: Sequence[str], window: int | None, where: str) -> tuple[int | None, ...]:
    """Return the window of each layer, None if it sees all. Raises CheckpointError if a layer needs a window that is not given."""
    if window is None and LOCAL in types:
        raise CheckpointError(f"{where}: layer_types has {LOCAL}, and there is no sliding_window")
    return tuple(window if kind == LOCAL else None for kind in types)


# Keys that are read elsewhere, or say how a model was made, what to return, how a tokenizer or a generation goes, or what heads that are
# not computed are like.
HARMLESS = frozenset({
    "_attn_implementation", "_attn_implementation_autoset", "_name_or_path", "_num_labels", "_sliding_window_pattern", "activation_function",
    "add_bias_logits", "architectures", "attn_implementation", "attn_pdrop", "auto_map", "bad_words_ids", "bos_token_id", "cache_implementation",
    "causal", "chunk_size_feed_forward", "classif_dropout", "classifier_dropout", "classifier_pooling", "cls_token_id", "decoder_layerdrop",
    "dense_act_fn", "dense_seq_output", "deterministic_flash_attn", "down_scale_factor", "dtype", "embd_pdrop", "encoder_layerdrop",
    "eos_token_id", "finetuning_task", "forced_eos_token_id", "fused_bias_fc", "fused_dropout_add_ln", "gap_size",
    "global_attn_every_n_layers", "global_rope_theta", "gradient_checkpointing", "head_dim", "hidden_act", "id2label", "init_std",
    "initializer_cutoff_factor", "initializer_factor", "initializer_range", "is_gated_act", "is_llama_config", "label2id", "language",
    "last_layer_subset", "layer_norm_eps", "layer_norm_epsilon", "layer_types", "layers_to_keep", "local_attention", "local_rope_theta",
    "mask_token_id", "max_length", "max_position_embeddings", "max_trained_positions", "max_window_layers", "mlp_fc1_bias", "mlp_fc2_bias",
    "model_type", "n_ctx", "n_embd", "n_head", "n_inner", "n_layer", "n_positions", "name_or_path", "net_structure_type", "num_beams",
    "num_hidden_layers", "num_labels", "num_memory_blocks", "original_max_position_embeddings", "output_attentions", "output_hidden_states",
    "output_past", "pad_token_id", "pad_vocab_size_multiple", "parallel_block", "partial_rotary_factor", "position_embedding_type", "prenorm",
    "problem_type", "qa_dropout", "qkv_proj_bias", "reference_compile", "reorder_and_upcast_attn", "repad_logits_with_grad", "resid_pdrop",
    "return_dict", "rope_local_base_freq", "rope_parameters", "rope_scaling", "rope_theta", "rotary_emb_base", "rotary_emb_fraction",
    "rotary_emb_interleaved", "rotary_emb_scale_base", "rotary_scaling_factor", "scale_attn_by_inverse_layer_idx", "scale_attn_weights",
    "sep_token_id", "share_encoder_decoder_embeddings", "sinusoidal_pos_embds", "sliding_window", "sliding_window_pattern",
    "sparse_pred_ignore_index", "sparse_prediction", "summary_activation", "summary_first_dropout", "summary_last_dropout",
    "summary_proj_to_labels", "summary_type", "summary_use_proj", "task_specific_params", "tie_weights_", "tokenizer_class", "torch_dtype",
    "torchscript", "transformers.js_config", "transformers_version", "use_cache", "use_flash_attn", "use_rms_norm", "use_sliding_window",
    "use_xentropy",
})  # fmt: skip
