"""Atomic, durable writes: a file is complete or absent, even after a crash. File locks. Removal of uwaga's own folders.

Everything that uwaga writes or removes goes through here; nothing else in the package writes or removes files (a test checks
it). Files are created under new names, so that no link is followed and no file of another program is truncated. Only folders
with a mark file and files with a temporary name are removed. Only regular files and links to them are replaced: a character device
or a pipe that a user names, such as /dev/null, is written into, and a socket or a block device is rejected.

What differs by system. macOS: the disk empties its own cache too (F_FULLFSYNC). Windows: the entries of a folder cannot be
flushed, so that a crash of the machine may undo a renaming, never half of it; a file that a program has open or mapped is neither replaced
(PermissionError, after some attempts) nor removed; locks are those of msvcrt.
"""

import errno
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO
from weakref import WeakSet

MARK_FILE = ".uwaga"  # the mark file of a folder
_MARK_TEXT = b"This folder was made by uwaga, which removes it when it is done.\n"
# With the first 40 characters of the final name, at most 160 bytes of UTF-8, so that it is within the limit of 255 bytes.
_TEMPORARY = re.compile(r"\..{1,40}\.uwaga-[0-9a-f]{16}", re.DOTALL)
# Not available on every system.
_NOFOLLOW, _NONBLOCK = getattr(os, "O_NOFOLLOW", 0), getattr(os, "O_NONBLOCK", 0)
_LOCK_SECONDS = 0.1  # between two attempts on Windows, which has no lock to wait for that Ctrl-C interrupts
# Between attempts on Windows, where readers and virus scanners have files open for moments.
_REPLACE_SECONDS = (0.01, 0.1, 1.0)
_NO_HARD_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK}


class PathConflictError(FileExistsError):
    """A path that uwaga needs exists and was not made by uwaga."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(errno.EEXIST, f"cannot be used: {why}", str(path))


@contextmanager
def atomic_replace(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file to write, and rename it to `path` when it is complete and on the disk; a file or link of that name
    is replaced. The temporary file, whose path is the `name` of the yielded file, is removed if an exception is raised. Close the file
    before a library writes to that path: on Windows a library may not replace a file that is open.

    Where `path` is a character device or a pipe, or a link to one, the complete file is copied into it instead. Raises
    PathConflictError where it is a socket, a block device or anything else that is not replaced, or a pipe that no program reads.
    """
    if _is_stream(path):
        with (
            tempfile.TemporaryDirectory(prefix="uwaga-") as folder,
            _temporary_file(Path(folder) / path.name) as (file, temporary, _),
        ):
            yield file
            file.close()
            _copy_into(temporary, path)
        return
    with _temporary_file(path) as (file, temporary, mode):
        yield file
        _finish(file, temporary, mode)
        replace_file(temporary, path)
    fsync(path.parent)


