"""Many requests of mixed lengths, clients that vanish and hostile bodies at once; a server that is killed, or stopped, meanwhile."""

import json
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from flood import Flood, texts_and_vectors
from waiting import until

from uwaga import TextEncoder
from uwaga.serve.scheduler import ITEM_TOKENS

_CLIENTS = 16


@pytest.fixture(scope="module")
def tiny(write_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In place of the one of 12 positions, which has no long texts."""
    settings = {"model_max_length": 200}
    return write_model(tmp_path_factory.mktemp("flooded") / "tiny", positions=200, tokenizer=settings)


@pytest.fixture
def expected(encoder: TextEncoder, one_thread: None) -> dict[str, bytes]:
    return texts_and_vectors(encoder, 250)


def flood(server, expected: dict[str, bytes], requests: int) -> None:
    """Nothing is lost, nothing is wrong, and nothing is left behind."""
    traffic = Flood(server.port, expected)
    traffic.run(requests, _CLIENTS)
    assert traffic.wrong == []
    assert sum(traffic.counts.values()) == requests
    assert min(traffic.counts[kind] for kind in ("answered", "refused", "vanished")) >= requests // 20
    until(lambda: json.loads(server.get("/health"))["queue_tokens"] == 0)


@pytest.mark.slow
def test_a_flood_has_the_bits_of_encode_alone(
    start: Callable, encoder: TextEncoder, expected: dict[str, bytes]
) -> None:
    """Then SIGTERM under load: what was accepted is finished."""
    server = start()
    flood(server, expected, 300)
    texts = (list(expected) * 8)[:500]
    size = sum(map(len, encoder.tokenizer.with_special_tokens(texts))) + ITEM_TOKENS * len(texts)
    with ThreadPoolExecutor(_CLIENTS) as clients:
        asked = [clients.submit(server.embed, texts) for _ in range(_CLIENTS)]

        def are_accepted() -> bool:
            answered = sum(task.done() for task in asked)  # before the others are counted: none is counted twice
            return answered * size + json.loads(server.get("/health"))["queue_tokens"] >= _CLIENTS * size

        until(are_accepted)
        server.process.send_signal(signal.SIGTERM)
        for task in asked:
            assert [row.tobytes() for row in task.result()] == [expected[text] for text in texts]
    assert server.ended() == (0, "")


@pytest.mark.timing
@pytest.mark.timeout(7200)
def test_a_hundred_thousand_requests_in_bounded_memory(start: Callable, expected: dict[str, bytes]) -> None:
    """After the first 5,000 the server has what it ever needs: 32 MiB more are less than 400 bytes a request."""
    server = start()
    flood(server, expected, 5_000)
    first = _memory(server.process.pid)
    flood(server, expected, 95_000)
    assert _memory(server.process.pid) - first < 32 << 20
    assert server.stop() == (0, "")


def _memory(pid: int) -> int:
    """Bytes that the process has had at most."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


@pytest.mark.slow
def test_a_server_that_is_killed_and_started_again_gives_errors_or_right_answers(
    start: Callable, expected: dict[str, bytes]
) -> None:
    server = start()
    port = str(server.port)
    traffic = Flood(server.port, expected)
    is_done = threading.Event()

    def ask() -> None:
        while not is_done.wait(0.01):  # a server that is gone refuses at once
            traffic.run(_CLIENTS, _CLIENTS, may_break=True)

    def answered_more() -> None:
        before = traffic.counts["answered"]
        until(lambda: traffic.counts["answered"] > before + 20 or asking.done())

    with ThreadPoolExecutor(1) as load:
        asking = load.submit(ask)
        answered_more()
        os.kill(server.process.pid, signal.SIGKILL)
        server.ended()
        server = start("--port", port)
        answered_more()
        is_done.set()
        asking.result()
    assert traffic.wrong == []
    assert traffic.counts["broken"] > 0
    assert server.stop() == (0, "")
