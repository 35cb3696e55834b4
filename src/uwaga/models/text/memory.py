"""Memory that is used again and again without being asked of the system again and again."""

import torch

# From this size on glibc always asks the system: DEFAULT_MMAP_THRESHOLD_MAX of its malloc.c, on 64 bits.
_MOST_BYTES = 32 << 20
_PAGE_BYTES = 4096


def keep_freed_memory() -> None:
    """Let the C library keep blocks of up to 32 MB for the next one that asks.

    glibc's malloc has the system map every block above a threshold, and unmap it when it is freed: each page of an
    activation is then a page fault, which takes a fifth of the time of a model whose activations have some 12 MB. The
    threshold rises to the size of the largest mapped block that was ever freed (mallopt(3), M_MMAP_THRESHOLD), up to a
    limit. So one block as large as that is taken and given back, without touching it. Elsewhere than with glibc this does
    nothing.
    """
    torch.empty(_MOST_BYTES - 2 * _PAGE_BYTES, dtype=torch.uint8)
