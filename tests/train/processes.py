"""Runs trainings one after the other, each by the given number of processes, as torchrun would start them. A separate
program, since it forks: PyTorch is imported once, and has started no threads before a fork.

Its argument is a JSON list of objects: size, the number of processes (0: one process without torchrun's environment variables);
arguments of the command; log, a file for its output; and copy: a run folder to resume from, the path of its copy, and the
checkpoint that `last` names there. Its last line of output is the exit codes.
"""

import atexit
import gc
import json
import os
import shutil
import socket
import sys
from pathlib import Path

import pydantic  # noqa: F401  # typer imports it at the first command
import torch._dynamo  # FSDP2 imports it, which takes seconds in every run
import torch.distributed.fsdp
import torch.distributed.tensor  # noqa: F401

import uwaga.models.bert.checkpoint
import uwaga.models.gpt2.checkpoint
import uwaga.models.t5.checkpoint
import uwaga.models.transformer.checkpoint
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
    children = [start(job, rank, port) for rank in range(max(job["size"], 1))]
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def start(job: dict, rank: int, port: int) -> int:
    child = os.fork()
    if child:
        return child
    if job["size"]:
        os.environ |= {
            "TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank),
            "LOCAL_RANK": str(rank), "WORLD_SIZE": str(job["size"]), "LOCAL_WORLD_SIZE": str(job["size"]),
        }  # fmt: skip
    sys.stderr = sys.stdout = open(job["log"], "a")  # noqa: SIM115
    sys.argv = ["uwaga", "train", *job["arguments"]]
    try:
        app()
    except SystemExit as ended:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(ended.code or 0)  # skips freeing PyTorch's modules, which takes a second
    raise AssertionError("the command ends the process")


if __name__ == "__main__":
    gc.freeze()  # garbage collection in a child skips the objects of PyTorch's modules
    print(json.dumps([run(job) for job in json.loads(sys.argv[1])]))  # noqa: T201
