"""Access control: a request is answered only if it comes from this server's own page, in a browser that opened the printed URL.

A page of another site can make a browser send requests to 127.0.0.1, but cannot set their Host and Origin headers, and does not know the
token. If that site's domain name resolves to 127.0.0.1 (DNS rebinding), the Host header holds that name, and the request is refused.

The URL of the page holds the token in its fragment, which browsers neither send nor log. The page stores it for its origin, which is
this port's alone, and removes it from the address.
"""

import hmac
import secrets
from collections.abc import Iterable

TOKEN_HEADER = "X-Uwaga-Token"

Headers = Iterable[tuple[bytes, bytes]]  # as in ASGI: lower-case names


class AccessControl:
    """The rules for one server.

    Args:
        port: the server's, on this machine.

    Attributes:
        token: what a request must carry in the header TOKEN_HEADER.
    """

    def __init__(self, port: int) -> None:
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}
        if port == 80:  # browsers omit the default port
            self._hosts |= {"127.0.0.1", "localhost", "[::1]"}
        self._origins = {f"http://{host}" for host in self._hosts}
        self.token = secrets.token_urlsafe(32)

    def refusal(self, headers: Headers) -> str | None:
        """Return why a request is rejected; None from the own page, the address bar or a program."""
        hosts, origins = (
            [value.decode("latin-1").lower() for name, value in headers if name.lower() == key]
            for key in (b"host", b"origin")
        )
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return "forbidden: the Host header is not this server's address"
        if not self._origins.issuperset(origins):
            return "forbidden: the request comes from another origin"
        return None

    def is_authorized(self, token: str | None) -> bool:
        """Return whether a token is this server's, compared in constant time."""
        return token is not None and hmac.compare_digest(token.encode("utf-8", "replace"), self.token.encode())
