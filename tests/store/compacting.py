"""Three readers check a soft database while its writer appends and compacts: nothing is damaged, and nothing may be called so.

A program: `python compacting.py FOLDER LOOPS`. In each loop the writer appends twice, deletes and compacts. The readers check until it
ends; every second time they open the database anew, otherwise they show a moment that passes.
"""

import sys
from functools import partial
from pathlib import Path

import torch
from forked import exit_code, fork

from uwaga import SoftDatabase

READERS, KEPT = 3, 40


def write(path: Path, loops: int) -> None:
    with SoftDatabase.open(path) as db:
        for _ in range(loops):
            for count in (3, 5):
                ids = db.append(torch.ones(count, 2), records=[{"n": n} for n in range(count)])
            db.delete([ids[0]])
            if len(db) > KEPT:
                db.delete(db.ids()[:-8])
            db.compact()


def read(path: Path, ended: Path) -> None:
    """Check until a file is there, and at least once. Raises AssertionError for damage."""
    db, checks = SoftDatabase.open(path), 0
    while not (checks and ended.exists()):
        checks += 1
        if checks % 2:
            db.close()
            db = SoftDatabase.open(path)
        else:
            db.refresh()
        for _ in range(2):
            damage = db.check()
            assert damage == [], damage
            assert db.damaged == []
            assert len(db) == len(db.ids())
    db.close()


def main(folder: Path, loops: int) -> None:
    path, ended = folder / "db", folder / "ended"
    with SoftDatabase.create(path, key_width=2) as db:
        db.append(torch.ones(1, 2), records=[{"n": 0}])
    readers = [fork(partial(read, path, ended)) for _ in range(READERS)]
    try:
        write(path, loops)
    finally:
        ended.touch()
    assert [exit_code(reader) for reader in readers] == [0] * READERS


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
