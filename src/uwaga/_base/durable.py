"""Files that are whole or not there at all, whenever the machine stops; and one process at a time that makes them.

Everything that uwaga writes or removes goes through here, and nothing else in the package writes or removes (a test checks
it). Files are created under names that are new, so that no link is followed and no file of somebody else is truncated.
Removed is what carries a mark: a folder with a mark file in it, or a file with a temporary name.
"""

import errno
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

MARK_FILE = ".uwaga"  # the mark file of a folder
_MARK_TEXT = b"This folder was made by uwaga, which removes it when it is done.\n"
# Behind a name's beginning, so that it fits where the name itself does: 40 characters have at most 160 bytes of UTF-8.
_TEMPORARY = re.compile(r"\..{1,40}\.uwaga-[0-9a-f]{16}", re.DOTALL)
# Not of every system.
_NOFOLLOW, _NONBLOCK = getattr(os, "O_NOFOLLOW", 0), getattr(os, "O_NONBLOCK", 0)
_NO_HARD_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK}


class PathConflictError(FileExistsError):
    """A name that uwaga needs is taken by what it did not make."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(errno.EEXIST, f"cannot be used: {why}", str(path))


@contextmanager
def atomic_replace(path: Path) -> Iterator[IO[bytes]]:
    """A file to write, which takes its name when all of it is on the disk, in place of a file or link of that name. What a
    failure leaves is removed. Its `name` is where it stands until then."""
    with _whole(path) as (file, temporary):
        yield file
        _finish(file, temporary)
        temporary.replace(path)
    fsync(path.parent)


@contextmanager
def atomic_create(path: Path) -> Iterator[IO[bytes]]:
    """The same for a name that is free. Raises PathConflictError: it is not, or no longer when the file is whole."""
    if os.path.lexists(path):
        raise PathConflictError(path, "it already exists")
    with _whole(path) as (file, temporary):
        yield file
        _finish(file, temporary)
        rename_noreplace(temporary, path)
    fsync(path.parent)


def rename_noreplace(path: Path, new: Path) -> None:
    """Give a file a name that is free, in one step. Raises PathConflictError."""
    try:
        os.link(path, new, follow_symlinks=False)
    except FileExistsError as error:
        raise PathConflictError(new, "it already exists") from error
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        if os.path.lexists(new):
            raise PathConflictError(new, "it already exists") from error
        path.rename(new)
    else:
        path.unlink()


def create_file(path: Path) -> IO[bytes]:
    """A file to write whose name is free. Raises PathConflictError."""
    try:
        return path.open("xb")
    except FileExistsError as error:
        raise PathConflictError(path, "it already exists") from error


def open_append(path: Path, accepts: Callable[[bytes], bool], *, size: int) -> IO[bytes]:
    """A file to go on with behind its first `size` bytes, unbuffered; what stands behind them is cut off.

    Raises PathConflictError: it is not a file of its own, or `accepts` does not know its first bytes as ours. Both before
    anything is cut.
    """
    file = os.fdopen(_opened(path), "r+b", buffering=0)
    try:
        if os.fstat(file.fileno()).st_nlink != 1:
            raise PathConflictError(path, "it is a file with a second name")
        if not accepts(file.read(64)):
            raise PathConflictError(path, "it is not a file that uwaga wrote")
        file.truncate(size)
        file.seek(0, os.SEEK_END)
    except BaseException:
        file.close()
        raise
    return file


def fsync(path: Path) -> None:
    """What a file holds, or the names in a folder, are on the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


@contextmanager
def file_lock(path: Path, *, wait: bool = True) -> Iterator[None]:
    """One process at a time, by a file that is never written to; the system ends the wait when the other one ends, however
    it does. Raises BlockingIOError without `wait`, and PathConflictError: the name is a link, or of what is no file."""
    import fcntl  # where there is one: no other system is served here, but files are replaced on all

    while True:
        lock = _opened(path)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if _is_still(path, lock):  # and not removed with its folder by the process that held it
                yield
                return
        finally:
            os.close(lock)


def make_folder(path: Path) -> None:
    """A folder that a user named: made with its parents, or taken with what is in it. Raises OSError."""
    path.mkdir(parents=True, exist_ok=True)


def ensure_marked_folder(path: Path) -> None:
    """A folder of ours, which has a mark file: a new one, or one that is there. Raises PathConflictError: it is not ours."""
    with suppress(FileExistsError):
        path.mkdir()
    if not is_uwaga_folder(path):
        raise PathConflictError(path, f"it is not a folder that uwaga made, which has a file {MARK_FILE}; move it away")
    mark_folder(path)


def create_marked_folder(path: Path) -> None:
    """A folder of ours whose name is free. Raises PathConflictError."""
    try:
        path.mkdir()
    except FileExistsError as error:
        raise PathConflictError(path, "it already exists; move it away") from error
    try:
        mark_folder(path)
    except BaseException:
        with suppress(OSError):
            path.rmdir()
        raise


