"""Random bits that are a function of a name and a place, by a counter-based generator (Philox 4x64-10, Salmon et al. 2011).

NumPy promises that the raw bits of its generators never change; what it makes of them may.
"""

import hashlib

import numpy as np


def bits(count: int, *name: object) -> np.ndarray:
    """(count,) uint64 of a name, such as ("order", seed, epoch).

    >>> int(bits(3, "order", 0, 1)[0]) == int(bits(1, "order", 0, 1)[0])
    True
    """
    digest = hashlib.sha256(repr(name).encode()).digest()
    key = np.frombuffer(digest[:16], "<u8").astype(np.uint64)
    return np.random.Philox(key=key).random_raw(count)


def permutation(count: int, *name: object) -> np.ndarray:
    """(count,) int64: the numbers below count in an order that the name decides.

    >>> sorted(permutation(5, "order", 0, 0).tolist())
    [0, 1, 2, 3, 4]
    """
    return np.argsort(bits(count, "permutation", *name), kind="stable")
