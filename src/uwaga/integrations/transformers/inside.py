"""The models of transformers inside of a model: which there are, and what is known of each.

Letters: B batch, T tokens, M model width.
"""

import inspect
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn

from uwaga.integrations.transformers.packed_row import position_padding
from uwaga.integrations.transformers.register import computing_with_uwaga


def outermost(model: nn.Module) -> list[tuple[str, Any]]:
    """The paths and modules of transformers models that are not part of another one."""
    library = sys.modules.get("transformers")
    if library is None:  # then there are no models of it
        return []
    results: list[tuple[str, Any]] = []
    for path, module in model.named_modules():
        is_inside = any(outer == "" or path.startswith(outer + ".") for outer, _ in results)
        if isinstance(module, library.PreTrainedModel) and not is_inside:
            results.append((path, module))
    return results


def computing(model: nn.Module, operation: str = "watch") -> AbstractContextManager[object]:
    """A context in which the transformers models of a model compute attention with uwaga, in this thread and task.

    Raises:
        ValueError: a model that computes attention by itself.
    """
    models = [module for _, module in outermost(model)]
    if not models:
        return nullcontext()
    for each in models:
        if not each._can_set_attn_implementation():
            raise own_attention_error(each, operation)
    return computing_with_uwaga(configs_of(models))


def own_attention_error(model: nn.Module, operation: str = "watch") -> ValueError:
    """The error of a model that does not call transformers' attention functions."""
    done = {"watch": "watched", "edit": "edited"}[operation]
    return ValueError(f"{operation}: {type(model).__name__} computes attention by itself, and cannot be {done}")


def configs_of(models: list[Any]) -> list[Any]:
    """Each config of the models and their parts once, without those of parts that compute attention by themselves."""
    results: dict[int, Any] = {}
    parts = [
        module for model in models for module in model.modules() if hasattr(module, "_can_set_attn_implementation")
    ]
    left_out = {id(module.config) for module in parts if not module._can_set_attn_implementation()}
    queue = [module.config for model in models for module in model.modules() if hasattr(module, "config")]
    while queue:
        config = queue.pop()
        if id(config) in results or id(config) in left_out or not hasattr(config, "_attn_implementation_internal"):
            continue
        results[id(config)] = config
        queue += [getattr(config, name) for name in config.sub_configs if getattr(config, name, None) is not None]
    return list(results.values())


def takes(module: Any, name: str) -> bool:
    """Whether its forward has an argument of this name."""
    return name in inspect.signature(module.forward).parameters


def without_cache(module: Any) -> dict[str, bool]:
    """use_cache=False where there is a cache: without one, the passes of two texts are not joined."""
    return {"use_cache": False} if takes(module, "use_cache") else {}


def vocab_size(model: Any) -> int | None:
    """The number of ids that it reads; None: it reads no tokens."""
    weight = getattr(model.get_input_embeddings(), "weight", None) if takes(model, "input_ids") else None
    return None if weight is None else len(weight)


def max_tokens(model: Any) -> int | None:
    """Of a text, special tokens included; None: any number. Where positions are a table it is the rows that positions reach: those of
    RoBERTa begin after the padding's."""
    most = getattr(
        model.config.get_text_config(decoder=bool(model.config.is_encoder_decoder)), "max_position_embeddings", None
    )
    if not isinstance(most, int) or most <= 0:
        return None
    padding = position_padding(model)
    return most if padding is None else most - padding - 1
