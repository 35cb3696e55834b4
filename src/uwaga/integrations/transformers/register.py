"""register_with_transformers(): attn_implementation="uwaga" for models of transformers."""

import inspect
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import Tensor

from uwaga._base import threads
from uwaga._base.tracing import is_intercepted
from uwaga.integrations.transformers.mask_functions import documents_of_positions
from uwaga.integrations.transformers.mask_plan import OF_ITSELF

NAME = "uwaga"
_ATTRIBUTE = "_attn_implementation_internal"  # where a config has the name


def register_with_transformers() -> None:
    """Register attn_implementation="uwaga" with transformers, for all models that can switch their attention.

        register_with_transformers()
        model = AutoModel.from_pretrained(path, attn_implementation="uwaga")    # or model.set_attn_implementation("uwaga")

    Padding, windows and the borders of packed documents (cu_seq_lens_q, or position_ids that start again at 0 where nothing is
    padding and the cache is empty) are skipped and not masked. Queries that are padding give zeros if they can be recognised.
    A model that computes attention by itself, as MPNet and DeBERTa do, raises ValueError when the implementation is set.

    A second call has no effect.

    Raises:
        ImportError: transformers is not installed, or older than 5.
    """
    try:
        from transformers import (
            AttentionInterface,
            AttentionMaskInterface,
            GenerationMixin,
            PreTrainedConfig,
            PreTrainedModel,
            masking_utils,
        )
    except ImportError as error:
        raise ImportError("register_with_transformers: needs the package 'transformers', version 5 or newer") from error
    from uwaga.integrations.transformers.attention import uwaga_attention
    from uwaga.integrations.transformers.mask_plan import lazy_mask

    AttentionInterface.register(NAME, uwaga_attention)
    # Without a registered mask function, transformers passes no mask at all, and padding would not be hidden.
    AttentionMaskInterface.register(NAME, lazy_mask)
    if not isinstance(getattr(PreTrainedConfig, _ATTRIBUTE, None), property):  # else this was done before
        _check_when_chosen(PreTrainedModel)
        _answer_by_context(PreTrainedConfig)
        _tell_of_candidates(GenerationMixin)
        find_documents(masking_utils)


def _replace(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Replace a function of a class or module by `wrapper`, which gets the function before its arguments."""
    original = getattr(owner, name)
    setattr(owner, name, wraps(original)(lambda *args, **kwargs: wrapper(original, *args, **kwargs)))


def _check_when_chosen(base: Any) -> None:
    """Make models that ignore the attention interface raise ValueError. transformers itself accepts any name when a model is
    made, and only logs a warning when the implementation is changed."""

    def made(original: Callable, self: Any, requested: str | None, is_init_check: bool = False) -> str:
        result: str = original(self, requested, is_init_check)
        _check(self, result)
        return result

    def changed(original: Callable, self: Any, attn_implementation: str | dict, *others: Any, **more: Any) -> None:
        _check(self, attn_implementation.get("") if isinstance(attn_implementation, dict) else attn_implementation)
        original(self, attn_implementation, *others, **more)

    _replace(base, "get_correct_attn_implementation", made)
    _replace(base, "set_attn_implementation", changed)


def _answer_by_context(base: Any) -> None:
    """Let configs answer as `inside.computing` says, without a change in them."""

    def get(config: Any) -> str | None:
        if _ATTRIBUTE not in vars(config):
            raise AttributeError(_ATTRIBUTE)
        return NAME if threads.acting(config) else vars(config)[_ATTRIBUTE]

    def put(config: Any, name: str | None) -> None:
        # A model that is made of a config sets the name that it reads there, which is no choice of the user's.
        if name != NAME or not threads.acting(config):
            vars(config)[_ATTRIBUTE] = name

    setattr(base, _ATTRIBUTE, property(get, put))


def _tell_of_candidates(base: Any) -> None:
    """Call what acts at a model when it begins speculative decoding (assisted generation), which reads tokens that it may reject."""

    def generator(original: Callable, self: Any, *args: Any, **kwargs: Any) -> object:
        for note in threads.acting(self):
            note()
        return original(self, *args, **kwargs)

    _replace(base, "_get_candidate_generator", generator)


def find_documents(masks: Any) -> None:
    """Let causal masks of this attention separate the documents of a packed row with a mask of ones, or an empty cache, too. transformers
    looks for them only without either, except in FlashAttention, which finds them by itself."""
    present = getattr(masks, "_preprocess_mask_arguments", None)
    if present is None:
        warnings.warn(
            "register_with_transformers: this version of transformers makes masks in another way, so documents that position_ids alone "
            "separate see each other where there is a mask or a cache; give cu_seq_lens_q, or no attention_mask",
            stacklevel=3,
        )
        return
    names = list(inspect.signature(present).parameters)

    def with_documents(original: Callable, *args: Any, **kwargs: Any) -> tuple:
        result: tuple = original(*args, **kwargs)
        arguments = dict(zip(names, args, strict=False)) | kwargs
        is_done, padding, documents, queries, keys, query_offset, key_offset = result
        if is_intercepted() or is_done or arguments["config"]._attn_implementation != NAME:
            return result
        if isinstance(padding, Tensor) and arguments.get("encoder_hidden_states") is None:
            padding = padding.view_as(padding)  # a tensor of this mask alone
            setattr(padding, OF_ITSELF, True)
            result = (is_done, padding, *result[2:])
        position_ids = arguments.get("position_ids")
        if documents is not None or not isinstance(position_ids, Tensor) or position_ids.dim() != 2:
            return result
        is_whole = queries == keys == position_ids.shape[1] and int(query_offset) == key_offset == 0
        if not is_whole or not (padding is None or bool(padding.all())):
            return result
        documents = documents_of_positions(position_ids.expand(arguments["inputs_embeds"].shape[0], -1))
        return result if documents is None else (is_done, None, documents, queries, keys, query_offset, key_offset)

    _replace(masks, "_preprocess_mask_arguments", with_documents)


def _check(model: Any, name: str | None) -> None:
    if name == NAME and not model._can_set_attn_implementation():
        raise ValueError(
            f"attn_implementation='uwaga': {type(model).__name__} computes attention by itself and would ignore it; "
            "load it with attn_implementation='eager'"
        )
