"""Does the bundled model copyist continue a passage that it has read up to 50,000 tokens before?

By the distance of the two occurrences: the mean loss in nats of a token of the first and of the second occurrence; the mean weight of the head that
looks back best on the token that followed the earlier occurrence; and its induction score on the whole text (`uwaga.inspect.induction`, which counts
every token that occurred before). Passages have 64 tokens: verses of the last tenth of the plays, from which copyist has not learned, or words in
random order. The plays, from their beginning, stand between the two occurrences. UWAGA_DATA is the folder of tinyshakespeare.txt.
"""

import random
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from harness import Report, options, parse
from torch import Tensor
from torch.nn import functional

import uwaga
from uwaga.inspect import induction
from uwaga.train import Config, sources

DISTANCES = [100, 300, 1_000, 3_000, 10_000, 30_000, 50_000]
PASSAGE = 64  # tokens
PASSAGES = 8  # of each kind and distance, in as few texts as they fit into


class Found(NamedTuple):
    """Of one text: the mean losses of both occurrences, and per layer and head the weights and induction scores, (L, H)."""

    first: Tensor
    second: Tensor
    weights: Tensor
    scores: Tensor


def measure(model: Any, passages: Tensor, filler: Tensor, distance: int) -> Found:
    """passages: (tokens,), repeated `distance` tokens later."""
    ids = torch.cat([passages, filler[: distance - len(passages)], passages])
    with uwaga.watch(model, tokens=None) as recording:
        logits = model(ids[None]).logits[0]
    losses = functional.cross_entropy(logits[:-1], ids[1:], reduction="none")
    maps = list(recording.maps.values())
    # Query i of the second occurrence stands on what stands at i - distance, which is followed by the key i - distance + 1.
    weights = torch.stack([m.diagonal(1 - distance)[0, :, 1 - len(passages) :].mean(-1) for m in maps])
    scores = torch.stack([induction(m, ids[None]) for m in maps])
    first, second = losses[: len(passages) - 1], losses[1 - len(passages) :]
    return Found(first.mean(), second.mean(), weights, scores)


def kinds(tokenizer: Any, text: str) -> dict[str, Tensor]:
    """(tokens,) of each kind of passages, at least PASSAGES * PASSAGE."""
    held_out = text[len(text) * 9 // 10 :]
    words = sorted(set(held_out.split()))
    shuffled = " ".join(random.Random(0).choices(words, k=PASSAGES * PASSAGE))
    return {
        name: torch.tensor(tokenizer.encode(passages).ids)
        for name, passages in (("verses", held_out), ("random words", shuffled))
    }


if __name__ == "__main__":
    chosen = parse(options(__doc__, grid=False))
    headings = ["passages", "distance", "loss, first", "second", "head", "its weight there", "its induction score"]
    report = Report(chosen, "A passage that returns: loss and induction by distance", headings)
    reader = uwaga.models.open("copyist", dtype="float32")
    if chosen.quick:
        plays, distances = "To be, or not to be: that is the question. " * 64, [100, 300]
    else:
        data = Config.read(Path(__file__).parents[1] / "src" / "uwaga" / "train" / "recipes" / "bard.toml").data
        plays, distances = sources.find(data.train[0], data).read_text(), DISTANCES
    tokenizer, model = reader.tokenizer.backend, cast(Any, reader)
    filler = torch.tensor(tokenizer.encode(plays[: 6 * max(distances)]).ids)
    with torch.no_grad():
        for name, ids in kinds(tokenizer, plays).items():
            for distance in distances:
                size = PASSAGE * min(PASSAGES, distance // PASSAGE)
                parts = ids[: PASSAGE * PASSAGES].split(size)
                results = [measure(model, part, filler, distance) for part in parts]
                first, second, weights, scores = (torch.stack(values).mean(0) for values in zip(*results, strict=True))
                layer, head = divmod(int(weights.argmax()), weights.shape[1])
                figures = (f"{figure:.2f}" for figure in (weights[layer, head], scores[layer, head]))
                report.row(name, f"{distance:,}", f"{first:.2f}", f"{second:.2f}", f"{layer}.{head}", *figures)
