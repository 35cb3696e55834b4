"""A server of a fake query service, and an HTTP client that can send invalid requests."""

import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("uvicorn", reason="the server's packages are not installed: pip install 'uwaga[view]'")

from waiting import HANG

from uwaga.viewer.messages import Reply, RequestError
from uwaga.viewer.server.server import Server


class FakeService:
    """A query service whose requests echo, wait, fail or return a long reply."""

    __test__ = False

    def __init__(self) -> None:
        self.advance = threading.Event()  # set: waiting requests continue
        self.started = 0  # how many requests have started to wait
        self.most_at_once = 0  # the largest number that waited at the same time
        self.closed = False
        self.waiting = 0
        self.lock = threading.Lock()

    def answer(self, question: Mapping[str, object]) -> Reply:
        match question.get("request"):
            case "echo":
                return Reply(meta={"request": dict(question)}, arrays=(np.arange(3, dtype=np.float32),))
            case "wait":
                self.wait()
                return Reply(meta={})
            case "fail":
                raise RuntimeError("a defect")
            case "long":
                return Reply(meta={}, arrays=(np.zeros(1 << 22, np.uint8),))
        raise RequestError(f"unknown request {question.get('request')!r}")

    def close(self) -> None:
        self.closed = True
        self.advance.set()

    def wait(self) -> None:
        with self.lock:
            self.started += 1
            self.waiting += 1
            self.most_at_once = max(self.most_at_once, self.waiting)
        self.advance.wait(HANG)
        with self.lock:
            self.waiting -= 1


class Response(NamedTuple):
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    @property
    def error(self) -> str:
        assert self.headers["content-type"] == "application/json"
        result: str = json.loads(self.body)["error"]
        return result


class Client:
    """Sends requests to one server."""

    def __init__(self, server: Server) -> None:
        self.port, self.token = server.port, server.access.token
        self.cookie = f"{server.access.cookie_name}={server.access.cookie}"
        self.host = f"127.0.0.1:{server.port}"

    def send(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Response:
        """Headers are keywords with _ for -; Host is that of the server by default."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG)
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        sent = {"Host": self.host, **{name.replace("_", "-"): value for name, value in headers.items()}}
        if body is not None:
            sent.setdefault("Content-Length", str(len(body)))
        for name, value in sent.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        response = connection.getresponse()
        result = Response(
            response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        )
        connection.close()
        return result

    def ask(self, question: Any, **headers: str) -> Response:
        """Sends a request as the page does; bytes are sent unchanged."""
        body = question if isinstance(question, bytes) else json.dumps(question).encode()
        given = {"Content_Type": "application/json", "X_Uwaga_Token": self.token, "Cookie": self.cookie, **headers}
        return self.send("POST", "/ask", body, **given)

    def raw(self, question: Any) -> bytes:
        """The bytes of a request, to be written to a socket."""
        body = json.dumps(question).encode()
        head = f"POST /ask HTTP/1.1\r\nHost: {self.host}\r\nX-Uwaga-Token: {self.token}\r\nCookie: {self.cookie}\r\n"
        return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def server(service: FakeService) -> Iterator[Server]:
    with Server(service, title="a text") as made:
        yield made
        service.advance.set()


@pytest.fixture
def client(server: Server) -> Client:
    return Client(server)
