"""Who may ask: pages of this very server, on this machine. Everything else in a browser is turned away here.

A page of another site can make a browser send requests to 127.0.0.1. What it cannot do is to choose their Host, Origin and
Sec-Fetch-* headers, or to know the token. A name of its own that leads to 127.0.0.1 (DNS rebinding) shows in Host.
"""

import hmac
from collections.abc import Iterable, Mapping
from typing import NamedTuple

TOKEN_HEADER = "X-Uwaga-Token"

Headers = Iterable[tuple[bytes, bytes]]  # as ASGI has them: names in lower case


class Refusal(NamedTuple):
    """Why a request gets nothing."""

    status: int
    error: str


class Guard:
    """The rules for one server.

    Args:
        port: where it listens, on this machine alone.
        token: what a question must carry.
    """

    def __init__(self, port: int, token: str) -> None:
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}
        if port == 80:  # browsers leave it out
            self._hosts |= {"127.0.0.1", "localhost", "[::1]"}
        self._origins = {f"http://{host}" for host in self._hosts}
        self._token = token.encode()

    def refusal(self, headers: Headers) -> Refusal | None:
        """For any request: None where it comes from this server's own page, from the address bar, or from a program."""
        found: dict[bytes, list[str]] = {}
        for name, value in headers:
            found.setdefault(name.lower(), []).append(value.decode("latin-1"))
        host, origin = found.get(b"host", []), found.get(b"origin", [])
        if len(host) != 1 or host[0].lower() not in self._hosts:
            return Refusal(403, "this server answers to its own address alone, not to another name for it")
        if any(each.lower() not in self._origins for each in origin):
            return Refusal(403, "this server answers its own page alone, not one of another origin")
        if _from_another_site({name: values[0] for name, values in found.items()}):
            return Refusal(403, "this server answers its own page alone, not one of another site")
        return None

    def knows(self, token: str | None) -> bool:
        """Whether it is this server's token; takes as long for any wrong one of its length."""
        return token is not None and hmac.compare_digest(token.encode("utf-8", "replace"), self._token)


def _from_another_site(headers: Mapping[bytes, str]) -> bool:
    """A link that a user follows may stand anywhere, such as in a terminal that is itself a page: the page has no data."""
    if headers.get(b"sec-fetch-site", "none") in ("none", "same-origin"):
        return False
    return (headers.get(b"sec-fetch-mode"), headers.get(b"sec-fetch-dest")) != ("navigate", "document")
