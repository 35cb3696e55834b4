"""Runs `uwaga encode` many times, each in a process of its own, and kills it: at random moments, and around every step
that writes. A program of its own, since it forks: PyTorch is loaded once, and has computed nothing before a fork, after
which its threads would be missing.

Its argument is a JSON object: corpus, model, the outputs alone and random or every or both, seed
and kills. Its last line is one: for `random` and `every` the exit code of each run and how many finished shards there were after it,
null once they are one file.
"""

import gc
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1]))  # for `import forked`

import pyarrow.parquet  # noqa: F401
import pydantic  # noqa: F401  # which typer imports at the first command
import rich.progress  # noqa: F401
import torch._dynamo  # noqa: F401  # which drawing weights on the meta device imports: seconds, in every run
from forked import exit_code, fork

import uwaga.encode.encoder  # noqa: F401
from uwaga.cli import app
from uwaga.encode.shards import groups

KILLED = -signal.SIGKILL


def start(asked: dict, output: str, *, before: int = -1, after: int = -1) -> int:
    """The id of a process that encodes, and kills itself before or after so many more steps that write."""
    left = {"before": before, "after": after}

    def encode() -> None:
        for owner, names in ((os, ("fsync", "link")), (Path, ("replace", "mkdir", "unlink", "rmdir"))):
            for name in names:
                setattr(owner, name, deadly(getattr(owner, name), left))
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        sys.argv = ["uwaga", "encode", asked["corpus"], "-o", output, "--model", asked["model"], "--overflow", "mean"]
        app()

    return fork(encode, runs_at_exit=True)


def deadly(step: Callable, left: dict[str, int]) -> Callable:
    def count(when: str) -> None:
        if left[when] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[when] -= 1

    def taken(*arguments, **named):
        count("before")
        result = step(*arguments, **named)
        count("after")
        return result

    return taken


def end(child: int, output: str) -> tuple[int, int | None]:
    """The exit code, and how many shards are finished; None once they are one file."""
    code = exit_code(child)
    return code, None if Path(output).exists() else len(list(Path(f"{output}.parts").glob("*.sha256")))


def at_random(asked: dict, seconds: float) -> list[tuple[int, int | None]]:
    results = []
    for _ in range(asked["kills"]):
        child = start(asked, asked["random"])
        time.sleep(random.uniform(0.0, 0.5) * seconds)
        os.kill(child, signal.SIGKILL)
        results.append(end(child, asked["random"]))
    return [*results, end(start(asked, asked["random"]), asked["random"])]


def at_every_step(asked: dict) -> list[tuple[int, int | None]]:
    """Two steps further each time, until nothing is left to do."""
    results: list[tuple[int, int | None]] = [(KILLED, 0)]
    while results[-1][0] == KILLED and len(results) < 100:
        when = "before" if len(results) % 2 else "after"
        results.append(end(start(asked, asked["every"], **{when: len(results) % 7}), asked["every"]))
    return results


if __name__ == "__main__":
    gc.freeze()  # no collection in a child looks at the objects of PyTorch's modules again
    asked = json.loads(sys.argv[1])
    random.seed(asked["seed"])
    groups.__kwdefaults__["max_documents"] = 3
    started = time.perf_counter()
    assert end(start(asked, asked["alone"]), asked["alone"]) == (0, None)
    seconds = time.perf_counter() - started
    ways = {"random": lambda: at_random(asked, seconds), "every": lambda: at_every_step(asked)}
    print(json.dumps({name: way() for name, way in ways.items() if name in asked}))  # noqa: T201
