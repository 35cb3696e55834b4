"""Programs in processes of their own, without the seconds that each would take to import PyTorch.

The first of them starts a process that imports PyTorch and the package, and that forks for each; with one thread, whose absence in a fork is
no loss. What a program prints, how it ends and which signals it gets are as if it had been started by itself; nothing runs at its exit.
"""

import atexit
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from os import _exit
from pathlib import Path
from typing import Any, NoReturn

_FILES = 4  # of a request: the three standard files, and a pipe for the process's id and its exit code


class Program:
    """A Python file, or the text of a program, with its arguments. It has what its tests need of subprocess.Popen."""

    def __init__(self, program: Path | str, *arguments: object) -> None:
        asked = {"file" if isinstance(program, Path) else "text": str(program), "arguments": [*map(str, arguments)]}
        asked |= {"cwd": os.getcwd(), "env": {**os.environ, "OMP_NUM_THREADS": "1"}}
        (stdin, write), *others = [os.pipe() for _ in range(_FILES)]
        given = [stdin, *(end for _, end in others)]
        socket.send_fds(_forks(), [json.dumps(asked).encode()], given)
        for end in given:
            os.close(end)
        self.stdin = os.fdopen(write, "w")
        self.stdout, self.stderr, self.told = (os.fdopen(read) for read, _ in others)
        self.pid, self.returncode = int(self.told.readline()), None

    def communicate(self) -> tuple[str, str]:
        """What it prints on both files until it has ended."""
        self.stdin.close()
        with ThreadPoolExecutor(1) as pool, self.stdout, self.stderr:
            errors = pool.submit(self.stderr.read)
            out = self.stdout.read()
        self.wait()
        return out, errors.result()

    def wait(self) -> int:
        if self.returncode is None:
            with self.told:
                self.returncode = int(self.told.readline())
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


def run(program: Path | str, *arguments: object) -> str:
    """What a program prints. Raises AssertionError where it fails."""
    started = Program(program, *arguments)
    out, errors = started.communicate()
    assert started.returncode == 0, errors[-3000:]
    return out


@cache
def _forks() -> socket.socket:
    """The connection to the process that forks; it ends with this one."""
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with other:
        process = subprocess.Popen(
            [sys.executable, __file__, str(other.fileno())], pass_fds=[other.fileno()], stdin=subprocess.DEVNULL
        )
    atexit.register(lambda: (own.close(), process.wait()))
    return own


def _serve(connection: socket.socket) -> None:
    """Fork for each request, until the other end is closed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who watches a program ends unnoticed
    while True:
        asked, files, *_ = socket.recv_fds(connection, 1 << 20, _FILES)
        if not asked:
            return
        if os.fork() == 0:
            connection.close()
            _watch(json.loads(asked), files)
        for file in files:
            os.close(file)


def _watch(asked: dict[str, Any], files: list[int]) -> NoReturn:
    """Run a program in a fork, and tell its id and its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *standard, tell = files
    if (program := os.fork()) == 0:
        for number, file in enumerate(standard):
            os.dup2(file, number)
        for file in files:
            os.close(file)
        _run(asked)
    for file in standard:
        os.close(file)
    os.write(tell, b"%d\n" % program)
    os.write(tell, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(program, 0)[1]))
    _exit(0)


def _run(asked: dict[str, Any]) -> NoReturn:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup ignores
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv = [asked.get("file", "-c"), *asked["arguments"]]
    code: object = 0
    try:
        if "file" in asked:
            runpy.run_path(asked["file"], run_name="__main__")
        else:
            exec(asked["text"], {"__name__": "__main__"})
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:  # noqa: BLE001  # as the interpreter itself ends
        traceback.print_exc()
        code = 1
    finally:
        with suppress(OSError):  # a pipe that nobody reads
            sys.stdout.flush()
            sys.stderr.flush()
    _exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    import torch

    import uwaga.cli
    import uwaga.encode.encoder
    import uwaga.store  # noqa: F401

    torch.set_num_threads(1)
    _serve(socket.socket(fileno=int(sys.argv[1])))
