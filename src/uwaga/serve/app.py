"""The ASGI application: the interfaces of OpenAI, Cohere, Jina and TEI, behind keys and limits."""

import asyncio
import base64
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from uuid import uuid4

import numpy as np
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from uwaga._base.connections import IdleConnectionReaper
from uwaga._base.terminal import printable
from uwaga.serve import openapi
from uwaga.serve.metrics import CONTENT_TYPE, Metrics
from uwaga.serve.models import EmbeddingModel, Ranker, TokenBudget, Work, check_finite
from uwaga.serve.requests import ApiError, Form, Limits, RerankRequest, embeddings_request, rerank_request
from uwaga.serve.scheduler import Job, QueueFullError, QueueSize, Run, Scheduler

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_HEADER_BYTES = 1 << 15  # URL and headers of a request
_CHUNK = 1 << 16  # bytes of a response that are sent at once
_READERS = 2  # threads that parse and tokenize requests; the tokenizer works outside of Python's lock
_LARGE = (
    1 << 18
)  # bytes of a body that has a thread of its own kind, so that seconds of its tokenizer hold up no small one
_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
_LOG = logging.getLogger("uwaga.serve")
T = TypeVar("T")


class Prepared(NamedTuple):
    """A request that is checked and tokenized."""

    works: Sequence[Work]
    reply: Callable[
        [Sequence[np.ndarray]], Iterable[bytes]
    ]  # from the rows of each work to the JSON of the response, in pieces


