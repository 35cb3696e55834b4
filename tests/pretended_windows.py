"""What Python lacks and refuses on Windows, lacking and refused here: for tests of the package as it would run there.

Lacking: fcntl, resource, and of os and signal what `_POSIX` lists. Refused: to open a folder, to flush a file that was opened for reading, and
to remove, rename or replace a file that this process has open or mapped, or a folder of one. msvcrt.locking is made of flock. Not pretended are paths, the
console, sockets and the loader of libraries. Linux alone can pretend, since it says which files are open.
"""

import ctypes
import errno
import os
import shutil
import signal
import stat
import sys
import types
from collections.abc import Callable
from typing import Any

_POSIX = {
    os: (
        "O_CLOEXEC", "O_DIRECTORY", "O_NOCTTY", "O_NOFOLLOW", "O_NONBLOCK", "fchmod", "fchown", "fdatasync", "fork", "forkpty", "geteuid",
        "getgid", "getpgid", "getuid", "killpg", "mkfifo", "posix_fadvise", "posix_fallocate", "posix_spawn", "pread", "preadv", "pwrite", "pwritev",
        "sched_getaffinity", "sendfile", "set_blocking", "setsid", "sysconf", "uname",
    ),
    signal: ("SIGALRM", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGUSR1", "SIGUSR2", "pthread_sigmask", "setitimer"),
}  # fmt: skip
MEMORY = 2**33  # bytes that the machine says it has


def pretend() -> None:
    """From now on, in this process. Libraries other than uwaga are imported before: they ask for the system when they are."""
    import fcntl

    unlink, rename, replace, open_, fsync = os.unlink, os.rename, os.replace, os.open, os.fsync
    flock, get_flags = fcntl.flock, fcntl.fcntl

    def removed(path: Any, *, dir_fd: int | None = None) -> None:
        assert dir_fd is None
        _refuse_if_open(path)
        unlink(path)

    def moved(how: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        def move(path: Any, new: Any) -> None:
            _refuse_if_open(path)
            if how is rename and os.path.lexists(new):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(new))
            _refuse_if_open(new)
            how(path, new)

        return move

    def opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if os.path.isdir(path):
            raise _denied(path)
        return open_(path, flags, mode, dir_fd=dir_fd)

    def flushed(descriptor: int) -> None:
        if get_flags(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        fsync(descriptor)

    def locking(descriptor: int, how: int, count: int) -> None:
        assert (how, count) == (2, 1)
        try:
            flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from error

    for module, names in _POSIX.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    ctypes.windll = types.SimpleNamespace(kernel32=types.SimpleNamespace(GlobalMemoryStatusEx=_memory_status))  # type: ignore[attr-defined]
    msvcrt: Any = types.ModuleType("msvcrt")
    msvcrt.locking, msvcrt.LK_NBLCK = locking, 2
    sys.modules |= {"fcntl": None, "resource": None, "msvcrt": msvcrt}  # type: ignore[dict-item]
    os.unlink = os.remove = removed  # type: ignore[assignment]
    os.rename, os.replace, os.open, os.fsync = moved(rename), moved(replace), opened, flushed  # type: ignore[assignment]
    shutil._use_fd_functions = False  # type: ignore[attr-defined]
    sys.platform = "win32"


def _memory_status(status: Any) -> int:
    assert status[0] == 64
    status[1] = MEMORY
    return 1


def _denied(path: object) -> PermissionError:
    return PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def _refuse_if_open(path: Any) -> None:
    """Raises PermissionError where this process has the file, or one in the folder, open or mapped."""
    try:
        if stat.S_ISLNK(os.lstat(path).st_mode):
            return
    except FileNotFoundError:
        return
    real = os.path.realpath(path)
    with open("/proc/self/maps", encoding="utf-8") as maps:
        used = {line.rstrip("\n").partition("/")[2] for line in maps}
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            used.add(os.readlink(f"/proc/self/fd/{descriptor}").removeprefix("/"))
        except FileNotFoundError:  # that of the listing
            continue
    relative = real.removeprefix("/")
    if any(file == relative or file.startswith(f"{relative}/") for file in used):
        raise _denied(path)
