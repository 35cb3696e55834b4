"""What an open database says is what its catalog on the disk says: after Ctrl-C, in a child, beside another writer, and without leave to
write."""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import forked
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # for `import interrupting`: the tests are no package

import interrupting

import uwaga.store
from uwaga import SoftDatabase
from uwaga._base.errors import SoftDatabaseError

HERE = Path(__file__).parent
CODE = (
    str(Path(uwaga.store.__file__).parent),
    str(Path(uwaga.__file__).parent / "_base" / "durable.py"),
    "contextlib.py",
)


def refused(what: Callable[[], object]) -> str:
    with pytest.raises(SoftDatabaseError) as caught:
        what()
    return str(caught.value)


def rows(first: int, count: int) -> dict[str, Any]:
    return {"keys": torch.full((count, 4), 1.0), "records": [{"n": n} for n in range(first, first + count)]}


@pytest.fixture
def db(tmp_path: Path) -> Iterator[SoftDatabase]:
    """A writer of 60 rows in three segments, of which some are deleted."""
    with SoftDatabase.create(tmp_path / "db", key_width=4) as made:
        for first in (0, 20, 40):
            made.append(**rows(first, 20))
        made.delete([3, 41])
        yield made


# Ctrl-C.

CALLS = interrupting.CALLS | {
    "append": lambda db: interrupting.append(db, 3)
}  # a step of Python for each row is no other step


def interrupted(call: Callable[[], object], step: int) -> bool:
    """Whether a call came to its step of this number, at which it gets KeyboardInterrupt. A step is a line of the store."""
    left = step

    def trace(frame: FrameType, event: str, _: object) -> Callable | None:
        nonlocal left
        if event == "call" and not any(path in frame.f_code.co_filename for path in CODE):
            return None
        if event == "line":
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    try:
        sys.settrace(trace)
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # Python drops what is raised in a finalizer
@pytest.mark.parametrize(
    ("every", "is_first"), [(131, True), *(pytest.param(5, first, marks=pytest.mark.stress) for first in (True, False))]
)
@pytest.mark.parametrize("call", CALLS)
def test_ctrl_c_at_any_step_leaves_what_the_disk_has(
    db: SoftDatabase, tmp_path: Path, call: str, every: int, is_first: bool
) -> None:
    """Of the first call of a writer, which takes the lock, and of a later one."""
    db.close()
    step = 0
    while True:
        copy = shutil.copytree(tmp_path / "db", tmp_path / f"copy{step}")
        with SoftDatabase.open(copy) as again:
            if not is_first:
                again.delete([7])
            was_interrupted = interrupted(lambda again=again: CALLS[call](again), step)
            interrupting.check(again)
        shutil.rmtree(copy)
        if not was_interrupted:
            break
        step += every
    assert step > 200


@pytest.mark.stress
def test_ctrl_c_at_any_moment_leaves_what_the_disk_has(tmp_path: Path) -> None:
    forked.run(HERE / "interrupting.py", tmp_path, 2000, 7)


# Another process: a child, and one that writes past the lock.


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_reads_anew_and_neither_writes_nor_holds_the_lock(db: SoftDatabase) -> None:
    reader, parent = SoftDatabase.open(db.path), os.getpid()
    db.append(**rows(60, 2))
    (to_child, go), (to_parent, done) = os.pipe(), os.pipe()

    def live() -> None:
        no = f"{db.path}: was opened by process {parent}, and this is its child, process {os.getpid()}, which may read alone; "
        for side in (db, reader):
            assert (len(side), side.attend(torch.ones(4), where="n = 0").rows) == (60, 1)
            assert side.records([0]) == [{"n": 0}]
            for call in (lambda side=side: side.append(**rows(0, 1)), lambda side=side: side.delete([0]), side.compact):
                assert refused(call) == f"{no}open the database here to write"
        os.write(done, b"1")
        os.read(to_child, 1)  # the parent has written and closed
        db.refresh()
        assert (len(db), db.check()) == (63, [])
        db.close()
        os.write(done, b"1")
        os.read(to_child, 1)

    child = forked.fork(live)
    os.close(to_child)
    os.close(done)  # so that to read ends if the child does
    os.read(to_parent, 1)
    assert db.append(**rows(62, 3)) == range(62, 65)
    assert (len(db), len(reader), db.check()) == (63, 58, [])
    db.close()
    os.write(go, b"1")
    os.read(to_parent, 1)
    with SoftDatabase.open(db.path) as again:  # while the child lives
        assert again.append(**rows(65, 1)) == range(65, 66)
        assert again.compact() >= 0
        assert (len(again), again.check()) == (64, [])
    os.write(go, b"1")
    assert forked.exit_code(child) == 0


