"""The attention layers of a model by kind and number, whichever library they are of, and its token embeddings."""

import re
from collections.abc import Collection
from typing import Any

from torch import Tensor, nn

from uwaga.integrations.transformers.inside import outermost, own_attention_error
from uwaga.models.model import Model
from uwaga.models.transformer import Embeddings
from uwaga.nn import MultiHeadAttention
from uwaga.nn.attention_id import AttentionId, describe_layers
from uwaga.nn.layers import DecoderLayer

_CROSS = re.compile(r"cross|encdec|encoder_attn", re.IGNORECASE)


def attention_layers(model: nn.Module, operation: str = "watch") -> dict[nn.Module, AttentionId]:
    """Return the attention layers of a model: of `uwaga.nn`, and of transformers if they can compute with uwaga.

    operation: "watch" or "edit", for messages. Raises ValueError: a model of transformers that computes attention by itself, or whose
    layers share one attention module; two layers have the same kind and number.
    """
    found = [*_of_uwaga(model), *_of_transformers(model, operation)]
    first: dict[AttentionId, str] = {}
    for path, _, where in found:
        if where in first:
            raise ValueError(
                f"{operation}: two attentions of this model are {where}, {first[where]} and {path}; {operation} a part of it that "
                "has one of them"
            )
        first[where] = path
    return {module: where for _, module, where in found}


def select(
    available: Collection[AttentionId], model: str, layers: Collection[int] | None, kinds: Collection[str] | None
) -> set[AttentionId]:
    """Return the layers with these numbers and kinds; None: all.

    Raises:
        ValueError: the model has no attention layers, or no layer of a given number or kind.
    """
    if not available:
        raise ValueError(
            f"watch: {model} has no attention that can be watched: neither uwaga.nn.MultiHeadAttention nor a model of "
            "transformers that offers attn_implementation"
        )
    of_kinds = {where for where in available if kinds is None or where.kind in kinds}
    for name, chosen, existing in (
        ("kind", kinds, {where.kind for where in available}),
        ("layer", layers, {where.layer for where in of_kinds}),
    ):
        missing = [] if chosen is None else [value for value in chosen if value not in existing]
        if missing:
            raise ValueError(f"watch: {model} has no {name} {missing[0]!r}; there are {describe_layers(available)}")
    return {where for where in of_kinds if layers is None or where.layer in layers}


def name_of(model: nn.Module) -> str:
    """Return the name of a model in messages and recordings."""
    return model.label if isinstance(model, Model) else type(model).__name__


def token_embeddings(model: nn.Module) -> list[nn.Module]:
    """Return the modules that get token ids as their first argument: `Embeddings`, and get_input_embeddings() of transformers.

    With a hook on the token embedding inside, `Embeddings` would not compute it in one operation with positions and norm, and a watched
    model would have other bits.
    """
    weights = {
        id(weight)
        for _, whole in outermost(model)
        for part in whole.modules()
        if hasattr(part, "get_input_embeddings") and (weight := _input_weight(part)) is not None
    }
    modules = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    ours = (module for module in model.modules() if isinstance(module, Embeddings))
    return [*ours, *(module for module in modules if id(module.weight) in weights)]


def _input_weight(model: Any) -> Tensor | None:
    """Return the weight of the token embedding, which encoder and decoder may share."""
    try:
        result = model.get_input_embeddings()
    except NotImplementedError:  # a model of images or audio
        return None
    return result.weight if isinstance(result, nn.Embedding) else None


_Found = tuple[str, nn.Module, AttentionId]


def _of_uwaga(model: nn.Module) -> list[_Found]:
    """Return all MultiHeadAttention of a model, numbered within their kind."""
    decoders = [layer for layer in model.modules() if isinstance(layer, DecoderLayer)]
    crosses = {id(layer.cross_attention) for layer in decoders}
    causal = (stack for stack in model.modules() if getattr(stack, "is_causal", False) is True)
    continues = {id(layer) for stack in causal for layer in stack.modules()}
    continues |= {id(layer.attention) for layer in decoders}
    counts = dict.fromkeys(("encoder", "decoder", "cross"), 0)
    results: list[_Found] = []
    for path, module in model.named_modules():
        if not isinstance(module, MultiHeadAttention):
            continue
        is_decoder = id(module) in continues or "decoder" in path.split(".")
        kind = "cross" if id(module) in crosses else "decoder" if is_decoder else "encoder"
        results.append((path, module, AttentionId(kind, counts[kind])))
        counts[kind] += 1
    return results


def _of_transformers(model: nn.Module, operation: str) -> list[_Found]:
    """Return all attention layers of the transformers models in a model: modules with a bool attribute is_causal."""
    results: list[_Found] = []
    for prefix, whole in outermost(model):
        inside = [
            (path, module, _where(path, module))
            for path, module in whole.named_modules(prefix=prefix)
            if isinstance(getattr(module, "is_causal", None), bool)
        ]
        if not inside:
            raise own_attention_error(whole, operation)
        _check_not_shared(whole, [module for _, module, _ in inside], operation)
        results += inside
    return results


def _where(path: str, module: nn.Module) -> AttentionId:
    index = getattr(module, "layer_idx", None)
    numbers = [int(part) for part in path.split(".") if part.isdigit()]
    layer = index if isinstance(index, int) else next(iter(numbers), 0)
    if module.is_causal:
        return AttentionId("decoder", layer)
    names = f"{path} {type(module).__name__}"
    return AttentionId("cross" if _CROSS.search(names) else "encoder", layer)


def _check_not_shared(model: Any, attentions: list[nn.Module], operation: str) -> None:
    """Raise ValueError if layers share one attention module, as in ALBERT: the maps of its calls could not be distinguished."""
    layers = getattr(model.config, "num_hidden_layers", None)
    nameless = [module for module in attentions if getattr(module, "layer_idx", None) is None]
    if nameless and len(nameless) == len(attentions) and isinstance(layers, int) and len(attentions) < layers:
        raise ValueError(
            f"{operation}: the {layers} layers of {type(model).__name__} share {len(attentions)} attention, whose maps cannot be "
            "distinguished"
        )
