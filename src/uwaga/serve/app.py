"""The ASGI application: the interfaces of OpenAI, Cohere and Jina, behind keys and limits; and serving it."""

import asyncio
import base64
import hashlib
import json
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast
from uuid import uuid4

import numpy as np
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import TypeAdapter
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from uwaga._base import untrusted
from uwaga._base.connections import IdleConnectionReaper, read_body, require_json, serve, unless_gone, uvicorn_server
from uwaga._base.errors import DataError
from uwaga._base.terminal import printable, short
from uwaga.serve.models import EmbeddingModel, check_finite
from uwaga.serve.requests import GOT, POSTED, ApiError, CohereRerank, Limits, OpenAIEmbeddings, read_request, texts_of
from uwaga.serve.scheduler import Job, Run, Scheduler

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_CHUNK = 1 << 16  # bytes of a response that are sent at once
_READERS = 2  # threads that parse and tokenize requests; the tokenizer works outside of Python's lock
_LARGE = 1 << 18  # bytes of a body that another thread reads, so that no small body waits for seconds of its tokenizer
_KEEP_ALIVE = 75  # seconds that a connection may wait for its next request, as nginx has it
_KEYS_BYTES = 1 << 20
_MIN_KEY = 16  # characters; of letters and digits these are 95 bits
_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
_KINDS = {401: "authentication_error", 429: "rate_limit_error"}  # of errors, as OpenAI names them
_TOKENS = tuple(1 << power for power in range(4, 16))  # bounds of a histogram
_LOG = logging.getLogger("uwaga.serve")
# The jobs of a request that is checked and tokenized, and a function from their rows to the JSON of the response, in pieces.
Prepared = tuple[list[Job], Callable[[Sequence[np.ndarray]], Iterable[bytes]]]


