"""How fast does a soft database answer, compared with reading its bytes, and with other exact searches if they are installed?

The other sides:

- `sum` reads every mapped byte of the keys once, as an answer must at least do.
- `matmul` is PyTorch's product of all keys and queries, and topk of the scores.
- `faiss` is IndexFlatIP of faiss-cpu; `duckdb` is array_inner_product over a table in memory; `sqlite-vec` is a vec0 table in memory (its nearest by L2,
  the same rows for keys of one length); `lancedb` is a table without an index; `keops` is the argKmin of a LazyTensor.
- `write` writes the bytes of an append to a file and syncs it.

With --gigabytes N, the benchmark measures instead how much memory beyond the page cache a reader of a database of that size takes.
"""

import argparse
import os
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import perf_counter

import torch
from harness import Report, options, parse
from timing import Side, compare

from uwaga import SoftDatabase

HEADINGS = ("question", "rows", "D", "uwaga ms", "beside", "ms", "ratio", "GB/s", "GFLOP/s", "of peak")
TOP = 10
RUN = 8192  # neighbouring rows that are near each other


class Sides:
    """The database, and the other sides."""

    def __init__(self, folder: Path, rows: int, width: int) -> None:
        self.rows, self.width = rows, width
        centres = torch.nn.functional.normalize(torch.randn(rows // RUN + 1, width), dim=1)
        self.keys = centres.repeat_interleave(RUN, 0)[:rows] + 0.3 * torch.randn(rows, width) / width**0.5
        self.keys = torch.nn.functional.normalize(self.keys, dim=1)
        self.db = SoftDatabase.create(folder / "db", key_width=width)
        self.db.append(self.keys)
        self.db.compact()
        self.mapped = [segment.keys for segment in self.db._segments.values()]
        self.folder = folder
        self.count = 0

    def sum(self) -> object:
        return [keys.sum() for keys in self.mapped]

    def append(self) -> None:
        """To a new database, which is removed again, as what `write` writes."""
        self.count += 1
        with SoftDatabase.create(self.folder / f"other{self.count}", key_width=self.width) as other:
            other.append(self.keys)
        shutil.rmtree(other.path)

    def write(self) -> None:
        path = self.folder / "raw"
        with path.open("wb") as file:
            file.write(memoryview(self.keys.numpy()))
            file.flush()
            os.fsync(file.fileno())
        path.unlink()

    def open(self) -> None:
        SoftDatabase.open(self.folder / "db").close()


def matmul(sides: Sides, queries: torch.Tensor) -> torch.Tensor:
    return (queries @ sides.keys.T).topk(TOP).indices


def faiss(sides: Sides) -> Callable[[torch.Tensor], torch.Tensor]:
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    index = faiss.IndexFlatIP(sides.width)
    index.add(sides.keys.numpy())
    return lambda queries: torch.from_numpy(index.search(queries.numpy(), TOP)[1])


def duckdb(sides: Sides) -> Callable[[torch.Tensor], torch.Tensor]:
    import duckdb
    import pyarrow as pa

    connection = duckdb.connect(config={"threads": torch.get_num_threads()})
    key = pa.FixedSizeListArray.from_arrays(pa.array(sides.keys.flatten().numpy()), sides.width)
    arrow_keys = pa.table({"id": pa.array(range(sides.rows)), "key": key})
    connection.execute("CREATE TABLE keys AS SELECT * FROM arrow_keys")
    assert arrow_keys.num_rows == sides.rows  # DuckDB finds it by its name
    query = f"SELECT id FROM keys ORDER BY array_inner_product(key, ?::FLOAT[{sides.width}]) DESC LIMIT {TOP}"

    def search(queries: torch.Tensor) -> torch.Tensor:
        return torch.tensor([[row[0] for row in connection.execute(query, [q.tolist()]).fetchall()] for q in queries])

    return search


def sqlite_vec(sides: Sides) -> Callable[[torch.Tensor], torch.Tensor]:
    import sqlite_vec

    connection = sqlite3.connect(":memory:")
    connection.enable_load_extension(True)
    sqlite_vec.load(connection)
    connection.execute(f"CREATE VIRTUAL TABLE keys USING vec0(key float[{sides.width}])")
    rows = ((n, key.numpy().tobytes()) for n, key in enumerate(sides.keys))
    connection.executemany("INSERT INTO keys(rowid, key) VALUES (?, ?)", rows)
    query = f"SELECT rowid FROM keys WHERE key MATCH ? AND k = {TOP} ORDER BY distance"

    def search(queries: torch.Tensor) -> torch.Tensor:
        result = (connection.execute(query, [q.numpy().tobytes()]).fetchall() for q in queries)
        return torch.tensor([[row[0] for row in rows] for rows in result])

    return search


def lancedb(sides: Sides) -> Callable[[torch.Tensor], torch.Tensor]:
    import lancedb
    import pyarrow as pa

    vectors = pa.FixedSizeListArray.from_arrays(pa.array(sides.keys.flatten().numpy()), sides.width)
    whole = pa.table({"id": pa.array(range(sides.rows)), "vector": vectors})
    table = lancedb.connect(sides.folder / "lance").create_table("keys", whole)

    def search(queries: torch.Tensor) -> torch.Tensor:
        result = (table.search(q.numpy()).distance_type("dot").limit(TOP).select(["id"]).to_arrow() for q in queries)
        return torch.tensor([found["id"].to_pylist() for found in result])

    return search


def keops(sides: Sides) -> Callable[[torch.Tensor], torch.Tensor]:
    from pykeops.torch import LazyTensor

    keys = LazyTensor(sides.keys[None])

    def search(queries: torch.Tensor) -> torch.Tensor:
        return (-(LazyTensor(queries[:, None].contiguous()) | keys)).argKmin(TOP, dim=1)

    return search


OTHERS: dict[str, Callable[[Sides], Callable[[torch.Tensor], torch.Tensor]]] = {
    "faiss": faiss,
    "duckdb": duckdb,
    "sqlite-vec": sqlite_vec,
    "lancedb": lancedb,
    "keops": keops,
}


BATCHED = ("faiss", "keops")  # the others answer one query after another


def installed(sides: Sides, names: list[str], queries: torch.Tensor) -> dict[str, Side]:
    """Return the installed exact searches that find the same rows."""
    ours = sides.db.search(queries, TOP).ids
    results: dict[str, Side] = {}
    for name in names:
        # A Python may be built without extensions of SQLite.
        with suppress(ImportError, AttributeError):
            search = OTHERS[name](sides)
            share = (search(queries) == ours).float().mean().item()
            assert share > 0.99, f"{name} finds {share:.3f} of the same rows"
            results[name] = partial(search, queries)
    return results


def questions(sides: Sides, queries: torch.Tensor, names: list[str]) -> list[tuple[str, Side, dict[str, Side], int]]:
    """For each row its name, uwaga's side, the others, and for how many queries."""
    near = sides.keys[:1] + 0.1 * torch.randn(1, sides.width) / sides.width**0.5
    few = queries[:8]
    return [
        ("read, 1 query", lambda: sides.db.attend(queries[0]), {"sum": sides.sum}, 1),
        (
            "read, 256 queries",
            lambda: sides.db.attend(queries),
            {"matmul": lambda: matmul(sides, queries)},
            len(queries),
        ),
        (
            "search, 256 queries",
            lambda: sides.db.search(queries, TOP),
            {"matmul": lambda: matmul(sides, queries)} | installed(sides, [n for n in names if n in BATCHED], queries),
            len(queries),
        ),
        ("search, 1 query", lambda: sides.db.search(queries[0], TOP), {"sum": sides.sum}, 1),
        ("search, 8 queries", lambda: sides.db.search(few, TOP), installed(sides, names, few), len(few)),
        ("search, 1 query near a cluster", lambda: sides.db.search(near[0], TOP), {"sum": sides.sum}, 1),
        ("append", sides.append, {"write": sides.write}, 0),
        ("open", sides.open, {"sum": sides.sum}, 0),
    ]


def memory(chosen: argparse.Namespace) -> None:
    """How much memory beyond the page cache one query and 256 take; the database is made on the disk and removed again."""
    report = Report(
        chosen, "The memory of a reader", ("question", "rows", "D", "GB", "s", "GB/s", "MiB beyond the cache")
    )
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        path, rows = Path(folder) / "db", 0
        with SoftDatabase.create(path, key_width=chosen.width) as db:
            while rows * chosen.width * 4 < chosen.gigabytes * 1e9:
                part = torch.randn(min(chosen.rows, 200_000), chosen.width)
                rows = db.append(part).stop
        del part
        started = perf_counter()
        with SoftDatabase.open(path) as db:
            opened = perf_counter() - started
            for queries in (1, 256):
                asked = torch.randn(queries, chosen.width)
                with _Most() as most:
                    started = perf_counter()
                    db.attend(asked)
                    seconds = perf_counter() - started
                size = rows * chosen.width * 4 / 1e9
                report.row(
                    f"read, {queries} queries, opened in {opened * 1e3:.0f} ms", f"{rows:,}", str(chosen.width),
                    f"{size:.1f}", f"{seconds:.2f}", f"{size / seconds:.1f}", f"{most.above:.0f}",
                )  # fmt: skip


class _Most(threading.Thread):
    """The most memory that is not mapped from files, every 2 ms, above what there is at first: MiB, in `above`."""

    def __enter__(self) -> "_Most":
        self.before, self.above, self.ended = _anonymous(), 0.0, threading.Event()
        self.start()
        return self

    def run(self) -> None:
        while not self.ended.wait(0.002):
            self.above = max(self.above, _anonymous() - self.before)

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.join()


def _anonymous() -> float:
    """MiB of this process that are not mapped from files."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) / 1024


if __name__ == "__main__":
    parser = options(__doc__, grid=False)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=384, help="D")
    parser.add_argument(
        "--gigabytes", type=float, default=0.0, help="size of a database, to measure its reader's memory"
    )
    parser.add_argument("--folder", type=Path, help="folder for the database")
    parser.add_argument(
        "--beside", nargs="*", choices=list(OTHERS), default=list(OTHERS), help="other sides to measure, if installed"
    )
    chosen = parse(parser)
    if chosen.quick:
        chosen.rows, chosen.width = 5000, 8
    if chosen.gigabytes:
        memory(chosen)
        raise SystemExit
    report = Report(chosen, "The soft database", HEADINGS)
    with tempfile.TemporaryDirectory() as folder:
        sides = Sides(Path(folder), chosen.rows, chosen.width)
        for name, ours, others, queries in questions(
            sides, torch.nn.functional.normalize(torch.randn(256, chosen.width), dim=1), chosen.beside
        ):
            measured = compare({"uwaga": ours, **others}, seconds=chosen.seconds)
            seconds = measured.seconds("uwaga")
            for other in others:
                operations = (4 if name.startswith("read") else 2) * queries * chosen.rows * chosen.width
                report.row(
                    name, f"{chosen.rows:,}", str(chosen.width), f"{seconds * 1e3:.4g}", other,
                    f"{measured.seconds(other) * 1e3:.4g}", f"{measured.ratio(other, to='uwaga'):.2f}",
                    f"{sides.keys.nbytes / seconds / 1e9:.1f}", f"{operations / seconds / 1e9:.0f}",
                    report.share_of_peak(operations / seconds / 1e9),
                )  # fmt: skip
        sides.db.close()
