"""Random numbers as pure functions of a name, so that no generator state has to be saved in a checkpoint.

`derive_seed` seeds PyTorch's generators (weights, dropout); `random_bits` and `permutation` order and mask the data, by a
counter-based generator (Philox 4x64-10, Salmon et al. 2011). NumPy promises that the raw bits of its generators never change;
what it computes from them may change.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive_seed(*name: object) -> int:
    """31 bits of a name such as ("dropout", run seed, step, micro-batch): PyTorch's CPU generator reads 32.

    >>> derive_seed("dropout", 0, 1, 2) == derive_seed("dropout", 0, 1, 2)
    True
    >>> derive_seed("dropout", 0, 1, 2) == derive_seed("dropout", 0, 2, 1)
    False
    """
    return int.from_bytes(hashlib.sha256(repr(name).encode()).digest()[:4], "big") >> 1


def set_seed(device: torch.device, *name: object) -> None:
    """Seed PyTorch's generator of the CPU, where attention draws its seeds, and that of a CUDA device, by a name.

    Not torch.manual_seed, which looks for every kind of device at each call.
    """
    number = derive_seed(*name)
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(number)


@contextmanager
def fork_rng(device: torch.device) -> Iterator[None]:
    """A context after which PyTorch's generators are in the state in which they were before."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


def random_bits(count: int, *name: object) -> np.ndarray:
    """(count,) uint64 of a name such as ("order", seed, epoch).

    >>> int(random_bits(3, "order", 0, 1)[0]) == int(random_bits(1, "order", 0, 1)[0])
    True
    """
    digest = hashlib.sha256(repr(name).encode()).digest()
    key = np.frombuffer(digest[:16], "<u8").astype(np.uint64)
    return np.random.Philox(key=key).random_raw(count)


def permutation(count: int, *name: object) -> np.ndarray:
    """(count,) int64: the numbers below count in an order that is a function of the name.

    >>> sorted(permutation(5, "order", 0, 0).tolist())
    [0, 1, 2, 3, 4]
    """
    return np.argsort(random_bits(count, "permutation", *name), kind="stable")
