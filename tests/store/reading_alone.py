"""A reader who may not write the folder of a database: of another account, or of one whose folder is not writable.

A program: `python reading_alone.py DATABASE`. For each line of standard input, "read" or "refresh", it prints a JSON object of what it
shows, or of its error.
"""

import json
import os
import sys

import torch

from uwaga import SoftDatabase
from uwaga._base.errors import SoftDatabaseError


def shown(db: SoftDatabase) -> dict:
    ids = db.ids().tolist()
    records = db.records(ids)
    return {
        "ids": ids,
        "numbers": [record.get("n") for record in records],
        "found": db.attend(torch.ones(4), where="n >= 0").rows,
        "listed": [record["n"] for record in db.search(torch.ones(4), 3).records],
        "keys": sum(row.key[0].item() == row.id % 1000 for row in db),
        "damage": [str(damage) for damage in db.check()],
    }


def main(path: str) -> None:
    torch.set_num_threads(1)
    with SoftDatabase.create(
        sys.argv[2], key_width=4
    ) as scratch:  # what is needed is imported before this becomes another account
        scratch.append(torch.rand(9, 4), records=[{"n": n} for n in range(9)])
        shown(scratch)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    with SoftDatabase.open(path) as db:
        print("ready", flush=True)  # noqa: T201
        for line in sys.stdin:
            try:
                if line.strip() == "refresh":
                    db.refresh()
                said = shown(db)
            except (SoftDatabaseError, ValueError) as error:
                said = {"error": str(error)}
            print(json.dumps(said), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
