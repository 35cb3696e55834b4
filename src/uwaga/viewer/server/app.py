"""What a server serves: the page, its script and styles, and the answers; nothing else, and to nobody else."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from uwaga.viewer.page.bundle import bundle
from uwaga.viewer.page.shell import served_shell
from uwaga.viewer.server.asking import Asking, Desk, Entering, is_known
from uwaga.viewer.server.connections import Connections
from uwaga.viewer.server.gate import Gate
from uwaga.viewer.server.guard import Guard, Refusal

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Everything comes from this server, nothing may be put into the page as markup, and no other page may hold this one.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Cache-Control": "no-store",
}


_LARGEST_HEAD = 1 << 15  # bytes of a request's address and headers
_FRESH_SECONDS = 1.0  # after which the front end's files are looked at again, for those who change them
_PIECE = 1 << 14  # bytes of a response that are sent at once; a connection holds back four times as much, and one more


def application(
    desk: Desk, *, title: str, guard: Guard, gate: Gate, connections: Connections, renew: Callable[[], object]
) -> "ASGIApp":
    """The ASGI application that shows what a desk knows.

    Args:
        renew: called when somebody comes with a code that was used already.
    """
    routes = [
        _file("/", "text/html; charset=utf-8", lambda: served_shell(title)),
        _file("/app.js", "text/javascript; charset=utf-8", lambda: bundle().script("served")),
        _file("/app.css", "text/css; charset=utf-8", lambda: bundle().css),
        Route("/ask", Asking(desk, guard, gate)),
        Route("/ask/enter", Entering(guard, renew)),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _refused, Exception: _failed})
    return _Guarded(app, guard, connections)


def _file(path: str, kind: str, text: Callable[[], str]) -> Route:
    made, kept = float("-inf"), b""  # the same bytes for all who ask at once

    async def respond(request: Request) -> Response:
        nonlocal made, kept
        if time.monotonic() - made >= _FRESH_SECONDS:
            made, kept = time.monotonic(), text().encode()
        return Response(kept, headers={"Content-Type": kind})

    return Route(path, respond)


async def _refused(request: Request, error: Exception) -> Response:
    """A path or a method that there is not."""
    assert isinstance(error, HTTPException)
    said = {404: "there is nothing at this address", 405: f"{request.method} is not understood here"}
    return JSONResponse({"error": said.get(error.status_code, error.detail)}, error.status_code, error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    """A defect of ours. Starlette raises it again once this is sent, and uvicorn logs it with its traceback."""
    return JSONResponse({"error": "the program failed at this question; its log says how"}, 500)


def _too_large(scope: "Scope") -> Refusal | None:
    """What comes at once, h11 reads to its end however large it is; what comes in parts it bounds by itself."""
    size = len(scope["raw_path"]) + sum(len(name) + len(value) for name, value in scope["headers"])
    return Refusal(431, f"address and headers have more than {_LARGEST_HEAD} bytes") if size > _LARGEST_HEAD else None


class _Guarded:
    """The guard in front of everything, and the headers on everything, which is sent in pieces.

    A piece waits until the ones before it are on their way: what nobody takes is not held for him. A connection is used again
    by those alone who have the token: of others, a thousand that send requests one behind the other get a response each.
    """

    def __init__(self, app: "ASGIApp", guard: Guard, connections: Connections) -> None:
        self._app, self._guard, self._connections = app, guard, connections

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        assert scope["type"] == "http", "the server offers neither websockets nor a lifespan"

        headers = _HEADERS if is_known(self._guard, Headers(scope=scope)) else {**_HEADERS, "Connection": "close"}

        async def send_with_headers(message: "Message") -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(headers)
                await send(message)
                return
            body, more = message.get("body", b""), message.get("more_body", False)
            for at in range(0, max(len(body), 1), _PIECE):
                is_last = not more and at + _PIECE >= len(body)
                await send({**message, "body": body[at : at + _PIECE], "more_body": not is_last})
                self._connections.advance(scope["client"], complete=is_last)

        refusal = _too_large(scope) or self._guard.refusal(scope["headers"])
        app = self._app if refusal is None else JSONResponse({"error": refusal.error}, refusal.status)
        await app(scope, receive, send_with_headers)