class Service:
    """The state of the endpoints, which belongs to one event loop; threads call `prepare`.

    Args:
        model: computes vectors and ranks.
        name: the name of the model in requests and replies.
        run: a function that computes instead of the model's `run`.
        step_tokens: tokens that the model reads at a time.
        truncate: truncate long texts of requests that have no such key.
        limits: the limits of requests.
        keys: digests (`digest_of`) of the keys of clients. None: no key is needed.
    """

    def __init__(
        self,
        model: EmbeddingModel,
        *,
        name: str,
        run: Run | None = None,
        step_tokens: int = 2048,
        truncate: bool = False,
        limits: Limits = Limits(),  # noqa: B008  # frozen
        keys: frozenset[bytes] | None = None,
    ) -> None:
        self.model, self.name, self.limits, self.keys = model, name, limits, keys
        self._truncate, self.registry = truncate, CollectorRegistry()
        about: dict[str, Any] = {"registry": self.registry}
        self._requests = Counter("uwaga_requests", "Requests that were answered.", ["path", "status"], **about)
        self._seconds = Histogram("uwaga_request_seconds", "From headers to the end of the answer.", ["path"], **about)
        self.disconnects = Counter("uwaga_disconnects", "Requests whose client left before the answer.", **about)
        steps = Histogram("uwaga_step_tokens", "Tokens that the model reads at a time.", buckets=_TOKENS, **about)
        self.scheduler = Scheduler(
            run or model.run, step_tokens=step_tokens, limit=limits.queue_tokens, on_step=steps.observe
        )
        waits = Gauge("uwaga_queue_tokens", "Tokens that wait or are computed.", **about)
        waits.set_function(lambda: self.scheduler.held)
        self.readers = ThreadPoolExecutor(_READERS, thread_name_prefix="uwaga-read")
        self.large_reader = ThreadPoolExecutor(1, thread_name_prefix="uwaga-read-large")
        self.body_bytes = 0  # of requests that are not answered

    def close(self) -> None:
        """End the threads; call it after the last response."""
        for threads in (self.readers, self.large_reader):
            threads.shutdown(wait=True, cancel_futures=True)
        self.scheduler.close()

    def prepare(self, path: str, body: bytes) -> Prepared:
        """Check and tokenize a request. Raises ApiError."""
        request = read_request(path, body, self.limits.unread_keys)
        if request.model not in (None, self.name):
            message = f"there is no model {short(request.model)} here; this server has {self.name!r}"
            raise ApiError(404, message, param="model", code="model_not_found")
        return self._embeddings(request) if isinstance(request, OpenAIEmbeddings) else self._ranking(request)

    def _embeddings(self, request: OpenAIEmbeddings) -> Prepared:
        model, prompt, size = self.model, request.prompt_name, request.dimensions
        texts = texts_of(request, "input", self.limits, truncates=self._truncate)
        if size is not None and size > model.width:
            message = f"dimensions must be a whole number from 1 to {model.width:,}, not {size}"
            raise ApiError(422, message, param="dimensions")
        if prompt is not None and prompt not in model.prompts:
            names = ", ".join(map(printable, model.prompts))
            raise ApiError(422, f"prompt_name must be one of {names}, not {short(prompt)}", param="prompt_name")
        prompt_text = None if prompt is None else model.prompts[prompt]
        job = model.work(texts, self.limits.tokens, prompt=prompt_text, dimensions=size)
        tokens = sum(job.tokens)

        def reply(rows: Sequence[np.ndarray]) -> Iterable[bytes]:
            check_finite(rows[0], texts, "vector")
            is_base64 = request.encoding_format == "base64"
            return _embeddings_json(rows[0], is_base64=is_base64, name=self.name, tokens=tokens)

        return [job], reply

    def _ranking(self, request: CohereRerank) -> Prepared:
        query, passages = (
            texts_of(request, key, self.limits, truncates=self._truncate) for key in ("query", "documents")
        )
        jobs = self.model.ranking(query, passages, self.limits.tokens, request.max_tokens_per_doc)
        tokens = sum(sum(job.tokens) for job in jobs)

        def reply(rows: Sequence[np.ndarray]) -> list[bytes]:
            scores = self.model.scores(rows, query, passages)
            return [json.dumps(_ranked(request, scores, name=self.name, tokens=tokens)).encode()]

        return jobs, reply

    def count(self, path: str, status: int, seconds: float) -> None:
        """Count a request that is answered."""
        path = path if path in (*POSTED, *GOT) else "other"
        self._requests.labels(path, status).inc()
        self._seconds.labels(path).observe(seconds)


def application(service: Service) -> "ASGIApp":
    """Return the ASGI application: headers, errors and metrics around every response.

    A response is sent in chunks, each after the one before it was sent.
    """
    document = _document(service)
    model = {"id": service.name, "object": "model", "created": 0, "owned_by": "uwaga"}
    got: dict[str, Callable[[], Response]] = {
        "/v1/models": lambda: JSONResponse({"object": "list", "data": [model]}),
        "/health": lambda: JSONResponse(
            {"status": "ok", "model": service.name, "queue_tokens": service.scheduler.held}
        ),
        "/metrics": lambda: Response(generate_latest(service.registry), headers={"Content-Type": CONTENT_TYPE_LATEST}),
        "/openapi.json": lambda: JSONResponse(document),
    }

    async def guarded(scope: "Scope", receive: "Receive", send: "Send") -> None:
        assert scope["type"] == "http", "the server offers neither websockets nor a lifespan"
        loop, status = asyncio.get_running_loop(), 0
        begun, path = loop.time(), scope["path"]

        async def send_guarded(message: "Message") -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(_HEADERS)
            elif not message.get("more_body", False):
                # Before it is sent, so that a process that is killed after an answer has counted it.
                service.count(path, status, loop.time() - begun)
            await send(message)

        try:
            request = Request(scope, receive)
            _check(service, path, request)
            if path in POSTED:
                await _post(service, path, request, send_guarded)
            else:
                await got[path]()(scope, receive, send_guarded)
        except HTTPException as error:
            if not status:  # if the response has begun, the connection breaks off, which the client sees
                await _error(error)(scope, receive, send_guarded)
        except Exception:  # any fault: the client gets an answer, and the log gets the traceback
            _LOG.exception("uwaga serve: internal error")
            if status:
                raise
            internal = ApiError(500, "internal error; the server's log has the traceback", code="internal_error")
            await _error(internal)(scope, receive, send_guarded)

    return guarded


