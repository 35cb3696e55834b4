"""The server: its address and ports, the browser that it opens, and shutdown."""

import re
import socket
import stat
import threading
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest
from waiting import HANG

from uwaga._base.connections import PortError
from uwaga.viewer.server.server import ServedView


def test_it_listens_on_loopback_only(server) -> None:
    assert server.address.startswith(f"http://127.0.0.1:{server.port}/#token=")
    assert len(server.address.partition("=")[2]) >= 43  # 32 random bytes
    addresses = {result[4][0] for result in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for address in addresses - {"127.0.0.1"}:
        if not address.startswith("127."):
            with pytest.raises(OSError, match=r"refused|timed out|unreachable"):
                socket.create_connection((address, server.port), timeout=2).close()


def test_a_port_that_is_in_use(service, server) -> None:
    with pytest.raises(PortError) as caught:
        ServedView(service, title="another", port=server.port)
    assert str(caught.value).startswith(f"port {server.port} of 127.0.0.1 is not available: ")


def test_a_port_can_be_reused_at_once(service) -> None:
    with ServedView(service, title="a text") as first, socket.create_connection(("127.0.0.1", first.port)):
        port = first.port
    with ServedView(service, title="a text", port=port) as second:
        assert second.port == port


def test_a_closed_server_answers_no_requests_and_leaves_no_threads(service) -> None:
    """Also while a connection has sent half of a request."""
    before = {thread.name for thread in threading.enumerate()}
    server = ServedView(service, title="a text")
    assert repr(server) == f"ServedView({server.address})"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.send(b"POST /ask HTTP/1.1\r\nContent-Length: 9\r\n")
        closing = threading.Timer(0.2, server.close)
        closing.start()
        server.wait()  # ends when another thread closes the server
    closing.join()
    server.close()
    assert service.closed
    assert repr(server) == f"ServedView({server.address}, closed)"
    assert {thread.name for thread in threading.enumerate()} <= before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), timeout=2)


def test_it_opens_a_graphical_browser(server, default_browser) -> None:
    assert server.browse()
    assert default_browser.opened.wait(HANG)
    # Other accounts can read the browser's command line: it names a file that they cannot read.
    file = Path(url2pathname(urlsplit(default_browser.address).path))
    assert urlsplit(default_browser.address).scheme == "file"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert server.access.token not in default_browser.address
    assert set(re.findall(r'http://[^"]+', file.read_text())) == {server.address}
    assert server.browse()
    server.close()
    assert not file.parent.exists()


def test_the_address_has_what_the_page_opens_with(service) -> None:
    with ServedView(service, title="a text", fragment="tab=lesson", lesson=True) as server:
        home = f"http://127.0.0.1:{server.port}/?lesson#token="
        assert server.address == f"{home}{server.access.token}&tab=lesson"


def test_it_opens_no_text_browser(server, default_browser) -> None:
    for name in ("w3m", ""):
        default_browser.basename = name
        assert not server.browse()
    assert not default_browser.opened.is_set()
