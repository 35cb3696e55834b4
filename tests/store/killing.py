"""Kills a writer of a soft database again and again, at random moments or at its steps, and compares what is left with what it had
been told.

A program: `python killing.py FOLDER KILLS SEED moments|steps vectors|tokens`. A step is a call that makes something durable; a writer that is killed
at one is killed in a call, whatever else the machine does. The writer says each call before it begins and after it has returned; what had
returned must be there, and the one call that had not must be there as a whole or not at all.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from forked import act_at_call, exit_code, fork, kill

from uwaga import Ragged, SoftDatabase
from uwaga.store import TokenDatabase, open_database

WIDTH = 6


def rows(first: int, count: int) -> tuple[torch.Tensor, list[dict]]:
    """Keys and records that follow from the ids."""
    numbers = torch.arange(first, first + count)
    return (numbers[:, None] * torch.arange(1, WIDTH + 1) * 0.37).sin(), [
        {"n": n, "text": f"row {n}"} for n in numbers.tolist()
    ]


def tokens(first: int, count: int) -> tuple[Ragged, list[dict]]:
    """As `rows`, of one to four tokens each."""
    keys, records = rows(first, count)
    lengths = torch.arange(first, first + count) % 4 + 1
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return Ragged(keys.repeat_interleave(lengths, 0), offsets), records


def create(path: Path, kind: str) -> None:
    if kind == "tokens":
        TokenDatabase.create(path, width=WIDTH).close()
    else:
        SoftDatabase.create(path, key_width=WIDTH).close()


def write(path: Path, seed: int, say: int) -> None:
    """Random calls, without an end."""
    chance = random.Random(seed)
    with open_database(path) as db:
        alive = db.ids().tolist()
        while True:
            what = chance.choices(["append", "delete", "compact"], [6, 3, 1])[0]
            count = chance.choice([1, 30, 1500])
            if what == "append":
                os.write(say, json.dumps(["append", count]).encode() + b"\n")
                following = db.append((tokens if db.has_tokens else rows)(0, 0)[0]).start  # ids are never given again
                keys, records = (tokens if db.has_tokens else rows)(following, count)
                ids = db.append(keys, records=records)
                alive += ids
                done: list = ["done", "append", ids.start, ids.stop]
            elif what == "delete" and alive:
                gone = sorted(chance.sample(alive, min(len(alive), count)))
                os.write(say, json.dumps(["delete", gone]).encode() + b"\n")
                db.delete(gone)
                alive = sorted(set(alive) - set(gone))
                done = ["done", "delete", gone]
            else:
                os.write(say, json.dumps(["compact"]).encode() + b"\n")
                db.compact()
                done = ["done", "compact"]
            os.write(say, json.dumps(done).encode() + b"\n")


def killed(path: Path, said: Path, seed: int, *, seconds: float = 0.0, step: float | None = None) -> list[list]:
    """What a writer said until it was killed: after some seconds, or at a step."""

    def writing() -> None:
        if step is not None:
            act_at_call(step, kill, "uwaga._base.durable.fsync", "os.link", "pathlib.Path.unlink")
        with said.open("wb", buffering=0) as file:
            write(path, seed, file.fileno())

    child = fork(writing)
    if step is None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    assert exit_code(child) == -signal.SIGKILL, "the writer ended by itself"
    return [json.loads(line) for line in said.read_bytes().split(b"\n")[:-1]]


def compare(path: Path, alive: set[int], said: list[list]) -> set[int]:
    """The rows that are there. Raises AssertionError where they are not those that must be."""
    for line in said:
        if line[:2] == ["done", "append"]:
            alive |= set(range(line[2], line[3]))
        elif line[:2] == ["done", "delete"]:
            alive -= set(line[2])
    pending = said[-1] if said and said[-1][0] != "done" else None
    with open_database(path) as db:
        assert db.damaged == []
        result = set(db.ids().tolist())
        if pending and pending[0] == "append" and result != alive:
            added = result - alive
            assert not alive - result
            assert len(added) == pending[1] == max(added) - min(added) + 1
        elif pending and pending[0] == "delete" and result != alive:
            assert result == alive - set(pending[1])
        else:
            assert result == alive
        assert db.check() == []
        for row in db:
            keys, records = rows(row.id, 1)
            if db.has_tokens:
                assert torch.equal(row.tokens, keys.expand(row.id % 4 + 1, WIDTH))
            else:
                assert torch.equal(row.key, keys[0])
            assert row.record == records[0]
    return result


def main(folder: Path, kills: int, seed: int, how: str, kind: str) -> None:
    torch.set_num_threads(1)
    chance, alive, path = random.Random(seed), set[int](), folder / "db"
    create(path, kind)
    for number in range(kills):
        when = {"step": chance.randrange(60) / 2} if how == "steps" else {"seconds": chance.random() ** 2 * 0.25}
        alive = compare(path, alive, killed(path, folder / "said", chance.randrange(2**30), **when))
        if len(alive) > 8000:  # the comparison takes time
            path, alive = folder / f"db{number}", set()
            create(path, kind)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