@contextmanager
def atomic_create(path: Path) -> Iterator[IO[bytes]]:
    """Write a new file as atomic_replace does. Raises PathConflictError if the path exists, before or after the file was written."""
    if os.path.lexists(path):
        raise PathConflictError(path, "it already exists")
    with _temporary_file(path) as (file, temporary, mode):
        yield file
        _finish(file, temporary, mode)
        rename_noreplace(temporary, path)
    fsync(path.parent)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Create a folder under a temporary name to fill, with its parents, and rename it to `path` when that is done. If an exception
    is raised, the folder is removed with its content. Raises PathConflictError if the path exists."""
    temporary = _temporary_path(path)
    make_folder(path.parent)
    temporary.mkdir()
    try:
        yield temporary
        fsync(temporary)
        rename_folder(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    fsync(path.parent)


def rename_noreplace(path: Path, new: Path) -> None:
    """Rename a file to a new path, atomically. Raises PathConflictError if the new path exists."""
    if sys.platform == "win32":  # where a renaming replaces nothing
        try:
            path.rename(new)
        except FileExistsError as error:
            raise PathConflictError(new, "it already exists") from error
        return
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
    """Create a file and open it for writing. Raises PathConflictError where the path exists."""
    try:
        return path.open("xb")
    except FileExistsError as error:
        raise PathConflictError(path, "it already exists") from error


def open_append(path: Path, accepts: Callable[[bytes], bool], *, size: int) -> IO[bytes]:
    """Open a file to append to, unbuffered, after truncating it to `size` bytes.

    Raises PathConflictError, before anything is truncated, where the path is not a regular file with one name, or `accepts`
    returns False for its first 64 bytes.
    """
    file = os.fdopen(_opened(path), "r+b", buffering=0)
    try:
        if os.fstat(file.fileno()).st_nlink != 1:
            raise PathConflictError(path, "it is a file with a second name (a hard link)")
        if not accepts(file.read(64)):
            raise PathConflictError(path, "it is not a file that uwaga wrote")
        file.truncate(size)
        file.seek(0, os.SEEK_END)
    except BaseException:
        file.close()
        raise
    return file


def fsync(path: Path) -> None:
    """Flush the content of a file, or the entries of a folder, to the disk. On Windows a folder is left as it is."""
    if sys.platform == "win32" and path.is_dir():
        return  # Python cannot open a folder there
    # On Windows a file that is only read is not flushed.
    opened = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        fsync_opened(opened)
    finally:
        os.close(opened)


def fsync_opened(opened: int) -> None:
    """Flush the content of an open file to the disk."""
    if sys.platform == "darwin":  # where fsync leaves it in the cache of the disk
        import fcntl

        try:
            fcntl.fcntl(opened, fcntl.F_FULLFSYNC)
        except OSError:  # a file system without it
            pass
        else:
            return
    os.fsync(opened)


_LOCKS = WeakSet[IO[bytes]]()  # that this process holds
if hasattr(os, "register_at_fork"):
    # A child that had them open would hold them for as long as it lives, whatever becomes of its parent.
    os.register_at_fork(after_in_child=lambda: [lock.close() for lock in list(_LOCKS)])


@contextmanager
def file_lock(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold an exclusive lock (flock; on Windows LockFile) on a file.

    The file is created if it is absent, and is never written. The system releases the lock when the process ends, in whatever way. A child
    made by fork does not hold the lock.

    Raises:
        BlockingIOError: another process holds it, and `wait` is False.
        PathConflictError: the path is a link or not a regular file.
    """
    while True:
        with os.fdopen(_opened(path), "r+b", buffering=0) as lock:
            _LOCKS.add(lock)
            _lock(lock.fileno(), wait=wait)
            if _is_still(path, lock.fileno()):  # not removed with its folder by the process that held it
                yield
                return


