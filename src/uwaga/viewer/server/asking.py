"""The one address that answers: a question comes in as JSON, and its reply goes out as bytes."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NoReturn, Protocol

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, Response

from uwaga.viewer.desk.reply import QuestionError, Reply
from uwaga.viewer.server.gate import BusyError, Gate
from uwaga.viewer.server.guard import COOKIE_PATH, TOKEN_HEADER, Guard, UsedError

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

LARGEST = 1 << 18  # bytes of a question; the exact ones of a saved page are the longest
_LARGEST_ENTRY = 1 << 10  # bytes of a code as JSON
_READ_SECONDS = 10.0  # a connection that has gone to sleep does not keep its place

_TAKES_LONG = ("page", "npz", "weights")


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
    """POST a question with token and cookie; 200 and a reply's bytes, or another status and {"error": message}."""

    def __init__(self, desk: Desk, guard: Guard, gate: Gate) -> None:
        self._desk, self._guard, self._gate = desk, guard, gate

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        try:
            self._check(scope["method"], Headers(scope=scope))
            with self._gate.place():
                response = await self._respond(Headers(scope=scope), receive)
                if response is not None:
                    await response(scope, receive, send)
        except RequestError as error:
            await _error(error.status, str(error))(scope, receive, send)
        except BusyError:
            busy = _error(503, "more is asked at once than is computed: ask again", {"Retry-After": "1"})
            await busy(scope, receive, send)

    def _check(self, method: str, headers: Headers) -> None:
        _need_post(method)
        if not is_known(self._guard, headers):
            raise RequestError(
                403, "the token or the cookie is missing or wrong: open the address that the program has printed"
            )
        _need_json(headers)

    async def _respond(self, headers: Headers, receive: "Receive") -> Response | None:
        """A reply, or what is wrong; None: the asker has gone."""
        body = await _body(headers, receive, LARGEST)
        if body is None:
            return None
        question = read_question(body)
        try:
            reply = await self._gate.compute(
                lambda: self._desk.answer(question).to_bytes(),
                _gone(receive),
                takes_long=question.get("ask") in _TAKES_LONG,
            )
            return None if reply is None else Response(reply, media_type="application/octet-stream")
        except QuestionError as error:
            return _error(400, str(error))


class Entering:
    """POST {"code": code}; 200 with {"token": token} and the cookie, or another status and {"error": message}.

    Who has token and cookie already gets the token again, and the code is not used.
    """

    def __init__(self, guard: Guard, renew: Callable[[], object]) -> None:
        self._guard, self._renew = guard, renew

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        try:
            response = await self._respond(scope["method"], Headers(scope=scope), receive)
        except RequestError as error:
            response = _error(error.status, str(error))
        if response is not None:
            await response(scope, receive, send)

    async def _respond(self, method: str, headers: Headers, receive: "Receive") -> Response | None:
        _need_post(method)
        _need_json(headers)
        body = await _body(headers, receive, _LARGEST_ENTRY)
        if body is None:
            return None
        response = _Ascii({"token": self._guard.token})
        if is_known(self._guard, headers):
            return response
        code = read_question(body).get("code")
        try:
            if not isinstance(code, str) or not self._guard.exchange(code):
                raise RequestError(403, "the code is missing or wrong: open the address that the program has printed")
        except UsedError as error:
            self._renew()
            raise RequestError(
                403, "this address was opened once already: open the new one that the program has printed"
            ) from error
        response.set_cookie(
            self._guard.cookie_name, self._guard.cookie, path=COOKIE_PATH, httponly=True, samesite="strict"
        )
        return response


def is_known(guard: Guard, headers: Headers) -> bool:
    """Whether a request carries this server's token and cookie."""
    cookie = cookie_parser(headers.get("cookie", "")).get(guard.cookie_name)
    return guard.knows(headers.get(TOKEN_HEADER), cookie)


def _need_post(method: str) -> None:
    if method != "POST":
        raise RequestError(405, f"a question is sent by POST, not by {method}")


def _need_json(headers: Headers) -> None:
    if headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise RequestError(415, "a question is sent as application/json")


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


async def _body(headers: Headers, receive: "Receive", largest: int) -> bytes | None:
    """None: the asker has gone. Raises RequestError before more bytes are held."""
    too_large = RequestError(413, f"a question has at most {largest} bytes")
    announced = headers.get("content-length", "0")
    if announced.isdecimal() and int(announced[:20]) > largest:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(_READ_SECONDS):
            while True:
                message: Message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                body += message.get("body", b"")
                if len(body) > largest:
                    raise too_large
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError as error:
        raise RequestError(408, "the question did not come to its end") from error


async def _gone(receive: "Receive") -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return _Ascii({"error": message}, status_code=status, headers=headers)


class _Ascii(JSONResponse):
    """Messages repeat what was asked, which may hold halves of surrogate pairs."""

    def render(self, content: object) -> bytes:
        return json.dumps(content).encode("ascii")
