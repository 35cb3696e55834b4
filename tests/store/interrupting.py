"""Ctrl-C in a call of a writer: afterwards the object answers as the disk does, and both go on.

A program: `python interrupting.py FOLDER INTERRUPTS SEED`. A timer raises KeyboardInterrupt 0.5 to 12.5 ms after an append, a deletion or a
compaction began. Its last line is a JSON object of counts.
"""

import json
import random
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from uwaga import SoftDatabase
from uwaga._base.errors import SoftDatabaseError

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
    own = state(db)
    with SoftDatabase.open(db.path) as disk:
        assert state(disk) == own
        assert disk.check() == []
    assert db.check() == []
    assert [row.record for row in db] == [{"n": number} for number in db.ids().tolist()]
    first = next_id(db)
    append(db, 3)
    assert db.ids().tolist() == [*own[1], first, first + 1, first + 2]
    assert len(list((db.path / "segments").iterdir())) == db.stats()["segments"]


def main(folder: Path, interrupts: int, seed: int) -> dict[str, int]:
    torch.set_num_threads(1)
    chance = random.Random(seed)
    counts = {"interrupts": 0, "returned before": 0, "differ": 0, "do not open": 0, **dict.fromkeys(CALLS, 0)}

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupted)
    number = 0
    db = SoftDatabase.create(folder / "0", key_width=4)
    while counts["interrupts"] < interrupts:
        if len(db) < 400:
            append(db, 400)
        name = chance.choice(list(CALLS))
        if name == "compact":
            db.delete(db.ids()[:1])
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.012 * chance.random())
            CALLS[name](db)
            signal.setitimer(signal.ITIMER_REAL, 0)
            counts["returned before"] += 1
            continue
        except (
            KeyboardInterrupt,
            ValueError,
        ):  # PyTorch gives an error of its own where Ctrl-C comes while it reads a storage
            counts["interrupts"] += 1
            counts[name] += 1
        is_sound = False
        try:
            check(db)
            is_sound = True
        except (AssertionError, SoftDatabaseError):
            traceback.print_exc()
            counts["differ"] += 1
        if not is_sound or len(db) > 3000 or db.stats()["segments"] > 12:  # the comparison takes time
            db.close()
            try:
                SoftDatabase.open(db.path).close()
            except SoftDatabaseError:
                counts["do not open"] += 1
            number += 1
            db = SoftDatabase.create(folder / str(number), key_width=4)
    db.close()
    return counts


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))  # noqa: T201
