"""`uwaga serve` as a process: its port, its log and its stop."""

import json
import re
import signal
import socket
from pathlib import Path

import numpy as np
import pytest
import uvicorn
from waiting import HANG, until

from uwaga._base.connections import listen
from uwaga.serve.app import Service, digest_of, read_keys, run
from uwaga.serve.models import EmbeddingModel

TEXTS = ["the cat sat on the mat", "a dog", "it ran away.", "the house and the cat"]


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
    out, errors = server.process.communicate()
    assert (server.process.returncode, errors) == (0, "")
    assert re.fullmatch(r'\S+ \S+ 127\.0\.0\.1:\d+ - "POST /v1/embeddings HTTP/1\.1" 200\n', out)


def _is_refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=HANG).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_comes_before_the_server_serves_stops_it(encoder, monkeypatch, number) -> None:
    """The signal is not lost between this server's handlers and uvicorn's."""
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
