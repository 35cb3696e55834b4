"""Requests made to harm a view's server: each ends in a clear error or in nothing, memory stays bounded, the server lives.

What an attacker may want: to read what is shown from another page or another account of the machine (foreign names, foreign
origins, guessed tokens), to have a browser run what he writes (text in the page), to keep the program from answering
(floods, half requests, replies that nobody takes), to use up memory (bodies, headers, nesting).
"""

import asyncio
import json
import re
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("uvicorn", reason="the server's packages are not installed: pip install 'uwaga[view]'")

import uwaga
from uwaga.viewer.desk import Desk
from uwaga.viewer.desk.reply import Reply
from uwaga.viewer.exhibit import Exhibit
from uwaga.viewer.server.run import Server

REPLY = 4 << 20  # bytes


class SlowDesk:
    """Each question takes a moment, and gets a large reply."""

    def __init__(self) -> None:
        self.answered = 0
        self.go_on = threading.Event()

    def answer(self, question: Mapping[str, object]) -> Reply:
        if question.get("ask") == "wait":
            self.go_on.wait(20)
        time.sleep(0.002)
        self.answered += 1
        return Reply(meta={}, arrays=(np.zeros(REPLY, np.uint8),) if question.get("ask") == "large" else ())

    def close(self) -> None:
        self.go_on.set()


@pytest.fixture
def desk() -> SlowDesk:
    return SlowDesk()


@pytest.fixture
def server(desk: SlowDesk) -> Iterator[Server]:
    with Server(desk, title="a text") as made:
        yield made


def token(server: Server) -> str:
    return server.address.partition("=")[2]


def request(server: Server, body: bytes = b"{}", **headers: str) -> bytes:
    """A good question, but for what is given; header names with _ for -, None leaves one out."""
    sent = {
        "Host": f"127.0.0.1:{server.port}",
        "X_Uwaga_Token": token(server),
        "Content_Type": "application/json",
        "Content_Length": str(len(body)),
        **headers,
    }
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in sent.items())
    return f"POST /ask HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body


def send(server: Server, data: bytes) -> bytes:
    """All that comes back until the server has nothing more to say for a moment."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        parts = []
        while part := connection.recv(1 << 16):
            parts.append(part)
        return b"".join(parts)


def status(server: Server, data: bytes) -> int:
    return int(send_and_hear(server, data).split(b" ", 2)[1])


def send_and_hear(server: Server, data: bytes) -> bytes:
    """The one response that comes back."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(data)
        said = b""
        while part := connection.recv(1 << 16):
            said += part
            head, _, body = said.partition(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            if length and len(body) >= int(length[1]):
                break
        return said


def lives(server: Server) -> None:
    assert status(server, request(server)) == 200


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def megabytes() -> float:
    """Of this process, as they are now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "attacker.example"},
        {"Host": "127.0.0.1:1"},
        {"Origin": "http://attacker.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"},
        {"X_Uwaga_Token": ""},
        {"X_Uwaga_Token": "\xff\xfe"},
        {"Cookie": "token=guess", "X_Uwaga_Token": "guess"},
    ],
    ids=lambda headers: next(iter(headers)),
)
def test_a_page_of_somebody_else_learns_nothing(server: Server, desk: SlowDesk, headers: dict[str, str]) -> None:
    said = send_and_hear(server, request(server, **headers))
    assert said.startswith(b"HTTP/1.1 403")
    assert b"access-control" not in said.lower()
    assert desk.answered == 0
    lives(server)


def test_a_form_of_another_page_cannot_ask(server: Server, desk: SlowDesk) -> None:
    """A form sends these kinds without asking the server first; it cannot send the token's header either."""
    for kind in ("application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain"):
        assert status(server, request(server, Content_Type=kind)) == 415
    assert desk.answered == 0


def test_two_names_in_one_request(server: Server) -> None:
    data = request(server).replace(b"Host:", b"Host: attacker.example\r\nHost:")
    assert status(server, data) in (400, 403)
    lives(server)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000 + b"]" * 100_000,
        b'{"ask":' * 20_000 + b"1" + b"}" * 20_000,
        b'{"ask": ' + b"9" * 100_000 + b"}",
        b'{"ask": 1e999999}',
        b'{"ask": "\xff\xfe"}',
        b'{"ask": "\\ud800"}',
        b"\x00" * 1000,
        b'{"ask": "about", "ask": "about"',
    ],
    ids=["lists", "objects", "digits", "exponent", "utf8", "surrogate", "zeros", "cut"],
)
def test_json_made_to_harm(body: bytes) -> None:
    """By a desk that looks at what it is asked."""
    with Server(real_desk(), title="a text") as server:
        said = send_and_hear(server, request(server, body))
        assert said.startswith(b"HTTP/1.1 400")
        assert len(json.loads(said.partition(b"\r\n\r\n")[2])["error"]) < 300
        lives_for_real(server)


