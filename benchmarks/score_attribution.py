"""How long does it take to split the scores of a head's strongest cells into the contributions of pairs of parts?

A model of GPT-2's shape with random weights (12 layers of 12 heads, 768 wide) is recorded once over N tokens with its values. Then the 100 strongest scores of
a head of a layer are found and split. The recorded pass is timed for comparison. Seconds are processor seconds of all threads; with --threads 1 they are about
the wall's on an idle machine. Each row has a process of its own, and the last column is how far it grew beyond what was resident before, in MB.
"""

import argparse
import sys
from time import process_time

import torch
from harness import Report, in_a_process, options, parse, peak

import uwaga
from uwaga.inspect import score_attribution
from uwaga.models import Transformer, config

HEADINGS = [
    "N",
    "layer",
    "scores",
    "recorded pass, s",
    "split, s",
    "of the pass",
    "one score, ms",
    "one step back, ms",
    "MB",
]


def measure(tokens: int, layer: int, count: int, layers: int) -> tuple[float, float, float, float, int]:
    """Seconds of the recorded pass, of the strongest scores, of one and of one step back from it, and bytes."""
    sizes = {"vocab_size": 1000, "d_model": 768, "num_heads": 12, "d_ff": 3072}
    model = Transformer(config("gpt2", num_layers=layers, max_position_embeddings=tokens, **sizes)).eval()
    ids = torch.randint(1000, (1, tokens))
    with torch.no_grad():
        started = process_time()
        with uwaga.watch(model, values=True) as recording:
            model(ids, outputs=())
        recorded = process_time() - started
        started = process_time()
        several = peak(lambda: score_attribution(model, recording, layer, 3, most=count))
        split = process_time() - started
        i, j = several.result.cells[-1]
        started = process_time()
        one = score_attribution(model, recording, layer, 3, i, j)
        single = process_time() - started
        part = next(part for part in one.key_parts if part.name == "head")
        started = process_time()
        one.back(part, "key")
        return recorded, split, single, process_time() - started, several.bytes


if __name__ == "__main__":
    parser = options(__doc__, grid=False)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1_000, 10_000], help="N")
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 5, 11], help="layers of the scores")
    parser.add_argument("--scores", type=int, default=100, help="number of strongest scores of the head")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    chosen = parse(parser)
    if chosen.one:
        print(*measure(*map(int, chosen.one)))
        sys.exit()
    if chosen.quick:
        chosen.tokens, chosen.layers, chosen.scores = [64], [1], 5
    report = Report(chosen, "The strongest scores of a head, split", HEADINGS)
    for tokens in chosen.tokens:
        for layer in chosen.layers:
            made = [str(x) for x in (tokens, layer, chosen.scores, max(chosen.layers) + 1)]
            recorded, split, single, back, used = map(float, in_a_process(chosen, *made))
            figures = (
                f"{recorded:.2f}",
                f"{split:.2f}",
                f"{split / recorded:.2f}",
                f"{single * 1e3:.0f}",
                f"{back * 1e3:.0f}",
            )
            report.row(f"{tokens:,}", str(layer), str(chosen.scores), *figures, f"{used / 2**20:.0f}")
