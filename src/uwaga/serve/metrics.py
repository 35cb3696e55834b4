"""The numbers of /metrics, in the text format of Prometheus. The processes of a server keep them in shared memory, and in no file."""

import mmap
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, product

import numpy as np
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from uwaga.serve.requests import GOT, POSTED
from uwaga.serve.scheduler import QueueSize

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
_OTHER = "other"
PATHS = (*POSTED, *GOT, _OTHER)
_STATUSES = (200, 401, 404, 405, 408, 413, 415, 422, 429, 431, 500, 504)
_RECORD = np.dtype(
    [  # a histogram has the number of values in each bucket and in the bucket without a bound, and the sum of the values
        ("requests", "f8", (len(PATHS), len(_STATUSES))),
        ("disconnects", "f8", (1,)),
        ("seconds", "f8", (len(PATHS), len(_SECONDS) + 2)),
        ("tokens", "f8", (len(_TOKENS) + 2,)),
        ("queue", "f8", (len(QueueSize._fields),)),
    ]
)


class Metrics(Collector):
    """The numbers of a server: a record for each process, and the sum of all records.

    Args:
        records: the records of all processes. None: only this process has one.
        number: the index of this process's record.
    """

    def __init__(self, records: np.ndarray | None = None, number: int = 0) -> None:
        self._records = np.zeros(1, _RECORD) if records is None else records
        self._record = self._records[number]

    @classmethod
    def shared(cls, count: int) -> "list[Metrics]":
        """Return metrics for `count` processes that are forked from this one."""
        records = np.frombuffer(mmap.mmap(-1, count * _RECORD.itemsize), _RECORD)
        return [cls(records, number) for number in range(count)]

    def answered(self, path: str, status: int, seconds: float) -> None:
        row = PATHS.index(path if path in PATHS else _OTHER)
        self._record["requests"][row, _STATUSES.index(status)] += 1
        _observe(self._record["seconds"][row], _SECONDS, seconds)

    def gone(self) -> None:
        self._record["disconnects"] += 1

    def step(self, tokens: int) -> None:
        _observe(self._record["tokens"], _TOKENS, tokens)

    def held(self, held: QueueSize) -> None:
        self._record["queue"][:] = held

    def collect(self) -> Iterable[Metric]:
        total = {name: self._records[name].sum(0) for name in _RECORD.names or ()}
        requests = CounterMetricFamily(
            "uwaga_requests", "Requests that were answered, by path and status.", labels=["path", "status"]
        )
        for (path, status), value in zip(product(PATHS, _STATUSES), total["requests"].flat, strict=True):
            if value:
                requests.add_metric([path, str(status)], value)
        yield requests
        yield CounterMetricFamily(
            "uwaga_disconnects", "Requests whose client left before the answer.", value=total["disconnects"][0]
        )
        seconds = HistogramMetricFamily(
            "uwaga_request_seconds", "From a request's headers to the end of its answer.", labels=["path"]
        )
        for path, values in zip(PATHS, total["seconds"], strict=True):
            if values[:-1].any():
                seconds.add_metric([path], list(_buckets(_SECONDS, values)), values[-1])
        yield seconds
        yield HistogramMetricFamily(
            "uwaga_step_tokens",
            "Tokens that the model reads at a time; their sum is all tokens read.",
            list(_buckets(_TOKENS, total["tokens"])),
            total["tokens"][-1],
        )
        for name, value in zip(QueueSize._fields, total["queue"], strict=True):
            yield GaugeMetricFamily(f"uwaga_queue_{name}", f"The {name} that wait or are computed.", value)

    def text(self) -> bytes:
        return generate_latest(self)


def _observe(values: np.ndarray, bounds: Sequence[float], value: float) -> None:
    values[bisect_left(bounds, value)] += 1
    values[-1] += value


def _buckets(bounds: Sequence[float], values: np.ndarray) -> Iterator[tuple[str, float]]:
    """Return the upper bound of each bucket, and the number of values up to it."""
    return zip([*(str(float(bound)) for bound in bounds), "+Inf"], accumulate(values[:-1]), strict=True)