@pytest.mark.parametrize(
    "question",
    [
        {"ask": "tile", "level": -1},
        {"ask": "tile", "level": 10**6},
        {"ask": "tile", "row": 1},
        {"ask": "tile", "column": 10**18},
        {"ask": "tile", "head": 2},
        {"ask": "tile", "head": -1},
        {"ask": "tile", "layer": 9},
        {"ask": "tile", "side": "__class__"},
        {"ask": "tile", "kind": ["encoder"]},
        {"ask": "tile", "how": None},
        {"ask": "weights", "rows": [0, 10**12], "columns": [0, 1]},
        {"ask": "npz", "rows": [-5, 5], "columns": [0, 1]},
        {"ask": "between", "spans": [[0, 1]] * 10_000, "key_spans": [[0, 1]]},
        {"ask": "items", "count": 10**9},
        {"ask": "page", "exact": [{"ask": "page", "exact": []}] * 5000},
        {"ask": "__init__"},
        {"ask": {"ask": "about"}},
        {"ask": "about", "more": 1},
        {},
    ],
    ids=lambda question: json.dumps(question)[:40],
)
def test_questions_about_what_there_is_not(question: dict[str, object]) -> None:
    where = {"side": "0", "kind": "encoder", "layer": 0, "head": 0, "merge": "tokens", "specials": "show"}
    if question.get("ask") == "tile":
        question = {**where, "how": "mass", "level": 0, "row": 0, "column": 0, **question}
    elif question.get("ask") in ("weights", "npz", "between"):
        question = {**where, **question}
    with Server(real_desk(), title="a text") as server:
        said = send_and_hear(server, request(server, json.dumps(question).encode()))
        assert said.startswith(b"HTTP/1.1 400"), said
        assert json.loads(said.partition(b"\r\n\r\n")[2])["error"]
        lives_for_real(server)


def test_what_is_announced_as_too_much_is_not_read(server: Server) -> None:
    assert status(server, request(server, Content_Length=str(1 << 40))) == 413
    assert status(server, request(server, Content_Length="9" * 5000)) in (400, 413)
    lives(server)


def test_a_body_without_end_is_cut_off(server: Server, desk: SlowDesk) -> None:
    data = request(server).replace(b"Content-Length: 2", b"Transfer-Encoding: chunked").removesuffix(b"{}")
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    before = megabytes()
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(data)
        said = b""
        with suppress(OSError):  # the server hangs up
            for _ in range(2000):  # 130 MB
                connection.sendall(chunk)
        with suppress(OSError):
            said = connection.recv(1 << 16)
    assert said == b"" or said.startswith(b"HTTP/1.1 413")
    assert megabytes() - before < 50
    assert desk.answered == 0
    lives(server)


def test_headers_without_end_are_cut_off(server: Server) -> None:
    before = megabytes()
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        with suppress(OSError):
            for number in range(20_000):
                connection.sendall(f"X-{number}: {'x' * 1000}\r\n".encode())
    assert megabytes() - before < 50
    lives(server)


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\x02\x00\x01", b"\r\n" * 50, b"GET\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]
)
def test_what_is_no_http(server: Server, data: bytes) -> None:
    said = send(server, data)
    assert said == b"" or said.startswith(b"HTTP/1.1 4")
    lives(server)