def test_who_writes_past_the_lock_is_found_before_anything_is_changed(db: SoftDatabase) -> None:
    (db.path / "lock").unlink()
    with SoftDatabase.open(db.path) as other:
        assert other.append(**rows(60, 5)) == range(60, 65)
        said = refused(lambda: db.append(**rows(60, 9)))
        assert "another process has written it" in said
        assert len(db) == 63
        assert db.append(**rows(65, 9)) == range(65, 74)
        for call in (lambda: other.delete([60]), other.compact):
            other.refresh()
            db.delete([db.ids()[0]])
            assert refused(call).startswith(f"{db.path}/catalog.sqlite: another process has written it")
        assert other.ids().tolist() == db.ids().tolist()
        assert db.check() == other.check() == []
    assert len(list((db.path / "segments").iterdir())) == db.stats()["segments"]


_KILLED = """
import os, signal, subprocess, sys, torch
from uwaga import SoftDatabase
db = SoftDatabase.open(sys.argv[1])
db.append(torch.ones(1, 4))
SoftDatabase.open(sys.argv[1]).close()  # had dropped the locks of this process
look = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM segments').fetchall(); c.close()"
subprocess.run([sys.executable, "-c", look, sys.argv[1] + "/catalog.sqlite"], check=True)
print(db.append(torch.ones(5, 4)), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="locks of POSIX")
def test_rows_outlive_a_kill_though_another_program_has_read_the_catalog(db: SoftDatabase) -> None:
    """SQLite's own shell removes the log that a writer has open, unless the writer's lock keeps it from that."""
    db.close()
    assert forked.Program(_KILLED, db.path).communicate() == ("range(61, 66)\n", "")
    with SoftDatabase.open(db.path) as again:
        assert again.ids().tolist()[-6:] == list(range(60, 66))


def test_a_folder_that_was_moved_or_replaced_is_written_no_more_and_read_anew(db: SoftDatabase, tmp_path: Path) -> None:
    shutil.copytree(db.path, tmp_path / "backup")
    with SoftDatabase.open(db.path) as reader:
        db.append(**rows(60, 5))
        shutil.move(db.path, tmp_path / "moved")
        said = f"{db.path}/catalog.sqlite: cannot be read: No such file or directory"
        assert refused(lambda: db.delete([0])) == said
        shutil.move(tmp_path / "backup", db.path)
        said = f"{db.path}/catalog.sqlite: was moved or replaced while it was open; open it again"
        assert refused(lambda: db.append(**rows(65, 1))) == said
        reader.refresh()
        assert len(reader) == 58
    db.close()
    with SoftDatabase.open(tmp_path / "moved") as moved:
        assert len(moved) == 63
        assert moved.check() == []


# Hard links.


def test_a_file_with_a_second_name_is_not_written(db: SoftDatabase, tmp_path: Path) -> None:
    """As `cp -al` makes a backup; segments are never changed, and may have several."""
    said, backup = "catalog.sqlite-wal: has a second name (a hard link), through which writing", tmp_path / "backup"
    shutil.copytree(
        db.path, backup, copy_function=lambda a, b: os.link(a, b) if a.endswith(("-wal", "s")) else shutil.copy(a, b)
    )
    assert said in refused(lambda: db.append(**rows(60, 1)))
    db.close()
    for path in (db.path, backup):
        with SoftDatabase.open(path) as again:
            before = interrupting.state(again)
            for call in (lambda again=again: again.delete(range(60), missing_ok=True), again.compact):
                assert said in refused(call)
            assert interrupting.state(again) == before
            assert len(again) == 58
    with SoftDatabase.open(shutil.copytree(backup, tmp_path / "copy")) as copy:
        copy.delete(range(60), missing_ok=True)
        copy.compact()
    with SoftDatabase.open(backup) as again:
        assert len(again) == 58
        assert again.check() == []


# Readers who may not write.


class Reader:
    """A process that may read a database alone."""

    def __init__(self, path: Path, scratch: Path) -> None:
        self.process = forked.Program(HERE / "reading_alone.py", path, scratch)
        assert self.process.stdout.readline() == "ready\n"

    def ask(self, what: str) -> dict:
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def _modes(path: Path, folder: int, file: int) -> None:
    for directory in (path, path / "segments"):
        directory.chmod(folder)
        for one in directory.iterdir():
            if one.is_file():
                one.chmod(file)


@contextmanager
def writable(path: Path) -> Iterator[None]:
    """A folder that can be written within this alone, where this account is not root."""
    _modes(path, 0o755, 0o644)
    try:
        yield
    finally:
        _modes(path, 0o555, 0o444)


@pytest.fixture
def shared() -> Iterator[Path]:
    """400 rows with records, in a folder that can be read by all and written by none."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "db"
        Path(name).chmod(0o755)
        with SoftDatabase.create(path, key_width=4) as db:
            append(db, 400)
        _modes(path, 0o555, 0o444)
        yield path
        _modes(path, 0o755, 0o644)