class Service:
    """What the endpoints share. Belongs to one event loop but for `embeddings` and `rerank`, which read requests in threads.

    Args:
        model: of the vectors.
        ranker: of passages.
        name: of the model in requests and replies.
        step_tokens: tokens that the model reads at a time.
        truncate: whether texts longer than the model are truncated where a request does not say.
        keys: digests (`digest_of`) of the keys of clients; None: everybody is answered.
        log: called with a line for each request once it is answered; None: nothing is logged.
        metrics: what is counted; None: for this service alone.
    """

    def __init__(
        self,
        model: EmbeddingModel,
        ranker: Ranker,
        *,
        name: str,
        run: Run | None = None,
        step_tokens: int = 2048,
        truncate: bool = False,
        limits: Limits = Limits(),  # noqa: B008  # frozen
        keys: frozenset[bytes] | None = None,
        log: Callable[[str], object] | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.model, self.ranker, self.name, self.limits, self._keys = model, ranker, name, limits, keys
        self._truncate, self.log = truncate, log
        self.metrics = metrics or Metrics()
        most = QueueSize(limits.queue_requests, limits.queue_items, limits.queue_tokens)
        self.scheduler = Scheduler(run or ranker.run, step_tokens=step_tokens, limit=most, on_step=self.metrics.step)
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="uwaga-read")
        self._large_reader = ThreadPoolExecutor(1, thread_name_prefix="uwaga-read-large")
        self.body_bytes = 0  # of requests that are not answered

    def close(self) -> None:
        """After the last response: end the threads."""
        for each in (self._readers, self._large_reader):
            each.shutdown(wait=True, cancel_futures=True)
        self.scheduler.close()

    def check_key(self, headers: Headers) -> None:
        """Raises ApiError: the request has no key, or none that is known. Digests are compared, so that the time tells nothing."""
        if self._keys is None:
            return
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or digest_of(key.strip()) not in self._keys:
            message = "the key is missing or wrong: send the header Authorization: Bearer KEY"
            raise ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})

    def embeddings(self, form: Form, body: bytes) -> Prepared:
        """Raises ApiError."""
        model, limits = self.model, self.limits
        request = embeddings_request(
            body,
            model=self.name,
            form=form,
            width=model.width,
            prompts=model.prompts,
            truncate=self._truncate,
            truncates_left=model.truncates_left,
            limits=limits,
        )
        given, budget = request.input, TokenBudget(limits.tokens)
        if request.ids is not None:
            given = given._replace(texts=model.texts_of(request.ids, given, limits))
        work = model.work(given, prompt=request.prompt, budget=budget, normalize=request.normalize)

        def reply(rows: Sequence[np.ndarray]) -> Iterator[bytes]:
            check_finite(rows[0], given, "vector")
            vectors = model.shortened(rows[0], request.dimensions, request.normalize)
            if form == "tei":
                return _list_of_lists(vectors)
            return _embeddings_json(vectors, is_base64=request.is_base64, name=self.name, tokens=budget.spent)

        return Prepared([work], reply)

    def rerank(self, form: Form, body: bytes) -> Prepared:
        """Raises ApiError."""
        request = rerank_request(
            body,
            model=self.name,
            form=form,
            truncate=self._truncate,
            truncates_left=self.ranker.truncates_left,
            limits=self.limits,
        )
        budget = TokenBudget(self.limits.tokens)
        works, given, counts = self.ranker.works(request, budget)

        def reply(rows: Sequence[np.ndarray]) -> list[bytes]:
            parts = iter(self.ranker.scores(rows, given, raw=request.raw_scores))
            scores = [max(islice(parts, count)) for count in counts]
            return [json.dumps(_ranking(request, scores, name=self.name, tokens=budget.spent)).encode()]

        return Prepared(works, reply)

    def reader(self, body: bytes) -> ThreadPoolExecutor:
        """What prepares a request."""
        return self._large_reader if len(body) > _LARGE else self._readers

    def submit(self, works: Sequence[Work]) -> list[Job]:
        """Put all works into the queue, or none. Raises ApiError."""
        jobs: list[Job] = []
        try:
            for work in works:
                jobs.append(self.scheduler.submit(*work))
        except QueueFullError:
            self.release(jobs)
            raise busy("too much waits already") from None
        self.metrics.held(self.scheduler.held)
        return jobs

    def release(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self.scheduler.release(job)
        self.metrics.held(self.scheduler.held)


def application(service: Service, reaper: IdleConnectionReaper | None = None) -> "ASGIApp":
    """The ASGI application of a server. reaper: told of the chunks of responses that were sent."""
    document = openapi.document(service.name, service.model.width, service.limits, has_keys=service._keys is not None)
    page = openapi.page(document)

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok", "model": service.name, "queue": service.scheduler.held._asdict()})

    async def models(request: Request) -> Response:
        service.check_key(request.headers)
        listed = {"id": service.name, "object": "model", "created": 0, "owned_by": "uwaga"}
        return JSONResponse({"object": "list", "data": [listed]})

    async def metrics(request: Request) -> Response:
        service.check_key(request.headers)
        return Response(service.metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def described(request: Request) -> Response:
        return JSONResponse(document)

    async def documents(request: Request) -> Response:
        return HTMLResponse(page, headers={"Content-Security-Policy": openapi.POLICY})

    return _Guarded(
        {
            "/v1/embeddings": ("POST", Endpoint(service, partial(service.embeddings, "openai"))),
            "/embed": ("POST", Endpoint(service, partial(service.embeddings, "tei"))),
            "/v1/rerank": ("POST", Endpoint(service, partial(service.rerank, "cohere"))),
            "/v2/rerank": ("POST", Endpoint(service, partial(service.rerank, "cohere"))),
            "/rerank": ("POST", Endpoint(service, partial(service.rerank, "tei"))),
            "/v1/models": ("GET", _Got(models)),
            "/health": ("GET", _Got(health)),
            "/metrics": ("GET", _Got(metrics)),
            "/openapi.json": ("GET", _Got(described)),
            "/docs": ("GET", _Got(documents)),
        },
        service,
        reaper,
    )


class _Got:
    """An endpoint that only reads."""

    def __init__(self, respond: Callable[[Request], Awaitable[Response]]) -> None:
        self._respond = respond

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        response = await self._respond(Request(scope, receive))
        await response(scope, receive, send)


class Endpoint:
    """POST a JSON object; 200 and the reply, or another status and an error in the form of the interface."""

    def __init__(self, service: Service, prepare: Callable[[bytes], Prepared]) -> None:
        self._service, self._prepare = service, prepare

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        service, headers = self._service, Headers(scope=scope)
        service.check_key(headers)
        if headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            raise ApiError(415, "the Content-Type of a request must be application/json")
        reading = _Reading(service)
        try:
            async with asyncio.timeout(service.limits.seconds):
                jobs, pieces = await self._computed(await reading.body(headers, receive), receive)
            try:
                await _send(pieces, send)
            finally:
                service.release(jobs)
        except _GoneError:
            service.metrics.gone()
        except TimeoutError:
            message = f"the request was not answered within {service.limits.seconds:g} seconds; retry later, or send less at once"
            raise ApiError(504, message, code="timeout") from None
        finally:
            reading.close()

    async def _computed(self, body: bytes, receive: "Receive") -> tuple[list[Job], Iterable[bytes]]:
        """The jobs of a request, done, and its reply. Raises ApiError, _GoneError."""
        service, jobs = self._service, list[Job]()
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            loop = asyncio.get_running_loop()
            prepared = await _unless(gone, loop.run_in_executor(service.reader(body), self._prepare, body))
            jobs = service.submit(prepared.works)
            rows = [await _unless(gone, job.result) for job in jobs]
            return jobs, prepared.reply(rows)
        except BaseException:
            service.release(jobs)
            raise
        finally:
            gone.cancel()


class _GoneError(Exception):
    """The client has disconnected."""


async def _unless(gone: "asyncio.Future[None]", result: "asyncio.Future[T]") -> T:
    """The result; where the client disconnects first, raises _GoneError and cancels it."""
    try:
        both: set[asyncio.Future[Any]] = {gone, result}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if result.done():
            return result.result()
        raise _GoneError
    finally:
        result.cancel()


async def _disconnected(receive: "Receive") -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _Reading:
    """The body of one request, as it arrives; its bytes count among those of all requests until `close`."""

    def __init__(self, service: Service) -> None:
        self._service, self._bytes = service, 0

    async def body(self, headers: Headers, receive: "Receive") -> bytes:
        """Raises ApiError before more than the limit is in memory, and _GoneError."""
        limits = self._service.limits
        too_large = ApiError(413, f"the body of the request exceeds {limits.body_bytes:,} bytes")
        announced = headers.get("content-length", "0")
        if announced.isdecimal() and int(announced[:20]) > limits.body_bytes:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(limits.body_seconds):
                while True:
                    message: Message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _GoneError
                    part = message.get("body", b"")
                    self._count(len(part))
                    body += part
                    if len(body) > limits.body_bytes:
                        raise too_large
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            message_ = f"the body of the request was not complete within {limits.body_seconds:g} seconds"
            raise ApiError(408, message_) from None

    def close(self) -> None:
        self._service.body_bytes -= self._bytes
        self._bytes = 0

    def _count(self, more: int) -> None:
        if self._service.body_bytes + more > self._service.limits.all_bodies_bytes:
            raise busy("the requests that are not answered are too large together")
        self._bytes += more
        self._service.body_bytes += more


class _Guarded:
    """Headers, errors and metrics around an application, and responses sent in chunks, each after the one before it was sent."""

    def __init__(
        self, endpoints: "Mapping[str, tuple[str, ASGIApp]]", service: Service, reaper: IdleConnectionReaper | None
    ) -> None:
        self._endpoints, self._service, self._reaper = endpoints, service, reaper

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        assert scope["type"] == "http", "the server offers neither websockets nor a lifespan"
        loop, status = asyncio.get_running_loop(), 0
        begun, path = loop.time(), scope["path"]

        async def send_guarded(message: "Message") -> None:
            nonlocal status
            is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(_HEADERS)
            elif is_last:  # before it is sent: who has an answer finds it counted, even if this process is killed then
                self._service.metrics.answered(path, status, loop.time() - begun)
            await send(message)
            if self._reaper is not None and message["type"] == "http.response.body":
                self._reaper.record_progress(scope["client"], complete=is_last)

        try:
            await self._answer(path, scope, receive, send_guarded)
        except ApiError as error:
            await _error(path, error)(scope, receive, send_guarded)
        except Exception:  # whatever it is, the client gets an answer and the log the traceback
            _LOG.exception("uwaga serve: internal error")
            if status:  # the response has begun: the connection ends without its end, which tells the client
                raise
            internal = ApiError(500, "internal error; the server's log has the traceback", code="internal_error")
            await _error(path, internal)(scope, receive, send_guarded)
        finally:
            if self._service.log is not None:
                self._service.log(_access_line(scope, status, loop.time() - begun))

    async def _answer(self, path: str, scope: "Scope", receive: "Receive", send: "Send") -> None:
        # h11 limits headers that arrive in parts, but not those that arrive at once.
        size = len(scope["raw_path"]) + sum(len(name) + len(value) for name, value in scope["headers"])
        if size > MAX_HEADER_BYTES:
            raise ApiError(431, f"URL and headers exceed {MAX_HEADER_BYTES} bytes")
        if path not in self._endpoints:
            raise ApiError(404, "there is no such path; /docs lists those that there are", code="not_found")
        method, endpoint = self._endpoints[path]
        if scope["method"] not in (method, "HEAD" if method == "GET" else method):
            raise ApiError(405, f"send the request by {method}", headers={"Allow": method})
        await endpoint(scope, receive, send)


def _access_line(scope: "Scope", status: int, seconds: float) -> str:
    """Time, client, method, path, status and milliseconds of a request. A path is logged as it was sent, without its query."""
    host = scope["client"][0] if scope["client"] else "-"
    now = datetime.now().astimezone().isoformat(timespec="milliseconds")
    what = " ".join(printable(each) for each in (host, scope["method"], scope["raw_path"].decode("latin-1")))
    return f"{now} {what} {status or '-'} {1e3 * seconds:.1f} ms"  # no status: the client left


def busy(why: str) -> ApiError:
    """The server has no room for a request."""
    return ApiError(
        429, f"the server is busy: {why}; retry in a second", code="queue_full", headers={"Retry-After": "1"}
    )


def digest_of(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()


def _embeddings_json(vectors_RE: np.ndarray, *, is_base64: bool, name: str, tokens: int) -> Iterator[bytes]:
    """The response of OpenAI's interface, in pieces; in base64 a vector is its bytes in little-endian order."""
    yield b'{"object":"list","data":['
    for index, vector in enumerate(vectors_RE.astype("<f4", copy=False)):
        separator = b"," if index else b""
        if is_base64:
            numbers = b'"' + base64.b64encode(vector.tobytes()) + b'"'
        else:
            numbers = _numbers(vector)
        yield b'%b{"object":"embedding","index":%d,"embedding":%b}' % (separator, index, numbers)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    yield f'],"model":{json.dumps(name)},"usage":{json.dumps(usage)}}}'.encode()


def _list_of_lists(vectors_RE: np.ndarray) -> Iterator[bytes]:
    """The response of TEI's interface, in pieces."""
    for index, vector in enumerate(vectors_RE):
        yield (b"," if index else b"[") + _numbers(vector)
    yield b"]"


def _numbers(vector_E: np.ndarray) -> bytes:
    """A float32 as the float64 that equals it, with the fewest digits that give that back, so that no bit is lost."""
    return json.dumps(vector_E.tolist(), separators=(",", ":"), allow_nan=False).encode()


def _ranking(request: RerankRequest, scores: Sequence[float], *, name: str, tokens: int) -> object:
    """The response of a ranking. Of passages with the same score, the first comes first."""
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    texts = request.passages.texts
    if request.form == "tei":
        return [
            {"index": index, "score": scores[index], **({"text": texts[index]} if request.with_texts else {})}
            for index in order
        ]
    results = [
        {
            "index": index,
            "relevance_score": scores[index],
            **({"document": {"text": texts[index]}} if request.with_texts else {}),
        }
        for index in order[: request.top]
    ]
    # Cohere's keys and Jina's; what one of them does not know, it does not read.
    units = {"api_version": {"version": "1"}, "billed_units": {"search_units": 1}}
    usage = {"total_tokens": tokens, "prompt_tokens": tokens}
    return {"id": str(uuid4()), "model": name, "results": results, "meta": units, "usage": usage}


async def _send(pieces: Iterable[bytes], send: "Send") -> None:
    """A response of JSON: one chunk with its length, or several, so that others are answered while a long one is written."""
    headers = [(b"content-type", b"application/json")]
    chunk, has_begun = bytearray(), False
    for piece in pieces:
        chunk += piece
        if len(chunk) >= _CHUNK:
            if not has_begun:
                await send({"type": "http.response.start", "status": 200, "headers": headers})
            has_begun = True
            await send({"type": "http.response.body", "body": bytes(chunk), "more_body": True})
            await asyncio.sleep(0)
            chunk.clear()
    if not has_begun:
        headers.append((b"content-length", str(len(chunk)).encode()))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": bytes(chunk)})


_TYPES = {401: "authentication_error", 429: "rate_limit_error"}


def _error(path: str, error: ApiError) -> Response:
    """An error in the form of the interface that the path belongs to: that of OpenAI; that of TEI; that of Cohere, which has a message,
    and of Jina, which has a detail."""
    message = error.message
    if path in ("/rerank", "/embed"):
        kinds = {413: "Tokenizer", 422: "Validation", 429: "Overloaded", 500: "Backend"}
        content: dict[str, Any] = {"error": message, "error_type": kinds.get(error.status, "Validation")}
    elif path.endswith("/rerank"):
        content = {"message": message, "detail": message}
    else:
        kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
        content = {"error": {"message": message, "type": kind, "param": error.param, "code": error.code}}
    return JSONResponse(content, error.status, headers=dict(error.headers))
