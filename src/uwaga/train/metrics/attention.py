"""Attention statistics of every head during training: entropy, and the weight on the first token.

A head whose entropy falls to 0 attends to one token and learns nothing more (Zhai et al., "Stabilizing Transformer Training by
Preventing Attention Entropy Collapse", 2023); one with all its weight on the first token has no effect (Xiao et al.,
"Efficient Streaming Language Models with Attention Sinks", 2023). Letters: H heads, N packed tokens.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from uwaga.maps.map import AttentionMap, map_options
from uwaga.maps.per_head import has_visible_key, per_head
from uwaga.models.attention_layers import attention_layers
from uwaga.models.transformer import Transformer
from uwaga.nn.evaluation_mode import evaluation_mode
from uwaga.ops.attention.hooks import Asked, hooked, looking
from uwaga.ops.ragged import Ragged
from uwaga.train.data.batch import Batch
from uwaga.train.objective import Objective
from uwaga.train.step import objective_inputs

# Tokens of the batch that is measured: enough for means, and little work beside a step.
_TOKENS = 2048


class HeadStatistics(NamedTuple):
    """Statistics of one attention layer: means over all queries, one number per head."""

    name: str  # "encoder 0", "decoder 3", "cross 1"
    entropy: list[float]  # in nats
    normalized_entropy: list[float]  # divided by the entropy of uniform weights on all visible keys: from 0 to 1
    sink: list[float]  # weight on the first key


def first_rows(batch: Batch) -> Batch:
    """The first rows of a batch: as many as have about 2,048 tokens, at least one."""
    rows = max(int((batch.ids.offsets[1:] <= _TOKENS).sum()), 1)
    ids, other = _first(batch.ids, rows), None if batch.decoder_ids is None else _first(batch.decoder_ids, rows)
    kept = (ids if other is None else other).values.shape[0]
    return Batch(ids=ids, decoder_ids=other, labels=batch.labels[:kept])


def measure(model: Transformer, batch: Batch) -> list[HeadStatistics]:
    """Statistics of all attention layers of a model on a batch, in evaluation mode and float32, on the model's device."""
    maps: dict[str, AttentionMap] = {}
    objective = Objective(model)
    with evaluation_mode(objective), _recording(model, maps):
        objective(*objective_inputs(batch, next(model.parameters()).device).arguments)
    return [_statistics(name, map) for name, map in maps.items()]


def by_name(statistics: Sequence[HeadStatistics]) -> dict[str, dict[str, list[float]]]:
    """As metrics.jsonl has them: by layer, by statistic, one number per head."""
    return {
        each.name: {"entropy": each.entropy, "normalized_entropy": each.normalized_entropy, "sink": each.sink}
        for each in statistics
    }


def summary(statistics: Sequence[HeadStatistics]) -> str:
    """A sentence that names the head with the lowest normalized entropy and the one with the highest sink."""
    low, narrow = min(
        (value, f"{each.name} head {head}") for each in statistics for head, value in enumerate(each.normalized_entropy)
    )
    high, sink = max((value, f"{each.name} head {head}") for each in statistics for head, value in enumerate(each.sink))
    return f"lowest normalized entropy {low:.3f} ({narrow}), highest weight on the first token {high:.3f} ({sink})"


@torch.no_grad()
def _statistics(name: str, attention_map: AttentionMap) -> HeadStatistics:
    attention_map.prepare(entropy=True, topk=1)  # one pass for all statistics of rows
    counted = has_visible_key(attention_map)
    values = (attention_map.entropy(), attention_map.entropy(normalize=True), attention_map.sink().first_key)
    return HeadStatistics(name, *([round(float(x), 6) for x in per_head(each, counted)] for each in values))


@contextmanager
def _recording(model: nn.Module, maps: dict[str, AttentionMap]) -> Iterator[None]:
    """A context in which every attention layer puts its map into `maps`, by its name in `uwaga.watch`."""
    names = attention_layers(model)

    def keep(asked: Asked, module: Any) -> None:
        maps[str(names[module])] = AttentionMap(asked.query, asked.key, **map_options(asked.options))

    with hooked(dict.fromkeys(names, looking(keep)), only_look=True):
        yield


def _first(ids: Ragged, rows: int) -> Ragged:
    offsets = ids.offsets[: rows + 1]
    return Ragged(ids.values[: int(offsets[-1])], offsets)
