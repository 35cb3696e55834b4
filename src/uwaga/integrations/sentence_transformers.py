"""sentence-transformers without padding, on the CPU.

Letters: B texts, N tokens of a text, T tokens of all texts, M width.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from uwaga._base.arguments import check
from uwaga.integrations.transformers import inside
from uwaga.integrations.transformers.inside import keeps_apart, packed_row, position_padding
from uwaga.integrations.transformers.register import NAME, register_with_transformers
from uwaga.nn.evaluation_mode import evaluation_mode
from uwaga.ops.ragged import Ragged

if TYPE_CHECKING:
    from sentence_transformers.base.modules.transformer import Transformer

Model = TypeVar("Model", bound=nn.Module)

# What transformers' collator of packed batches returns in addition to the tokens: layers take it by keyword, and
# sentence-transformers would drop it as unknown.
_PACKED_KEYS = frozenset(["cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"])


def unpad(model: Model) -> Model:
    """Make a loaded SentenceTransformer, SparseEncoder or CrossEncoder skip padding; returns the same model.

        model = unpad(SentenceTransformer("all-MiniLM-L6-v2"))

    Its transformers compute attention by attn_implementation="uwaga". From now on sentence-transformers packs the texts of a batch into
    one row, as it does for FlashAttention on a GPU. Some models and batches cannot be packed, and padding is left out between the attentions:

    - pairs for a classifier of pairs, and images;
    - a batch with a text of no tokens;
    - a model, or modules after it, that mix tokens outside of attention or read one state of each row, as a pooler does. Two short texts
      show this here.

    Vectors are the same up to rounding. Token embeddings, of encode(output_value="token_embeddings") and forward(), are padded after the last
    module. A second call has no effect. `model[0].unpad_inputs = False` turns the packing off.

    Raises:
        ImportError: sentence-transformers is not installed, or older than 6.
        ValueError: nothing in the model is a transformer, or one computes attention by itself, as MPNet does; nothing is
            changed then.
    """
    transformers = _transformers(model)
    for rule in (rule for transformer in transformers for rule in _broken_rules(transformer)):
        raise ValueError(f"sentence_transformers.unpad: {rule}")
    register_with_transformers()
    for transformer in transformers:
        transformer.model.set_attn_implementation(NAME)
        if not transformer.can_flatten_inputs and _can_pack(transformer):
            _pack(transformer, _following(model, transformer))
    from sentence_transformers import SentenceTransformer

    # encode() reads vectors of tokens by their attention mask, which a packed row does not have.
    for module in model.modules():
        if isinstance(module, SentenceTransformer) and _pad not in module._forward_hooks.values():
            module.register_forward_hook(_pad)
    return model


def _transformers(model: nn.Module) -> "list[Transformer]":
    try:
        from sentence_transformers.base.modules.transformer import Transformer
    except ImportError as error:
        raise ImportError(
            "sentence_transformers.unpad: needs the package 'sentence-transformers', version 6 or newer"
        ) from error
    modules = [module for module in model.modules() if isinstance(module, Transformer)]
    check(modules, f"sentence_transformers.unpad: {type(model).__name__} has no Transformer module")
    return modules


def _broken_rules(transformer: "Transformer") -> Iterator[str]:
    if transformer.backend != "torch":
        yield f"the model runs on backend={transformer.backend!r}; load it with backend='torch'"
    if not transformer.model._can_set_attn_implementation():
        yield f"{type(transformer.model).__name__} computes attention by itself, with padding; uwaga cannot serve it"
    if transformer.query_expansion is not None and not transformer.query_expansion["attend"]:
        yield "query_expansion with attend=False reads the states of padding, which are not computed without it"


def _can_pack(transformer: "Transformer") -> bool:
    """Return whether sentence-transformers itself could pack, apart from its condition of FlashAttention."""
    return (
        transformer.transformer_task in ("feature-extraction", "fill-mask")
        and "text" in transformer.modality_config
        and all(method["method"] == "forward" for method in transformer.modality_config.values())
        and transformer.model.is_backend_compatible()
        and transformer.model._supports_flash_attn  # T5 would make a bias (T, T) of the packed row
    )


def _following(model: nn.Module, transformer: "Transformer") -> list[nn.Module]:
    """Return the modules that read what the transformer computes, in its part of the model."""
    for module in model.modules():
        if isinstance(module, nn.Sequential) and next(iter(module), None) is transformer:
            return list(module)[1:]
    return []


def _pack(transformer: "Transformer", following: Sequence[nn.Module]) -> None:
    """Set up what `Transformer._can_flatten_inputs` sets up for FlashAttention, unless texts of one row would change one another.

    Positions are those that the model itself would count.
    """
    collate: Any = partial(_collate, transformer.tokenizer, position_padding(transformer.model))
    forward_params = transformer.model_forward_params
    if forward_params is not None:
        transformer.model_forward_params = forward_params | _PACKED_KEYS
    if not _keeps_apart(transformer, following, collate):
        transformer.model_forward_params = forward_params
        return
    transformer.data_collator = collate
    transformer._flatten_position_offset = 0  # `packed_row` has counted it
    transformer.can_flatten_inputs = True


def _collate(tokenizer: Any, padding: int | None, texts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the texts in one row, with all that the tokenizer gives for each token, such as token types.

    They are padded if a text has no tokens, or if the tokenizer gives something that is not one value for each token.
    """
    names = [name for name in texts[0] if name != "attention_mask"]
    by_name = {name: [torch.as_tensor(text[name]) for text in texts] for name in names}
    lengths = list(map(len, by_name["input_ids"]))
    if not all(lengths) or any([len(x) if x.ndim else 0 for x in of_name] != lengths for of_name in by_name.values()):
        padded: dict[str, Any] = tokenizer.pad(texts, return_tensors="pt")
        return padded
    rows = {name: torch.cat(of_name)[None] for name, of_name in by_name.items()}
    return rows | packed_row(Ragged.from_list(by_name["input_ids"]), padding)


