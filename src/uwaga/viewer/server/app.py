"""The ASGI application: the page, its script and styles, and the request handlers, behind access control and size limits."""

import asyncio
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from uwaga._base.connections import read_body, require_json, unless_gone
from uwaga._base.errors import CheckpointError
from uwaga._base.languages import LANGUAGES, of_header
from uwaga._base.untrusted import json_of
from uwaga.viewer.messages import RequestError, Service
from uwaga.viewer.page.bundle import bundle
from uwaga.viewer.page.html import served_html
from uwaga.viewer.server.access import TOKEN_HEADER, AccessControl
from uwaga.viewer.server.limits import ConcurrencyLimiter
from uwaga.viewer.service import TABLE

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Content-Security-Policy: load from this server only, no strings as HTML (Trusted Types), no framing by other pages.
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

MAX_BODY_BYTES = 1 << 18  # body of a request; the list of exact tiles of a snapshot is the longest
CHUNK = 1 << 14  # bytes of a response that are sent at once; a connection buffers four chunks and one more


def application(
    service: Service,
    *,
    title: str,
    language: str | None = None,
    access: AccessControl,
    limiter: ConcurrencyLimiter,
) -> "ASGIApp":
    """Return the ASGI application of a view.

    Args:
        language: of the page; None: what the browser prefers. The page's address may name another.
    """
    routes = [
        _page(title, language),
        *_front("app", lesson=False),
        *_front("lesson", lesson=True),
        Route("/ask", RequestHandler(service, access, limiter), methods=["POST"]),
    ]
    kinds = (RequestError, ClientDisconnect, HTTPException, Exception)
    return _Protected(Starlette(routes=routes, exception_handlers=dict.fromkeys(kinds, _error)), access)


class RequestHandler:
    """POST a request with the token; 200 and a reply's bytes, or another status and {"error": message}."""

    def __init__(self, service: Service, access: AccessControl, limiter: ConcurrencyLimiter) -> None:
        self._service, self._access, self._limiter = service, access, limiter

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        request = Request(scope, receive)
        if not self._access.is_authorized(request.headers.get(TOKEN_HEADER)):
            raise HTTPException(403, "the token is missing or wrong: open the URL that the program has printed")
        require_json(request)
        with self._limiter.slot():
            try:
                asked = json_of(await read_body(request, MAX_BODY_BYTES), "the request")
            except CheckpointError as error:
                raise HTTPException(400, str(error)) from error
            handler = TABLE.get(str(asked.get("request")))
            computed = self._limiter.compute(
                lambda: self._service.answer(asked).to_bytes(), "short" if handler is None else handler.lane
            )
            reply = await unless_gone(receive, computed)
            await Response(reply, media_type="application/octet-stream")(scope, receive, send)


class _Protected:
    """Access control in front of an application, security headers on all responses, and bodies sent in chunks.

    A chunk waits until those before it are sent, so that a client that does not read its responses holds a few chunks of memory
    at most.
    """

    def __init__(self, app: "ASGIApp", access: AccessControl) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        assert scope["type"] == "http", "the server offers neither websockets nor a lifespan"

        async def send_with_headers(message: "Message") -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
                await send(message)
                return
            body, more = message.get("body", b""), message.get("more_body", False)
            for at in range(0, max(len(body), 1), CHUNK):
                is_last = not more and at + CHUNK >= len(body)
                await send({**message, "body": body[at : at + CHUNK], "more_body": not is_last})
                await asyncio.sleep(0)  # where the client has gone, uvicorn learns it here, and sends no more

        error = self._access.refusal(scope["headers"])
        app = self._app if error is None else JSONResponse({"error": error}, 403)
        await app(scope, receive, send_with_headers)


def _page(title: str, language: str | None) -> Route:
    async def respond(request: Request) -> Response:
        chosen = request.query_params.get("language", language or "")
        if chosen not in LANGUAGES:
            chosen = of_header(request.headers.get("accept-language", ""))
        page = served_html(title, chosen, lesson="lesson" in request.query_params).encode()
        return HTMLResponse(page, headers={"Content-Language": chosen, "Vary": "Accept-Language"})

    return Route("/", respond)


def _front(name: str, *, lesson: bool) -> tuple[Route, Route]:
    """Return the routes of the page's script and style sheet, with the lesson or without it."""

    async def script(request: Request) -> Response:
        return Response(bundle(lesson=lesson).script("served"), media_type="text/javascript")

    async def styles(request: Request) -> Response:
        return Response(bundle(lesson=lesson).css, media_type="text/css")

    return Route(f"/{name}.js", script), Route(f"/{name}.css", styles)


async def _error(request: Request, error: Exception) -> Response:
    """Return {"error": message}; uvicorn logs an unexpected exception with its traceback."""
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)
    if isinstance(error, RequestError | ClientDisconnect):  # nobody reads the answer to the latter
        return JSONResponse({"error": str(error)}, 400)
    return JSONResponse({"error": "internal error; the program's log has the traceback"}, 500)
