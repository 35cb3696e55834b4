"""Requests made to harm a view's server: each ends in a clear error or in nothing, memory stays bounded, the server lives.

What an attacker may want: to read what is shown from another page or another account of the machine (foreign names, foreign
origins, guessed tokens), to have a browser run what he writes (text in the page), to keep the program from answering
(floods, half requests, replies that are not read), to use up memory (bodies, headers, nesting).

Tests of a few connections count bytes and places; how long connections wait, and how many, test_limits.py of the server shows.
"""

import asyncio
import json
import re
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from pages import HOSTILE
from waiting import HANG, until

import uwaga
from uwaga._base.connections import BODY_SECONDS
from uwaga.viewer.messages import Reply
from uwaga.viewer.page.html import served_html
from uwaga.viewer.page.snapshot import save_snapshot
from uwaga.viewer.server import app
from uwaga.viewer.server.server import ServedView
from uwaga.viewer.service import ViewService
from uwaga.viewer.shown import Maps, View

REPLY = 4 << 20  # bytes
PLACES = 64  # of questions that are computed or wait


class SlowService:
    """Each question takes a moment, and gets a large reply."""

    def __init__(self) -> None:
        self.answered = 0
        self.advance, self.waits = threading.Event(), threading.Event()

    def answer(self, question: Mapping[str, object]) -> Reply:
        if question.get("request") == "wait":
            self.waits.set()
            self.advance.wait(HANG)
        time.sleep(0.002)
        self.answered += 1
        return Reply(meta={}, arrays=(np.zeros(REPLY, np.uint8),) if question.get("request") == "large" else ())

    def close(self) -> None:
        self.advance.set()


@pytest.fixture
def service() -> SlowService:
    return SlowService()


@pytest.fixture
def server(service: SlowService) -> Iterator[ServedView]:
    with ServedView(service, title="a text") as made:
        yield made


@pytest.fixture(scope="module")
def asked() -> Iterator[ServedView]:
    """A server of a service that looks at its requests."""
    with ServedView(real_service(), title="a text") as made:
        yield made


@pytest.fixture(scope="module")
def shared() -> Iterator[ServedView]:
    """A server for tests that change nothing in it."""
    with ServedView(SlowService(), title="a text") as made:
        yield made


def request(server: ServedView, body: bytes = b"{}", **headers: str) -> bytes:
    """A good question, but for what is given; header names with _ for -, None leaves one out."""
    sent = {
        "Host": f"127.0.0.1:{server.port}",
        "X_Uwaga_Token": server.access.token,
        "Content_Type": "application/json",
        "Content_Length": str(len(body)),
        **headers,
    }
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in sent.items())
    return f"POST /ask HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body


def connected(server: ServedView) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=HANG)


def status(server: ServedView, data: bytes) -> int:
    return int(send_and_hear(server, data).split(b" ", 2)[1])


def send_and_hear(server: ServedView, data: bytes) -> bytes:
    """The one response that comes back."""
    with connected(server) as connection:
        connection.sendall(data)
        said = b""
        while part := connection.recv(1 << 16):
            said += part
            head, _, body = said.partition(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            if length and len(body) >= int(length[1]):
                break
        return said


def lives(server: ServedView, body: bytes = b"{}") -> None:
    assert status(server, request(server, body)) == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "attacker.example"},
        {"Host": "127.0.0.1:1"},
        {"Origin": "http://attacker.example"},
        {"Origin": "null"},
        {"X_Uwaga_Token": ""},
        {"X_Uwaga_Token": "\xff\xfe"},
        {"X_Uwaga_Token": "guess"},
    ],
    ids=lambda headers: next(iter(headers)),
)
def test_a_page_of_somebody_else_learns_nothing(shared: ServedView, headers: dict[str, str]) -> None:
    answered = shared.service.answered
    said = send_and_hear(shared, request(shared, **headers))
    assert said.startswith(b"HTTP/1.1 403")
    assert b"access-control" not in said.lower()
    assert shared.service.answered == answered
    lives(shared)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000 + b"]" * 100_000,
        b'{"request":' * 20_000 + b"1" + b"}" * 20_000,
        b'{"request": ' + b"9" * 100_000 + b"}",
        b'{"request": 1e999999}',
        b'{"request": "\xff\xfe"}',
        b'{"request": "\\ud800"}',
        b"\x00" * 1000,
        b'{"request": "about", "request": "about"',
    ],
    ids=["lists", "objects", "digits", "exponent", "utf8", "surrogate", "zeros", "cut"],
)
def test_json_made_to_harm(asked: ServedView, body: bytes) -> None:
    """test_viewer_fields.py has values that no field may have."""
    said = send_and_hear(asked, request(asked, body))
    assert said.startswith(b"HTTP/1.1 400")
    assert len(json.loads(said.partition(b"\r\n\r\n")[2])["error"]) < 300
    lives(asked, b'{"request":"about"}')


def test_what_is_announced_as_too_much_is_not_read(shared: ServedView) -> None:
    assert status(shared, request(shared, Content_Length=str(1 << 40))) == 413
    assert status(shared, request(shared, Content_Length="9" * 5000)) in (400, 413)
    lives(shared)


