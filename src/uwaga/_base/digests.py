"""SHA-256 of large files such as weights, which are hashed once and again only when they have changed.

`digests.json` in the folder of caches (`uwaga._base.env.data`) has what a file was when it was hashed: device, inode, size, and times of the
last change of its content and of its metadata in nanoseconds, which no program can set to the past. A file that has just changed is not
listed: another change within the resolution of the clock could not be told. What cannot be read or written is as if it were empty.
"""

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from uwaga._base import durable, env, untrusted

_FILE = "digests.json"
_MOST = 1000  # files, those that were hashed last
_SETTLED_NS = 2_000_000_000  # the coarsest clock of a file system
_SHA256 = re.compile("[0-9a-f]{64}")


@contextmanager
def cached_sha256() -> Iterator[Callable[[Path, int | None], str]]:
    """Gives a function as `untrusted.sha256(path, most)`, which does not read a file that is as it was when it was hashed last."""
    known, added = _read(), dict[str, object]()

    def sha256(path: Path, most: int | None) -> str:
        before = _state(untrusted.stat_regular(path))
        name = str(path.absolute())
        match known.get(name):
            case [*state, str(digest)] if state == before and _SHA256.fullmatch(digest):
                if most is None or before[2] <= most:
                    return digest
        digest = untrusted.sha256(path, most)
        if _state(path.stat()) == before and max(before[3:]) < time.time_ns() - _SETTLED_NS:
            added[name] = [*before, digest]
        return digest

    yield sha256
    if added:
        _write(known | added)


def _state(status: os.stat_result) -> list[int]:
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _read() -> dict[str, object]:
    # RuntimeError: there is no home folder, or what is in the file is nested too deeply.
    with suppress(OSError, ValueError, RuntimeError):
        parsed = untrusted.parse_json(untrusted.read_file(env.data() / _FILE, untrusted.JSON_BYTES), strict=False)
        if isinstance(parsed, dict):
            return parsed
    return {}


def _write(files: dict[str, object]) -> None:
    with suppress(OSError, RuntimeError):
        durable.make_folder(env.data())
        with durable.atomic_replace(env.data() / _FILE) as file:
            file.write(json.dumps(dict(list(files.items())[-_MOST:])).encode())
