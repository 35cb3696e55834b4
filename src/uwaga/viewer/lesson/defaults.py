"""What the lesson begins with: a sentence, a vector per word and weights that one can follow by hand. Nothing is learned.

Letters: N tokens, M width of a token's vector, D inner width of queries and keys, E of values.
"""

import zlib

import torch
from torch import Tensor

TOKENS = ("this", "is", "a", "pen", ".")
SENTENCES = (TOKENS, ("a", "pen", "."), ("yes",))
WIDTHS = ("pointing", "acting", "thing", "ending")

# "pen" is longer than the others: in the crude form it drowns them.
_VECTORS = {
    "this": (1.0, 0.0, 0.5, 0.0),
    "is": (0.0, 1.0, 0.0, 0.0),
    "a": (0.5, 0.0, 1.0, 0.0),
    "pen": (0.0, 0.0, 2.0, 0.5),
    ".": (0.0, 0.0, 0.0, 1.0),
}
# Columns 1 and 2 are head 1: what points asks for a thing. Columns 3 and 4 are head 2: what acts asks for what it acts on,
# and everything asks a little for the end.
_W_Q = ((2.0, 0.0, 0.0, 0.5), (0.0, 1.0, 2.0, 0.0), (0.0, 0.5, 0.5, 0.0), (0.0, 0.0, 0.0, 1.0))
_W_K = ((0.0, 1.0, 1.5, 0.0), (0.0, 0.0, 0.0, 1.0), (2.0, 0.0, 0.5, 0.0), (0.0, 0.5, 0.0, 1.0))
_W_V = ((1.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.5, 0.0), (0.0, 0.0, 1.0, 0.5), (0.0, 0.0, 0.0, 1.0))
_W_O = ((1.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0), (0.5, 0.0, 1.0, 0.0), (0.0, 0.0, 0.0, 1.0))
_BY_HAND = {"wq": _W_Q, "wk": _W_K, "wv": _W_V, "wo": _W_O}


def vector(word: str, width: int) -> tuple[float, ...]:
    """(M,): a word has one vector, here and in every sentence; that of an unknown one is drawn from its spelling."""
    if width == len(WIDTHS) and word in _VECTORS:
        return _VECTORS[word]
    drawn = torch.randint(-4, 5, (width,), generator=_seeded(f"word {word}")) / 4.0
    return tuple(drawn.tolist())


def weight(name: str, rows: int, columns: int) -> Tensor:
    """(rows, columns) float32 of "wq", "wk", "wv" or "wo": by hand for the widths of the example, else drawn."""
    if rows == columns == len(WIDTHS):
        return torch.tensor(_BY_HAND[name])
    return torch.randint(-4, 5, (rows, columns), generator=_seeded(f"weight {name}")) / 4.0


def width_names(width: int) -> tuple[str, ...]:
    """What the numbers of a token's vector are called."""
    return WIDTHS if width == len(WIDTHS) else numbered("x", width)


def numbered(letter: str, count: int) -> tuple[str, ...]:
    """
    >>> numbered("q", 3)
    ('q1', 'q2', 'q3')
    """
    return tuple(f"{letter}{n + 1}" for n in range(count))


def _seeded(text: str) -> torch.Generator:
    # The same on every machine and in every process, which hash() is not. A lone surrogate has no UTF-8 of its own.
    return torch.Generator().manual_seed(zlib.crc32(text.encode("utf-8", "surrogatepass")))
