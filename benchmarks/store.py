"""How fast does a soft database answer, beside reading its bytes, and beside exact search by others where they are installed?

`sum` reads every mapped byte of the keys once, as an answer must at least do. `matmul` is PyTorch's product of all keys and queries, and
topk of the scores; `faiss` is IndexFlatIP of faiss-cpu with the same keys in memory. `write` writes the bytes of an append to a
file and syncs it.
"""

import os
import shutil
import tempfile
from pathlib import Path

import torch
from harness import Report, options, parse

from uwaga import SoftDatabase
from uwaga.cli.timing import Side, compare

HEADINGS = ("question", "rows", "D", "uwaga ms", "beside", "ms", "ratio", "GB/s", "GFLOP/s", "of peak")
TOP = 10
RUN = 8192  # neighbouring rows that are near each other


class Sides:
    """The database, and what is measured beside it."""

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

    def matmul(self, queries: torch.Tensor) -> object:
        return (queries @ self.keys.T).topk(TOP)

    def append(self) -> None:
        self.count += 1
        with SoftDatabase.create(self.folder / f"other{self.count}", key_width=self.width) as other:
            other.append(self.keys)
        shutil.rmtree(other.path)

    def write(self) -> None:
        self.count += 1
        path = self.folder / "raw"
        with path.open("wb") as file:
            file.write(memoryview(self.keys.numpy()))
            file.flush()
            os.fsync(file.fileno())
        path.unlink()

    def open(self) -> None:
        SoftDatabase.open(self.folder / "db").close()


def questions(sides: Sides, queries: torch.Tensor) -> list[tuple[str, Side, dict[str, Side], int]]:
    """For each row its name, uwaga's side, the others, and for how many queries."""
    near = sides.keys[:1] + 0.1 * torch.randn(1, sides.width) / sides.width**0.5
    exact: dict[str, Side] = {"matmul": lambda: sides.matmul(queries)}
    try:
        import faiss
    except ImportError:
        pass
    else:
        faiss.omp_set_num_threads(torch.get_num_threads())
        index = faiss.IndexFlatIP(sides.width)
        index.add(sides.keys.numpy())
        found = torch.from_numpy(index.search(queries.numpy(), TOP)[1])
        share = (found == sides.db.search(queries, TOP).ids).float().mean().item()
        assert share > 0.99, f"faiss finds {share:.3f} of the same rows"
        exact["faiss"] = lambda: index.search(queries.numpy(), TOP)
    skipped = sides.db.read(near[0], scale=100.0).skipped / sides.rows
    return [
        ("read, 1 query", lambda: sides.db.read(queries[0]), {"sum": sides.sum}, 1),
        ("read, 256 queries", lambda: sides.db.read(queries), {"matmul": exact["matmul"]}, len(queries)),
        ("search, 256 queries", lambda: sides.db.search(queries, TOP), exact, len(queries)),
        ("search, 1 query near a cluster", lambda: sides.db.search(near[0], TOP), {"sum": sides.sum}, 1),
        (
            f"read, 1 query near a cluster, scale 100: {skipped:.2f} skipped",
            lambda: sides.db.read(near[0], scale=100.0),
            {"sum": sides.sum},
            1,
        ),
        ("append", sides.append, {"write": sides.write}, 0),
        ("open", sides.open, {"sum": sides.sum}, 0),
    ]


if __name__ == "__main__":
    parser = options(__doc__, grid=False)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=384, help="D")
    chosen = parse(parser)
    if chosen.quick:
        chosen.rows, chosen.width = 5000, 8
    report = Report(chosen, "The soft database", HEADINGS)
    with tempfile.TemporaryDirectory() as folder:
        sides = Sides(Path(folder), chosen.rows, chosen.width)
        for name, ours, others, queries in questions(sides, torch.randn(256, chosen.width)):
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
