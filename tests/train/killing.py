"""Trains many times, each in a process of its own, and kills it: at random moments, and around every step that writes. A
program of its own, since it forks: PyTorch is loaded once, and has computed nothing before a fork, after which its threads
would be missing.

Its argument is a JSON object: config (a file), the outputs alone, random and every, seed, and how many random kills.
Its last line is one: for `random` and `every` the exit code of each run.
"""

import atexit
import gc
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pydantic  # noqa: F401  # which typer imports at the first command

import uwaga.models.transformer.checkpoint
import uwaga.train.api  # noqa: F401
from uwaga.cli import app

KILLED = -signal.SIGKILL


def start(asked: dict, out: str, *, before: int = -1, after: int = -1) -> int:
    """The id of a process that trains, and kills itself before or after so many more steps that write."""
    child = os.fork()
    if child:
        return child
    left = {"before": before, "after": after}
    for owner, names in ((os, ("fsync", "link")), (Path, ("replace", "rename", "mkdir", "rmdir"))):
        for name in names:
            setattr(owner, name, deadly(getattr(owner, name), left))
    sys.stderr = sys.stdout = open(f"{out}.said", "a")  # noqa: SIM115
    sys.argv = ["uwaga", "train", asked["config"], f"run.output_dir={out}", "--resume"]
    try:
        app()
    except SystemExit as ended:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(ended.code or 0)  # without a second of freeing PyTorch's modules
    raise AssertionError("the command ends the process")


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


def end(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def at_random(asked: dict, seconds: float) -> list[int]:
    found = []
    for _ in range(asked["kills"]):
        child = start(asked, asked["random"])
        time.sleep(random.uniform(0.1, 0.5) * seconds)
        os.kill(child, signal.SIGKILL)
        found.append(end(child))
    return [*found, end(start(asked, asked["random"]))]


def at_every_step(asked: dict) -> list[int]:
    """A few steps further each time, until nothing is left to do."""
    found = [KILLED]
    while found[-1] == KILLED and len(found) < 200:
        when = "before" if len(found) % 2 else "after"
        found.append(end(start(asked, asked["every"], **{when: 30 + len(found) % 31})))
    return found


if __name__ == "__main__":
    gc.freeze()  # no collection in a child looks at the objects of PyTorch's modules again
    asked = json.loads(sys.argv[1])
    random.seed(asked["seed"])
    started = time.perf_counter()
    assert end(start(asked, asked["alone"])) == 0
    seconds = time.perf_counter() - started
    print(json.dumps({"random": at_random(asked, seconds), "every": at_every_step(asked), "seconds": seconds}))  # noqa: T201
