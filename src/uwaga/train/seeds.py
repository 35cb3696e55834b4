"""Seeds as pure functions of what they are for, so that nothing about random numbers has to be kept."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def seed(*name: object) -> int:
    """31 bits of a name such as ("dropout", run seed, step, micro-batch): PyTorch's generator on the CPU reads 32.

    >>> seed("dropout", 0, 1, 2) == seed("dropout", 0, 1, 2), seed("dropout", 0, 1, 2) == seed("dropout", 0, 2, 1)
    (True, False)
    """
    return int.from_bytes(hashlib.sha256(repr(name).encode()).digest()[:4], "big") >> 1


def set_seed(number: int, device: torch.device) -> None:
    """Of PyTorch's generators of the CPU, where attention draws its seeds, and of a device.

    Not torch.manual_seed, which asks for every kind of device each time.
    """
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(number)


@contextmanager
def kept(device: torch.device) -> Iterator[None]:
    """Within it PyTorch's generators may be used; afterwards they are as they were."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
