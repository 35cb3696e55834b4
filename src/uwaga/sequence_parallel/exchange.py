"""What the processes of a group send one another: who is at which call, and rows of tensors that are cut by position.

Every message goes from one process to one other (isend, irecv), so that an error can name the process that did not answer.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from uwaga.ops.mask_program import Interval

# Tags keep messages of different kinds apart: a process that is at another call is found by its header, and never takes rows for one.
_HEADER, _ROWS = 7101, 7102
# Integers of every header, whatever it is about: gloo ends a process that receives a message of another size than it waits for.
_HEADER_LENGTH = 16

# Calls so far by this process, of each group.
_calls: "WeakKeyDictionary[dist.ProcessGroup, int]" = WeakKeyDictionary()
# Transfers that an error left unfinished: gloo may still write to their tensors, so these must outlive the error.
_unfinished: list[tuple[Any, Tensor]] = []


class ProcessGroupError(RuntimeError):
    """A process of the group ended, did not answer within the group's timeout, or runs another call; the message has its rank."""


class Group(NamedTuple):
    """A process group of torch.distributed, and this process's rank in it."""

    group: dist.ProcessGroup
    rank: int
    size: int

    @classmethod
    def of(cls, group: dist.ProcessGroup | None) -> "Group":
        """The group, or all processes for None. ValueError where there is no group, or this process is not in it."""
        if not dist.is_available() or not dist.is_initialized():
            raise ValueError(
                "uwaga.sequence_parallel: there is no process group: call torch.distributed.init_process_group('gloo') first"
            )
        group = dist.group.WORLD if group is None else group
        rank = dist.get_rank(group)
        if group is None or rank < 0:
            raise ValueError("uwaga.sequence_parallel: this process is not in the group")
        return cls(group, rank, dist.get_world_size(group))

    @property
    def others(self) -> list[int]:
        return [rank for rank in range(self.size) if rank != self.rank]

    def next_call(self) -> int:
        """The number of this call, from 1 on: all processes of the group make the same calls in the same order."""
        _calls[self.group] = _calls.get(self.group, 0) + 1
        return _calls[self.group]

    def headers(self, what: str, header: Sequence[int]) -> list[list[int]]:
        """The header of every process, by rank: integers, and zeros up to _HEADER_LENGTH."""
        own = torch.zeros(_HEADER_LENGTH, dtype=torch.int64)
        own[: len(header)] = torch.tensor(header, dtype=torch.int64)
        results = [own if rank == self.rank else torch.empty_like(own) for rank in range(self.size)]
        self._transfer(
            what, _HEADER, [(rank, own) for rank in self.others], [(rank, results[rank]) for rank in self.others]
        )
        return [x.tolist() for x in results]

    def rows(self, what: str, own: Tensor, starts: Sequence[int], wanted: Sequence[Interval]) -> Tensor:
        """The rows `wanted[rank]` of a tensor whose rows lie with several processes.

        Args:
            what: the name of the tensor, for messages.
            own: (n, ...), the rows from starts[rank] to starts[rank + 1] of the whole tensor.
            starts: (size + 1,) positions.
            wanted: for each process the interval of rows that it receives here; the same in all processes.

        Returns:
            (last - first, ...) with first, last = wanted[rank], contiguous.
        """
        first, last = wanted[self.rank]
        own, at = own.contiguous(), starts[self.rank]
        result = own.new_empty((last - first, *own.shape[1:]))
        sends, receives = [], []
        for rank in range(self.size):
            a, b = _overlap((starts[rank], starts[rank + 1]), (first, last))
            if rank == self.rank and a < b:
                result[a - first : b - first] = own[a - at : b - at]
            elif a < b and result.numel():
                receives.append((rank, result[a - first : b - first]))
            a, b = _overlap((at, starts[self.rank + 1]), wanted[rank])
            if rank != self.rank and a < b and own.numel():
                sends.append((rank, own[a - at : b - at]))
        self._transfer(what, _ROWS, sends, receives)
        return result

    def _transfer(
        self, what: str, tag: int, sends: Iterable[tuple[int, Tensor]], receives: Iterable[tuple[int, Tensor]]
    ) -> None:
        """Start all messages, then wait for them: no order of processes can lock them. Where one process does not answer, the others
        still get theirs, so that they wait for that one too and not for this."""
        pending: list[tuple[int, Any, Tensor]] = []
        failures: dict[int, RuntimeError] = {}
        for start, messages in ((dist.isend, sends), (dist.irecv, receives)):
            for rank, tensor in messages:
                try:
                    work = start(tensor, dist.get_global_rank(self.group, rank), self.group, tag)
                except RuntimeError as error:
                    failures.setdefault(rank, error)
                else:
                    pending.append((rank, work, tensor))
        for rank, work, tensor in pending:
            try:
                work.wait()
            except RuntimeError as error:
                failures.setdefault(rank, error)
                _unfinished.append((work, tensor))
        if failures:
            ranks = f"rank{'s' if len(failures) > 1 else ''} {', '.join(map(str, sorted(failures)))}"
            first = next(iter(failures.values()))
            raise ProcessGroupError(
                f"uwaga.sequence_parallel: {ranks} ended or did not answer within the group's timeout ({what}): {first}"
            ) from first


def _overlap(a: Interval, b: Interval) -> Interval:
    return max(a[0], b[0]), min(a[1], b[1])
