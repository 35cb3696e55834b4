"""Trains many times, each in a process of its own, and kills it: at random times, and before or after file-system calls. A
separate program, since it forks: PyTorch is imported once, and has started no threads before a fork, since a child would
not have them.

Its argument is a JSON object: config (a file); the run folders alone, random, every and chosen, of which it makes those that are
there; seed; kills, the number at random; and calls, pairs of "before" or "after" and the number of a file-system call of its run, for
chosen. Its last line of output is a JSON object: for all but alone the exit code of each run.
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

import pydantic  # noqa: F401  # typer imports it at the first command
import torch._dynamo  # noqa: F401  # torch.optim imports it, which takes seconds in every run
from forked import exit_code, fork

import uwaga.train.api  # noqa: F401
from uwaga.cli import app

KILLED = -signal.SIGKILL


def start(asked: dict, out: str, *, before: int = -1, after: int = -1) -> int:
    """Process id of a training that kills itself before or after the given number of file-system calls."""
    left = {"before": before, "after": after}

    def train() -> None:
        for owner, names in ((os, ("fsync", "link")), (Path, ("replace", "rename", "mkdir", "rmdir"))):
            for name in names:
                setattr(owner, name, kill_at_call(getattr(owner, name), left))
        sys.stderr = sys.stdout = open(f"{out}.log", "a")  # noqa: SIM115
        sys.argv = ["uwaga", "train", asked["config"], f"run.output_dir={out}", "--resume"]
        app()

    return fork(train, runs_at_exit=True)


def kill_at_call(step: Callable, left: dict[str, int]) -> Callable:
    def count(when: str) -> None:
        if left[when] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[when] -= 1

    def call_or_kill(*arguments, **named):
        count("before")
        result = step(*arguments, **named)
        count("after")
        return result

    return call_or_kill


def at_random(asked: dict, seconds: float) -> list[int]:
    results = []
    for _ in range(asked["kills"]):
        child = start(asked, asked["random"])
        time.sleep(random.uniform(0.1, 0.5) * seconds)
        os.kill(child, signal.SIGKILL)
        results.append(exit_code(child))
    return [*results, exit_code(start(asked, asked["random"]))]


def at_calls(asked: dict) -> list[int]:
    """Each run is killed some file-system calls later than where the last one resumed, until one ends by itself."""
    results = [KILLED]
    while results[-1] == KILLED and len(results) < 200:
        when = "before" if len(results) % 2 else "after"
        results.append(exit_code(start(asked, asked["every"], **{when: 30 + len(results) % 31})))
    return results


def at_chosen_calls(asked: dict) -> list[int]:
    """A run that is killed at each of the calls, and one that is not."""
    kills = [exit_code(start(asked, asked["chosen"], **{when: number})) for when, number in asked["calls"]]
    return [*kills, exit_code(start(asked, asked["chosen"]))]


if __name__ == "__main__":
    gc.freeze()  # garbage collection in a child skips the objects of PyTorch's modules
    asked = json.loads(sys.argv[1])
    random.seed(asked["seed"])
    started = time.perf_counter()
    assert exit_code(start(asked, asked["alone"])) == 0
    seconds = time.perf_counter() - started
    ways = {
        "random": lambda: at_random(asked, seconds),
        "every": lambda: at_calls(asked),
        "chosen": lambda: at_chosen_calls(asked),
    }
    print(json.dumps({name: way() for name, way in ways.items() if name in asked}))  # noqa: T201