def send_without_end(server: ServedView, head: bytes, part: bytes) -> bytes:
    """Sends 130 MB, or less if the server hangs up; what it said."""
    with connected(server) as connection:
        connection.sendall(head)
        with suppress(OSError):
            for _ in range(int(130e6 / len(part))):
                connection.sendall(part)
        with suppress(OSError):
            return connection.recv(1 << 16)
    return b""


def test_a_body_without_an_end_is_refused_and_not_kept(server: ServedView, service: SlowService) -> None:
    head = request(server).replace(b"Content-Length: 2", b"Transfer-Encoding: chunked").removesuffix(b"{}")
    lives(server)  # what a first answer imports is not counted
    answered = service.answered
    tracemalloc.start()
    try:
        said = send_without_end(server, head, b"10000\r\n" + b" " * 0x10000 + b"\r\n")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert said == b"" or said.startswith(b"HTTP/1.1 413")
    # The longest body, and what asyncio reads at once, 256 KiB, in the buffers of asyncio, h11 and uvicorn; and as much again.
    assert peak < 2 * (app.MAX_BODY_BYTES + 3 * 2**18)
    assert service.answered == answered
    lives(server)


def slow_reader(server: ServedView) -> socket.socket:
    """A connection with a small receive buffer."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(HANG)
    connection.connect(("127.0.0.1", server.port))
    return connection


def flood(server: ServedView, stack: ExitStack, data: bytes, connections: int) -> list[socket.socket]:
    """Opens connections that send `data` until the server stops reading, and that read nothing."""
    results = []
    for _ in range(connections):
        connection = stack.enter_context(slow_reader(server))
        connection.setblocking(False)
        with suppress(BlockingIOError, ConnectionResetError, BrokenPipeError):
            connection.send(data)
        results.append(connection)
    return results


# A request without a token.
SCRIPT = "GET /app.js HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n"


def write_buffers(server: ServedView) -> list[int]:
    """Unsent bytes of each connection."""
    connections = list(server.uvicorn.server_state.connections)
    return [
        connection.transport.get_write_buffer_size() for connection in connections if connection.transport is not None
    ]


@pytest.mark.parametrize("kind", ["without a token", "large replies"])
def test_answers_that_nobody_takes_wait_in_a_few_chunks(service: SlowService, kind: str) -> None:
    with ServedView(service, title="a text") as server, ExitStack() as stack:
        server.reaper.idle = float("inf")  # none of its connections is closed before the test says so
        script = SCRIPT.format(port=server.port).encode()
        flood(
            server, stack, 100 * (script if kind == "without a token" else request(server, b'{"request": "large"}')), 8
        )
        until(lambda: sum(size > 0 for size in write_buffers(server)) == 8)
        lives(server)
        # Sending stops at 64 KiB, asyncio's limit: with the chunk that reached it and the headers of a response, less than six.
        assert max(write_buffers(server)) < 6 * app.CHUNK
        server.reaper.idle = 0.0
        until(lambda: not server.uvicorn.server_state.connections and server.limiter.taken == 0)


def test_no_more_connections_than_the_process_may_hold(server: ServedView) -> None:
    """Those that have waited longest make room; a question that is being answered is none of them."""
    server.reaper.max_connections = 40
    with ExitStack() as stack:
        asking = stack.enter_context(connected(server))
        asking.sendall(request(server, b'{"request": "wait"}'))
        assert server.service.waits.wait(HANG)  # type: ignore[attr-defined]
        for _ in range(5):
            flood(server, stack, b"GET / HT", 40)
            lives(server)
            until(lambda: len(server.uvicorn.server_state.connections) <= 40)
        server.service.advance.set()  # type: ignore[attr-defined]
        assert asking.recv(100).startswith(b"HTTP/1.1 200")


def test_forms_of_a_request(shared: ServedView) -> None:
    """None: what is too long may be read, if it comes at once; else the server resets the connection, with or without a word."""
    answered = shared.service.answered
    for line, more, expected in (
        ("GET /", "", 400),
        ("GET / HTTP/1.1", "X-Large: " + "x" * 100_000 + "\r\n", None),
        ("GET / HTTP/1.1", "".join(f"X-{number}: x\r\n" for number in range(10_000)), None),
        ("GET / HTTP/1.1", "Host: attacker.example\r\n", 400),
        ("GET /ask HTTP/1.1", "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n", 405),
        ("GET / HTTP/1.1", " folded: x\r\n", 403),
        ("GET / HTTP/1.1", "Content-Length: 1\r\nContent-Length: 2\r\n", 400),
        ("GET http://attacker.example/ HTTP/1.1", "", 404),
        ("CONNECT attacker.example:443 HTTP/1.1", "", 404),
        ("TRACE / HTTP/1.1", "", 405),
        ("GET /../../etc/passwd HTTP/1.1", "", 404),
        ("GET /%2e%2e/..%2f%5c%c0%ae/etc/passwd HTTP/1.1", "", 404),
        ("GET /app.js%00.html HTTP/1.1", "", 404),
        ("GET /" + "a/" * 50_000 + " HTTP/1.1", "", None),
        ("GET / HTTP/1.1", "X-Large: " + "x" * 5_000_000 + "\r\n", 0),  # 0: never read whole
    ):
        said = b""
        with nullcontext() if expected else suppress(ConnectionResetError, BrokenPipeError):
            said = send_and_hear(shared, f"{line}\r\nHost: 127.0.0.1:{shared.port}\r\n{more}\r\n".encode("latin-1"))
        result = int(said.split()[1]) if said else None
        allowed = {None: (None, 200, 400, 404, 431), 0: (None, 400, 431)}.get(expected, (expected,))
        assert result in allowed, (
            line,
            more[:50],
            said[:100],
        )
        assert b"root:" not in said
    assert shared.service.answered == answered
    lives(shared)


def test_a_question_that_waits_to_be_wanted_is_so_only_with_a_token(shared: ServedView) -> None:
    for token, expected in (({}, b"HTTP/1.1 100"), ({"X_Uwaga_Token": "guess"}, b"HTTP/1.1 403")):
        with connected(shared) as connection:
            connection.sendall(request(shared, Expect="100-continue", **token).removesuffix(b"{}"))
            assert connection.recv(1000).startswith(expected)


@contextmanager
def occupied(server: ServedView, data: bytes) -> Iterator[list[socket.socket]]:
    """All places are taken, by what is sent in connections, which are closed in the end; no question more has a place."""
    with ExitStack() as stack:
        connections = [stack.enter_context(connected(server)) for _ in range(PLACES)]
        for connection in connections:
            connection.sendall(data)
        until(lambda: server.limiter.taken == PLACES)
        said = send_and_hear(server, request(server))
        assert said.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1\r\n" in said
        yield connections


def test_clients_that_vanish_leave_their_places(server: ServedView, service: SlowService) -> None:
    with occupied(server, request(server, b'{"request": "wait"}')) as connections:
        for connection in connections:
            # A reset, as of a process that is killed.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    until(lambda: server.limiter.taken == 0)
    assert service.answered == 0
    service.advance.set()
    lives(server)
    # Two at a time had begun, and come to their end; the others never begin.
    until(lambda: service.answered == 2 + 1)


def test_half_questions_keep_nobody_else_waiting(server: ServedView, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[asyncio.AbstractEventLoop, asyncio.Timeout]] = []

    def timeout(seconds: float) -> asyncio.Timeout:
        """One that the test ends."""
        assert seconds == BODY_SECONDS
        begun.append((asyncio.get_running_loop(), asyncio.Timeout(None)))
        return begun[-1][1]

    monkeypatch.setattr(asyncio, "timeout", timeout)
    with occupied(server, request(server, b'{"request": "x"}')[:-3]) as connections:
        until(lambda: len(begun) == PLACES)
        for loop, deadline in begun:
            loop.call_soon_threadsafe(deadline.reschedule, 0.0)
        until(lambda: server.limiter.taken == 0)
        assert status(server, request(server)) == 200
        for connection in connections:
            assert connection.recv(100).startswith(b"HTTP/1.1 408")


TITLES = [
    *HOSTILE,
    "</title><script>alert(1)</script>",
    "<!--<script>",
    "]]>",
    "&lt;b&gt;&#60;",
    "\u2028\u2029",
    "\ud800",
]


def real_service(tokens: list[str] | None = None, title: str | None = None) -> ViewService:
    torch.manual_seed(0)
    names = ["a", "b", "c", "d"] if tokens is None else tokens
    m = uwaga.AttentionMap(*torch.randn(2, 2, len(names), 8))
    return ViewService(View.of(Maps({("encoder", 0): m}, tokens=names, title=title)))


@pytest.mark.usefixtures("small_front")
def test_a_title_is_text_and_tokens_are_data_in_a_page(tmp_path: Path) -> None:
    for title in TITLES:
        assert_only_own_elements(served_html(title), scripts=2)
    save_snapshot(real_service(TITLES, "".join(TITLES)), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert_only_own_elements(page, scripts=3)
    # Exact questions come from a user, and name themselves in the page.
    assert page.count("</script>") == 3


def assert_only_own_elements(page: str, scripts: int) -> None:
    """Nothing in the page that the shell has not written."""

    class Parser(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.tags: list[str] = []
            self.title = ""

        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            self.tags.append(tag)
            assert not [name for name, _ in attributes if name.startswith("on") or name == "style"]

        def handle_data(self, data: str) -> None:
            if self.tags[-1:] == ["title"] and not self.title:
                self.title = data

    parser = Parser()
    parser.feed(page[page.index("<!doctype") :])
    allowed = {"html", "head", "meta", "link", "title", "style", "body", "div", "noscript", "script"}
    assert set(parser.tags) <= allowed
    assert parser.tags.count("script") == scripts
    assert parser.title.isprintable() or parser.title == "uwaga"
    assert "\u202e" not in parser.title
