"""Runs trainings one after the other, each by the given number of processes, as torchrun would start them. A separate
program, since it forks: PyTorch is imported once, and has started no threads before a fork.

Its argument is a JSON list of objects: size, the number of processes (0: one process without torchrun's environment variables);
arguments of the command; log, a file for its output; copy: a run folder to resume from, the path of its copy, and the
checkpoint that `last` names there; and fault: a rank, a signal, a function and the number of its call at which that process gets the
signal, or for signal 0 an error. The standard error of each process is added to the log's name with its rank where there is a fault. Its last
line of output is the exit codes, without that of such a process.
"""

import gc
import json
import os
import shutil
import signal
import socket
import sys
from functools import partial
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1]))  # for `import forked`

import pydantic  # noqa: F401  # typer imports it at the first command
from forked import act_at_call, exit_code, fork

import uwaga.sequence_parallel.sequence
import uwaga.train.api  # noqa: F401
from uwaga.cli import app


def run(job: dict) -> list[int]:
    if "copy" in job:
        source, target, last = job["copy"]
        shutil.copytree(source, target)
        (Path(target) / "last").write_text(last + "\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = [fork(partial(train, job, rank, port), runs_at_exit=True) for rank in range(max(job["size"], 1))]
    victim = children[job["fault"][0]] if "fault" in job else None
    codes = [exit_code(child) for child in children if child != victim]
    if victim is not None:
        os.kill(victim, signal.SIGKILL)  # one that was stopped
        os.waitpid(victim, 0)
    return codes


def fault(number: int) -> None:
    os.kill(os.getpid(), number)
    if number == 0:
        raise IndexError("index 80 is out of range")


def train(job: dict, rank: int, port: int) -> None:
    if job["size"]:
        os.environ |= {
            "TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank),
            "LOCAL_RANK": str(rank), "WORLD_SIZE": str(job["size"]), "LOCAL_WORLD_SIZE": str(job["size"]),
        }  # fmt: skip
    log = job["log"]
    if "fault" in job:
        log = f"{log}.{rank}"
        if rank == job["fault"][0]:
            number, function, call = job["fault"][1:]
            act_at_call(call - 1, partial(fault, number), function)
    sys.stderr = sys.stdout = open(log, "a")  # noqa: SIM115
    sys.argv = ["uwaga", "train", *job["arguments"]]
    app()


if __name__ == "__main__":
    gc.freeze()  # garbage collection in a child skips the objects of PyTorch's modules
    print(json.dumps([run(job) for job in json.loads(sys.argv[1])]))  # noqa: T201
