"""A served model in this process, where nothing listens on a port, and as a process."""

import asyncio
import http.client
import json
import re
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import forked
import numpy as np
import pytest
from served import Client
from waiting import HANG

from uwaga import Reranker, TextEncoder
from uwaga.serve.app import Service
from uwaga.serve.models import EmbeddingModel


class HeldModel:
    """A model that computes a step only when it is told to."""

    def __init__(self, run: Callable[[Any, Any], np.ndarray]) -> None:
        self.run = run
        self.begun: asyncio.Queue[list[str]] = asyncio.Queue()  # the texts of each step
        self.loop = asyncio.get_running_loop()
        self.permits: asyncio.Queue[None] = asyncio.Queue()

    def __call__(self, items: Sequence[str], kind: Any) -> np.ndarray:
        self.loop.call_soon_threadsafe(self.begun.put_nowait, [item.text for item in items])
        asyncio.run_coroutine_threadsafe(self.permits.get(), self.loop).result(HANG)
        return self.run(items, kind)

    def go(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.permits.put_nowait(None)


@pytest.fixture(scope="session")
def tiny(write_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a model of 12 positions."""
    return write_model(tmp_path_factory.mktemp("served") / "tiny")


@pytest.fixture
def encoder(tiny: Path) -> TextEncoder:
    return TextEncoder.load(tiny)


@pytest.fixture
def serving(encoder: TextEncoder, one_thread: None) -> Iterator[Callable[..., Any]]:
    """Run a coroutine function with a client of a server of the tiny model, or of another encoder; settings are those of Service.
    hold=True: its model is a HeldModel, the second argument."""
    default = encoder

    def run(
        test: Callable[..., Awaitable[None]],
        *,
        hold: bool = False,
        reranker: Reranker | None = None,
        encoder: TextEncoder = default,
        **settings: Any,
    ) -> None:
        async def main() -> None:
            model = EmbeddingModel(encoder, reranker)
            held = HeldModel(model.run) if hold else None
            options = settings | ({"run": held} if hold else {})
            service = Service(model, name="tiny", **options)
            try:
                async with asyncio.timeout(HANG):
                    await test(*([Client(service), held] if hold else [Client(service)]))
            finally:
                if held is not None:
                    held.go(1000)
                await asyncio.get_running_loop().run_in_executor(None, service.close)
            assert service.scheduler.held == 0
            assert service.body_bytes == 0

        asyncio.run(main())

    return run


_SERVE = "import sys; from uwaga.cli import main; sys.argv = ['uwaga', 'serve', *sys.argv[1:]]; main()"


class Running:
    """A server in a process of its own."""

    def __init__(self, model: Path, *options: str) -> None:
        self.process = forked.Program(_SERVE, model, "--port", "0", *options)
        self.said = self.process.stdout.readline()
        match = re.search(r"http://127\.0\.0\.1:(\d+)/v1", self.said)
        assert match, self.process.communicate()
        self.port = int(match[1])
        self.url = match[0]

    def get(self, path: str) -> bytes:
        return self.answer("GET", path)

    def embed(self, texts: list[str]) -> np.ndarray:
        data = json.loads(self.answer("POST", "/v1/embeddings", json.dumps({"input": texts})))["data"]
        return np.float32([row["embedding"] for row in data])

    def answer(self, method: str, path: str, body: str | None = None) -> bytes:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG)) as connection:
            connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
            response = connection.getresponse()
            content = response.read()
        assert response.status == 200, content
        return content

    def stop(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> tuple[int, str]:
        """Its exit code and standard error."""
        _, errors = self.process.communicate()
        return self.process.returncode, errors


@pytest.fixture
def start(tiny: Path) -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def begin(*options: str) -> Running:
        running.append(Running(tiny, *options))
        return running[-1]

    yield begin
    for server in running:
        if server.process.returncode is None:
            server.stop()
