"""What is left of a database whose writer was killed, or whose machine lost power."""

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import forked
import pytest
import torch

from uwaga import Ragged, SoftDatabase
from uwaga._base import durable
from uwaga.store import TokenDatabase, open_database


@pytest.mark.slow
@pytest.mark.gate(only=lambda kind, how: (kind, how) == ("vectors", "steps"))
@pytest.mark.parametrize("how", ["steps", "moments"])
@pytest.mark.parametrize("kind", ["vectors", "tokens"])
def test_a_killed_writer_loses_nothing_and_leaves_no_half(tmp_path: Path, how: str, kind: str) -> None:
    forked.run(Path(__file__).with_name("killing.py"), tmp_path, 6, 3, how, kind)


@pytest.mark.slow
@pytest.mark.parametrize("loops", [15, pytest.param(2000, marks=pytest.mark.stress)])
def test_readers_see_no_damage_while_a_writer_compacts(tmp_path: Path, loops: int) -> None:
    forked.run(Path(__file__).with_name("compacting.py"), tmp_path, loops)


class Disk:
    """What a power loss before each step would leave of a folder: files whose bytes were not synced have half of them, and names that were
    given or taken since their folder was synced are as they were before. SQLite syncs its own files, which are as they are."""

    def __init__(self, folder: Path, images: Path) -> None:
        self.folder, self.images = folder, images
        self.synced = set(self.segments())  # inodes whose bytes are on the disk
        self.names = self.segments()  # inode: name, of entries that are on the disk
        self.count = 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Take an image before each step inside, and one at the end."""
        threading.setprofile(self.step)
        sys.setprofile(self.step)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        self.image()

    def step(self, frame: FrameType, event: str, called: object) -> None:
        """Python calls this before and after each function (sys.setprofile)."""
        is_fsync = frame.f_code is durable.fsync.__code__
        if (is_fsync and event == "call") or (event == "c_call" and (called is os.link or called is os.unlink)):
            self.image()
        if is_fsync and event == "return":
            path = frame.f_locals["path"]
            if path.is_file():
                self.synced.add(path.stat().st_ino)
            elif path.name == "segments":
                self.names = self.segments()

    def segments(self) -> dict[int, str]:
        return {path.stat().st_ino: path.name for path in (self.folder / "segments").iterdir()}

    def image(self) -> None:
        """Write what would be left now, with the names that the disk surely has, and with all of the present ones."""
        present = self.segments()
        for names in [self.names, present] if self.names != present else [present]:
            image = self.images / f"{self.count:03d}"
            self.count += 1
            (image / "segments").mkdir(parents=True)
            for path in self.folder.iterdir():
                if path.is_file():
                    shutil.copy(path, image)
            for inode, name in names.items():
                if inode in present:
                    content = (self.folder / "segments" / present[inode]).read_bytes()
                    kept = content if inode in self.synced else content[: len(content) // 2]
                    (image / "segments" / name).write_bytes(kept)


def _append(db: SoftDatabase | TokenDatabase) -> None:
    keys = torch.full((300, 4), 2.0)
    db.append(of_kind(db, keys), records=[{"n": n} for n in range(300)])


def of_kind(db: SoftDatabase | TokenDatabase, keys: torch.Tensor) -> torch.Tensor | Ragged:
    """Keys of rows, or three tokens for each."""
    if isinstance(db, SoftDatabase):
        return keys
    return Ragged(keys.repeat_interleave(3, 0), torch.arange(0, 3 * len(keys) + 1, 3))


CALLS: dict[str, Callable[[SoftDatabase | TokenDatabase], object]] = {
    "append": _append,
    "delete": lambda db: db.delete(range(50, 139)),
    "compact": lambda db: db.compact(),
}


def state(path: Path) -> tuple[list[int], list[dict], bytes]:
    with open_database(path) as db:
        assert db.check() == []
        if isinstance(db, TokenDatabase):
            answer = db.search(Ragged.from_list([torch.ones(2, 4)]), 1000).scores
        else:
            answer = db.attend(torch.ones(4)).value
        return db.ids().tolist(), [row.record for row in db], answer.numpy().tobytes()


@pytest.fixture(params=["vectors", "tokens"])
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = tmp_path / "db"
    is_soft = request.param == "vectors"
    with SoftDatabase.create(path, key_width=4) if is_soft else TokenDatabase.create(path, width=4) as db:
        for first in (0, 100):
            db.append(of_kind(db, torch.rand(100, 4)), records=[{"n": first + n} for n in range(100)])
        db.delete([3, 140])
    return path


@pytest.mark.parametrize("call", CALLS)
def test_a_power_loss_leaves_all_or_nothing(disk: Path, tmp_path: Path, call: str) -> None:
    before = state(disk)
    with open_database(disk) as db:
        db.append(of_kind(db, torch.ones(0, 4)))  # takes the lock
        with Disk(disk, tmp_path / "images").watched():
            CALLS[call](db)
    after = state(disk)
    images = sorted((tmp_path / "images").iterdir())
    results = [state(image) for image in images]
    assert all(result in (before, after) for result in results)
    # What has returned is there.
    assert results[-1] == after
    if call == "append":
        assert len(images) > 5
        assert results[0] == before != after
    # A writer that comes later removes what is in no segment, and goes on.
    for image in images:
        with open_database(image) as db:
            db.append(of_kind(db, torch.rand(10, 4)))
            assert db.check() == []
            assert len(list((db.path / "segments").iterdir())) == db.stats()["segments"]
