"""How long do encoding, searching and reading maps take next to busy processes, if waiting threads of OpenMP spin, and if they sleep?

OpenMP reads OMP_WAIT_POLICY once. Each kind of work therefore has two processes, which take turns: one with OpenMP's default, and one with
`passive`, which `uwaga` sets for its commands. They run next to each number of --neighbours, processes that compute all the time. With 0
neighbours the machine should do nothing else.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, sleep

import numpy as np
import torch
from encode import corpus_options, documents, model_folder
from harness import Report, parse
from timing import Comparison

import uwaga
from uwaga._base import env

HEADINGS = ("work", "neighbours", "ratio", "default ms", "passive ms", "worst default ms", "worst passive ms", "rounds")
POLICIES: dict[str, dict[str, str]] = {"default": {}, "passive": {"OMP_WAIT_POLICY": "passive"}}
Work = Callable[[], object]


@contextmanager
def encoding(chosen: argparse.Namespace) -> Iterator[Work]:
    """Encode 16 texts of some hundred tokens."""
    with model_folder(chosen) as folder:
        encoder, texts = uwaga.TextEncoder.load(folder), documents(chosen)[:16]
        yield lambda: encoder.encode(texts, overflow="truncate")


@contextmanager
def searching(chosen: argparse.Namespace) -> Iterator[Work]:
    """Ask one question to 50,000 vectors."""
    keys = np.random.default_rng(0).standard_normal((100 if chosen.quick else 50_000, 384), np.float32)
    with TemporaryDirectory() as folder, uwaga.SoftDatabase.create(Path(folder) / "db", key_width=384) as db:
        db.append(keys)
        yield lambda: db.search(keys[0], 10)


@contextmanager
def viewing(chosen: argparse.Namespace) -> Iterator[Work]:
    """Compute what the first screen of `uwaga view` needs: the pass of a model over 2,000 tokens, and the pooled maps of its heads."""
    model = uwaga.models.load("copyist")
    ids = torch.randint(10, 1000, (1, 20 if chosen.quick else 2_000))

    def run() -> None:
        with uwaga.watch(model) as recording, torch.no_grad():
            model(ids)
        for attention_map in recording.maps.values():
            attention_map.pool(64, 64)

    yield run


WORKS = {"encode": encoding, "search": searching, "view": viewing}


def serve(chosen: argparse.Namespace) -> None:
    """Run the work for every line that is read, and print its seconds."""
    with WORKS[chosen.one](chosen) as work:
        for _ in sys.stdin:
            begun = perf_counter()
            work()
            print(perf_counter() - begun, flush=True)


@contextmanager
def other_process(name: str, policy: dict[str, str], chosen: argparse.Namespace) -> Iterator[Callable[[], float]]:
    """Run the work once in a process with this policy, and return its seconds."""
    command = [sys.executable, __file__, "--one", name, "--threads", str(chosen.threads), *(["--quick"] * chosen.quick)]
    environment = {name: value for name, value in os.environ.items() if name not in env.WAITING} | policy
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask() -> float:
            process.stdin.write("\n")
            process.stdin.flush()
            return float(process.stdout.readline())

        yield ask
        process.stdin.close()


def measure(sides: Mapping[str, Callable[[], float]], seconds: float) -> Comparison:
    """Compare both sides as timing.compare does, by the clocks of the processes."""
    samples: dict[str, list[float]] = {at: [] for at in sides}
    order, end = list(sides), perf_counter() + seconds
    for ask in sides.values():
        ask()  # loads, and fills caches
    while len(samples[order[0]]) < 3 or perf_counter() < end:
        for at in order:
            samples[at].append(sides[at]())
            sleep(0.02)  # its threads stop spinning
        order.reverse()
    return Comparison(samples)


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep `count` processes computing."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def main() -> None:
    parser = corpus_options("How long do encoding, searching and reading maps take next to busy processes?")
    parser.add_argument("--neighbours", type=int, nargs="+", default=[0, 1, 4], help="numbers of busy processes")
    parser.add_argument("--one", choices=tuple(WORKS), help="the work of this process, which reads lines; internal")
    parser.set_defaults(seconds=30.0)
    chosen = parse(parser)
    if chosen.one is not None:
        serve(chosen)
        return
    report = Report(chosen, "Beside busy processes", HEADINGS)
    for name in WORKS:
        with ExitStack() as stack:
            sides = {at: stack.enter_context(other_process(name, policy, chosen)) for at, policy in POLICIES.items()}
            for count in [1] if chosen.quick else chosen.neighbours:
                with busy(count):
                    measured = measure(sides, chosen.seconds)
                medians = [f"{1e3 * measured.seconds(at):.4g}" for at in sides]
                worst = [f"{1e3 * max(measured.samples[at]):.4g}" for at in sides]
                ratio = f"{measured.ratio('default', to='passive'):.2f}"
                report.row(name, str(count), ratio, *medians, *worst, str(measured.rounds))
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    report.say("\nHere the ratio is the time with OpenMP's default over that with `passive`.")
    report.say(f"The load of the machine at the end, over 1, 5 and 15 minutes: {load}.\n")


if __name__ == "__main__":
    main()
