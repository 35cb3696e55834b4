"""Ctrl-C in a call of a writer: afterwards the object answers as the disk does, and both go on.

A program: `python interrupting.py FOLDER INTERRUPTS SEED`. A timer raises KeyboardInterrupt 0.5 to 12.5 ms after an append, a deletion or a
compaction began.
"""

import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from uwaga import SoftDatabase

QUERY = torch.ones(4)


def next_id(db: SoftDatabase) -> int:
    return db.append(torch.ones(0, 4)).start


def append(db: SoftDatabase, rows: int = 300) -> None:
    first = next_id(db)
    db.append(torch.rand(rows, 4), records=[{"n": first + n} for n in range(rows)])


CALLS: dict[str, Callable[[SoftDatabase], object]] = {
    "append": append,
    "delete": lambda db: db.delete(db.ids()[::7]),
    "compact": lambda db: db.compact(),
}


def state(db: SoftDatabase) -> tuple[object, ...]:
    answer = db.search(QUERY, 5)
    return (
        len(db), db.ids().tolist(), [row.record for row in db], db.records(range(10)), answer.ids.tolist(), answer.records,
        db.attend(QUERY).value.tolist(), db.attend(QUERY, where="n >= 5").rows, db.fields, db.damaged, db.stats(),
    )  # fmt: skip


def check(db: SoftDatabase) -> None:
    """The object and the disk are the same, the records are those of the rows, and both go on. Raises AssertionError, SoftDatabaseError."""
    before = state(db)
    with SoftDatabase.open(db.path) as disk:
        assert state(disk) == before
        assert disk.check() == []
    assert db.check() == []
    assert [row.record for row in db] == [{"n": number} for number in db.ids().tolist()]
    first = next_id(db)
    append(db, 3)
    assert db.ids().tolist() == [*before[1], first, first + 1, first + 2]
    assert len(list((db.path / "segments").iterdir())) == db.stats()["segments"]


def main(folder: Path, interrupts: int, seed: int) -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    chance, number = random.Random(seed), 0
    db = SoftDatabase.create(folder / "0", key_width=4)
    while interrupts:
        if len(db) < 400:
            append(db, 400)
        name = chance.choice(list(CALLS))
        if name == "compact":
            db.delete(db.ids()[:1])
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.012 * chance.random())
            CALLS[name](db)
            signal.setitimer(signal.ITIMER_REAL, 0)
            continue  # it returned before
        except (KeyboardInterrupt, ValueError):  # PyTorch's own error where Ctrl-C comes while it reads a storage
            interrupts -= 1
        check(db)
        if len(db) > 3000 or db.stats()["segments"] > 12:  # the comparison takes time
            db.close()
            number += 1
            db = SoftDatabase.create(folder / str(number), key_width=4)
    db.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
