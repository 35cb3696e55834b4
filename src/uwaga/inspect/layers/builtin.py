"""Attention layers of this package, which call `watcher` on every forward pass."""

from torch import nn

from uwaga.inspect.layers.attention_layers import AttentionLayer
from uwaga.inspect.recordings.stack import AttentionId
from uwaga.nn import MultiHeadAttention
from uwaga.nn.layers import DecoderLayer


def find_attentions(model: nn.Module) -> list[AttentionLayer]:
    """All MultiHeadAttention of a model, numbered within their kind."""
    cross_attentions = {id(layer.cross_attention) for layer in model.modules() if isinstance(layer, DecoderLayer)}
    decoder_attentions = {id(layer.attention) for layer in model.modules() if isinstance(layer, DecoderLayer)}
    generator_modules = {
        id(layer)
        for module in model.modules()
        # A model that continues its prompt is a decoder, whatever its layers are called.
        if getattr(module, "is_decoder_only", False) is True
        for layer in module.modules()
    }
    counts = dict.fromkeys(("encoder", "decoder", "cross"), 0)
    results = []
    for path, module in model.named_modules():
        if not isinstance(module, MultiHeadAttention):
            continue
        if id(module) in cross_attentions:
            kind = "cross"
        elif id(module) in decoder_attentions | generator_modules or "decoder" in path.split("."):
            kind = "decoder"
        else:
            kind = "encoder"
        results.append(AttentionLayer(path, module, AttentionId(kind, counts[kind])))
        counts[kind] += 1
    return results
