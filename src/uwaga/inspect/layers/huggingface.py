"""Attention layers of transformers, whose models compute with attn_implementation="uwaga" while they are watched."""

import re
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn

from uwaga.inspect.layers.attention_layers import AttentionLayer
from uwaga.inspect.recordings.passes import PassSlice
from uwaga.inspect.recordings.recording import Recording
from uwaga.inspect.recordings.stack import AttentionId

_CROSS = re.compile(r"cross|encdec|encoder_attn", re.IGNORECASE)


def find_attentions(model: nn.Module, operation: str = "watch") -> list[AttentionLayer]:
    """All attention layers of the transformers models in a model: modules with a bool attribute is_causal. operation: "watch" or
    "edit", for messages.

    Raises:
        ValueError: a model that computes attention by itself, or whose layers share one attention module.
    """
    results = []
    for prefix, whole in outermost(model):
        inside = [
            AttentionLayer(path, module, _where(path, module))
            for path, module in whole.named_modules(prefix=prefix)
            if isinstance(getattr(module, "is_causal", None), bool)
        ]
        if not inside:
            raise own_attention_error(whole, operation)
        _check_not_shared(whole, [attention.module for attention in inside], operation)
        results += inside
    return results


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
    from uwaga.integrations.transformers.register import computing_with_uwaga

    for each in models:
        if not each._can_set_attn_implementation():
            raise own_attention_error(each, operation)
    return computing_with_uwaga(configs_of(models))


def generating(model: nn.Module) -> list[nn.Module]:
    """The transformers models in a model that can generate."""
    return [each for each in model.modules() if hasattr(each, "_get_candidate_generator")]


def _where(path: str, module: nn.Module) -> AttentionId:
    index = getattr(module, "layer_idx", None)
    numbers = [int(part) for part in path.split(".") if part.isdigit()]
    layer = index if isinstance(index, int) else next(iter(numbers), 0)
    if module.is_causal:
        return AttentionId("decoder", layer)
    names = f"{path} {type(module).__name__}"
    return AttentionId("cross" if _CROSS.search(names) else "encoder", layer)


def own_attention_error(model: nn.Module, operation: str = "watch") -> ValueError:
    """The error of a model that does not call transformers' attention functions."""
    done = {"watch": "watched", "edit": "edited"}[operation]
    return ValueError(f"{operation}: {type(model).__name__} computes attention by itself, and cannot be {done}")


def _check_not_shared(model: Any, attentions: list[nn.Module], operation: str) -> None:
    """ALBERT calls one layer repeatedly; the maps of its calls could not be distinguished. Raises ValueError."""
    layers = getattr(model.config, "num_hidden_layers", None)
    nameless = [module for module in attentions if getattr(module, "layer_idx", None) is None]
    if nameless and len(nameless) == len(attentions) and isinstance(layers, int) and len(attentions) < layers:
        raise ValueError(
            f"{operation}: the {layers} layers of {type(model).__name__} share {len(attentions)} attention, whose maps cannot be "
            "distinguished"
        )


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


class SpeculativeRecording(Recording):
    """A recording that raises ValueError where speculative decoding may have added tokens that were rejected.

    transformers removes rejected tokens from its cache without a forward pass, and from a sliding-window cache so that passes
    cannot be joined. `of(texts)` works: it is given the texts.
    """

    has_candidates = False  # whether candidate tokens may have been read

    def note_candidates(self) -> None:
        self.has_candidates = True

    def _paths(self, kind: str) -> list[list[PassSlice]] | None:
        if kind == "decoder" and self.has_candidates and self._chosen is None:
            raise ValueError(
                "Recording: speculative decoding (assisted generation) read candidate tokens that may have been rejected; use "
                "recording.of(texts), with all ids that the decoder read and wrote"
            )
        return super()._paths(kind)
