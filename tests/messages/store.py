"""Calls of databases of rows that raise: `db` and `tokens` are databases with two rows."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from uwaga import Ragged, SoftDatabase, TextEncoder, store
from uwaga.store import TokenDatabase

ONE = torch.ones(3)
KEYS, VALUES = torch.ones(2, 3), torch.ones(2, 2)
INFINITE = torch.tensor([[0.0, 0.0, 0.0], [0.0, torch.inf, 0.0]])
PAIR = Ragged.from_list([torch.eye(2), torch.ones(1, 2)])
EMPTY = Ragged(torch.ones(3, 2), torch.tensor([0, 1, 1, 3]))
OF_NAN = Ragged.from_list([torch.ones(1, 2), torch.full((1, 2), torch.nan)])


def asked(db: SoftDatabase, where: object, *parameters: object) -> object:
    return db.attend(ONE, where=where, parameters=parameters)


def small(folder: Path, *rows: torch.Tensor) -> SoftDatabase:
    made = SoftDatabase.create(folder / "db", key_width=3)
    made.append(torch.stack(rows) if rows else torch.eye(3))
    return made


def changed_catalog(folder: Path, change: Callable[[Path], object]) -> SoftDatabase:
    """Open a database whose catalog was changed."""
    small(folder).close()
    change(folder / "db" / "catalog.sqlite")
    return SoftDatabase.open(folder / "db")


def sql(folder: Path, *statements: str) -> SoftDatabase:
    def change(path: Path) -> None:
        with sqlite3.connect(path) as catalog:
            for statement in statements:
                catalog.execute(statement)
        catalog.close()

    return changed_catalog(folder, change)


def next_id(folder: Path, value: str) -> SoftDatabase:
    return sql(folder, f"UPDATE settings SET value = '{value}' WHERE name = 'next_id'")


def catalog_of_songs(folder: Path) -> SoftDatabase:
    def change(path: Path) -> None:
        path.unlink()
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE songs(name)")
        other.close()

    return changed_catalog(folder, change)


def linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def closed(db: SoftDatabase) -> SoftDatabase:
    db.close()
    return db


def replaced_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def zeroed(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:4096] + bytes(len(content) - 4096))


def without_segments(folder: Path) -> SoftDatabase:
    """A writer whose folder of segments became a link."""
    db = small(folder)
    linked(db.path / "segments")
    return db


def segment(db: SoftDatabase) -> Path:
    (path,) = (db.path / "segments").iterdir()
    return path


def damaged(folder: Path, change: Callable[[Path], object]) -> SoftDatabase:
    """Open a database whose only segment was changed."""
    with small(folder) as db:
        path = segment(db)
    change(path)
    return SoftDatabase.open(db.path)


def compacted(db: SoftDatabase) -> object:
    db.delete([0])
    return db.compact()


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-20] ^= 4
    path.write_bytes(content)


def add(
    folder: Path, db: SoftDatabase | TokenDatabase, encoder: TextEncoder, text: str = "the cat", **options: object
) -> object:
    (folder / "a.jsonl").write_text(text)
    return store.add_files(db, [folder / "a.jsonl"], encoder, **options)


def moved(encoder: TextEncoder, folder: Path, model: str | None, directory: Path | None = None) -> object:
    """The encoder of a database that was made with a model."""
    with SoftDatabase.create(folder / "db", key_width=16, model=model) as db:
        return store.encoder_of(db, directory)


def beyond(folder: Path) -> TokenDatabase:
    made = TokenDatabase.create(folder / "db", width=2)
    made.append(Ragged.from_list([torch.full((2, 2), 3e38)]))
    return made
