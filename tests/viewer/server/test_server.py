"""The server: its address and ports, the browser that it opens, and shutdown."""

import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.error
import webbrowser
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest
from waiting import HANG

from uwaga.viewer.server.server import PortError, ServedView

PROGRAM = """
import signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in a shell's background
from uwaga.viewer.messages import Reply
from uwaga.viewer.server.server import ServedView

class Service:
    def answer(self, question):
        time.sleep(question.get("seconds", 0))
        return Reply(meta={})
    def close(self):
        print("service closed", flush=True)

server = ServedView(Service(), title="a text")
print(server.address, flush=True)
server.wait()
print("closed", flush=True)
"""


def test_it_listens_on_loopback_only(server) -> None:
    assert server.address.startswith(f"http://127.0.0.1:{server.port}/#code=")
    assert len(server.address.partition("=")[2]) >= 43  # 32 random bytes
    own = {each[4][0] for each in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for address in own - {"127.0.0.1"}:
        if not address.startswith("127."):
            with pytest.raises(OSError, match=r"refused|timed out|unreachable"):
                socket.create_connection((address, server.port), timeout=2).close()


def test_two_servers_have_ports_and_tokens_of_their_own(service, server) -> None:
    with ServedView(service, title="another") as other:
        assert other.port != server.port
        assert other.address.partition("#")[2] != server.address.partition("#")[2]


def test_a_port_that_is_in_use(service, server) -> None:
    with pytest.raises(PortError) as caught:
        ServedView(service, title="another", port=server.port)
    assert str(caught.value).startswith(f"port {server.port} is not available: ")


def test_a_port_can_be_reused_at_once(service) -> None:
    with ServedView(service, title="a text") as first, socket.create_connection(("127.0.0.1", first.port)):
        port = first.port
    with ServedView(service, title="a text", port=port) as second:
        assert second.port == port


def test_a_closed_server_and_its_service_answer_no_requests(service, server) -> None:
    assert repr(server) == f"ServedView({server.address})"
    server.close()
    server.close()
    assert service.closed
    assert repr(server) == f"ServedView({server.address}, closed)"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), timeout=2)


def test_wait_ends_when_another_thread_closes_the_server(server) -> None:
    threading.Timer(0.2, server.close).start()
    server.wait()
    assert server.closed


@pytest.mark.timing
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_signals_stop_the_server_at_once(number: signal.Signals, enter: Callable[[str], dict[str, str]]) -> None:
    """With an idle connection, one that has sent half of a request, and one that waits for a long reply."""
    command = [sys.executable, "-W", "error", "-c", PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        address = running.stdout.readline()
        port = int(address.split(":")[2].split("/")[0])
        given = {"Host": f"127.0.0.1:{port}", **enter(address.strip()), "Content-Type": "application/json"}
        head = "POST /ask HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in given.items())
        body = '{"request": "x", "seconds": 1}'
        sent = ["", head, f"{head}Content-Length: {len(body)}\r\n\r\n{body}"]
        connections = [socket.create_connection(("127.0.0.1", port)) for _ in sent]
        for connection, text in zip(connections, sent, strict=True):
            connection.send(text.encode())
        time.sleep(0.2)
        began = time.monotonic()
        running.send_signal(number)
        said, complaints = running.communicate(timeout=HANG)
        assert time.monotonic() - began < 4
        assert running.returncode == 0
        assert said == "service closed\nclosed\n"
        assert complaints == ""
        for connection in connections:
            connection.close()


class Browser:
    def __init__(self, basename: str = "firefox") -> None:
        self.basename, self.opened = basename, threading.Event()

    def open(self, address: str) -> bool:
        self.address = address
        self.opened.set()
        return True


@pytest.fixture
def default_browser(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Set what finds the browser of this machine."""
    return lambda find: monkeypatch.setattr(webbrowser, "get", find)


def test_it_opens_a_graphical_browser(
    server, default_browser: Callable[..., None], enter: Callable[[str], dict[str, str]]
) -> None:
    browser = Browser()
    default_browser(lambda: browser)
    assert server.browse()
    assert browser.opened.wait(HANG)
    # Other accounts can read the browser's command line: it names a file that they cannot read.
    file = Path(url2pathname(urlsplit(browser.address).path))
    assert urlsplit(browser.address).scheme == "file"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    (address,) = set(re.findall(r'http://[^"]+', file.read_text()))
    home, code = address.split("#code=")
    assert home == f"http://127.0.0.1:{server.port}/"
    assert code not in browser.address
    assert code not in server.address  # the printed URL can still be opened
    enter(address)
    assert not file.exists()  # the file is removed
    with pytest.raises(urllib.error.HTTPError, match="403"):
        enter(address)
    assert server.browse()
    server.close()
    assert not file.parent.exists()


def test_the_address_has_a_new_code_once_its_code_is_used(service, enter: Callable[[str], dict[str, str]]) -> None:
    told: list[str] = []
    with ServedView(service, title="a text", fragment="tab=lesson", lesson=True, announce=told.append) as server:
        first = server.address
        assert first.startswith(f"http://127.0.0.1:{server.port}/?lesson#code=")
        assert first.endswith("&tab=lesson")
        assert server.address == first
        enter(first)
        second = server.address
        assert second != first
        assert told == []
        for _ in range(3):  # printed once
            with pytest.raises(urllib.error.HTTPError, match="403"):
                enter(first)
        assert told == [second]
        enter(second)
        with pytest.raises(urllib.error.HTTPError, match="403"):
            enter(first)
        assert told == [second, server.address]


def test_it_opens_no_text_browser(server, default_browser: Callable[..., None]) -> None:
    browser = Browser("w3m")
    default_browser(lambda: browser)
    assert not server.browse()

    def none() -> None:
        raise webbrowser.Error("could not locate runnable browser")

    default_browser(none)
    assert not server.browse()
    assert not browser.opened.is_set()


def test_a_closed_server_leaves_no_threads_or_files(service, tmp_path: Path) -> None:
    before = {thread.name for thread in threading.enumerate()}
    with ServedView(service, title="a text"):
        pass
    assert {thread.name for thread in threading.enumerate()} <= before
