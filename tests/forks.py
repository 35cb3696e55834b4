"""Forked processes of tests. They end without freeing PyTorch's modules, which takes a second."""

import atexit
import os
import sys
import traceback
from collections.abc import Callable


def fork(run: Callable[[], int | None], *, runs_at_exit: bool = False) -> int:
    """The id of a process that calls `run` and ends with what it returns, or exits with; 1: it raised. Whether functions that are
    registered for the end run, too."""
    if child := os.fork():
        return child
    code: object = 1
    try:
        code = run()
    except SystemExit as ended:
        code = ended.code
    except BaseException:  # noqa: BLE001  # told, and not raised into what the parent does
        traceback.print_exc()
    if runs_at_exit:
        atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(code or 0))  # type: ignore[call-overload]


def exit_code(child: int) -> int:
    """Once it has ended; of a signal its number below zero."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
