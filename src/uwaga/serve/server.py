"""Serving an application until SIGTERM or Ctrl-C, by one process or by several that share the memory of the weights."""

import asyncio
import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import uvicorn

from uwaga._base import untrusted
from uwaga._base.connections import ConnectionTimeouts, IdleConnectionReaper, max_connections, uvicorn_server
from uwaga._base.errors import DataError
from uwaga.serve.app import Service, application, digest_of
from uwaga.serve.metrics import Metrics
from uwaga.serve.scheduler import QueueSize

_BACKLOG = 1024  # connections that are not accepted yet
_KEEP_ALIVE = 75  # seconds that a connection may wait for its next request, as nginx has it
_TIMEOUTS = ConnectionTimeouts(idle=_KEEP_ALIVE)
_KEYS_BYTES = 1 << 20
_LOG = logging.getLogger("uwaga.serve")
_STOPPING, _STOPPED = "stopping: requests that were accepted are answered first", "stopped"
_MIN_KEY = 16  # characters; of letters and digits these are 95 bits


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises DataError: no such address, or its port is taken."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # asyncio disables Nagle's algorithm only for sockets whose protocol is TCP.
        listening = socket.socket(family, kind, protocol or socket.IPPROTO_TCP)
    except OSError as error:
        raise DataError(f"host {host!r}: {error.strerror or error}") from error
    try:
        if os.name == "posix":  # otherwise a port stays taken for a minute after its last connection
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise DataError(
            f"port {port} of {host} is not available: {error.strerror or error}; choose another with --port"
        ) from error
    return listening


def read_keys(path: Path) -> frozenset[bytes]:
    """Return the digests of the keys in a file, one key per line. Raises DataError.

    Empty lines and lines that begin with # are ignored.
    """
    try:
        content = untrusted.read_file(path, _KEYS_BYTES)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    keys = set()
    for number, line in enumerate(content.split(b"\n"), start=1):
        key = line.strip()
        if not key or key.startswith(b"#"):
            continue
        if len(key) < _MIN_KEY or not all(0x21 <= byte <= 0x7E for byte in key):
            raise DataError(
                f"{path}:{number}: a key has at least {_MIN_KEY} characters, all visible ASCII without spaces"
            )
        keys.add(digest_of(key.decode()))
    if not keys:
        raise DataError(f"{path} has no key")
    return frozenset(keys)


Say = Callable[[str], object]


def run(service: Service, listening: socket.socket, say: Say = lambda message: None) -> None:
    """Serve until SIGTERM or Ctrl-C, and then answer only requests that were accepted before.

    say: called with a message when the server stops, and when it has stopped.
    """
    reaper = IdleConnectionReaper(_TIMEOUTS, max_connections())
    server = uvicorn_server(application(service, reaper), reaper, backlog=_BACKLOG, timeout_keep_alive=_KEEP_ALIVE)
    # uvicorn handles signals only while it serves, and raises them again when it has stopped. Until then, these handlers stop it.
    before = {number: signal.signal(number, server.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        asyncio.run(_serve(server, reaper, listening, say))
    finally:
        service.close()
        say(_STOPPED)
        for number, handler in before.items():
            signal.signal(number, handler)


def run_processes(
    make: Callable[[Metrics], Service],
    listening: socket.socket,
    count: int,
    *,
    grace: float,
    say: Say = lambda message: None,
) -> None:
    """Serve as `run` does, by processes that share one socket and the memory of weights.

    The processes are forked, so this process must not have started threads. A process that a signal ends is replaced. All processes end
    with this process, however it ends.

    Args:
        make: called in each process with its metrics.
        listening: the socket.
        count: the number of processes.
        grace: seconds after SIGTERM or Ctrl-C until a process that still runs is killed.
        say: as `run`.

    Raises:
        ChildProcessError: an error ended a process. All others are stopped first.
    """
    context = multiprocessing.get_context("fork")
    waited = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
    records = Metrics.shared(count)
    # Only this process has the write end open, so that reading returns when this process ends.
    reader, writer = os.pipe()

    def child(record: Metrics) -> None:
        os.close(writer)
        threading.Thread(target=_end_with_parent, args=(reader,), daemon=True).start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, waited)
        run(make(record), listening)

    def start(record: Metrics) -> BaseProcess:
        record.held(QueueSize())  # an earlier process may have ended while it had requests
        process = context.Process(target=child, args=(record,), name="uwaga-serve")
        process.start()
        return process

    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    # With the default action, some systems drop a signal that sigwait waits for.
    handler = signal.signal(signal.SIGCHLD, lambda *_: None)
    processes = list(map(start, records))
    try:
        while signal.sigwait(waited) == signal.SIGCHLD:
            for index, process in enumerate(processes):
                if process.exitcode is None:
                    continue
                if process.exitcode > 0:
                    raise ChildProcessError(
                        f"process {process.pid} of the server ended with code {process.exitcode}; its messages say why"
                    )
                processes[index] = start(records[index])
                # A process that SIGTERM stops answers what it has accepted, and ends with 0.
                number = -process.exitcode or int(signal.SIGTERM)
                _LOG.warning(
                    "uwaga serve: process %d was ended by signal %d; process %d replaces it",
                    process.pid, number, processes[index].pid,
                )  # fmt: skip
        say(_STOPPING)
    finally:
        _stop(processes, grace)
        say(_STOPPED)
        os.close(reader)
        os.close(writer)
        signal.signal(signal.SIGCHLD, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent(reader: int) -> None:
    os.read(reader, 1)
    os._exit(1)


def _stop(processes: Sequence[BaseProcess], grace: float) -> None:
    for process in processes:
        process.terminate()  # SIGTERM
    end = time.monotonic() + grace
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
        if process.exitcode is None:
            _LOG.warning(
                "uwaga serve: process %d was killed, as it did not end within %g seconds of SIGTERM", process.pid, grace
            )
            process.kill()
            process.join()


async def _serve(server: uvicorn.Server, reaper: IdleConnectionReaper, listening: socket.socket, say: Say) -> None:
    serving, has_said = asyncio.ensure_future(server.serve(sockets=[listening])), False
    while not serving.done():  # even while it stops, so that a client that reads nothing does not keep it alive
        await asyncio.wait({serving}, timeout=0.1)
        if server.should_exit and not has_said:
            say(_STOPPING)
            has_said = True
        reaper.reap(server.server_state.connections)
    await serving
