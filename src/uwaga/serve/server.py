"""Serving an application until SIGTERM or Ctrl-C."""

import asyncio
import logging
import os
import signal
import socket
import sys
from pathlib import Path

import uvicorn

from uwaga._base import untrusted
from uwaga._base.connections import ConnectionTimeouts, IdleConnectionReaper, max_connections, uvicorn_server
from uwaga._base.errors import DataError
from uwaga.serve.app import Service, application, digest_of

_BACKLOG = 1024  # connections that are not accepted yet
_KEEP_ALIVE = 75  # seconds that a connection may wait for its next request, as nginx has it
_TIMEOUTS = ConnectionTimeouts(idle=_KEEP_ALIVE)
_KEYS_BYTES = 1 << 20
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


def run(service: Service, listening: socket.socket, *, access_log: bool = False) -> None:
    """Serve until SIGTERM or Ctrl-C, and then answer only requests that were accepted before.

    access_log: print a line for each request.
    """
    reaper = IdleConnectionReaper(_TIMEOUTS, max_connections())
    server = uvicorn_server(
        application(service, reaper), reaper, backlog=_BACKLOG, timeout_keep_alive=_KEEP_ALIVE, access_log=access_log
    )
    if access_log:
        lines, log = logging.StreamHandler(sys.stdout), logging.getLogger("uvicorn.access")
        lines.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        log.addHandler(lines)
        log.setLevel(logging.INFO)
    # uvicorn handles signals only while it serves, and raises them again when it has stopped. Until then, these handlers stop it.
    before = {number: signal.signal(number, server.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        asyncio.run(_serve(server, reaper, listening))
    finally:
        service.close()
        for number, handler in before.items():
            signal.signal(number, handler)


async def _serve(server: uvicorn.Server, reaper: IdleConnectionReaper, listening: socket.socket) -> None:
    serving = asyncio.ensure_future(server.serve(sockets=[listening]))
    while not serving.done():  # even while it stops, so that a client that reads nothing does not keep it alive
        await asyncio.wait({serving}, timeout=0.1)
        reaper.reap(server.server_state.connections)
    await serving
