"""Documents by the actors of a Ray cluster, on Ray Data: one task reads them where this process is, and actors encode them wherever there is room."""

import json
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from uwaga._base.errors import CheckpointError, DataError
from uwaga.encode.batches import BatchEncoder
from uwaga.encode.processes import TIMEOUT, WorkerError
from uwaga.ops.engine_choice import Choice

_BLOCK_BYTES = 1 << 14  # of texts: what an actor is given at once, and has to do again where another died
_STARTING = 300.0  # seconds that the first result may take: processes are started, perhaps machines
_GROUP, _WORKER, _RAISED, _CHOICE = "group", "worker", "raised", "choice"  # columns of our own
_KINDS: dict[str, type[ValueError]] = {each.__name__: each for each in (ValueError, CheckpointError, DataError)}

Read = Callable[[], Iterable[Mapping[str, Any]]]


class _Actor(BatchEncoder):
    """A BatchEncoder that says where it runs, and what computes."""

    def __call__(self, batch: Any) -> Any:
        import pyarrow as pa

        if _RAISED in batch.column_names:
            return batch.select([_RAISED])
        try:
            result, choice = super().__call__(batch), json.dumps(self.load().explain())
        except ValueError as error:
            return _raised(error)
        for name, value in ((_WORKER, f"pid {os.getpid()} on {socket.gethostname()}"), (_CHOICE, choice)):
            result = result.append_column(name, pa.array([value] * len(result)))
        return result


def map_groups(
    encode: BatchEncoder,
    read: Read,
    counts: Sequence[int],
    *,
    address: str | None,
    actors: int | None = None,
    timeout: float = TIMEOUT,
    say_engine: Callable[[Choice], object] = lambda choice: None,
    quiet: bool = False,
) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """encode(group) of groups of documents, as they are finished, with their numbers. Ray starts another actor where one dies.

    A cluster that the program has connected to is used, and its settings of Ray stay what they are.

    Args:
        encode: what is computed.
        read: reads the groups, batches with a column `document` of each one's number in its group. It is pickled, and called on the
            machine of this process.
        counts: how many documents each group has.
        address: of a cluster, or "auto"; None: one is started on this machine, and ends with this call.
        actors: how many processes encode; None: one for each processor of the cluster.
        timeout: seconds without a result, after which it ends with an error.
        say_engine: is told once what computes: see `TextEncoder.explain`.
        quiet: messages of Ray and Ray Data below errors are not shown, in the whole program, until this ends.

    Raises:
        DataError: Ray is not installed, or the cluster cannot be reached.
        WorkerError: nothing comes any more; the message names the processes that were heard of.
        ValueError: what `read` and `encode` raise.
    """
    try:
        import ray
    except ImportError as error:
        raise DataError("Ray is not installed: pip install 'uwaga[ray]'") from error
    is_ours = not ray.is_initialized()
    if is_ours:
        _start(address, actors, quiet=quiet)
    try:
        with _errors_alone() if quiet else nullcontext():
            found = _Blocks(_dataset(encode, read, actors), timeout, say_engine)
            yield from _whole_groups(found, counts)
    finally:
        if is_ours:
            ray.shutdown()