def _check(service: Service, path: str, request: Request) -> None:
    """Raise HTTPException for a request that is rejected before its body is read."""
    is_posted = path in POSTED
    if not is_posted and path not in GOT:
        raise ApiError(404, "there is no such path; /openapi.json lists the paths", code="not_found")
    methods = ("POST",) if is_posted else ("GET", "HEAD")
    if request.method not in methods:
        raise ApiError(405, f"send the request by {methods[0]}", headers={"Allow": methods[0]})
    # Digests of keys are compared, so that the time reveals nothing of a key.
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    is_known = service.keys is None or (scheme.lower() == "bearer" and digest_of(key.strip()) in service.keys)
    if not is_known and path not in ("/health", "/openapi.json"):
        message = "the key is missing or wrong: send the header Authorization: Bearer KEY"
        raise ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
    if is_posted:
        require_json(request)


async def _post(service: Service, path: str, request: Request, send: "Send") -> None:
    """Compute a request and send its reply. Raises HTTPException."""
    limits, jobs, held = service.limits, list[Job](), 0

    def count(size: int) -> None:
        """Count bytes that arrive among the bytes of all requests."""
        nonlocal held
        if service.body_bytes + size > limits.all_bodies_bytes:
            raise _busy("its open requests are too large together")
        held += size
        service.body_bytes += size

    async def computed(body: bytes) -> Iterable[bytes]:
        nonlocal jobs
        threads = service.large_reader if len(body) > _LARGE else service.readers
        prepared, reply = await asyncio.get_running_loop().run_in_executor(threads, service.prepare, path, body)
        try:
            service.scheduler.submit(prepared)
        except asyncio.QueueFull:
            raise _busy("too much waits already") from None
        jobs = prepared  # to be released
        return reply([await job.result for job in jobs])

    try:
        async with asyncio.timeout(limits.seconds):
            body = await read_body(request, limits.body_bytes, count)
            await _send(await unless_gone(request.receive, computed(body)), send)
    except ClientDisconnect:
        service.disconnects.inc()
    except TimeoutError:
        message = f"the request was not answered within {limits.seconds:g} seconds; retry later, or send less at once"
        raise ApiError(504, message, code="timeout") from None
    finally:
        for job in jobs:
            service.scheduler.release(job)
        service.body_bytes -= held


def _busy(why: str) -> ApiError:
    """Return the error of a server that has no room for a request."""
    message = f"the server is busy: {why}; retry in a second"
    return ApiError(429, message, code="queue_full", headers={"Retry-After": "1"})


def _embeddings_json(vectors_RE: np.ndarray, *, is_base64: bool, name: str, tokens: int) -> Iterator[bytes]:
    """Yield OpenAI's response in pieces; in base64, a vector is its little-endian bytes."""
    yield b'{"object":"list","data":['
    for index, vector in enumerate(vectors_RE.astype("<f4", copy=False)):
        separator = b"," if index else b""
        if is_base64:
            numbers = b'"' + base64.b64encode(vector.tobytes()) + b'"'
        else:  # equal float64 numbers, so that no bit is lost
            numbers = json.dumps(vector.tolist(), separators=(",", ":"), allow_nan=False).encode()
        yield b'%b{"object":"embedding","index":%d,"embedding":%b}' % (separator, index, numbers)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    yield f'],"model":{json.dumps(name)},"usage":{json.dumps(usage)}}}'.encode()


