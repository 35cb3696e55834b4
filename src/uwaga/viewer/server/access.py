"""Access control: a request is answered only if it comes from this server's own page, in a browser that opened the printed URL.

A page of another site can make a browser send requests to 127.0.0.1, but cannot set their Host and Origin
headers, and does not know the token. If that site's domain name
resolves to 127.0.0.1 (DNS rebinding), the Host header holds that name, and the request is refused.

The URL of the page holds a one-time code, which the page exchanges for a session: a cookie and a token, both of which every
request needs. Scripts cannot read the cookie (HttpOnly). A server on another port of this machine, to which browsers send
the cookie too, cannot read the token, which is in the storage of the page's origin.
"""

import hmac
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable

TOKEN_HEADER = "X-Uwaga-Token"
COOKIE_PATH = "/ask"  # browsers send the cookie with requests to this path only
_MAX_CODES = 64  # how many unused codes are remembered

Headers = Iterable[tuple[bytes, bytes]]  # as in ASGI: lower-case names


class AccessControl:
    """The rules for one server, its one-time codes, and its session's token and cookie. Thread-safe.

    Args:
        port: the server's, on this machine.
        used: called with each code when it is exchanged.

    Attributes:
        token, cookie: what a request must carry, in the header TOKEN_HEADER and as the cookie `cookie_name`.
    """

    def __init__(self, port: int, used: Callable[[str], object] = lambda code: None) -> None:
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}
        if port == 80:  # browsers omit the default port
            self._hosts |= {"127.0.0.1", "localhost", "[::1]"}
        self._origins = {f"http://{host}" for host in self._hosts}
        self.token, self.cookie = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self.cookie_name = f"uwaga-{port}"
        self._lock, self._used = threading.Lock(), used
        self._codes: deque[str] = deque(maxlen=_MAX_CODES)
        self._url_code = ""

    def refusal(self, headers: Headers) -> str | None:
        """Return why a request is rejected; None from the own page, the address bar or a program."""
        results: dict[bytes, list[str]] = {}
        for name, value in headers:
            results.setdefault(name.lower(), []).append(value.decode("latin-1"))
        host, origin = results.get(b"host", []), results.get(b"origin", [])
        if len(host) != 1 or host[0].lower() not in self._hosts:
            return "forbidden: the Host header is not this server's address"
        if any(name.lower() not in self._origins for name in origin):
            return "forbidden: the request comes from another origin"
        return None

    def is_authorized(self, token: str | None, cookie: str | None) -> bool:
        """Return whether both are this server's, compared in constant time."""
        return token is not None and cookie is not None and _same(token, self.token) & _same(cookie, self.cookie)

    def new_code(self) -> str:
        """Return a new one-time code, in addition to that of the printed URL."""
        code = secrets.token_urlsafe(32)
        with self._lock:
            self._codes.append(code)
        return code

    def url_code(self) -> str:
        """Return the printed URL's one-time code: the same until it is exchanged, then a new one."""
        with self._lock:
            if self._url_code not in self._codes:
                self._url_code = secrets.token_urlsafe(32)
                self._codes.append(self._url_code)
            return self._url_code

    def exchange(self, code: str) -> bool:
        """Use a one-time code, and return whether it was valid."""
        with self._lock:
            found = [valid for valid in self._codes if _same(code, valid)]
            for valid in found:
                self._codes.remove(valid)
        if found:
            self._used(code)
        return bool(found)


def _same(offered: str, secret: str) -> bool:
    return hmac.compare_digest(offered.encode("utf-8", "replace"), secret.encode())
