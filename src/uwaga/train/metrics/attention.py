"""What every head looks at, during training: entropy, and the weight on the first token.

A head whose entropy falls to 0 looks at one token and learns nothing more (Zhai et al., "Stabilizing Transformer Training by
Preventing Attention Entropy Collapse", 2023); one whose weight all rests on the first token does nothing (Xiao et al.,
"Efficient Streaming Language Models with Attention Sinks", 2023). Letters: H heads, N packed tokens.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from uwaga.maps.interpretability.head_scores import has_visible_key, per_head
from uwaga.maps.map import AttentionMap
from uwaga.nn import MultiHeadAttention
from uwaga.nn.evaluation_mode import evaluation_mode
from uwaga.ops.ragged import Operand, Ragged
from uwaga.train.data.batch import Batch
from uwaga.train.objective import Objective
from uwaga.train.step import given

# Tokens that are looked at: enough for means, and little beside a step.
_TOKENS = 2048


class Look(NamedTuple):
    """One attention: means over all queries, a number per head."""

    name: str  # "encoder 0", "decoder 3", "cross 1"
    entropy: list[float]  # in nats
    normalized_entropy: list[float]  # entropy by that of looking at all visible keys alike: 0 is one key, 1 all alike
    sink: list[float]  # weight on the first key


@dataclass(frozen=True, kw_only=True)
class Looks:
    """All of them."""

    looks: tuple[Look, ...]

    def line(self) -> dict[str, Any]:
        """For metrics.jsonl."""
        return {
            look.name: {"entropy": look.entropy, "normalized_entropy": look.normalized_entropy, "sink": look.sink}
            for look in self.looks
        }

    def said(self) -> str:
        """The two heads to worry about first, in words."""
        low = min(
            (value, f"{each.name} head {head}")
            for each in self.looks
            for head, value in enumerate(each.normalized_entropy)
        )
        high = max((value, f"{each.name} head {head}") for each in self.looks for head, value in enumerate(each.sink))
        return f"narrowest head {low[1]}, {low[0]:.3f} of the maximal entropy; most on the first token {high[1]}, {high[0]:.3f}"


def fixed(batch: Batch) -> Batch:
    """The first rows of a batch, at least one, about as many tokens as are looked at."""
    rows = max(int((batch.ids.offsets[1:] <= _TOKENS).sum()), 1)
    ids, other = _first(batch.ids, rows), None if batch.decoder_ids is None else _first(batch.decoder_ids, rows)
    kept = (ids if other is None else other).values.shape[0]
    return Batch(ids=ids, decoder_ids=other, labels=batch.labels[:kept])


def look(model: nn.Module, batch: Batch) -> Looks:
    """What the heads of a model look at, in evaluation mode and float32, on the model's device."""
    seen: dict[str, AttentionMap] = {}
    objective = Objective(model)
    with evaluation_mode(objective), _watching(model, seen):
        objective(*given(batch, next(model.parameters()).device).arguments)
    return Looks(looks=tuple(_of(name, found) for name, found in seen.items()))


@torch.no_grad()
def _of(name: str, found: AttentionMap) -> Look:
    found.prepare(entropy=True, topk=1)  # one pass for all that comes of rows
    counted = has_visible_key(found)
    values = (found.entropy(), found.entropy(normalize=True), found.sink().first_key)
    return Look(name, *([round(float(x), 6) for x in per_head(each, counted)] for each in values))


@contextmanager
def _watching(model: nn.Module, seen: dict[str, AttentionMap]) -> Iterator[None]:
    """Within it every attention leaves its map, by its name; who watched before is told too."""
    layers = dict(_attentions(model))
    before = {name: module.watcher for name, module in layers.items()}

    def keep(name: str, query: Operand, key: Operand, value: Operand, options: dict[str, Any]) -> None:
        if (other := before[name]) is not None:
            other(query, key, value, options)
        asked = {option: value for option, value in options.items() if option != "dropout"}
        seen[name] = AttentionMap(query, key, **asked)

    for name, module in layers.items():
        module.watcher = partial(keep, name)
    try:
        yield
    finally:
        for name, module in layers.items():
            module.watcher = before[name]


def _attentions(model: nn.Module) -> Iterator[tuple[str, MultiHeadAttention]]:
    """Named as in `uwaga.watch`: by kind, and the layer's number within it."""
    continues = getattr(model, "prompt_counts", False)
    counts: dict[str, int] = {}
    for path, module in model.named_modules():
        if isinstance(module, MultiHeadAttention):
            kind = (
                "cross"
                if path.endswith("cross_attention")
                else "decoder"
                if continues or "decoder" in path
                else "encoder"
            )
            counts[kind] = counts.get(kind, -1) + 1
            yield f"{kind} {counts[kind]}", module


def _first(ids: Ragged, rows: int) -> Ragged:
    offsets = ids.offsets[: rows + 1]
    return Ragged(ids.values[: int(offsets[-1])], offsets)
