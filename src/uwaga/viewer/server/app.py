"""What a server serves: the page, its script and styles, and the answers; nothing else, and to nobody else."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from uwaga.viewer.page.bundle import bundle
from uwaga.viewer.page.shell import served_shell
from uwaga.viewer.server.asking import Asking, Desk
from uwaga.viewer.server.gate import Gate
from uwaga.viewer.server.guard import Guard

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


def application(desk: Desk, *, title: str, guard: Guard, gate: Gate) -> "ASGIApp":
    """The ASGI application that shows what a desk knows."""
    routes = [
        _file("/", "text/html; charset=utf-8", lambda: served_shell(title)),
        _file("/app.js", "text/javascript; charset=utf-8", lambda: bundle().script("served")),
        _file("/app.css", "text/css; charset=utf-8", lambda: bundle().css),
        Route("/ask", Asking(desk, guard, gate)),
    ]
    return _Guarded(Starlette(routes=routes, exception_handlers={HTTPException: _refused, Exception: _failed}), guard)


def _file(path: str, kind: str, text: Callable[[], str]) -> Route:
    async def respond(request: Request) -> Response:
        return Response(text(), headers={"Content-Type": kind})

    return Route(path, respond)


async def _refused(request: Request, error: Exception) -> Response:
    """A path or a method that there is not."""
    assert isinstance(error, HTTPException)
    said = {404: "there is nothing at this address", 405: f"{request.method} is not understood here"}
    return JSONResponse({"error": said.get(error.status_code, error.detail)}, error.status_code, error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    """A defect of ours. Starlette raises it again once this is sent, and uvicorn logs it with its traceback."""
    return JSONResponse({"error": "the program failed at this question; its log says how"}, 500)


class _Guarded:
    """The guard in front of everything, and the headers on everything."""

    def __init__(self, app: "ASGIApp", guard: Guard) -> None:
        self._app, self._guard = app, guard

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        assert scope["type"] == "http", "the server offers neither websockets nor a lifespan"

        async def send_with_headers(message: "Message") -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        refusal = self._guard.refusal(scope["headers"])
        app = self._app if refusal is None else JSONResponse({"error": refusal.error}, refusal.status)
        await app(scope, receive, send_with_headers)
