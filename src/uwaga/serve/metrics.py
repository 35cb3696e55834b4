"""What /metrics says, by prometheus-client."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.values import MutexValue, ValueClass

from uwaga.serve.scheduler import QueueSize

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)

CONTENT_TYPE = CONTENT_TYPE_LATEST
ended_process: Callable[[int], None] = mark_process_dead  # forget the gauges of a process that has ended


class Metrics:
    """The numbers of one server."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "uwaga_requests", "Requests that were answered, by path and status.", ["path", "status"], registry=registry
        )
        self._gone = Counter("uwaga_disconnects", "Requests whose client left before the answer.", registry=registry)
        self._seconds = Histogram(
            "uwaga_request_seconds",
            "From a request's headers to the end of its answer.",
            ["path"],
            registry=registry,
            buckets=_SECONDS,
        )
        self._step_tokens = Histogram(
            "uwaga_step_tokens",
            "Tokens that the model reads at a time; their sum is all tokens read.",
            registry=registry,
            buckets=_TOKENS,
        )
        self._held = [
            Gauge(
                f"uwaga_queue_{each}",
                f"The {each} that wait or are computed.",
                registry=registry,
                multiprocess_mode="livesum",
            )
            for each in QueueSize._fields
        ]

    def answered(self, path: str, status: int, seconds: float) -> None:
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def gone(self) -> None:
        self._gone.inc()

    def step(self, tokens: int) -> None:
        self._step_tokens.observe(tokens)

    def held(self, held: QueueSize) -> None:
        for gauge, value in zip(self._held, held, strict=True):
            gauge.set(value)

    def text(self) -> bytes:
        """In the text format of Prometheus; of several processes that share PROMETHEUS_MULTIPROC_DIR, the sums."""
        if ValueClass is MutexValue:  # prometheus-client has read the variable
            return generate_latest(self._registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry)
        return generate_latest(registry)