def _ranked(request: CohereRerank, scores: Sequence[float], *, name: str, tokens: int) -> object:
    """Return the response of a ranking. If documents have the same score, the first comes first."""
    results = []
    for index in sorted(range(len(scores)), key=lambda index: -scores[index])[: request.top_n]:
        shown = {"document": {"text": request.documents[index]}} if request.return_documents else {}
        results.append({"index": index, "relevance_score": scores[index], **shown})
    # The keys of Cohere and of Jina: a client ignores the other's keys.
    units = {"api_version": {"version": "1"}, "billed_units": {"search_units": 1}}
    usage = {"total_tokens": tokens, "prompt_tokens": tokens}
    return {"id": str(uuid4()), "model": name, "results": results, "meta": units, "usage": usage}


async def _send(pieces: Iterable[bytes], send: "Send") -> None:
    """Send a response of JSON in one chunk, or in several between which others are answered."""
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


def _error(error: HTTPException) -> Response:
    """Return an error as OpenAI writes it, and its message as Jina's clients read it."""
    status, message = error.status_code, error.detail
    kind = _KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    details = {
        "message": message,
        "type": kind,
        "param": getattr(error, "param", None),
        "code": getattr(error, "code", None),
    }
    return JSONResponse({"error": details, "detail": message}, status, headers=error.headers)


def _document(service: Service) -> dict[str, Any]:
    """Return the OpenAPI description."""
    responses = {"200": {"description": "done"}, "default": {"description": "an error, as OpenAI writes it"}}
    paths: dict[str, Any] = {path: {"get": {"responses": responses}} for path in GOT}
    for path, kind in POSTED.items():
        content = {"application/json": {"schema": TypeAdapter(kind).json_schema()}}
        paths[path] = {"post": {"requestBody": {"required": True, "content": content}, "responses": responses}}
    return {
        "openapi": "3.1.0",
        "info": {"title": f"uwaga serve {service.name}", "version": sys.modules["uwaga"].__version__},
        "paths": paths,
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [] if service.keys is None else [{"key": []}],
    }


def digest_of(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()


def read_keys(path: Path) -> frozenset[bytes]:
    """Return the digests of the keys in a file, one key per line. Raises DataError.

    Empty lines and lines that begin with # are ignored.
    """
    try:
        lines = [line.strip() for line in untrusted.read_file(path, _KEYS_BYTES).split(b"\n")]
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    keys = [line for line in lines if line and not line.startswith(b"#")]
    if not keys or not all(len(key) >= _MIN_KEY and all(0x21 <= byte <= 0x7E for byte in key) for key in keys):
        rule = f"a key of at least {_MIN_KEY} characters in each line, all visible ASCII without spaces"
        raise DataError(f"{path} must have {rule}")
    return frozenset(digest_of(key.decode()) for key in keys)


class _AccessLog(logging.StreamHandler[TextIO]):
    """Prints a line for each request: time, client, method, path without its query, and status."""

    def format(self, record: logging.LogRecord) -> str:
        client, method, path, version, status = cast("tuple[object, ...]", record.args)
        time = logging.Formatter().formatTime(record)
        return f'{time} {client} - "{method} {str(path).partition("?")[0]} HTTP/{version}" {status}'

    def handleError(self, record: logging.LogRecord) -> None:
        """Print nothing: whoever read the lines has gone."""


def run(service: Service, listening: socket.socket, *, access_log: bool = False) -> None:
    """Serve until SIGTERM or Ctrl-C, and then answer only requests that were accepted before.

    access_log: print a line for each request.
    """
    reaper = IdleConnectionReaper(_KEEP_ALIVE)
    server = uvicorn_server(application(service), reaper, access_log=access_log)
    if access_log:
        log = logging.getLogger("uvicorn.access")
        log.addHandler(_AccessLog(sys.stdout))
        log.setLevel(logging.INFO)
    # uvicorn handles signals only while it serves, and raises them again when it has stopped. Until then, these handlers stop it.
    before = {number: signal.signal(number, server.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        asyncio.run(serve(server, reaper, listening))
    finally:
        service.close()
        for number, handler in before.items():
            signal.signal(number, handler)
