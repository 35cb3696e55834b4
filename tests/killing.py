"""Runs a command of `uwaga` many times, each in a process of its own, and kills it: at random times, and before or after file-system
calls. A separate program, since it forks: PyTorch is imported once, and has started no threads before a fork.

Its argument is a JSON object:

    arguments      of the command; {out} stands for the output of a run
    outs           the output of each run by name: alone, and any of random, every and chosen
    log            a file for what the command prints
    seed, kills    of random
    first, period  run n of every is killed at file-system call first + n % period, until a run ends by itself
    calls          of chosen: numbers of file-system calls, with a half for after it
    finished       a pattern of files next to an output that is not there yet; all files by default
    prepare        statements to execute first

Its last line of output is a JSON object: for all but alone, the exit code of each run and the number of `finished` files after it, null
if the output is there.
"""

import gc
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import pyarrow.parquet  # noqa: F401
import pydantic  # noqa: F401  # typer imports it at the first command
import rich.progress  # noqa: F401
from forked import act_at_call, exit_code, fork, kill

import uwaga.encode.encoder
import uwaga.train.api  # noqa: F401
from uwaga.cli import app

KILLED = -signal.SIGKILL
CALLS = ("os.fsync", "os.link", *(f"pathlib.Path.{name}" for name in ("replace", "rename", "mkdir", "unlink", "rmdir")))


def start(asked: dict, out: str, at: float = -1) -> int:
    """The id of a process that kills itself before the file-system call of this number, or after it if there is a half."""

    def command() -> None:
        act_at_call(at, kill, *CALLS)
        sys.stderr = sys.stdout = open(asked["log"], "a")  # noqa: SIM115
        sys.argv = ["uwaga", *(argument.replace("{out}", out) for argument in asked["arguments"])]
        app()

    return fork(command, runs_at_exit=True)


def end(asked: dict, child: int, out: str) -> tuple[int, int | None]:
    code, path = exit_code(child), Path(out)
    return code, None if path.exists() else len(list(path.parent.glob(asked.get("finished", "*"))))


def at_random(asked: dict, out: str, seconds: float) -> list[tuple[int, int | None]]:
    results = []
    for _ in range(asked["kills"]):
        child = start(asked, out)
        time.sleep(random.uniform(0.0, 0.5) * seconds)
        os.kill(child, signal.SIGKILL)
        results.append(end(asked, child, out))
    return [*results, end(asked, start(asked, out), out)]


def at_every_call(asked: dict, out: str, _: float) -> list[tuple[int, int | None]]:
    results: list[tuple[int, int | None]] = [(KILLED, 0)]
    while results[-1][0] == KILLED and len(results) < 200:
        call = asked["first"] + len(results) % asked["period"]
        results.append(end(asked, start(asked, out, call + (len(results) + 1) % 2 / 2), out))
    return results


def at_chosen_calls(asked: dict, out: str, _: float) -> list[tuple[int, int | None]]:
    kills = [end(asked, start(asked, out, number), out) for number in asked["calls"]]
    return [*kills, end(asked, start(asked, out), out)]


if __name__ == "__main__":
    gc.freeze()  # garbage collection in a child skips the objects of PyTorch's modules
    asked = json.loads(sys.argv[1])
    random.seed(asked.get("seed"))
    exec(asked.get("prepare", ""))
    outs, started = asked["outs"], time.perf_counter()
    assert end(asked, start(asked, outs["alone"]), outs["alone"])[0] == 0
    seconds = time.perf_counter() - started
    ways = {"random": at_random, "every": at_every_call, "chosen": at_chosen_calls}
    print(json.dumps({name: way(asked, outs[name], seconds) for name, way in ways.items() if name in outs}))  # noqa: T201
