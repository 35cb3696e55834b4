"""What the processes agree on when they read a map together: which method, and its arguments."""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from uwaga.maps.base import is_int
from uwaga.sequence_parallel.division import ARGUMENTS, agree, check_equal, checksum_of
from uwaga.sequence_parallel.exchange import Group

METHODS = (
    "lse",
    "entropy",
    "topk",
    "peak",
    "effective_count",
    "distance",
    "sink",
    "mass",
    "diagonal",
    "column",
    "prepare",
    "received",
    "diagonal_sums",
    "pool",
    "between",
    "max_logit",
    "row",
    "m[...]",
)


class AgreedEngine:
    """An engine of maps (maps/spec.py) whose first function in a read waits until all processes are known to read the same. By then the method
    has checked its arguments, so that an error in them is told in the same message; a read that finds everything computed sends it in the end."""

    def __init__(self, group: Group, number: int, engine: Any) -> None:
        """`number`: that of the map's call."""
        self._group, self._number, self._engine = group, number, engine
        self._header: list[int] | None = None  # that is still to be sent in this read

    @contextmanager
    def reading(self, method: str, *arguments: object) -> Iterator[None]:
        """A read of one of METHODS with these arguments, as far as they are the same in all processes; `given` adds others."""
        with self._group.errors_told():
            self._header = [METHODS.index(method), 0]
            try:
                self.given(*arguments)
                yield
            except Exception as error:
                if self._header is not None:  # of this process's arguments
                    self._agree(error)
                raise
            self._agree()

    def given(self, *arguments: object) -> None:
        """Arguments of the present read in the form that engines take."""
        if self._header is not None:
            for x in arguments:
                self._header[1] = _checksum(x, self._header[1])

    def _agree(self, failure: Exception | None = None) -> None:
        if self._header is None:
            return
        header, self._header = self._header, None
        by_rank = agree(self._group, ARGUMENTS, self._number, header, failure)
        check_equal("what they read of a map", [METHODS[x[0]] for x in by_rank])
        check_equal("the arguments of a map (checksums)", [x[1] for x in by_rank])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of a copy, say: no function of an engine
            raise AttributeError(name)
        self._agree()
        return getattr(self._engine, name)


def _checksum(x: object, checksum: int) -> int:
    if isinstance(x, Tensor) and not is_int(x):
        return checksum_of(x, checksum)
    return zlib.crc32(repr(int(x) if is_int(x) else x).encode(), checksum)
