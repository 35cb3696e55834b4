"""Access control: Host and Origin headers, and the token."""

import pytest

from uwaga.viewer.server.access import AccessControl

ACCESS = AccessControl(8123)
OTHER_NAME = "forbidden: the Host header is not this server's address"
OTHER_ORIGIN = "forbidden: the request comes from another origin"
HOST = ("host", "127.0.0.1:8123")


def refusal(*headers: tuple[str, str]) -> str | None:
    return ACCESS.refusal([(name.encode(), value.encode()) for name, value in headers])


OTHER_HOSTS = """attacker.example attacker.example:8123 127.0.0.1 127.0.0.1:8124 0.0.0.0:8123 127.0.0.1:8123.attacker.example
127.0.0.1.attacker.example:8123"""
OTHER_ORIGINS = "http://attacker.example https://127.0.0.1:8123 http://127.0.0.1:8888 http://localhost null file://"


def test_only_requests_to_this_server_are_accepted() -> None:
    for host in ("127.0.0.1:8123", "localhost:8123", "LOCALHOST:8123", "[::1]:8123"):
        assert refusal(("host", host)) is None
        assert refusal(("host", host), ("origin", f"http://{host}")) is None
    for hosts in ([], [""], ["localhost:8123", "attacker.example"], *([host] for host in OTHER_HOSTS.split())):
        assert refusal(*(("host", host) for host in hosts)) == OTHER_NAME, hosts


@pytest.mark.parametrize("origin", ["", *OTHER_ORIGINS.split()])
def test_other_origins_are_refused(origin: str) -> None:
    assert refusal(HOST, ("origin", origin)) == OTHER_ORIGIN
    assert refusal(HOST, ("origin", "http://127.0.0.1:8123"), ("origin", origin)) == OTHER_ORIGIN


def test_a_host_header_may_omit_port_80() -> None:
    access = AccessControl(80)
    assert access.refusal([(b"host", b"localhost"), (b"origin", b"http://localhost")]) is None


def test_the_token() -> None:
    token = ACCESS.token
    assert len(token) >= 43  # 32 random bytes
    assert ACCESS.is_authorized(token)
    for wrong in (None, "", "secret", "s\u00e9cret", "\udcff", token[:-1], token + "a", token.swapcase()):
        assert not ACCESS.is_authorized(wrong)