def mark_folder(path: Path) -> None:
    """Put the mark file into a folder that has none. Raises PathConflictError."""
    if _is_marked(path):
        return
    try:
        with atomic_create(path / MARK_FILE) as file:
            file.write(_MARK_TEXT)
    except PathConflictError:
        if not _is_marked(path):  # by another process at the same moment
            raise


def rename_folder(folder: Path, new: Path) -> None:
    """Give a folder a name that is free. Raises PathConflictError."""
    if os.path.lexists(new):  # the system would take an empty folder for free
        raise PathConflictError(new, "it already exists; move it away")
    folder.rename(new)


def unmark_folder(path: Path) -> None:
    """Take the mark file out of a folder that is finished, and is its user's from now on."""
    if _is_marked(path):
        (path / MARK_FILE).unlink()


def is_uwaga_folder(folder: Path) -> bool:
    """Whether it is a folder, not a link to one, that has the mark file, or nothing but temporary files in it."""
    if not stat.S_ISDIR(folder.lstat().st_mode):
        return False
    return _is_marked(folder) or all(_TEMPORARY.fullmatch(path.name) for path in folder.iterdir())


def contains_only(folder: Path, names: re.Pattern[str]) -> bool:
    """Whether all that is in a folder are files, not links, that are temporary or have such names."""
    return stat.S_ISDIR(folder.lstat().st_mode) and all(_is_one_of(path, names) for path in folder.iterdir())


def remove_folder(folder: Path, names: re.Pattern[str]) -> bool:
    """Remove a folder of ours: its files of such names, and it where nothing else is in it.

    False: something stays, which is all of it where the folder is not ours. Raises OSError.
    """
    if not is_uwaga_folder(folder):
        return False
    for path in list(folder.iterdir()):
        if path.name != MARK_FILE and _is_one_of(path, names):
            path.unlink()
    if any(path.name != MARK_FILE for path in folder.iterdir()):
        return False
    (folder / MARK_FILE).unlink(missing_ok=True)  # the last one: a removal that is interrupted can be gone on with
    folder.rmdir()
    return True


def remove_temporary(folder: Path, *names: str) -> None:
    """Remove what writing the files of these names left in a folder when the process was killed."""
    for path in list(folder.iterdir()):
        if _is_one_of(path) and path.name.startswith(tuple(f".{name[:40]}.uwaga-" for name in names)):
            path.unlink()


class PrivateFolder:
    """A new folder for temporary files which only this account can read; removed by `close`, or when the program ends."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="uwaga-")

    def write(self, name: str, content: bytes) -> Path:
        """A new file in it, with mode 0600. Raises FileExistsError, OSError."""
        path = Path(self._folder.name) / name
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW, 0o600), "wb") as file:
            file.write(content)
        return path

    def remove(self, path: Path) -> None:
        """One of its files."""
        assert path.parent == Path(self._folder.name)
        path.unlink(missing_ok=True)

    def close(self) -> None:
        """The second time nothing."""
        self._folder.cleanup()


@contextmanager
def _whole(path: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """A new file beside its place, removed when what is done with it fails."""
    temporary = path.with_name(f".{path.name[:40]}.uwaga-{secrets.token_hex(8)}")
    try:
        file = temporary.open("xb")
    except OSError as error:
        error.filename = str(path)  # the name that the user knows
        raise
    try:
        with file:
            yield file, temporary
    except BaseException:
        temporary.unlink(missing_ok=True)  # a full disk has better use for the space
        raise


def _finish(file: IO[bytes], temporary: Path) -> None:
    """By its name: a library that wrote there may have put another file in its place."""
    file.close()
    fsync(temporary)


def _opened(path: Path) -> int:
    """A file of ours to read and to write, made where there is none; nothing is truncated. Raises PathConflictError."""
    try:
        # Without waiting for the other end of a pipe.
        opened = os.open(path, os.O_RDWR | os.O_CREAT | _NOFOLLOW | _NONBLOCK, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise PathConflictError(path, "it is a link or a folder, not a file") from error
        raise
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise PathConflictError(path, "it is a link or a folder, not a file")
    return opened


def _is_still(path: Path, opened: int) -> bool:
    """Whether a name is that of an open file."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(opened))
    except FileNotFoundError:
        return False


def _is_marked(folder: Path) -> bool:
    try:
        opened = os.open(folder / MARK_FILE, os.O_RDONLY | _NOFOLLOW | _NONBLOCK)
    except OSError:  # there is none, or it is a link or a socket
        return False
    with os.fdopen(opened, "rb") as mark:
        return stat.S_ISREG(os.fstat(opened).st_mode) and mark.read(len(_MARK_TEXT) + 1) == _MARK_TEXT


def _is_one_of(path: Path, names: re.Pattern[str] | None = None) -> bool:
    """Whether it is a file that is temporary, or has such a name."""
    is_known = _TEMPORARY.fullmatch(path.name) or (names is not None and names.fullmatch(path.name))
    return bool(is_known) and _is_file(path)


def _is_file(path: Path) -> bool:
    """A link to a file is none."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False
