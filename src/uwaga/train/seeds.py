"""PyTorch's generators, seeded by a name, so that no generator state has to be saved in a checkpoint: for weights, dropout and samples."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

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
