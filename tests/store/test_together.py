"""One database that several processes read together: the bits of one process, in each of them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from waiting import HANG

sys.path.insert(0, str(Path(__file__).parent))  # for `import together`: the tests are no package

import together

from uwaga.store import SoftDatabase

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="forks, so as to load PyTorch once for many runs"),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Blocks in several segments, some of them copied, and a last one that is short."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("together") / "db"
    with SoftDatabase.create(path, key_width=8, value_width=3) as db:
        first = 0
        for rows in (5000, 300, 9000, 2048):
            keys = torch.randn(rows, 8) + 4 * torch.randn(1, 8)
            db.append(keys, torch.randn(rows, 3), records=[{"n": first + n} for n in range(rows)])
            first += rows
        db.delete(range(4000, 4100))
    return path


def read(path: Path, folder: Path, *sizes: int) -> dict[int, list[Any]]:
    """What each process of each group got."""
    command = [sys.executable, str(Path(__file__).with_name("together.py")), str(path), str(folder), *map(str, sizes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG)
    assert done.returncode == 0, done.stderr
    found = {}
    for size in sizes:
        ranks = [rank for rank in range(size) if (size, rank) != (3, 1)]
        assert all((folder / f"{size}.{rank}.pt").exists() for rank in ranks), done.stderr
        found[size] = [torch.load(folder / f"{size}.{rank}.pt", weights_only=True) for rank in ranks]
    return found


@pytest.fixture(scope="module")
def alone(path: Path) -> list[Any]:
    with SoftDatabase.open(path) as db:
        return together.answers(db)


def check(found: list[Any], alone: list[Any]) -> None:
    assert len(found) == len(alone)
    for mine, theirs in zip(found, alone, strict=True):
        if isinstance(theirs, torch.Tensor):
            assert mine.dtype == theirs.dtype
            assert torch.equal(mine.nan_to_num(7.0), theirs.nan_to_num(7.0))
        else:
            assert mine == theirs


@pytest.mark.usefixtures("one_thread")
def test_two_processes_have_the_bits_of_one(path: Path, alone: list[Any], tmp_path: Path) -> None:
    for answers, refused in read(path, tmp_path, 2)[2]:
        check(answers, alone)
        other, beyond, gradient, alone_at_it, unreadable = refused
        assert other == (
            "SoftDatabaseError: SoftDatabase: rank 1 and rank 0 show other moments of the database or ask other questions; call refresh() in "
            "all processes, and give them the same query and options"
        )
        assert beyond.startswith("ValueError: SoftDatabase: the score of row ")
        assert gradient == f"{other} and gradient of the value".replace("query and options", "query, options")
        assert alone_at_it in (gradient, other)
        assert unreadable == "SoftDatabaseError: SoftDatabaseError"


@pytest.mark.stress
@pytest.mark.usefixtures("one_thread")
def test_one_three_and_four_processes_have_the_bits_of_one_and_name_one_that_is_killed(
    path: Path, alone: list[Any], tmp_path: Path
) -> None:
    found = read(path, tmp_path, 1, 3, 4)
    for ranks in found.values():
        for answers, *_ in ranks:
            check(answers, alone)
    for *_, said in found[3]:
        assert said.startswith("ProcessGroupError: uwaga.sequence_parallel: rank 1 ended or did not answer")