def test_a_websocket_is_not_opened(server: Server) -> None:
    data = (
        f"GET /ask HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    assert status(server, data.encode()) == 405
    lives(server)


def test_a_thousand_questions_at_once(server: Server, desk: SlowDesk) -> None:
    """Some are answered, the others are told at once to come again; none is left without a word."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2500:
        pytest.skip("this account may not open so many connections")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2500), hard))
    large = json.dumps({"ask": "large"}).encode()
    lives(server)
    before = megabytes()

    async def ask() -> tuple[int, int, bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request(server, large))
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(re.search(rb"content-length: (\d+)", head)[1])
        left = length
        while left:
            left -= len(await reader.read(1 << 16))
        writer.close()
        return int(head.split()[1]), length, head

    async def ask_all() -> tuple[list[tuple[int, int, bytes]], float]:
        found = await asyncio.gather(*(ask() for _ in range(1000)))
        return found, megabytes()

    try:
        answers, used = asyncio.run(ask_all())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert {code for code, _, _ in answers} == {200, 503}
    assert all(length > REPLY for code, length, _ in answers if code == 200)
    assert all(b"retry-after: 1\r\n" in head for code, _, head in answers if code == 503)
    # 64 places, of which each may hold a reply on its way out, and the same on the client's side.
    assert used - before < 64 * 2.5 * REPLY / 1e6 + 100
    lives(server)


def test_clients_that_vanish_leave_their_places(server: Server, desk: SlowDesk) -> None:
    waiting = json.dumps({"ask": "wait"}).encode()
    for _ in range(3):
        connections = []
        for _ in range(64):
            connection = socket.create_connection(("127.0.0.1", server.port))
            connection.sendall(request(server, waiting))
            connections.append(connection)
        until(lambda: status(server, request(server)) == 503)
        for connection in connections:
            # A reset, as of a process that is killed.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            connection.close()
    answered = desk.answered
    desk.go_on.set()
    until(lambda: status(server, request(server)) == 200)
    # Those that had begun came to their end, two at a time; the others never began.
    assert desk.answered - answered <= 2 + 2 + 2 + 1 + 1


def test_half_questions_keep_nobody_else_waiting(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uwaga.viewer.server.asking._READ_SECONDS", 0.5)
    data = request(server, b'{"ask": "x"}')[:-3]
    connections = [socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(64)]
    for connection in connections:
        connection.sendall(data)
    until(lambda: status(server, request(server)) == 503)
    until(lambda: status(server, request(server)) == 200)
    assert connections[0].recv(100).startswith(b"HTTP/1.1 408")
    for connection in connections:
        connection.close()


def test_replies_that_nobody_takes_are_given_up(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uwaga.viewer.server.asking._SEND_SECONDS", 0.5)
    large = json.dumps({"ask": "large"}).encode()
    connections = []
    for _ in range(64):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(request(server, large))
        connections.append(connection)
    until(lambda: status(server, request(server)) == 503)
    until(lambda: status(server, request(server)) == 200)
    for connection in connections:
        connection.close()


HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</title><script>alert(1)</script>",
    "<!--<script>",
    "]]>",
    "\u202egnp.exe",
    "a\u0000b\u001b[31m",
    "&lt;b&gt;&#60;",
    "javascript:alert(1)",
    "\u2028\u2029",
    "{{constructor}}",
    "\ud800",
]


def real_desk(tokens: list[str] | None = None, title: str | None = None) -> Desk:
    import torch

    torch.manual_seed(0)
    names = ["a", "b", "c", "d"] if tokens is None else tokens
    m = uwaga.AttentionMap(*torch.randn(2, 2, len(names), 8))
    return Desk(Exhibit.of({("encoder", 0): m}, tokens=names, title=title))


def lives_for_real(server: Server) -> None:
    assert status(server, request(server, b'{"ask":"about"}')) == 200


@pytest.mark.parametrize("title", HOSTILE)
def test_a_title_is_text_in_the_page(title: str) -> None:
    with Server(real_desk(title=title), title=title) as server:
        page = send_and_hear(server, f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode()).decode()
    assert page.startswith("HTTP/1.1 200")
    assert_only_own_elements(page, scripts=1)


@pytest.mark.usefixtures("small_front")
def test_tokens_are_data_in_a_saved_page(tmp_path: Path) -> None:
    from uwaga.viewer.page.saved import save_page

    for title in HOSTILE:
        save_page(real_desk(HOSTILE, title), tmp_path / "page.html", exact=[("encoder", 0, 1)])
        page = (tmp_path / "page.html").read_text(encoding="utf-8")
        assert_only_own_elements(page, scripts=2)
        # Exact questions come from a user, and name themselves in the page.
        assert page.count("</script>") == 2


def assert_only_own_elements(page: str, scripts: int) -> None:
    """Nothing in the page that the shell has not written."""
    from html.parser import HTMLParser

    class Parser(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.found: list[str] = []
            self.title = ""

        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            self.found.append(tag)
            assert not [name for name, _ in attributes if name.startswith("on") or name == "style"]

        def handle_data(self, data: str) -> None:
            if self.found[-1:] == ["title"] and not self.title:
                self.title = data

    parser = Parser()
    parser.feed(page[page.index("<!doctype") :])
    own = {"html", "head", "meta", "link", "title", "style", "body", "div", "noscript", "script"}
    assert set(parser.found) <= own
    assert parser.found.count("script") == scripts
    assert parser.title.isprintable() or parser.title == "uwaga"
    assert "\u202e" not in parser.title
