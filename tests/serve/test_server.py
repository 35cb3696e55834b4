"""`uwaga serve` as a process: its port, its stop, clients that vanish, and processes that are killed."""

import json
import os
import re
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import forked
import numpy as np
import pytest
import uvicorn
from waiting import HANG, until

from uwaga.serve.app import Service, digest_of
from uwaga.serve.models import EmbeddingModel
from uwaga.serve.server import listen, read_keys, run

TEXTS = ["the cat sat on the mat", "a dog", "it ran away.", "the house and the cat"]


def ends_with_a_log_of_one_request(server: Any) -> None:
    out, errors = server.process.communicate()
    assert (server.process.returncode, errors) == (0, "")
    # A worker logs a request after its client has the answer, and so perhaps after its parent has begun to stop.
    *lines, stopped = out.splitlines()
    request, stopping = sorted(lines)
    assert re.fullmatch(r"\S+ 127\.0\.0\.1 POST /v1/embeddings 200 \d+\.\d ms", request)
    assert stopping.startswith("uwaga serve: stopping: ")
    assert stopped == "uwaga serve: stopped"


@pytest.mark.slow
def test_what_was_accepted_before_sigterm_is_answered(start, encoder) -> None:
    """The interim response says that the server has read the request's headers; it stops before it has the body."""
    server = start("--access-log")
    assert server.said.startswith("uwaga serve: tiny on http://127.0.0.1:")
    body = json.dumps({"input": TEXTS}).encode()
    head = (
        f"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    )
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=HANG) as accepted,
        accepted.makefile("rb") as reader,
    ):
        accepted.sendall(head.encode() + b"Expect: 100-continue\r\n\r\n")
        assert reader.readline().startswith(b"HTTP/1.1 100 ")
        server.process.send_signal(signal.SIGTERM)
        until(lambda: _is_refused(server.port))
        accepted.sendall(body)
        answer = reader.read().partition(b"HTTP/1.1 200 OK\r\n")[2]
    data = json.loads(answer.partition(b"\r\n\r\n")[2])["data"]
    assert np.float32([row["embedding"] for row in data]).tobytes() == encoder.encode(TEXTS).tobytes()
    ends_with_a_log_of_one_request(server)


def _is_refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=HANG).close()
    except ConnectionRefusedError:
        return True
    return False


linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux lists a process's children in /proc"
)


def children(server: Any) -> set[int]:
    numbers = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text()
    return set(map(int, numbers.split()))


@pytest.mark.slow
@linux
def test_several_processes_share_the_port_and_one_that_is_ended_is_replaced(start, encoder) -> None:
    """Without a file, so that a full disk ends none of them."""
    server = start("--processes", "2", has_disk=False)
    until(lambda: len(children(server)) == 2)
    expected = encoder.encode(TEXTS).tobytes()
    for _ in range(10):
        assert server.embed(TEXTS).tobytes() == expected
    counted = 'uwaga_requests_total{path="/v1/embeddings",status="200"} 10.0'
    assert counted in server.get("/metrics").decode()  # whichever of the two is asked
    seen, said = children(server), ""
    for number in (signal.SIGKILL, signal.SIGTERM):
        ended = min(children(server))
        os.kill(ended, number)
        until(lambda ended=ended: len(children(server) - {ended}) == 2)
        (new,) = children(server) - seen
        seen |= {new}
        said += f"uwaga serve: process {ended} was ended by signal {number}; process {new} replaces it\n"
        for _ in range(10):
            assert server.embed(TEXTS).tobytes() == expected
    # What the processes that ended have counted is not lost.
    assert counted.replace("10.0", "30.0") in server.get("/metrics").decode()
    assert server.stop() == (0, said)
    assert not any(Path(f"/proc/{process}").exists() for process in seen)


@pytest.mark.slow
@linux
def test_several_processes_say_that_they_stop_and_log_requests(start) -> None:
    server = start("--access-log", "--processes", "2")
    server.embed(TEXTS)
    server.process.send_signal(signal.SIGINT)
    ends_with_a_log_of_one_request(server)


@pytest.mark.slow
@linux
@pytest.mark.parametrize(("number", "has_stopped"), [(signal.SIGKILL, True), (signal.SIGHUP, False)])
def test_processes_end_with_the_one_that_has_started_them(start, number, has_stopped) -> None:
    """One that was stopped keeps the port until it goes on."""
    server = start("--processes", "2")
    until(lambda: len(children(server)) == 2)
    server.embed(TEXTS)
    stopped = sorted(children(server))[:has_stopped]
    for process in stopped:
        os.kill(process, signal.SIGSTOP)
    server.process.send_signal(number)
    for process in stopped:
        server.process.wait()
        os.kill(process, signal.SIGCONT)
    assert server.ended() == (-number, "")  # their ends of its pipes are closed, too
    listen("127.0.0.1", server.port).close()  # the port is free


DEAF = """
import signal
from uwaga.serve.server import listen, run_processes
def make(metrics):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("ready", flush=True)
    signal.pause()
run_processes(make, listen("127.0.0.1", 0), 2, grace=0.1)
"""


@pytest.mark.slow
@linux
def test_processes_that_do_not_end_are_killed() -> None:
    """As one that is stopped, whose signals wait."""
    server = forked.Program(DEAF)
    assert [server.stdout.readline() for _ in range(2)] == ["ready\n", "ready\n"]
    server.send_signal(signal.SIGTERM)
    _, errors = server.communicate()
    assert server.returncode == 0
    said = r"uwaga serve: process \d+ was killed, as it did not end within 0.1 seconds of SIGTERM\n"
    assert re.fullmatch(said * 2, errors)


FAILING = """
from uwaga.serve.server import listen, run_processes
run_processes(lambda metrics: 1 / 0, listen("127.0.0.1", 0), 2, grace=60)
"""


@pytest.mark.slow
@linux
def test_an_error_of_a_process_ends_the_server() -> None:
    _, errors = forked.Program(FAILING).communicate()
    assert "\nZeroDivisionError: division by zero\n" in errors
    assert re.search(
        r"ChildProcessError: process \d+ of the server ended with code 1; its messages say why\n\Z", errors
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_comes_before_the_server_serves_stops_it(encoder, monkeypatch, number) -> None:
    """A process that was forked a moment ago is stopped, too: the signal is not lost between its handlers and uvicorn's."""
    serve = uvicorn.Server.serve

    async def late(self: uvicorn.Server, sockets: list[socket.socket]) -> None:
        signal.raise_signal(number)
        await serve(self, sockets)

    monkeypatch.setattr(uvicorn.Server, "serve", late)
    before = signal.getsignal(number)
    run(Service(EmbeddingModel(encoder), name="tiny"), listen("127.0.0.1", 0))  # returns
    assert signal.getsignal(number) is before


def test_keys_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# of the crawler\nkey-of-the-crawler\n\n  key-of-the-page--  \r\n")
    assert read_keys(path) == {digest_of("key-of-the-crawler"), digest_of("key-of-the-page--")}
