"""Processes that are forked from one that has imported PyTorch, since that import takes seconds.

`fork` calls a function in a fork of this process. `Program` and `run` start a program: the first program starts a process that imports
PyTorch and the package, and that forks for each program. It has one thread, because a fork has no other threads. What a program prints,
its exit code and the signals that it gets are as if the interpreter had started it, with two exceptions: nothing runs at its exit, and
after a KeyboardInterrupt its exit code is 1.
"""

import atexit
import itertools
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from os import _exit
from pathlib import Path
from typing import Any, NoReturn

_FILES = 4  # of a request: the three standard files, and a pipe for the process's id and its exit code
_UNWRITTEN = 120  # the interpreter's exit code if a standard file takes no more


def fork(run: Callable[[], object], *, runs_at_exit: bool = False) -> int:
    """Call a function in a forked process; return the id of the process.

    Args:
        run: its result is the exit code of the process (None: 0), or the code that it exits with; 1 if it raises.
        runs_at_exit: whether the functions run that atexit has registered.
    """
    return os.fork() or _end(run, runs_at_exit=runs_at_exit)


def exit_code(child: int) -> int:
    """Wait until a process ends; return its exit code, or the number of a signal below zero."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def act_at_call(number: float, act: Callable[[], object], *names: str) -> None:
    """From now on, act before the call of this number of these functions, counted together from 0; or, with a half, after it, where only
    calls that return are counted.

    names: such as "os.fsync" and "pathlib.Path.unlink".
    """
    begun, ended = itertools.count(), itertools.count(0.5)

    def watched(function: Callable) -> Callable:
        def call(*arguments: object, **options: object) -> object:
            if next(begun) == number:
                act()
            result = function(*arguments, **options)
            if next(ended) == number:
                act()
            return result

        return call

    for name in names:
        owner, _, function = name.rpartition(".")
        setattr(pkgutil.resolve_name(owner), function, watched(pkgutil.resolve_name(name)))


def kill() -> None:
    """End this process by a signal that nothing can handle."""
    os.kill(os.getpid(), signal.SIGKILL)


def _end(run: Callable[[], object], *, runs_at_exit: bool = False) -> NoReturn:
    """Call a function, and end this process as the interpreter does, without the second in which it frees PyTorch's modules."""
    status = 1
    try:
        try:
            code = run()
        except SystemExit as ended:
            code = ended.code
        except BaseException:  # noqa: BLE001  # a fork does not continue what its parent does
            traceback.print_exc()
            code = 1
        if not isinstance(code, int | None):
            sys.stderr.write(f"{code}\n")
            code = 1
        if runs_at_exit:
            atexit._run_exitfuncs()
        status = _UNWRITTEN
        sys.stdout.flush()
        sys.stderr.flush()
        status = code or 0
    except OSError:
        traceback.print_exc()
    finally:
        _exit(status)


class Program:
    """A Python file, or the text of a program, with its arguments. It has what its tests need of subprocess.Popen."""

    def __init__(self, program: Path | str, *arguments: object) -> None:
        asked = {"file" if isinstance(program, Path) else "text": str(program), "arguments": [*map(str, arguments)]}
        asked |= {"cwd": os.getcwd(), "env": {**os.environ, "OMP_NUM_THREADS": "1"}}
        (stdin, write), *others = [os.pipe() for _ in range(_FILES)]
        descriptors = [stdin, *(end for _, end in others)]
        socket.send_fds(_forks(), [json.dumps(asked).encode()], descriptors)
        for end in descriptors:
            os.close(end)
        self.stdin = os.fdopen(write, "w")
        self.stdout, self.stderr, self.told = (os.fdopen(read) for read, _ in others)
        self.pid, self.returncode = int(self.told.readline()), None

    def communicate(self) -> tuple[str, str]:
        """Close its standard input; return what it prints on both files until it ends."""
        self.stdin.close()
        with ThreadPoolExecutor(1) as pool, self.stdout, self.stderr:
            errors = pool.submit(self.stderr.read)
            try:
                printed = self.stdout.read(), errors.result()
            except BaseException:  # the time of the test is over: the pool would wait for the program
                self.send_signal(signal.SIGKILL)
                raise
        self.wait()
        return printed

    def wait(self) -> int:
        if self.returncode is None:
            with self.told:
                self.returncode = int(self.told.readline())
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


def run(program: Path | str, *arguments: object) -> str:
    """Return what a program prints. Raises AssertionError if its exit code is not 0."""
    started = Program(program, *arguments)
    out, errors = started.communicate()
    assert started.returncode == 0, errors[-3000:]
    return out


@cache
def _forks() -> socket.socket:
    """The connection to the process that forks; it ends with this one."""
    ours, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with other:
        process = subprocess.Popen(
            [sys.executable, __file__, str(other.fileno())], pass_fds=[other.fileno()], stdin=subprocess.DEVNULL
        )
    atexit.register(lambda: (ours.close(), process.wait()))
    return ours


def _serve(connection: socket.socket) -> None:
    """Fork for each request, until the other end is closed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # a process that watches a program ends unnoticed
    while True:
        asked, files, *_ = socket.recv_fds(connection, 1 << 20, _FILES)
        if not asked:
            return
        fork(partial(_watch, connection, json.loads(asked), files))
        for file in files:
            os.close(file)


def _watch(connection: socket.socket, asked: dict[str, Any], files: list[int]) -> None:
    """Run a program in a fork, and tell its id and its exit code."""
    connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *standard, tell = files

    def run() -> None:
        for number, file in enumerate(standard):
            os.dup2(file, number)
        for file in files:
            os.close(file)
        _run(asked)

    program = fork(run)
    for file in standard:
        os.close(file)
    os.write(tell, b"%d\n" % program)
    with suppress(BrokenPipeError):  # nobody waits for the program
        os.write(tell, b"%d\n" % exit_code(program))


def _run(asked: dict[str, Any]) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup ignores
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv = [asked.get("file", "-c"), *asked["arguments"]]
    if "file" in asked:
        runpy.run_path(asked["file"], run_name="__main__")
    else:
        exec(asked["text"], {"__name__": "__main__"})


if __name__ == "__main__":
    import torch

    import uwaga.cli
    import uwaga.encode.encoder
    import uwaga.serve.app
    import uwaga.store  # noqa: F401

    torch.set_num_threads(1)
    _serve(socket.socket(fileno=int(sys.argv[1])))
