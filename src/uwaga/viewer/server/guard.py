"""Who may ask: pages of this very server, on this machine. Everything else in a browser is turned away here.

A page of another site can make a browser send requests to 127.0.0.1. What it cannot do is to choose their Host, Origin and
Sec-Fetch-* headers, or to know the token. A name of its own that leads to 127.0.0.1 (DNS rebinding) shows in Host.

The page's address holds a code that is worth something once: the page exchanges it for a cookie and a token, and a question
needs both. Scripts cannot read the cookie, and a server at another port of this machine, to which browsers send cookies too,
cannot read the token, which is in storage of the page's origin.
"""

import hmac
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

TOKEN_HEADER = "X-Uwaga-Token"
COOKIE_PATH = "/ask"  # what browsers send the cookie with; nothing else needs it
_MOST_CODES = 64  # that are remembered, of those that were used and of those that were not

Headers = Iterable[tuple[bytes, bytes]]  # as ASGI has them: names in lower case


class Refusal(NamedTuple):
    """Why a request gets nothing."""

    status: int
    error: str


class UsedError(Exception):
    """A code that was worth something once."""


class Guard:
    """The rules for one server. Its codes may be had in any thread.

    Args:
        port: where it listens, on this machine alone.
        used: told each code when it is exchanged.

    Attributes:
        token, cookie: what a question must carry, in a header and as the cookie `cookie_name`.
    """

    def __init__(self, port: int, used: Callable[[str], object] = lambda code: None) -> None:
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}
        if port == 80:  # browsers leave it out
            self._hosts |= {"127.0.0.1", "localhost", "[::1]"}
        self._origins = {f"http://{host}" for host in self._hosts}
        self.token, self.cookie, self.cookie_name = (
            secrets.token_urlsafe(32),
            secrets.token_urlsafe(32),
            f"uwaga-{port}",
        )
        self._lock, self._used = threading.Lock(), used
        self._codes: deque[str] = deque(maxlen=_MOST_CODES)
        self._spent: deque[str] = deque(maxlen=_MOST_CODES)
        self._address_code = ""

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

    def knows(self, token: str | None, cookie: str | None) -> bool:
        """Whether they are this server's; takes as long for any wrong ones of their length."""
        return token is not None and cookie is not None and _same(token, self.token) & _same(cookie, self.cookie)

    def new_code(self) -> str:
        """One more that can be exchanged, once."""
        code = secrets.token_urlsafe(32)
        with self._lock:
            self._codes.append(code)
        return code

    def address_code(self) -> str:
        """A code that nobody has exchanged yet; the same until somebody does."""
        with self._lock:
            if self._address_code not in self._codes:
                self._address_code = secrets.token_urlsafe(32)
                self._codes.append(self._address_code)
            return self._address_code

    def exchange(self, code: str) -> bool:
        """Whether the code is one, which it is no longer. Raises UsedError: it has been."""
        with self._lock:
            found = [each for each in self._codes if _same(code, each)]
            if not found and any(_same(code, each) for each in self._spent):
                raise UsedError
            for each in found:
                self._codes.remove(each)
                self._spent.append(each)
        for each in found:
            self._used(each)
        return bool(found)


def _same(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), secret.encode())


def _from_another_site(headers: Mapping[bytes, str]) -> bool:
    """A link that a user follows may stand anywhere, such as in a terminal that is itself a page: the page has no data."""
    if headers.get(b"sec-fetch-site", "none") in ("none", "same-origin"):
        return False
    return (headers.get(b"sec-fetch-mode"), headers.get(b"sec-fetch-dest")) != ("navigate", "document")
