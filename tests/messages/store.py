"""Calls of databases of rows that raise: `db` and `tokens` are databases with two rows."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from pyarrow import parquet

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


def spoiled(folder: Path, change: Callable[[Path], object]) -> SoftDatabase:
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

    return spoiled(folder, change)


def next_id(folder: Path, value: str) -> SoftDatabase:
    return sql(folder, f"UPDATE settings SET value = '{value}' WHERE name = 'next_id'")


def foreign(folder: Path) -> SoftDatabase:
    def change(path: Path) -> None:
        path.unlink()
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE songs(name)")
        other.close()

    return spoiled(folder, change)


def linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def filled(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


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


def from_parquet(folder: Path, db: SoftDatabase | TokenDatabase, column: str = "tokens", **columns: list) -> object:
    kinds = {"tokens": pa.list_(pa.list_(pa.float64()))}
    arrays = {name: pa.array(values, kinds.get(name)) for name, values in columns.items()}
    parquet.write_table(pa.table(arrays), folder / "in.parquet")
    return db.append_parquet(folder / "in.parquet", **({"tokens": column} if column != "tokens" else {}))


def add(
    folder: Path, db: SoftDatabase | TokenDatabase, encoder: TextEncoder, text: str = "the cat", **options: object
) -> object:
    (folder / "a.jsonl").write_text(text)
    return store.add_files(db, [folder / "a.jsonl"], encoder, **options)


def moved(encoder: TextEncoder, folder: Path, model: str | None, given: Path | None = None) -> object:
    """The encoder of a database that was made with a model."""
    with SoftDatabase.create(folder / "db", key_width=16, model=model) as db:
        return store.encoder_of(db, given)


def beyond(folder: Path) -> TokenDatabase:
    made = TokenDatabase.create(folder / "db", width=2)
    made.append(Ragged.from_list([torch.full((2, 2), 3e38)]))
    return made


CALLS = {
    "SoftDatabase: by its own name": lambda: SoftDatabase("x"),
    "SoftDatabase: parameters without a condition": lambda db: db.attend(ONE, parameters=[1]),
    "SoftDatabase: a condition that is a number": lambda db: asked(db, 1),
    "SoftDatabase: another SELECT in a condition": lambda db: asked(db, "1) UNION SELECT value FROM settings WHERE (1"),
    "SoftDatabase: a SELECT as a condition": lambda db: asked(db, "(SELECT count(*) FROM segments)"),
    "SoftDatabase: a function that loads": lambda db: asked(db, "load_extension('x')"),
    "SoftDatabase: unknown field in a condition": lambda db: asked(db, "colour = 1"),
    "SoftDatabase: half a condition": lambda db: asked(db, "n >"),
    "SoftDatabase: empty condition": lambda db: asked(db, ""),
    "SoftDatabase: half a string in a condition": lambda db: asked(db, "n = 'a"),
    "SoftDatabase: a statement in a condition": lambda db: asked(db, "1); DELETE FROM records; --"),
    "SoftDatabase: missing parameter": lambda db: asked(db, "n = ?"),
    "SoftDatabase: missing named parameter": lambda db: db.attend(ONE, where="n = :y", parameters={"z": 1}),
    "SoftDatabase: parameter of bytes": lambda db: asked(db, "n > ?", b"a"),
    "SoftDatabase: parameter of a bytearray": lambda db: asked(db, "n > ?", bytearray(b"a")),
    "SoftDatabase: parameter of a memoryview": lambda db: asked(db, "n > ?", memoryview(b"a")),
    "SoftDatabase: parameter of a duration": lambda db: asked(db, "n > ?", np.timedelta64(1)),
    "SoftDatabase: parameter of an array": lambda db: asked(db, "n > ?", np.ones(2)),
    "SoftDatabase: complex parameter": lambda db: asked(db, "n > ?", 1j),
    "SoftDatabase: parameter of 65 bits": lambda db: asked(db, "n > ?", 2**63),
    "SoftDatabase: parameter NaN": lambda db: asked(db, "n > ?", np.float32("nan")),
    "SoftDatabase: parameters that are a string": lambda db: db.attend(ONE, where="n > ?", parameters="a"),
    "SoftDatabase: parameters that are a set": lambda db: db.attend(ONE, where="n > ?", parameters={0}),
    "SoftDatabase: parameters that are an array": lambda db: db.attend(ONE, where="n > ?", parameters=np.ones(1)),
    "SoftDatabase: parameters that are a number": lambda db: db.attend(ONE, where="n > ?", parameters=5),
    "SoftDatabase.create: path of bytes": lambda: SoftDatabase.create(b"x", key_width=2),
    "SoftDatabase.create: key_width 0": lambda folder: SoftDatabase.create(folder / "x", key_width=0),
    "SoftDatabase.create: model that is a number": lambda folder: SoftDatabase.create(folder / "x", key_width=3, model=5),
    "SoftDatabase.create: model with a lone surrogate": lambda folder: SoftDatabase.create(folder / "x", key_width=3, model="\ud800"),
    "SoftDatabase.create: dtype": lambda folder: SoftDatabase.create(folder / "x", key_width=3, dtype="float64"),
    "SoftDatabase.create: below a file": lambda folder: SoftDatabase.create(filled(folder / "file", b"") / "db", key_width=3),
    "SoftDatabase.create: a path that is not UTF-8": lambda folder: SoftDatabase.create(folder / "\udcff", key_width=3),
    "SoftDatabase.create: already there": lambda db: SoftDatabase.create(db.path, key_width=3),
    "SoftDatabase.open: no path": lambda: SoftDatabase.open(None),
    "SoftDatabase.open: no folder": lambda folder: SoftDatabase.open(folder / "none"),
    "SoftDatabase.open: of tokens": lambda tokens: SoftDatabase.open(tokens.path),
    "SoftDatabase.attend: query that is a list of strings": lambda db: db.attend(["text"]),
    "SoftDatabase.attend: width of a query": lambda db: db.attend(torch.ones(5)),
    "SoftDatabase.attend: dtype of a query": lambda db: db.attend(ONE.double()),
    "SoftDatabase.attend: closed": lambda folder: closed(small(folder)).attend(ONE),
    "SoftDatabase.attend: query NaN": lambda db: db.attend(ONE * torch.nan),
    "SoftDatabase.attend: top below 0": lambda db: db.attend(ONE, top=-1),
    "SoftDatabase.attend: half a top": lambda db: db.attend(ONE, top=1.0),
    "SoftDatabase.attend: scale that is a word": lambda db: db.attend(ONE, scale="1"),
    "SoftDatabase.attend: scale beyond float64": lambda db: db.attend(ONE, scale=10**400),
    "SoftDatabase.attend: scale beyond float32": lambda db: db.attend(ONE, scale=1e39),
    "SoftDatabase.attend: tolerance that is a word": lambda db: db.attend(ONE, tolerance="0"),
    "SoftDatabase.attend: tolerance 1": lambda db: db.attend(ONE, tolerance=1.0),
    "SoftDatabase.attend: scaled query beyond float32": lambda folder: small(folder, ONE * 1e-30).attend(ONE * 1e30, scale=1e20),
    "SoftDatabase.attend: score beyond float32": lambda folder: small(folder, ONE, ONE * 1e30).attend(ONE * 1e30, scale=1.0),
    "SoftDatabase.search: query that is a string": lambda db: db.search("text"),
    "SoftDatabase.search: no k": lambda db: db.search(ONE, 0),
    "SoftDatabase.search: k that is a bool": lambda db: db.search(ONE, True),
    "SoftDatabase.map: no query": lambda db: db.map(None),
    "SoftDatabase.map: max_bytes None": lambda db: db.map(ONE[None], max_bytes=None),
    "SoftDatabase.map: more than max_bytes": lambda db: db.map(ONE[None], max_bytes=10),
    "SoftDatabase.append: rows of different widths": lambda folder: small(folder).append([[1.0, 2.0], [3.0]]),
    "SoftDatabase.append: width of keys": lambda db: db.append(KEYS[:, :2], VALUES),
    "SoftDatabase.append: fewer values": lambda db: db.append(KEYS, VALUES[:1]),
    "SoftDatabase.append: fewer records": lambda db: db.append(KEYS, VALUES, [{}]),
    "SoftDatabase.append: records that are a number": lambda db: db.append(KEYS, VALUES, records=5),
    "SoftDatabase.append: no values": lambda db: db.append(KEYS),
    "SoftDatabase.append: dtype of keys": lambda db: db.append(KEYS.double(), VALUES),
    "SoftDatabase.append: infinite key": lambda db: db.append(INFINITE, VALUES),
    "SoftDatabase.append: another model": lambda db: db.append(KEYS, VALUES, model="m2"),
    "SoftDatabase.append: a field in capitals": lambda db: db.append(KEYS, VALUES, [{}, {"T": 1}]),
    "SoftDatabase.append: a record that is a list": lambda db: db.append(KEYS, VALUES, [{}, []]),
    "SoftDatabase.append: a field without a name": lambda db: db.append(KEYS, VALUES, [{}, {"": 1}]),
    "SoftDatabase.append: a field named by a number": lambda db: db.append(KEYS, VALUES, [{}, {5: 1}]),
    "SoftDatabase.append: a field NaN": lambda db: db.append(KEYS, VALUES, [{}, {"x": float("nan")}]),
    "SoftDatabase.append: too many fields": lambda db: db.append(KEYS, VALUES, [{}, {f"x{n}": n for n in range(2000)}]),
    "SoftDatabase.append: a field ID": lambda db: db.append(KEYS, VALUES, [{}, {"ID": 1}]),
    "SoftDatabase.append: a field that is a list": lambda db: db.append(KEYS, VALUES, [{}, {"x": [1]}]),
    "SoftDatabase.append: a field that is a bool": lambda db: db.append(KEYS, VALUES, [{}, {"x": True}]),
    "SoftDatabase.append: a field of 65 bits": lambda db: db.append(KEYS, VALUES, [{}, {"x": 2**63}]),
    "SoftDatabase.append: a lone surrogate": lambda db: db.append(KEYS, VALUES, [{}, {"x": "\ud800"}]),
    "SoftDatabase.append: beside another writer": lambda db: SoftDatabase.open(db.path).append(KEYS, VALUES),
    "SoftDatabase.append: ids past the bound": lambda folder: next_id(folder, str(10**12 - 3)).append(torch.ones(4, 3)),
    "SoftDatabase.append_parquet: path that is a number": lambda db: db.append_parquet(5),
    "SoftDatabase.append_parquet: width of keys": lambda folder, db: from_parquet(folder, db, key=[[1.0, 2.0]], value=[[1.0, 2.0]]),
    "SoftDatabase.append_parquet: a record that is no JSON": lambda folder, db: from_parquet(folder, db, key=[[1.0] * 3], value=[[1.0] * 2], record=["{"]),
    "SoftDatabase.append_parquet: a record that is a list": lambda folder, db: from_parquet(folder, db, key=[[1.0] * 3], value=[[1.0] * 2], record=["[]"]),
    "SoftDatabase.append_parquet: a record with NaN": lambda folder, db: from_parquet(folder, db, key=[[1.0] * 3], value=[[1.0] * 2], record=['{"x": NaN}']),
    "SoftDatabase.export: no path": lambda db: db.export(None),
    "SoftDatabase.counts: field that is a number": lambda db: db.counts(5),
    "SoftDatabase.delete: half an id": lambda db: db.delete([1.9]),
    "SoftDatabase.delete: id that is a string": lambda db: db.delete(["1"]),
    "SoftDatabase.delete: id that is a bool": lambda db: db.delete([True]),
    "SoftDatabase.delete: ids that are bools": lambda db: db.delete(torch.tensor([False, True])),
    "SoftDatabase.delete: one number": lambda db: db.delete(1),
    "SoftDatabase.delete: id below 0": lambda db: db.delete([1, -1]),
    "SoftDatabase.delete: id of 71 bits": lambda db: db.delete([1, 2**70]),
    "SoftDatabase.delete: a deleted row": lambda db: db.delete([1, 0]),
    "SoftDatabase.records: half an id": lambda db: db.records([1.9]),
    "SoftDatabase.records: id that is a string": lambda db: db.records(["1"]),
    "SoftDatabase.records: id that is a bool": lambda db: db.records([True]),
    "SoftDatabase.records: ids that are bools": lambda db: db.records(torch.tensor([False, True])),
    "SoftDatabase.records: one number": lambda db: db.records(1),
    "segments: a link in place of their folder": lambda folder: without_segments(folder).append(torch.ones(1, 3)),
    "segments: rows that differ from their checksum": lambda folder: compacted(damaged(folder, flipped)),
    "segments: truncated": lambda folder: damaged(folder, lambda path: path.write_bytes(path.read_bytes()[:100])).attend(ONE),
    "segments: missing": lambda folder: damaged(folder, Path.unlink).attend(ONE),
    "segments: a link": lambda folder: damaged(folder, linked).attend(ONE),
    "segments: empty": lambda folder: damaged(folder, lambda path: path.write_bytes(b"")).attend(ONE),
    "segments: of a newer format": lambda folder: damaged(folder, lambda path: path.write_bytes(path.read_bytes().replace(b"uwaga.memory 1", b"uwaga.memory 2"))).attend(ONE),
    "segments: of another format": lambda folder: damaged(folder, lambda path: path.write_bytes(path.read_bytes().replace(b"uwaga.memory 1", b"uwaga.memorx 1"))).attend(ONE),
    "catalog: of something else": foreign,
    "catalog: a trigger": lambda folder: sql(folder, "CREATE TRIGGER t AFTER INSERT ON records BEGIN DELETE FROM records; END"),
    "catalog: a table more": lambda folder: sql(folder, "CREATE TABLE songs(name)"),
    "catalog: a table less": lambda folder: sql(folder, "DROP TABLE deleted"),
    "catalog: of a newer version": lambda folder: sql(folder, "PRAGMA user_version = 2", "CREATE TABLE songs(name)", "INSERT INTO settings VALUES ('metric', 'l2')"),
    "catalog: a setting more": lambda folder: sql(folder, "INSERT INTO settings VALUES ('metric', 'l2')"),
    "catalog: a layout with more": lambda folder: sql(folder, "UPDATE settings SET value = '{\"metric\": \"l2\", ' || substr(value, 2) WHERE name = 'layout'"),
    "catalog: a layout of two heads of tokens": lambda folder: sql(folder, "UPDATE settings SET value = '{\"heads\": 2, \"key_width\": 3, \"value_width\": null, \"dtype\": \"float32\", \"tokens\": true}' WHERE name = 'layout'"),
    "catalog: next id below 0": lambda folder: next_id(folder, "-5"),
    "catalog: next id that is a word": lambda folder: next_id(folder, "abc"),
    "catalog: next id past the bound": lambda folder: next_id(folder, str(2**62 - 1)),
    "catalog: next id in powers of ten": lambda folder: next_id(folder, "1e3"),
    "catalog: next id of 20 digits": lambda folder: next_id(folder, "9" * 20),
    "catalog: no next id": lambda folder: sql(folder, "DELETE FROM settings WHERE name = 'next_id'"),
    "catalog: next id of a row that is there": lambda folder: next_id(folder, "2"),
    "catalog: a name of a segment that is none": lambda folder: sql(folder, "INSERT OR REPLACE INTO settings VALUES ('unlisted', '../lock')").delete([0]),
    "catalog: a text": lambda folder: spoiled(folder, lambda path: path.write_text("hello")),
    "catalog: missing": lambda folder: spoiled(folder, Path.unlink),
    "catalog: a link": lambda folder: spoiled(folder, linked),
    "catalog: a second name": lambda folder: spoiled(folder, lambda path: path.with_name("other").hardlink_to(path)).delete([0]),
    "catalog: a folder": lambda folder: spoiled(folder, replaced_by_a_folder),
    "catalog: pages of zeros": lambda folder: spoiled(folder, zeroed),
    "TokenDatabase: by its own name": lambda: TokenDatabase("x"),
    "TokenDatabase.open: of vectors": lambda db: TokenDatabase.open(db.path),
    "TokenDatabase.append: width": lambda tokens: tokens.append(Ragged.from_list([torch.ones(2, 3)])),
    "TokenDatabase.append: a tensor": lambda tokens: tokens.append(torch.eye(2)),
    "TokenDatabase.append: dtype": lambda tokens: tokens.append(PAIR.with_values(PAIR.values.bfloat16())),
    "TokenDatabase.append: a row without tokens": lambda tokens: tokens.append(EMPTY),
    "TokenDatabase.append: NaN": lambda tokens: tokens.append(OF_NAN),
    "TokenDatabase.append: fewer records": lambda tokens: tokens.append(PAIR, records=[{}]),
    "TokenDatabase.append: records that are a string": lambda tokens: tokens.append(PAIR, records="a"),
    "TokenDatabase.append: another model": lambda tokens: tokens.append(PAIR, model="x"),
    "TokenDatabase.append_parquet: no vector in a row": lambda folder, tokens: from_parquet(folder, tokens, tokens=[[]]),
    "TokenDatabase.append_parquet: no row": lambda folder, tokens: from_parquet(folder, tokens, tokens=[None]),
    "TokenDatabase.append_parquet: vectors of different widths": lambda folder, tokens: from_parquet(folder, tokens, tokens=[[[1.0] * 2], [[1.0]]]),
    "TokenDatabase.append_parquet: no number": lambda folder, tokens: from_parquet(folder, tokens, tokens=[[[1.0, None]]]),
    "TokenDatabase.append_parquet: beyond float32": lambda folder, tokens: from_parquet(folder, tokens, tokens=[[[1e39] * 2]]),
    "TokenDatabase.append_parquet: NaN": lambda folder, tokens: from_parquet(folder, tokens, tokens=[[[float("nan")] * 2]]),
    "TokenDatabase.append_parquet: no column": lambda folder, tokens: from_parquet(folder, tokens, "vectors", tokens=[[[1.0] * 2]]),
    "TokenDatabase.search: query that is a string": lambda tokens: tokens.search("text"),
    "TokenDatabase.search: query NaN": lambda tokens: tokens.search(OF_NAN, 1),
    "TokenDatabase.search: no k": lambda tokens: tokens.search(PAIR, 0),
    "TokenDatabase.search: query without tokens": lambda tokens: tokens.search(EMPTY, 1),
    "TokenDatabase.search: score beyond float32": lambda folder: beyond(folder).search(Ragged.from_list([torch.full((1, 2), 3e38)]), 1),
    "TokenDatabase.matches: query that is a string": lambda tokens: tokens.matches("text", 0),
    "TokenDatabase.matches: query that is a number": lambda tokens: tokens.matches(torch.tensor(5.0), 0),
    "TokenDatabase.matches: width of a query": lambda tokens: tokens.matches(torch.ones(1, 3), 0),
    "TokenDatabase.matches: no such row": lambda tokens: tokens.matches(torch.ones(1, 2), 9999),
    "TokenDatabase.tokens: no such row": lambda tokens: tokens.tokens(70),
    "TokenDatabase.delete: no such row": lambda tokens: tokens.delete([9999]),
    "open_database: path that is a number": lambda: store.open_database(5),
    "open_database: no folder": lambda folder: store.open_database(folder / "none"),
    "ask: encoder that is a string": lambda db: store.ask(db, "a", "minilm"),
    "ask: database that is a string": lambda encoder: store.ask("x.db", "a", encoder),
    "ask: database of tokens that is a number": lambda encoder: store.ask(5, "a", encoder),
    "encoder_of: database that is a string": lambda: store.encoder_of("x.db"),
    "encoder_of: a model that is gone": lambda encoder, folder: moved(encoder, folder, f"{folder}/gone@{'0' * 32}"),
    "encoder_of: no known model": lambda encoder, folder: moved(encoder, folder, None),
    "encoder_of: another model": lambda encoder, folder, model: moved(encoder, folder, "gone", model),
    "add_files: no database": lambda encoder: store.add_files(None, [], encoder),
    "add_files: one string": lambda db, encoder: store.add_files(db, "a.txt", encoder),
    "add_files: a number": lambda db, encoder: store.add_files(db, 5, encoder),
    "add_files: one vector a text where tokens have theirs": lambda folder, tokens, encoder: add(folder, tokens, encoder),
    "add_files: no field": lambda folder, db, encoder: add(folder, db, encoder, '{"body": "a dog"}'),
    "add_files: unknown split": lambda folder, db, encoder: add(folder, db, encoder, split="word"),
}  # fmt: skip
