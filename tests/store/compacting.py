"""Three readers check a soft database while its writer appends and compacts: nothing is damaged, and nothing may be called so.

A program: `python compacting.py FOLDER LOOPS`. In each loop the writer appends twice, deletes and compacts. The readers check until it
ends; every second time they open the database anew, otherwise they show a moment that passes. It forks, so that PyTorch is loaded
once; with one thread, whose absence in a fork is no loss. Its last line is a JSON object of counts.
"""

import json
import os
import sys
from os import _exit
from pathlib import Path

import torch

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


def read(path: Path, ended: int) -> dict[str, int]:
    """Checks until the other end of a pipe is closed. Raises AssertionError for damage."""
    counts = {"checks": 0}
    db = SoftDatabase.open(path)
    while True:
        try:
            if not os.read(ended, 1):
                break
        except BlockingIOError:
            pass
        if counts["checks"] % 4:
            db.close()
            db = SoftDatabase.open(path)
        else:
            db.refresh()
        for _ in range(2):
            damage = db.check()
            assert damage == [], damage
            assert db.damaged == []
            assert len(db) == len(db.ids())
            counts["checks"] += 1
    db.close()
    return counts


def main(folder: Path, loops: int) -> dict[str, int]:
    torch.set_num_threads(1)
    path = folder / "db"
    with SoftDatabase.create(path, key_width=2) as db:
        db.append(torch.ones(1, 2), records=[{"n": 0}])
    ended, end = os.pipe()
    os.set_blocking(ended, False)
    results = []
    for _ in range(READERS):
        receive, send = os.pipe()
        if not os.fork():
            os.close(end)
            try:
                os.write(send, json.dumps(read(path, ended)).encode())
            except BaseException as error:
                os.write(send, json.dumps(f"{type(error).__name__}: {error}"[:2000]).encode())
                raise
            finally:
                _exit(0)
        os.close(send)
        results.append(receive)
    try:
        write(path, loops)
    finally:
        os.close(end)
    said = []
    for receive in results:
        with os.fdopen(receive) as file:
            said.append(json.loads(file.read() or '"a reader was killed"'))
    assert all(isinstance(each, dict) for each in said), said
    return {"loops": loops, **{name: sum(each[name] for each in said) for name in said[0]}}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))  # noqa: T201