def append(db: SoftDatabase, count: int) -> None:
    first = db.append(torch.ones(0, 4)).start
    keys = (torch.arange(first, first + count) % 1000).float()[:, None].expand(-1, 4).contiguous()
    db.append(keys, records=[{"n": n} for n in range(first, first + count)])


def expected(ids: list[int]) -> dict:
    best = sorted(ids, key=lambda n: (-(n % 1000), n))[:3]
    return {"ids": ids, "numbers": ids, "found": len(ids), "listed": best, "keys": len(ids), "damage": []}


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_a_reader_without_leave_to_write_sees_the_writer(shared: Path, tmp_path: Path) -> None:
    """At a moment that the writer leaves, as it is closed, within its changes, and after it."""
    reader, before = Reader(shared, tmp_path / "own"), list(range(400))
    for moment in ("closed", "within", "refreshed within"):
        with writable(shared), SoftDatabase.open(shared) as db:
            db.delete(before[:150])
            append(db, 200)
            if moment == "within":
                assert reader.ask("read") == expected(before)
            db.compact()
            after = db.ids().tolist()
            if moment == "refreshed within":
                assert reader.ask("refresh") == expected(after)
                before = after
        assert reader.ask("read") == expected(before)
        assert reader.ask("refresh") == expected(after)
        before = after
    reader.process.communicate()


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_a_reader_who_can_lock_nothing_hears_that_it_was_written(shared: Path, tmp_path: Path) -> None:
    """As of a copy of the catalog and the segments alone."""
    with writable(shared):
        for ending in ("-wal", "-shm"):
            (shared / f"catalog.sqlite{ending}").unlink()
    reader = Reader(shared, tmp_path / "own")
    assert reader.ask("read") == reader.ask("refresh") == expected(list(range(400)))
    with writable(shared), SoftDatabase.open(shared) as db:
        db.delete(range(150))
        append(db, 200)
        assert reader.ask("read") == {
            "error": f"{shared}/catalog.sqlite: has been written since it was opened, when it could not be locked, as its folder cannot be "
            "written; call refresh()"
        }
        db.compact()
    assert reader.ask("refresh") == reader.ask("read") == expected(list(range(150, 600)))
    reader.process.communicate()


# Damage.


def told(call: Callable[[], object]) -> str | None:
    """The message of an error that the store may raise."""
    try:
        call()
    except (SoftDatabaseError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def read_all(db: SoftDatabase) -> list[str]:
    """What each way to read says of damage, with what `check` finds at first."""
    found = [str(damage) for damage in db.check()]
    for call in (
        lambda: db.attend(torch.ones(4), where="n > 3"),
        lambda: db.records(range(70)),
        lambda: (db.ids(), list(db), db.stats(), db.parts()),
    ):
        said = told(call)
        # A field may have got another name, and keys another width; all other errors name the file. check has found them.
        if said is not None and not said.endswith("no such column: n"):
            assert said.startswith((f"SoftDatabaseError: {db.path}", "ShapeError: ")), said
            assert found, said
    return found


@pytest.mark.parametrize("step", [97, pytest.param(7, marks=pytest.mark.stress)])
def test_a_damaged_byte_of_the_catalog_is_an_error_with_its_file(db: SoftDatabase, step: int) -> None:
    db.append(torch.ones(3, 4), records=[{"text": "a caf\u00e9", "n": n} for n in range(3)])
    db.close()
    path = db.path / "catalog.sqlite"
    content, found = path.read_bytes(), list[str]()
    for at in range(0, len(content), step):
        for bits in (0x80, 0x01, 0xFF) if any(content[max(at - 2, 0) : at + 3]) else ():
            damaged = bytearray(content)
            damaged[at] ^= bits
            path.write_bytes(damaged)
            said = told(lambda: found.extend(_opened_and_read(db.path)))
            if said is not None:
                assert said.startswith(f"SoftDatabaseError: {db.path}"), said
                found.append(said)
    assert len(found) > 5


def _opened_and_read(path: Path) -> list[str]:
    with SoftDatabase.open(path) as db:
        return read_all(db)


def test_text_that_is_not_utf8_is_found(db: SoftDatabase) -> None:
    db.append(torch.ones(3, 4), records=[{"text": "a caf\u00e9"}, {"text": "tea"}, {}])
    db.close()
    path = db.path / "catalog.sqlite"
    path.write_bytes(path.read_bytes().replace("caf\u00e9".encode(), b"caf\xc3\xff"))
    with SoftDatabase.open(db.path) as again:
        reason = "is damaged: it has text that is not UTF-8: \"Could not decode to UTF-8 column 'text' with text 'a caf"
        (damage,) = again.check()
        assert (damage.file, damage.first_id) == ("catalog.sqlite", None)
        assert damage.reason.startswith(reason)
        assert refused(lambda: again.records([60])).startswith(f"{path}: {reason}")
        assert again.records([61]) == [{"text": "tea"}]
        again.delete([60])
        assert again.check() == []
