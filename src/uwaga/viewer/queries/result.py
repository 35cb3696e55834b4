"""What requests are about: a view, and the computations about its maps that were begun or are complete."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from uwaga.viewer.messages import Reply, RequestError
from uwaga.viewer.queries.heads import HeadResolver
from uwaga.viewer.request_table import Handler
from uwaga.viewer.shown import View

if TYPE_CHECKING:
    from uwaga.viewer.texts import RunRequest

_TIME_BUDGET = 0.2  # seconds per reply; a step that has begun may overrun it
_MAX_CACHED_BYTES = 256 << 20  # of complete replies and of computations that were begun
_ENTRY_BYTES = 4096  # of an entry besides its arrays


class Computation:
    """A computation that the next request for the same thing continues.

    Args:
        work: computes a step whenever it is continued, and yields the completed fraction.
        reply: the reply so far, given the completed fraction; meta["complete"] in [0, 1].
        nbytes: bytes held.

    Attributes:
        complete: the completed fraction.
    """

    def __init__(self, work: Iterator[float], reply: Callable[[float], Reply], nbytes: int) -> None:
        self._work, self._reply, self.nbytes = work, reply, nbytes
        self.complete = 0.0

    def advance(self, until: float) -> None:
        """Compute until `time.monotonic()` reaches `until`, at least one step."""
        for complete in self._work:
            self.complete = complete
            if time.monotonic() >= until:
                return
        self.complete = 1.0

    def reply(self) -> Reply:
        """Return the result so far."""
        return self._reply(self.complete)


class ViewResult:
    """What a page asks about: a view, or what a model has made of a text. Thread-safe: one short request is computed at a time.

    Attributes:
        service: the ViewService whose result it is; its module imports this one.
        number: of the result, 0 for what the page opened with.
        view: what is shown.
        typed: the text, None where it is not known.
        resolver: resolves names in requests to matrices of heads.
        lock: held while the resolver is used.
    """

    def __init__(self, service: Any, number: int, view: View, typed: "RunRequest | None") -> None:
        self.service, self.number, self.view, self.typed = service, number, view, typed
        self.resolver = HeadResolver(view)
        self.lock = threading.RLock()
        self._closed = False
        # What was asked for, with its bytes; the most recently used entry is the last one.
        self._cached: dict[tuple[Any, ...], tuple[Reply | Computation, int]] = {}
        self._cached_bytes = 0

    def answer(self, handler: Handler, arguments: Mapping[str, Any]) -> Reply:
        """Return the reply to a request. Raises RequestError."""
        with self.lock if handler.lane == "short" and handler.reads_maps else nullcontext():
            self._check_open()
            if handler.in_steps:
                return self._resume(handler, arguments)
            reply: Reply = handler.function(self, **arguments)
            return reply

    def close(self) -> None:
        """Reject all further requests; one that is being computed ends at its next step."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise RequestError("the view is closed")

    def _resume(self, handler: Handler, arguments: Mapping[str, Any]) -> Reply:
        """Continue (or begin) a computation within the time budget; a complete reply is cached."""
        key = (handler.name, *arguments.values())
        kept, size = self._cached.pop(key, (None, 0))
        self._cached_bytes -= size
        if isinstance(kept, Reply):
            reply = kept
        else:
            work: Computation = kept or handler.function(self, **arguments)
            work.advance(time.monotonic() + _TIME_BUDGET)
            reply = work.reply()
            kept, size = work, _ENTRY_BYTES + work.nbytes
            if reply.meta["complete"] == 1:
                kept, size = reply, _ENTRY_BYTES + sum(array.nbytes for array in reply.arrays)
        self._cached[key] = kept, size
        self._cached_bytes += size
        while self._cached_bytes > _MAX_CACHED_BYTES and len(self._cached) > 1:
            self._cached_bytes -= self._cached.pop(next(iter(self._cached)))[1]
        return reply
