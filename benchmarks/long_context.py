"""Does the bundled model bard read as well far behind the 512 characters from which it learned?

The mean loss in nats of the next character, by its position in one text: the last tenth of Shakespeare's plays, from which bard has not learned, read
whole. For the same characters, the loss of a model that reads 512 at a time and starts again each time. UWAGA_DATA is the folder of tinyshakespeare.txt.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import torch
from harness import Report, options, parse
from torch import Tensor
from torch.nn import functional

import uwaga
from uwaga.train import Config, sources

WINDOW = 512
ENDS = [0, WINDOW, 4096, 16384, 65536, 1 << 30]


def losses(model: Any, ids: Tensor) -> Tensor:
    """(N - 1,) of every token but the first."""
    logits = model(ids[None, :-1]).logits[0]
    return functional.cross_entropy(logits, ids[1:], reduction="none")


def in_windows(model: Any, ids: Tensor) -> Tensor:
    """(N - 1,) the same, in rows of WINDOW characters that know nothing of each other."""
    rows = uwaga.Ragged.from_list(list(ids[:-1].split(WINDOW)))
    return functional.cross_entropy(model(rows).logits.values, ids[1:], reduction="none")


if __name__ == "__main__":
    chosen = parse(options(__doc__, grid=False))
    headings = ["characters", "in one context", f"in rows of {WINDOW}"]
    report = Report(chosen, "The loss of a character, by how much was read before", headings)
    reader = uwaga.models.open("bard", dtype="float32")
    if chosen.quick:
        text = "To be, or not to be: that is the question. " * 16
    else:
        data = Config.read(Path(__file__).parents[1] / "src" / "uwaga" / "train" / "recipes" / "bard.toml").data
        text = sources.find(data.train[0], data).read_text()
        text = text[len(text) - len(text) // 10 :]
    ids = torch.tensor(reader.tokenizer.backend.encode(text).ids)
    with torch.no_grad():
        whole, parts = losses(cast(Any, reader), ids), in_windows(cast(Any, reader), ids)
    for start, stop in pairwise(ENDS):
        if start < len(whole):
            means = (f"{values[start:stop].mean():.3f}" for values in (whole, parts))
            report.row(f"{start:,} to {min(stop, len(whole)):,}", *means)
