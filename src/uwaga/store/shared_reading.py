"""A pass over the rows of a database by the processes of a group: each computes attention within its share of the blocks, and all get the results of
all of them, which every process then sums in the order of one process. So an answer has the same bits, in every process, and what was
found so far, which decides which blocks are skipped, is the same too.

Letters: n blocks, R rows of the result, E value width, k listed.
"""

import hashlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from uwaga._base.errors import SoftDatabaseError
from uwaga.maps.spec import Normalizer, RowStatistics
from uwaga.sequence_parallel.exchange import Group

T = TypeVar("T")

_HEADER_INTS = 8  # of 4 bytes each: a SHA-256


class Readers:
    """The processes that read a database together; all make the same calls, in the same order.

    Raises ProcessGroupError (of uwaga.sequence_parallel) from every method: a process ended or did not answer, with its rank."""

    def __init__(self, group: Group) -> None:
        self._group = group

    @property
    def size(self) -> int:
        return self._group.size

    def share(self, blocks: np.ndarray) -> np.ndarray:
        """The blocks that this process computes."""
        return np.array_split(blocks, self._group.size)[self._group.rank]

    def check(self, what: str, same: str, *parts: object) -> None:
        """Raises SoftDatabaseError, in every process, unless all have the same: what is shown, and what is asked of it, which `same` names."""
        whole = hashlib.sha256()
        for part in parts:
            described = (part.dtype, tuple(part.shape)) if isinstance(part, Tensor) else part
            content = part.contiguous().numpy().tobytes() if isinstance(part, Tensor) else b""
            for each in (repr(described).encode(), content):
                whole.update(len(each).to_bytes(8, "little") + each)
        own = np.frombuffer(whole.digest(), np.uint32).astype(np.int64).tolist()
        headers = [each[:_HEADER_INTS] for each in self._group.headers(what, own)]
        if others := [rank for rank, each in enumerate(headers) if each != headers[0]]:
            ranks = f"rank{'s' if len(others) > 1 else ''} {', '.join(map(str, others))}"
            raise SoftDatabaseError(
                f"{what}: {ranks} and rank 0 show other moments of the database or ask other questions; call refresh() in all processes, "
                f"and give them the same {same}"
            )

    def compute(self, what: str, own: Callable[[], T]) -> T:
        """What `own` returns in this process. Where it raises a ValueError in one, all raise that, or the others would wait for its results."""
        try:
            result = own()
        except ValueError as error:
            self._agree(what, error)
            raise
        self._agree(what, None)
        return result

    def _agree(self, what: str, error: Exception | None) -> None:
        """Raises, in every process, the error of the first process that has one."""
        message = b"" if error is None else (str(error) or type(error).__name__).encode()
        lengths = [each[:2] for each in self._group.headers(what, [len(message), isinstance(error, SoftDatabaseError)])]
        if not any(length for length, _ in lengths):
            return
        starts = np.cumsum([0, *(length for length, _ in lengths)]).tolist()
        own = torch.frombuffer(bytearray(message), dtype=torch.uint8) if message else torch.empty(0, dtype=torch.uint8)
        said = self._gathered(what, own, starts).numpy().tobytes()
        rank = next(rank for rank, (length, _) in enumerate(lengths) if length)
        kind = SoftDatabaseError if lengths[rank][1] else ValueError
        raise kind(said[starts[rank] : starts[rank + 1]].decode(errors="replace")) from error

    def _gathered(self, what: str, own: Tensor, starts: Sequence[int]) -> Tensor:
        held = [[interval] for interval in pairwise(starts)]
        (whole,) = self._group.rows(what, [own], held, [[(0, starts[-1])]] * self._group.size)
        return whole

    def gathered(self, what: str, own: Tensor, blocks: int) -> Tensor:
        """(n, ...): of all blocks of a visit, those of this process being `own`."""
        counts = [len(part) for part in np.array_split(np.arange(blocks), self._group.size)]
        return self._gathered(what, own, np.cumsum([0, *counts]).tolist())


class Layout(NamedTuple):
    """Sizes of the statistics of a block, the same in all processes."""

    heads: int
    queries: int
    width: int  # E; 0: no output and no entropy
    top: int

    def packed(self, found: Sequence[RowStatistics]) -> tuple[Tensor, Tensor]:
        """Statistics of blocks as (n, R, 2 + E + 1 + k) float32 and (n, R, k) int64. A block of fewer rows than k has weights of zero, and places of
        -1, at the end."""
        rows = self.heads * self.queries
        numbers, places = [torch.empty(0, rows, self._columns)], [torch.empty(0, rows, self.top, dtype=torch.int64)]
        for each in found:
            parts = [each.normalizer.maximum[..., None], each.normalizer.sum[..., None]]
            if each.output is not None and each.entropy is not None:
                parts += [each.output, each.entropy[..., None]]
            if each.top_weights is not None and each.top_positions is not None:
                missing = self.top - each.top_weights.shape[-1]
                parts.append(torch.nn.functional.pad(each.top_weights, (0, missing)))
                padded = torch.nn.functional.pad(each.top_positions, (0, missing), value=-1)
                places.append(padded.flatten(1, 2))
            assert all(part.dtype == torch.float32 for part in parts)
            numbers.append(torch.cat(parts, -1).flatten(1, 2))
        return torch.cat(numbers), torch.cat(places)

    @property
    def _columns(self) -> int:
        return 2 + (self.width + 1 if self.width else 0) + self.top

    def statistics(self, numbers_nRC: Tensor, places_nRk: Tensor) -> RowStatistics:
        """Of all blocks, from what `packed` made of them."""
        numbers = numbers_nRC.unflatten(1, (self.heads, self.queries))
        sizes = [1, 1, *([self.width, 1] if self.width else []), self.top]
        maximum, total, *others = (part.contiguous() for part in numbers.split(sizes, -1))
        output, entropy = (others[0], others[1][..., 0]) if self.width else (None, None)
        return RowStatistics(
            Normalizer(maximum[..., 0], total[..., 0]),
            output=output,
            entropy=entropy,
            top_weights=others[-1] if self.top else None,
            top_positions=places_nRk.unflatten(1, (self.heads, self.queries)) if self.top else None,
        )
