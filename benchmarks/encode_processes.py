"""What do many processes of `uwaga encode` cost compared with one: time beyond the sum of their parts, and memory?

One process and each number of --processes encode a corpus, with the same number of threads in all. The columns:

- "parts": the seconds that all processes compute, divided by the number of processes.
- "over": what the whole takes beyond that, from the first result to the last, so that starting processes does not count.
- "all": memory of the processes that compute, by Linux's proportional count (PSS of smaps_rollup): a page that N processes share counts 1/N in each.
- "weights": the mapped weights in "all". "rest": the other memory, for each process.

Without --model and --corpus (a .jsonl.gz with the field `text`), the benchmark uses a random model of the size of --shape and random words.
"""

import argparse
import itertools
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from encode import corpus_options, documents, model_folder, parse_corpus
from harness import Report

from uwaga.data.documents import Document
from uwaga.encode import BatchEncoder, processes
from uwaga.encode.shards import groups

HEADINGS = ("processes", "dtype", "texts", "parts s", "whole s", "over", "all MiB", "weights MiB", "rest MiB")


class Timed(BatchEncoder):
    """Encodes a batch and returns how long it took."""

    def __call__(self, batch: Any) -> float:
        started = time.perf_counter()
        super().__call__(batch)
        return time.perf_counter() - started


class Weighed(BatchEncoder):
    """Encodes a batch and returns the memory of its process. Reading that takes as long as some texts, so the same run cannot be timed."""

    def __call__(self, batch: Any) -> tuple[int, tuple[int, int]]:
        super().__call__(batch)
        return os.getpid(), memory()


def memory() -> tuple[int, int]:
    """Return the bytes of this process: all, and those of mapped weights."""
    whole = weights = 0
    is_weights = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(":")
        if "-" in name.split(" ")[0]:
            is_weights = "/weights/" in line
        elif name == "Pss":
            whole += int(rest.split()[0]) << 10
            weights += is_weights * (int(rest.split()[0]) << 10)
    return whole, weights


def batches(texts: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    inputs = [Document(place=str(n), pieces=(text,)) for n, text in enumerate(texts)]
    for number, group in enumerate(groups(inputs)):
        texts = [document.text for document in group.documents]
        yield number, {"document": np.arange(len(texts)), "text": texts}


def measure(report: Report, chosen: argparse.Namespace, folder: Path, dtype: str, count: int) -> None:
    texts = documents(chosen)
    run = partial(processes.map_batches, processes=count, threads=max(1, chosen.threads // count), timeout=600.0)
    took, begun = list[float](), 0.0
    for number, (_, seconds) in enumerate(run(Timed(folder, dtype=dtype, overflow="truncate"), batches(texts))):
        if number < count:  # these have loaded the model
            begun = time.perf_counter()
        else:
            took.append(seconds)
    whole = time.perf_counter() - begun
    some = itertools.islice(batches(texts), 4 * count)
    last = dict(found for _, found in run(Weighed(folder, dtype=dtype, overflow="truncate"), some))
    parts = sum(took) / count
    everything, weights = (sum(value[n] for value in last.values()) for n in (0, 1))
    over = f"{100 * (whole / parts - 1):.1f} %" if took else "-"
    report.row(
        str(count), dtype, str(len(texts)), f"{parts:.2f}", f"{whole:.2f}", over,
        *(f"{x / 2**20:.0f}" for x in (everything, weights, (everything - weights) / len(last))),
    )  # fmt: skip


def main() -> None:
    parser = corpus_options("What do many processes cost compared with one?")
    parser.add_argument("--processes", default="1,2,4", help="numbers of processes, comma-separated")
    chosen = parse_corpus(parser)
    report = Report(chosen, "Texts to vectors by processes", HEADINGS)
    counts = [2] if chosen.quick else [int(part) for part in chosen.processes.split(",")]
    with model_folder(chosen, chosen.shape) as folder:
        for dtype in chosen.dtype:
            for count in counts:
                measure(report, chosen, folder, dtype, count)


if __name__ == "__main__":
    main()