def _lock(opened: int, *, wait: bool) -> None:
    """Lock an open file. Raises BlockingIOError if another open file, also of this process, holds the lock and `wait` is False."""
    if sys.platform == "win32":
        import msvcrt

        while True:
            try:
                msvcrt.locking(opened, msvcrt.LK_NBLCK, 1)  # of a byte that need not exist
            except PermissionError as error:
                if not wait:
                    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error
                time.sleep(_LOCK_SECONDS)
            else:
                return
    import fcntl

    fcntl.flock(opened, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def make_folder(path: Path) -> None:
    """Create a folder that a user named, with its parents, unless it exists. Raises OSError."""
    path.mkdir(parents=True, exist_ok=True)


def ensure_marked_folder(path: Path) -> None:
    """Create a folder with a mark file, unless it exists. Raises PathConflictError where it is not uwaga's."""
    with suppress(FileExistsError):
        path.mkdir()
    if not is_uwaga_folder(path):
        raise PathConflictError(path, f"it is not a folder that uwaga made, which has a file {MARK_FILE}; move it away")
    mark_folder(path)


def create_marked_folder(path: Path) -> None:
    """Create a folder with a mark file. Raises PathConflictError where the path exists."""
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
    """Write the mark file of a folder, unless it has one. Raises PathConflictError where something else has its name."""
    if _is_marked(path):
        return
    try:
        with atomic_create(path / MARK_FILE) as file:
            file.write(_MARK_TEXT)
    except PathConflictError:
        if not _is_marked(path):  # another process may have written it at the same moment
            raise


def rename_folder(folder: Path, new: Path) -> None:
    """Rename a folder to a new path. Raises PathConflictError if the new path exists."""
    if os.path.lexists(new):  # rename() would replace an empty folder
        raise PathConflictError(new, "it already exists; move it away")
    folder.rename(new)


def unmark_folder(path: Path) -> None:
    """Remove the mark file of a finished folder, which belongs to its user from now on."""
    if _is_marked(path):
        (path / MARK_FILE).unlink()


def is_uwaga_folder(folder: Path) -> bool:
    """Return whether it is a folder (not a link to one) with the mark file, or with nothing but temporary files."""
    if not stat.S_ISDIR(folder.lstat().st_mode):
        return False
    return _is_marked(folder) or all(_TEMPORARY.fullmatch(path.name) for path in folder.iterdir())


def contains_only(folder: Path, names: re.Pattern[str]) -> bool:
    """Return whether a folder contains only regular files (no links) that have a temporary name or match `names`."""
    return stat.S_ISDIR(folder.lstat().st_mode) and all(_is_one_of(path, names) for path in folder.iterdir())


def remove_folder(folder: Path, names: re.Pattern[str]) -> bool:
    """Remove the files that match `names` from a folder of uwaga, and the folder if it is empty then.

    Returns whether the folder was removed. Nothing is removed from a folder that is not uwaga's, and on Windows no file that is open.
    Raises OSError.
    """
    if not is_uwaga_folder(folder):
        return False
    for path in list(folder.iterdir()):
        if path.name != MARK_FILE and _is_one_of(path, names):
            with _open_files_kept():
                path.unlink()
    if any(path.name != MARK_FILE for path in folder.iterdir()):
        return False
    (folder / MARK_FILE).unlink(missing_ok=True)  # last: an interrupted removal can be resumed
    folder.rmdir()
    return True


def remove_temporary(folder: Path, *names: str) -> None:
    """Remove the temporary files of these names, which a killed process left in a folder."""
    for path in list(folder.iterdir()):
        if _is_one_of(path) and path.name.startswith(tuple(f".{name[:40]}.uwaga-" for name in names)):
            path.unlink()


def remove_files(folder: Path, names: Collection[str]) -> None:
    """Remove the regular files of these names from a folder, and their temporary files; they are gone from the disk when this returns.

    Raises PathConflictError where the folder is a link: what it refers to is another one's. Raises OSError; on Windows, PermissionError where
    some of the files are open or mapped, when the others are removed."""
    if not stat.S_ISDIR(folder.lstat().st_mode):
        raise PathConflictError(folder, "it is a link or a file, not a folder")
    remaining, kept = set(names), list[PermissionError]()
    for path in list(folder.iterdir()):
        if path.name in remaining and _is_file(path):
            with _open_files_kept(kept):
                path.unlink(missing_ok=True)
    remove_temporary(folder, *remaining)
    fsync(folder)
    if kept:
        raise kept[0]


class PrivateFolder:
    """A temporary folder that only this account can read; removed by `close`, or when the program ends."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="uwaga-")

    def write(self, name: str, content: bytes) -> Path:
        """Write a new file that only this account can read and write, and return its path. Raises FileExistsError, OSError."""
        path = Path(self._folder.name) / name
        with os.fdopen(_open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
        return path

    def close(self) -> None:
        """Remove the folder; calling it again has no effect."""
        self._folder.cleanup()


def _is_stream(path: Path) -> bool:
    """Return whether a path leads to a character device or a pipe. Raises PathConflictError where it leads to what is never replaced."""
    try:
        mode = path.stat().st_mode
    except OSError:  # nothing, or a broken link
        mode = 0
    if stat.S_ISCHR(mode) or stat.S_ISFIFO(mode):
        return True
    if stat.S_ISSOCK(mode) or stat.S_ISBLK(mode):
        raise PathConflictError(path, f"it is a {'socket' if stat.S_ISSOCK(mode) else 'block device'}, not a file")
    folder = os.path.realpath(path.parent)
    if folder == "/dev" or f"{folder}/".startswith("/proc/"):  # /dev/stdout is a link, whatever standard output is
        raise PathConflictError(
            path, "there are devices and open files in its folder, which are not replaced; name a file"
        )
    return False


def _copy_into(file: Path, path: Path) -> None:
    """Copy a file into a device or a pipe. Raises PathConflictError, OSError."""
    try:
        # O_NONBLOCK: opening a named pipe would wait for a reader, perhaps for ever.
        opened = os.open(path, os.O_WRONLY | _NONBLOCK | getattr(os, "O_NOCTTY", 0))
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise PathConflictError(path, "it is a pipe that no program reads; start the reader first") from error
        raise
    with os.fdopen(opened, "wb") as out, file.open("rb") as whole:
        if _NONBLOCK:
            os.set_blocking(opened, True)
        shutil.copyfileobj(whole, out)


def _temporary_path(path: Path) -> Path:
    """Return a new path in the folder of `path`, which `_TEMPORARY` matches."""
    return path.with_name(f".{path.name[:40]}.uwaga-{secrets.token_hex(8)}")


@contextmanager
def _temporary_file(path: Path) -> Iterator[tuple[IO[bytes], Path, int]]:
    """Open a temporary file in the folder of `path`, with its path and permissions; it is removed where an exception is raised."""
    temporary = _temporary_path(path)
    try:
        file = temporary.open("xb")
    except OSError as error:
        error.filename = str(path)  # the path that the user gave
        raise
    try:
        with file:
            yield file, temporary, stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    except BaseException:
        temporary.unlink(missing_ok=True)  # it may be what filled the disk
        raise


def _finish(file: IO[bytes], temporary: Path, mode: int) -> None:
    """Close the file and flush it by its path, where a library may have put another file, with permissions of its own."""
    file.close()
    if stat.S_IMODE(temporary.lstat().st_mode) != mode:  # safetensors lets the owner alone read what it writes
        temporary.chmod(mode)
    fsync(temporary)


def replace_file(temporary: Path, path: Path) -> None:
    """Rename a file to a path, atomically; a file of that path is replaced. Raises OSError."""
    for seconds in _REPLACE_SECONDS if sys.platform == "win32" else ():
        try:
            temporary.replace(path)
        except PermissionError:
            time.sleep(seconds)
        else:
            return
    try:
        temporary.replace(path)
    except PermissionError as error:
        if sys.platform == "win32":
            why = "cannot be replaced: Windows keeps a file that a program has open or mapped; close it there"
            raise PermissionError(error.errno, why, str(path)) from error
        raise


@contextmanager
def _open_files_kept(kept: list[PermissionError] | None = None) -> Iterator[None]:
    """On Windows a file that is open or mapped is not removed, and no error here; `kept` gets it."""
    try:
        yield
    except PermissionError as error:
        if sys.platform != "win32":
            raise
        if kept is not None:
            kept.append(error)


def _open(path: Path, flags: int, mode: int = 0o666) -> int:
    """Open as os.open does, but follow no link and wait for no pipe's other end. Raises OSError."""
    if not _NOFOLLOW and path.is_symlink():  # Windows, where one who may make links is trusted
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return os.open(path, flags | _NOFOLLOW | _NONBLOCK, mode)


def _opened(path: Path) -> int:
    """Open a file to read and write, create it if it is absent, and truncate nothing. Raises PathConflictError."""
    try:
        opened = _open(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        # EACCES: a folder on Windows
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO) or (error.errno == errno.EACCES and path.is_dir()):
            raise PathConflictError(path, "it is a link or a folder, not a file") from error
        raise
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise PathConflictError(path, "it is a link or a folder, not a file")
    return opened


def _is_still(path: Path, opened: int) -> bool:
    """Return whether a path still refers to an open file."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(opened))
    except FileNotFoundError:
        return False


def _is_marked(folder: Path) -> bool:
    try:
        opened = _open(folder / MARK_FILE, os.O_RDONLY)
    except OSError:  # absent, a link or a socket
        return False
    with os.fdopen(opened, "rb") as mark:
        return stat.S_ISREG(os.fstat(opened).st_mode) and mark.read(len(_MARK_TEXT) + 1) == _MARK_TEXT


def _is_one_of(path: Path, names: re.Pattern[str] | None = None) -> bool:
    """Return whether it is a regular file that has a temporary name or matches `names`."""
    is_known = _TEMPORARY.fullmatch(path.name) or (names is not None and names.fullmatch(path.name))
    return bool(is_known) and _is_file(path)


def _is_file(path: Path) -> bool:
    """Return whether it is a regular file; a link to one is not."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False
