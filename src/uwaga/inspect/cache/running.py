"""Run a model whose layers read only the keys that a policy keeps, to measure its cost in a task.

Letters: B texts, H query heads, N tokens, C queries of a block.
"""

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from uwaga._base.arguments import check, choice, integer
from uwaga.inspect.cache.kept import Kept
from uwaga.inspect.cache.layer import CacheLayer, height
from uwaga.inspect.cache.policies import Policy
from uwaga.inspect.cache.study import causal_layer
from uwaga.inspect.editing import MAX_MASK_BYTES, hooking
from uwaga.maps.map import AttentionMap, map_options
from uwaga.models.attention_layers import attention_layers
from uwaga.ops.attention.hooks import Asked, Hook, Proceed
from uwaga.ops.masks import DenseMask, as_mask
from uwaga.ops.ragged import Operand


@contextmanager
def cache_edit(
    model: nn.Module, policy: Policy, budget: int, *, prompt: int | None = None, layers: Collection[int] | None = None
) -> Iterator[None]:
    """Let the self-attention of a decoder read only the keys that a policy keeps, inside a `with` block.

        with cache_edit(model, cache.h2o, 256, prompt=1000), torch.no_grad():
            logits = model(ids).logits                      # the first 1000 tokens have the same logits

    The policy sees the queries and keys of the changed model, layer by layer, as in a real cache: later layers read the results of earlier
    layers that forgot. Each layer's mask takes B x H x N x N bytes while the layer runs. Keys are hidden before softmax, so that the other
    weights sum to 1; a query that keeps no key gives zeros. The block can be nested with `uwaga.edit` and with `uwaga.watch`, whose maps
    show the hidden keys. A model of transformers computes with attn_implementation="uwaga" inside, as in `uwaga.watch`.

    Args:
        model: a decoder of this package or of transformers. It is called with whole texts of one length, without padding and without a
            cache of its own.
        policy, budget, prompt: as in `uwaga.inspect.cache_study`.
        layers: the layers that forget; None for all.

    Raises:
        ValueError: a model without self-attention of a decoder, or without such a layer; a budget or prompt out of range; in the forward
            pass, ragged rows, a pass over a cache, or a mask larger than 1 GiB; as `cache_study` and the policy.
    """
    prompt = None if prompt is None else integer(prompt, "cache_edit: prompt", 0)
    budget = integer(budget, "cache_edit: budget", 1)
    found = attention_layers(model, "edit")
    numbers = {where.layer: module for module, where in found.items() if where.kind == "decoder"}
    check(numbers, f"cache_edit: {type(model).__name__} has no self-attention of a decoder")
    hooks: dict[nn.Module, Hook] = {}
    for number in sorted(numbers if layers is None else layers):
        choice(number, "cache_edit: a layer", numbers)
        hooks[numbers[number]] = _forgetting(policy, budget, prompt, number, max(numbers) + 1)
    with hooking(model, hooks):
        yield


def _forgetting(policy: Policy, budget: int, prompt: int | None, number: int, layers: int) -> Hook:
    """Return the hook of one layer."""

    def hook(asked: Asked, _: object, proceed: Proceed) -> Operand:
        asked = asked.whole()
        query, key, options = asked.query, asked.key, asked.options
        if not isinstance(query, Tensor) or not isinstance(key, Tensor):
            raise ValueError("cache_edit: rows must be of one length, not ragged")
        with torch.no_grad():
            mask = DenseMask(bits=kept(AttentionMap(query.detach(), key.detach(), **map_options(options))))
        of_model = options["mask"]
        both = mask if of_model is None else as_mask(of_model) & mask
        return proceed(replace(asked, options=options | {"mask": both}))

    def kept(weights: AttentionMap) -> Tensor:
        """Return which keys are read, (..., H, N, N) bool."""
        *batch, heads, tokens, _ = weights.shape
        if (size := torch.Size((*batch, heads, tokens, tokens)).numel()) > MAX_MASK_BYTES:
            raise ValueError(
                f"cache_edit: the mask of {heads} heads over {tokens} tokens takes {size:,} bytes; the limit is {MAX_MASK_BYTES:,}"
            )
        bits = torch.ones((*batch, heads, tokens, tokens), dtype=torch.bool, device=weights.device)
        for row, of_text in enumerate(bits.view(math.prod(batch), heads, tokens, tokens)):
            m = weights.select(row) if batch else weights
            layer = causal_layer("cache_edit", m, prompt, number=number, layers=layers)
            of_layer = policy(layer, budget)
            for head in range(heads):
                fill(of_text[head], layer, head, of_layer)
        return bits

    return hook


def fill(bits: Tensor, layer: CacheLayer, head: int, kept: Kept) -> None:
    """Set the bits (N, N) of the keys that the head's queries after the prompt read."""
    bits[layer.prompt :] = False
    for rows in torch.arange(layer.prompt, layer.tokens, device=layer.device).split(height(layer.tokens)):
        read = kept.read(head, rows, layer.weights(head, rows, int(rows[-1]) + 1))
        # A filling may be at the place of a kept key: adding cannot undo that key, as writing would.
        counts = torch.zeros((len(rows), layer.tokens), dtype=torch.int32, device=layer.device)
        bits[rows] = counts.scatter_add_(1, read.keys, read.is_kept.int()) > 0
