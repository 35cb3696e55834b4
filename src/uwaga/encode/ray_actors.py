"""Batches by the actors of a Ray cluster, wherever it has room. Ray starts another actor where one dies, and gives it the batch again."""

import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any

from uwaga._base.errors import DataError
from uwaga.encode.processes import TIMEOUT, Item, WorkerError, attempt, raise_error

_STARTING = 300.0  # seconds that the first result may take: processes are started, perhaps machines
_MOST_DEATHS = 10  # of actors that had the same batch


class _Actor:
    """A process of the cluster."""

    def __init__(self, call: Callable[[Any], Any]) -> None:
        self._call = call
        self._name = f"pid {os.getpid()} on {socket.gethostname()}"

    def run(self, number: int, batch: Any) -> tuple[int, str, Any]:
        """The number of the batch, the process, and what it makes of the batch."""
        return number, self._name, attempt(self._call, batch)


def map_batches(
    call: Callable[[Any], Any],
    items: Iterable[tuple[Item, Any]],
    *,
    address: str | None,
    actors: int | None = None,
    timeout: float = TIMEOUT,
    describe: Callable[[Item], str] = str,
) -> Iterator[tuple[Item, Any]]:
    """Yield call(batch) of pairs of an item and a batch, with its item, as actors finish them.

    A cluster that the program has connected to is used, and goes on.

    Args:
        call: a function that can be pickled.
        items: read by the caller's thread, up to two for each actor in advance.
        address: of a cluster, or "auto"; None: one is started on this machine, and ends with this call.
        actors: how many processes encode; None: one for each processor of the cluster.
        timeout: seconds without a result, after which it ends with an error.
        describe: what an item is called in a message.

    Raises:
        DataError: Ray is not installed, or the cluster cannot be reached.
        WorkerError: nothing comes any more, eleven actors have died with the same batch, or `call` has raised an error that is no
            ValueError with one argument.
        ValueError: what `call` raises.
    """
    try:
        import ray
    except ImportError as error:
        raise DataError("Ray is not installed: pip install 'uwaga[ray]'") from error
    is_ours = not ray.is_initialized()
    if is_ours:
        _start(address, actors)
    try:
        yield from _results(call, iter(items), actors or max(1, int(ray.cluster_resources()["CPU"])), timeout, describe)
    finally:
        if is_ours:
            ray.shutdown()


def _start(address: str | None, actors: int | None) -> None:
    import ray

    options = {"num_cpus": actors, "include_dashboard": False} if address is None else {}
    try:
        ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise DataError(f"Ray {address or 'on this machine'}: {error}") from error


def _results(
    call: Callable[[Any], Any],
    items: Iterator[tuple[Item, Any]],
    actors: int,
    timeout: float,
    describe: Callable[[Item], str],
) -> Iterator[tuple[Item, Any]]:
    import ray
    from ray.exceptions import RayError
    from ray.util import ActorPool

    kind = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=_MOST_DEATHS)(_Actor)
    made = [kind.remote(call) for _ in range(actors)]
    pool = ActorPool([*made, *made])  # each has a second batch while it computes the first
    waiting: dict[int, Item] = {}
    numbers, most = count(), max(timeout, _STARTING)
    while True:
        while pool.has_free() and (pair := next(items, None)) is not None:
            number = next(numbers)
            waiting[number] = pair[0]
            pool.submit(lambda actor, given: actor.run.remote(*given), (number, pair[1]))
        if not waiting:
            return
        try:
            number, name, result = pool.get_next_unordered(timeout=most)
        except TimeoutError:
            left = "; ".join(map(describe, waiting.values()))
            raise WorkerError(
                f"Ray has given no result for {most:g} s: give a larger timeout, or see `ray status`; it has {left}"
            ) from None
        except RayError as error:
            lines = str(error).strip().splitlines()
            raise WorkerError(f"Ray: {type(error).__name__}: {lines[-1] if lines else ''}") from error
        item, most = waiting.pop(number), timeout
        yield item, raise_error(result, name, describe(item))
