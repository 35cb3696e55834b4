"""Weights of torch.nn.MultiheadAttention in a layer of ours."""

from typing import Any

from torch import Tensor, nn


def attention_from_torch(made: type[nn.Module], module: nn.MultiheadAttention) -> Any:
    """See MultiHeadAttention.from_torch."""
    if module.bias_k is not None:
        raise ValueError("MultiHeadAttention.from_torch: add_bias_kv=True is not supported")
    if module.add_zero_attn:
        hint = "in its place, call the layer with sinks=torch.zeros(heads)"
        raise ValueError(f"MultiHeadAttention.from_torch: add_zero_attn=True is not supported; {hint}")
    weight = module.out_proj.weight
    layer = made(
        module.embed_dim,
        module.num_heads,
        key_dim=module.kdim,
        value_dim=module.vdim,
        bias=module.in_proj_bias is not None,
        dropout=module.dropout,
        device=weight.device,
        dtype=weight.dtype,
    )
    layer.load_state_dict(_state(module))
    return layer.train(module.training)


def _state(module: nn.MultiheadAttention) -> dict[str, Tensor]:
    names = ("query", "key", "value")
    if module.in_proj_weight is None:
        weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    else:
        weights = module.in_proj_weight.chunk(3)
    state = {f"{name}.weight": weight for name, weight in zip(names, weights, strict=True)}
    if module.in_proj_bias is not None:
        state |= {f"{name}.bias": bias for name, bias in zip(names, module.in_proj_bias.chunk(3), strict=True)}
    return state | {f"output.{name}": x for name, x in module.out_proj.named_parameters()}