@contextmanager
def _errors_alone() -> Iterator[None]:
    """Inside it, Ray Data logs nothing below errors."""
    import ray.data  # noqa: F401  # sets the level of its logger when it is imported

    logger = logging.getLogger("ray.data")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _start(address: str | None, actors: int | None, *, quiet: bool) -> None:
    import ray

    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR} if quiet else {}
    if address is None:
        options |= {"num_cpus": None if actors is None else actors + 1, "include_dashboard": False}
    try:
        ray.init(address=address or "local", **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise DataError(f"Ray {address or 'on this machine'}: {error}") from error


def _dataset(encode: BatchEncoder, read: Read, actors: int | None) -> Any:
    import ray
    from ray.data import ActorPoolStrategy, DataContext
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # A dataset has settings of its own, a copy of what is set when it is made: those of the program are put back.
    settings = {"target_max_block_size": _BLOCK_BYTES, "enable_progress_bars": False}
    context = DataContext.get_current()
    before = {name: getattr(context, name) for name in settings}
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    try:
        for name, value in settings.items():
            setattr(context, name, value)
        documents = ray.data.read_datasource(
            _documents(read), override_num_blocks=1, num_cpus=0, scheduling_strategy=here
        )
    finally:
        for name, value in before.items():
            setattr(context, name, value)
    count = actors or max(1, int(ray.cluster_resources().get("CPU", 1)))
    options = dict(vars(encode))
    model, others = options.pop("model"), options.pop("options")
    return documents.map_batches(
        _Actor,
        fn_constructor_args=[model],
        fn_constructor_kwargs=options | others,
        batch_size=None,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(size=count),
        num_cpus=1,
    )


def _documents(read: Read) -> Any:
    """A data source of Ray: the rows of all groups, each with the number of its group."""
    from ray.data import Datasource, ReadTask
    from ray.data.block import BlockMetadata

    class Documents(Datasource):  # type: ignore[misc]
        def estimate_inmemory_data_size(self) -> int | None:
            return None

        def get_read_tasks(self, parallelism: int, *_: Any, **__: Any) -> list[ReadTask]:
            nothing = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
            return [ReadTask(lambda: _tables(read), nothing)]

    return Documents()


def _tables(read: Read) -> Iterator[Any]:
    import pyarrow as pa

    try:
        for number, batch in enumerate(read()):
            columns = {name: pa.array(column) for name, column in batch.items()}
            columns = {name: x.cast(pa.string()) if pa.types.is_null(x.type) else x for name, x in columns.items()}
            yield pa.table(columns | {_GROUP: pa.array([number] * len(next(iter(columns.values()))))})
    except ValueError as error:
        yield _raised(error)


def _raised(error: ValueError) -> Any:
    """An error as a table: Ray tells of those that it catches in its own words."""
    import pyarrow as pa

    kind = next(each.__name__ for each in type(error).__mro__ if each.__name__ in _KINDS)
    return pa.table({_RAISED: [f"{kind}:{error}"]})


class _Blocks:
    """The tables of a dataset as they come. Raises WorkerError where none does for too long, and what was raised on the way."""

    def __init__(self, dataset: Any, timeout: float, say_engine: Callable[[Choice], object]) -> None:
        self._dataset, self._timeout, self._say_engine = dataset, timeout, say_engine
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._heard: dict[str, float] = {}  # of each process, when

    def __iter__(self) -> Iterator[Any]:
        threading.Thread(target=self._read, daemon=True).start()
        while True:
            most = self._timeout if self._heard else max(self._timeout, _STARTING)
            try:
                found = self._queue.get(timeout=most)
            except queue.Empty:
                raise WorkerError(
                    f"Ray has given nothing for {most:g} s. {self._workers()}. Where a batch takes longer than that, give a larger timeout"
                ) from None
            if found is None:
                return
            if isinstance(found, Exception):
                raise _cause(found)
            if _RAISED in found.column_names and (said := found[_RAISED].drop_null().to_pylist()):
                kind, _, message = said[0].partition(":")
                raise _KINDS[kind](message)
            if not self._heard:
                self._say_engine(Choice(*json.loads(found[_CHOICE][0].as_py())))
            for worker in found[_WORKER].unique().to_pylist():
                self._heard[worker] = time.monotonic()
            yield found.drop_columns([_WORKER, _CHOICE])

    def _read(self) -> None:
        try:
            for table in self._dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=1):
                self._queue.put(table)
            self._queue.put(None)
        except Exception as error:  # noqa: BLE001  # raised where results are waited for
            self._queue.put(error)

    def _workers(self) -> str:
        if not self._heard:
            return "None of its workers has been heard of: see `ray status` for room in the cluster"
        now = time.monotonic()
        listed = (f"{each}, {now - at:.0f} s ago{_stopped(each)}" for each, at in sorted(self._heard.items()))
        return "Its workers were heard of: " + "; ".join(listed)


def _stopped(worker: str) -> str:
    """Says so of a process of this machine that was stopped or has ended."""
    _, pid, _, host = worker.split(" ", 3)
    if host != socket.gethostname() or not Path("/proc/self/stat").exists():
        return ""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return " (has ended)"
    return " (is stopped)" if state in ("T", "t") else ""


def _cause(error: Exception) -> WorkerError:
    """Of an error of Ray, or of one that is no ValueError."""
    lines = str(error).strip().splitlines()
    return WorkerError(f"Ray: {type(error).__name__}: {lines[-1] if lines else ''}")


def _whole_groups(tables: Iterable[Any], counts: Sequence[int]) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """The groups as their last documents come; rows in the order of the documents. Raises WorkerError: some never come."""
    import pyarrow as pa

    parts: dict[int, list[Any]] = {}
    given = 0
    for table in tables:
        numbers = table[_GROUP].to_numpy()
        for number in np.unique(numbers).tolist():
            parts.setdefault(number, []).append(table.filter(pa.array(numbers == number)))
            found = pa.concat_tables(parts[number])
            documents = found["document"].to_numpy()
            if len(np.unique(documents)) == counts[number]:
                del parts[number]
                given += 1
                yield number, _columns(found.take(pa.array(np.argsort(documents, kind="stable"))))
    if given < len(counts):
        raise WorkerError(f"Ray has ended with {given:,} of {len(counts):,} groups of documents")


def _columns(table: Any) -> dict[str, np.ndarray]:
    """Of a table without the number of its group: as a BatchEncoder gives them of a mapping."""
    columns: dict[str, np.ndarray] = {}
    for name in table.column_names:
        if name not in (_GROUP, "vector"):
            columns[name] = table[name].to_numpy(zero_copy_only=False)
    vectors = table["vector"].combine_chunks()
    width = vectors.type.list_size
    columns["vector"] = np.full((len(table), width), np.nan, np.float32)
    is_there = ~vectors.is_null().to_numpy(zero_copy_only=False)
    columns["vector"][is_there] = vectors.flatten().to_numpy(zero_copy_only=False).reshape(-1, width)
    return columns
