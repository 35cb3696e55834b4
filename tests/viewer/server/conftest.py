"""A server of a fake query service, and an HTTP client that can send invalid requests."""

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import pytest
from waiting import HANG

from uwaga.viewer.messages import Reply, RequestError
from uwaga.viewer.server.server import ServedView


class FakeService:
    """A query service whose requests echo or fail."""

    closed = False

    def answer(self, question: Mapping[str, object]) -> Reply:
        match question.get("request"):
            case "echo":
                return Reply(meta={"request": dict(question)}, arrays=(np.arange(3, dtype=np.float32),))
            case "fail":
                raise RuntimeError("a defect")
        raise RequestError(f"unknown request {question.get('request')!r}")

    def close(self) -> None:
        self.closed = True


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

    def __init__(self, server: ServedView) -> None:
        self.port, self.token = server.port, server.access.token
        self.host = f"127.0.0.1:{server.port}"

    def send(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Response:
        """Headers are keywords with _ for -; Host is that of the server by default."""
        sent = {"Host": self.host} | {name.replace("_", "-"): value for name, value in headers.items()}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG)) as connection:
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Response(response.status, names, response.read())

    def ask(self, question: Any, **headers: str) -> Response:
        """Sends a request as the page does; bytes are sent unchanged."""
        body = question if isinstance(question, bytes) else json.dumps(question).encode()
        sent = {"Content_Type": "application/json", "X_Uwaga_Token": self.token, **headers}
        return self.send("POST", "/ask", body, **sent)


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def server(service: FakeService) -> Iterator[ServedView]:
    with ServedView(service, title="a text") as made:
        yield made


@pytest.fixture
def client(server: ServedView) -> Client:
    return Client(server)
