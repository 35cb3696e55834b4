"""The models of transformers inside of a model: which there are, what is known of each, and texts in one row of one, as it packs them for
FlashAttention.

Letters: N tokens of all texts, M model width.
"""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from uwaga._base import threads
from uwaga.nn.operand import values_of
from uwaga.nn.positions import roberta_positions, token_positions
from uwaga.ops.ragged import Ragged


def outermost(model: nn.Module, fits: Callable[[Any], bool] = lambda _: True) -> list[tuple[str, Any]]:
    """Return the paths and modules of the transformers models that fit, without those that are part of another one that fits."""
    # Asking "transformers" itself for the class would import this module, which takes seconds. Another thread may be importing it.
    base = getattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel", None)
    if base is None:  # then there are no models of it
        return []
    results: list[tuple[str, Any]] = []
    for path, module in model.named_modules():
        is_inside = any(outer == "" or path.startswith(outer + ".") for outer, _ in results)
        if isinstance(module, base) and fits(module) and not is_inside:
            results.append((path, module))
    return results


def computing(model: nn.Module, operation: str = "watch") -> AbstractContextManager[object]:
    """Return a context in which the transformers models of a model compute attention with uwaga, in this thread and task.

    Another thread inside a forward pass keeps the attention for which its masks were made. Configs do not change.

    Raises:
        ValueError: a model that computes attention by itself.
    """
    models = [module for _, module in outermost(model)]
    if not models:
        return nullcontext()
    from uwaga.integrations.transformers.register import NAME, register_with_transformers

    for part in models:
        if not part._can_set_attn_implementation():
            raise own_attention_error(part, operation)
    register_with_transformers()
    return threads.block((config, NAME) for config in configs_of(models))


def own_attention_error(model: nn.Module, operation: str = "watch") -> ValueError:
    """Return the error of a model that does not call transformers' attention functions."""
    done = {"watch": "watched", "edit": "edited"}[operation]
    return ValueError(f"{operation}: {type(model).__name__} computes attention by itself, and cannot be {done}")


def configs_of(models: list[Any]) -> list[Any]:
    """Return each config of the models and their parts once, without those of parts that compute attention by themselves."""
    results: dict[int, Any] = {}
    modules = [module for model in models for module in model.modules()]
    parts = [module for module in modules if hasattr(module, "_can_set_attn_implementation")]
    left_out = {id(module.config) for module in parts if not module._can_set_attn_implementation()}
    queue = [module.config for module in modules if hasattr(module, "config")]
    while queue:
        config = queue.pop()
        if id(config) in results or id(config) in left_out or not hasattr(config, "_attn_implementation_internal"):
            continue
        results[id(config)] = config
        queue += [getattr(config, name) for name in config.sub_configs if getattr(config, name, None) is not None]
    return list(results.values())


def takes(module: Any, name: str) -> bool:
    """Return whether the forward of a module has an argument of this name."""
    return name in inspect.signature(module.forward).parameters


def without_cache(module: Any) -> dict[str, bool]:
    """Return use_cache=False if the model has a cache: without one, the passes of two texts are not joined."""
    return {"use_cache": False} if takes(module, "use_cache") else {}


def vocab_size(model: Any) -> int | None:
    """Return the number of ids that a model reads; None: it reads no tokens."""
    weight = getattr(model.get_input_embeddings(), "weight", None) if takes(model, "input_ids") else None
    return None if weight is None else len(weight)


def max_tokens(model: Any) -> int | None:
    """Return how many tokens a text may have, special tokens included; None: any number.

    A table of positions limits the number to the rows that positions reach. RoBERTa's positions begin after the row of padding.
    """
    config = model.config.get_text_config(decoder=bool(model.config.is_encoder_decoder))
    most = getattr(config, "max_position_embeddings", None)
    if not isinstance(most, int) or most <= 0:
        return None
    padding = position_padding(model)
    return most if padding is None else most - padding - 1


def packed_row(ids: Ragged, padding: int | None) -> dict[str, Any]:
    """Return what the model takes by keyword: the tokens (1, N), their positions, the number of the text of each, and the texts' offsets.

    ids: values (N,); no text may be empty. padding: of `position_padding`.
    """
    if padding is None:
        at_N = token_positions("packed_row", ids.with_values(ids.values[:, None]), 0)
    else:
        at_N = values_of(roberta_positions(ids, padding))
    text_N = torch.arange(len(ids), dtype=torch.int32).repeat_interleave(ids.lengths.cpu()).to(ids.values.device)
    offsets = ids.offsets.to(torch.int32)
    return {
        "input_ids": ids.values[None],
        "position_ids": at_N[None],
        "seq_idx": text_N[None],
        "cu_seq_lens_q": offsets,
        "cu_seq_lens_k": offsets,
        "max_length_q": ids.max_length,
        "max_length_k": ids.max_length,
    }


def position_padding(model: nn.Module) -> int | None:
    """Return RoBERTa's padding token, after which a model counts the positions of all other tokens; None: positions are counted from 0.

    The rule is that of sentence-transformers: no other model has both attributes in one module.
    """
    for module in model.modules():
        padding = getattr(module, "padding_idx", None)
        if isinstance(padding, int) and isinstance(getattr(module, "position_embeddings", None), nn.Embedding):
            return padding
    return None


def example_text(length: int, vocabulary: int, seed: int = 0) -> list[int]:
    """Return ids above those that most vocabularies have for padding and the like."""
    least = min(5, vocabulary - 1)
    return [least + (7 * seed + 3 * at) % (vocabulary - least) for at in range(length)]


def keeps_apart(
    alone: Callable[[Tensor], Mapping[str, Tensor]],
    together: Callable[[Sequence[list[int]]], Mapping[str, Tensor]],
    device: torch.device,
    vocabulary: int,
) -> bool:
    """Return whether two texts in one row have the states that they have alone.

    They do not if a layer mixes tokens outside of attention, as a convolution or a recurrence does, counts positions by itself, or reads one
    state of each row.

    Args:
        alone: from ids (1, n) to what is computed for one text, by name: (n, M) for its tokens, or (1, M).
        together: from texts to what is computed for all of them in one row: (N, M), or (2, M).
    """
    texts = example_text(3, vocabulary), example_text(4, vocabulary, 1)
    try:
        by_text = [alone(torch.tensor([ids], device=device)) for ids in texts]
        result = together(texts)
    except (KeyError, ValueError, NotImplementedError):  # a layer that says so itself, or looks for attention_mask
        return False
    expected = {name: torch.cat([states[name] for states in by_text]) for name in by_text[0]}
    return all(name in result and is_close(result[name], x) for name, x in expected.items())


def is_close(states_NM: Tensor, expected_NM: Tensor) -> bool:
    """Return whether states are the same up to rounding.

    The bound is far above amplified rounding of bfloat16, and far below the effect of a neighbouring text.
    """
    if states_NM.shape != expected_NM.shape:
        return False
    difference = (states_NM.double() - expected_NM.double()).norm(dim=-1)
    return bool((difference <= 0.1 * expected_NM.double().norm(dim=-1)).all())
