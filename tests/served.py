"""Requests to a server's application in this process, where they are coroutines and nothing listens on a port."""

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from uwaga.serve.app import Service, application


class Answer(NamedTuple):
    """A response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def request(
    app: Any,
    method: str,
    path: str,
    parts: Sequence[bytes],
    headers: Mapping[str, str],
    *,
    gone: asyncio.Event | None = None,
    events: list[str] | None = None,
) -> Answer:
    """Send a request to an ASGI application.

    Args:
        parts: the body, as it arrives.
        headers: names with _ for -.
        gone: once it is set, the client has disconnected; None: the client stays.
        events: gets the types of the messages of the answer.
    """
    left, gone = list(parts), gone or asyncio.Event()
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if left:
            part = left.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(left)}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)
        if events is not None:
            events.append(message["type"])

    lines = [(name.lower().replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"", "headers": lines,
        "client": ("127.0.0.1", 1),
    }  # fmt: skip
    await app(scope, receive, send)
    if not sent:
        return Answer(0, {}, b"")
    names = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], names, b"".join(message.get("body", b"") for message in sent[1:]))


class Client:
    """Sends requests to the application of `uwaga serve`."""

    def __init__(self, service: Service) -> None:
        self.service, self.app = service, application(service)
        self.events: list[str] = []  # the types of the messages of all answers

    async def get(self, path: str, *, method: str = "GET", **headers: str) -> Answer:
        return await self.send(method, path, [], headers)

    async def post(self, path: str, body: object, *, gone: asyncio.Event | None = None, **headers: str) -> Answer:
        """body: bytes, or what becomes JSON. gone: once it is set, the client has disconnected."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.send("POST", path, [content], {"Content_Type": "application/json"} | headers, gone)

    async def send(
        self, method: str, path: str, parts: Sequence[bytes], headers: dict[str, str], gone: asyncio.Event | None = None
    ) -> Answer:
        return await request(self.app, method, path, parts, headers, gone=gone, events=self.events)


def served(**settings: Any) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Run a test, which is a coroutine function of a client, with hold=True of a held model too, and of fixtures, with the fixture `serving`."""

    def decorate(test: Callable[..., Any]) -> Callable[..., None]:
        def run(serving: Callable[..., None], **fixtures: Any) -> None:
            serving(partial(test, **fixtures), **settings)

        names = ["serving", *list(inspect.signature(test).parameters)[1 + bool(settings.get("hold")) :]]
        parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # by which pytest finds fixtures
        run.__dict__.update(vars(test))
        return run

    return decorate
