"""The one address that answers: a question comes in as JSON, and its reply goes out as bytes."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn, Protocol

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response

from uwaga.viewer.desk.reply import QuestionError, Reply
from uwaga.viewer.server.gate import BusyError, Gate
from uwaga.viewer.server.guard import TOKEN_HEADER, Guard

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

LARGEST = 1 << 18  # bytes of a question; the exact ones of a saved page are the longest
_READ_SECONDS, _SEND_SECONDS = 10.0, 60.0  # a connection that has gone to sleep does not keep its place

_TAKES_LONG = ("page", "npz", "weights")

_PIECE = 1 << 16  # bytes of a reply; about what a connection holds back by itself


class Desk(Protocol):
    """Who answers; thread-safe."""

    def answer(self, question: dict[str, object]) -> Reply:
        """Raises QuestionError."""
        ...

    def close(self) -> None:
        """Answer nothing more."""
        ...


class RequestError(Exception):
    """A request that is no question."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Asking:
    """POST a question with the token; 200 and a reply's bytes, or another status and {"error": message}."""

    def __init__(self, desk: Desk, guard: Guard, gate: Gate) -> None:
        self._desk, self._guard, self._gate = desk, guard, gate

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        try:
            self._check(scope["method"], Headers(scope=scope))
            with self._gate.place():
                response = await self._respond(Headers(scope=scope), receive)
                if isinstance(response, bytes):
                    await _send(response, send)
                elif response is not None:
                    await response(scope, receive, send)
        except RequestError as error:
            await _error(error.status, str(error))(scope, receive, send)
        except BusyError:
            busy = _error(503, "more is asked at once than is computed: ask again", {"Retry-After": "1"})
            await busy(scope, receive, send)

    def _check(self, method: str, headers: Headers) -> None:
        if method != "POST":
            raise RequestError(405, f"a question is sent by POST, not by {method}")
        if not self._guard.knows(headers.get(TOKEN_HEADER)):
            raise RequestError(403, "the token is missing or wrong: open the address that the program has printed")
        if headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            raise RequestError(415, "a question is sent as application/json")

    async def _respond(self, headers: Headers, receive: "Receive") -> bytes | Response | None:
        """A reply, or what is wrong; None: the asker has gone."""
        body = await _body(headers, receive)
        if body is None:
            return None
        question = read_question(body)
        try:
            return await self._gate.compute(
                lambda: self._desk.answer(question).to_bytes(),
                _gone(receive),
                takes_long=question.get("ask") in _TAKES_LONG,
            )
        except QuestionError as error:
            return _error(400, str(error))


def read_question(body: bytes) -> dict[str, object]:
    """A JSON object. Raises RequestError."""
    try:
        question = json.loads(body, parse_constant=_no_constant)
    except RecursionError as error:
        raise RequestError(400, "the question is nested too deeply") from error
    except ValueError as error:  # also of bytes that are no UTF-8, and of a number with thousands of digits
        raise RequestError(400, f"the question is no JSON: {error}") from error
    if not isinstance(question, dict):
        raise RequestError(400, "a question is a JSON object")
    return question


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


async def _body(headers: Headers, receive: "Receive") -> bytes | None:
    """None: the asker has gone. Raises RequestError before more than LARGEST bytes are held."""
    too_large = RequestError(413, f"a question has at most {LARGEST} bytes")
    announced = headers.get("content-length", "0")
    if announced.isdecimal() and int(announced[:20]) > LARGEST:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(_READ_SECONDS):
            while True:
                message: Message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                body += message.get("body", b"")
                if len(body) > LARGEST:
                    raise too_large
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError as error:
        raise RequestError(408, "the question did not come to its end") from error


async def _send(data: bytes, send: "Send") -> None:
    """In pieces, each when the one before it is on its way: what nobody takes is not kept for him for long.

    Who does not take it in time gets no more; uvicorn logs that and hangs up.
    """
    headers = [(b"content-type", b"application/octet-stream"), (b"content-length", str(len(data)).encode())]
    with suppress(TimeoutError):
        async with asyncio.timeout(_SEND_SECONDS):
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            for at in range(0, len(data), _PIECE):
                await send({"type": "http.response.body", "body": data[at : at + _PIECE], "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: "Receive") -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return _Ascii({"error": message}, status_code=status, headers=headers)


class _Ascii(JSONResponse):
    """Messages repeat what was asked, which may hold halves of surrogate pairs."""

    def render(self, content: object) -> bytes:
        return json.dumps(content).encode("ascii")