def _keeps_apart(transformer: "Transformer", following: Sequence[nn.Module], collate: Any) -> bool:
    """Return whether the texts of a row do not change one another in the transformer, nor in what follows it."""
    device = transformer.model.device

    def outputs(features: dict[str, Any]) -> dict[str, Tensor]:
        features = {key: x.to(device) if isinstance(x, Tensor) else x for key, x in features.items()}
        features["modality"] = "text"
        for module in (transformer, *following):
            features = module(features)
        tensors = {name: x for name, x in features.items() if isinstance(x, Tensor) and x.is_floating_point()}
        return {name: x.flatten(0, -2) for name, x in tensors.items() if x.ndim > 1}

    def alone(ids: Tensor) -> dict[str, Tensor]:
        return outputs({"input_ids": ids, "attention_mask": torch.ones_like(ids)})

    def together(texts: Sequence[list[int]]) -> dict[str, Tensor]:
        return outputs(collate([{"input_ids": ids} for ids in texts]))

    with evaluation_mode(nn.ModuleList([transformer, *following])):
        return keeps_apart(alone, together, device, inside.vocab_size(transformer.model) or 1)


def _pad(module: nn.Module, arguments: tuple, features: dict[str, Any]) -> None:
    """Replace the tokens of a packed row, (1, T, M), by those of a batch of texts, (B, N, M), and add their mask."""
    offsets, tokens = features.get("cu_seq_lens_q"), features.get("token_embeddings")
    if offsets is None or tokens is None or "attention_mask" in features or tokens.shape[0] != 1:
        return
    texts = tokens[0].split(offsets.diff().tolist())
    features["token_embeddings"] = pad_sequence(texts, batch_first=True)
    features["attention_mask"] = pad_sequence([text.new_ones(len(text), dtype=torch.long) for text in texts], True)
