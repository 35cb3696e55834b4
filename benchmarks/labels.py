"""How often is the label of a head right? Precision and recall of `uwaga.inspect.head_labels` on heads with a known pattern.

Texts have 64 words, drawn from 30 by Zipf's law, between two special tokens that take a random part of each row's weight. Each label has heads with its
pattern. A fraction of their weight, the noise, is random (the softmax of normal scores of deviation 2). As many heads have random weights only, of
deviations from 2 to 6, and should get no label. Precision: the share of heads with this label that have the pattern. Recall: the share of heads with the
pattern that get the label.
"""

from collections import Counter
from collections.abc import Callable

import torch
from harness import Report, options, parse
from torch import Tensor

from uwaga.inspect.heads.labels import LEAST, LabelShares

TOKENS = 64
WORDS = 30
NOISE = (0.0, 0.2, 0.4, 0.6)
Pattern = Callable[[Tensor], Tensor]  # from (N,) ids to (N, N) weights, of any scale


def offset(*distances: int) -> Pattern:
    """Give equal weight to the words at these distances."""

    def weights(ids: Tensor) -> Tensor:
        away = torch.arange(len(ids)) - torch.arange(len(ids))[:, None]
        return sum((away == distance).double() for distance in distances)  # type: ignore[return-value]

    return weights


def copies(ids: Tensor) -> Tensor:
    """Give weight to the other copies of the word."""
    return (ids == ids[:, None]).double().fill_diagonal_(0)


def after_copies(ids: Tensor) -> Tensor:
    """Give weight to the words after its earlier copies."""
    return copies(ids).tril(-2).roll(1, 1).tril(-1)


def one_key(ids: Tensor) -> Tensor:
    """Give weight to one word in the middle of the text."""
    return torch.nn.functional.one_hot(torch.full((len(ids),), len(ids) // 2), len(ids)).double()


PATTERNS: dict[str, Pattern] = {
    "previous": offset(-1),
    "next": offset(1),
    "self": offset(0),
    "induction": after_copies,
    "duplicate": copies,
    "broad": lambda ids: torch.ones(len(ids), len(ids), dtype=torch.float64),
    "ahead": offset(2, 3, 5),
    "back": offset(-2, -3, -5),
    "gathers": one_key,
}


def random_rows(size: int, deviation: float) -> Tensor:
    """(N, N), rows sum to 1."""
    return (deviation * torch.randn(size, size, dtype=torch.float64)).softmax(-1)


def label_of(weights_NN: Tensor, ids: Tensor) -> str:
    """With special tokens around the words, on which a random part of each row rests."""
    size = len(ids) + 2
    rest = 0.1 + 0.8 * torch.rand(len(ids), 1, dtype=torch.float64)
    whole = torch.zeros(1, size, size, dtype=torch.float64)
    whole[0, 1:-1, 1:-1] = (1 - rest) * weights_NN
    whole[0, 1:-1, :1] = rest
    special = torch.zeros(size, dtype=torch.bool)
    special[[0, -1]] = True
    tokens = torch.cat((torch.tensor([WORDS]), ids, torch.tensor([WORDS + 1])))
    shares = LabelShares(1, "encoder", tokens, tokens, special, special)
    shares.add(range(size), whole)
    return shares.labels()[0].label


def measure(heads: int, noise: float, report: Report) -> None:
    """Add a row for each label, and one for heads without a pattern."""
    zipf = 1.0 / torch.arange(1, WORDS + 1, dtype=torch.float64)
    said: Counter[tuple[str, str]] = Counter()
    for name, pattern in PATTERNS.items():
        for _ in range(heads):
            ids = torch.multinomial(zipf, TOKENS, replacement=True)
            weights = pattern(ids)
            sums = weights.sum(1, keepdim=True)
            part = torch.where(sums > 0, 1 - noise, 0.0)  # a row without the pattern is random
            mixed = part * weights / sums.clamp_min(1) + (1 - part) * random_rows(TOKENS, 2.0)
            said[name, label_of(mixed, ids)] += 1
    for number in range(heads * len(PATTERNS)):
        ids = torch.multinomial(zipf, TOKENS, replacement=True)
        said["none", label_of(random_rows(TOKENS, 2.0 + 4.0 * number / (heads * len(PATTERNS))), ids) or "none"] += 1
    for name in (*LEAST, "none"):
        right = said[name, name]
        labeled = sum(count for (_, label), count in said.items() if (label or "none") == name)
        there = sum(count for (planted, _), count in said.items() if planted == name)
        precision = f"{right / labeled:.3f}" if labeled else "-"
        report.row(name, f"{noise:g}", str(there), str(labeled), precision, f"{right / there:.3f}")


if __name__ == "__main__":
    parser = options(__doc__, grid=False)
    parser.add_argument("--heads", type=int, default=200, help="number of heads of each label")
    chosen = parse(parser)
    torch.manual_seed(0)
    made = Report(chosen, "Labels of heads", ["pattern", "noise", "heads", "given", "precision", "recall"])
    for noise in NOISE[1:2] if chosen.quick else NOISE:
        measure(2 if chosen.quick else chosen.heads, noise, made)
