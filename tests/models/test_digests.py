"""SHA-256 that is not computed again."""

import hashlib
import json
from pathlib import Path

import pytest
import torch

from uwaga.models.checkpoints.directories import cached_sha256

# Files that have not changed for long: of those of a test another change within the resolution of the clock could not be told.
OLD, OTHER = Path(pytest.__file__), Path(torch.__file__)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UWAGA_DATA", str(tmp_path / "data"))
    return tmp_path / "data" / "digests.json"


def sha256(path: Path, most: int | None = None) -> str:
    with cached_sha256() as digest:
        return digest(path, most)


def true_sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def entries(cache: Path) -> dict[str, list]:
    return json.loads(cache.read_text())


def test_a_file_is_read_once_and_again_when_it_has_changed(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "weights"
    path.symlink_to(OLD)
    assert sha256(path) == true_sha256(OLD)
    *state, digest = entries(cache)[str(path)]
    assert digest == true_sha256(OLD)
    cache.write_text(json.dumps({str(path): [*state, "0" * 64]}))
    assert sha256(path) == "0" * 64
    with pytest.raises(OSError, match="it is longer than 3 bytes"):
        sha256(path, 3)
    for n in range(len(state)):  # device, inode, size, and two times
        cache.write_text(json.dumps({str(path): [x - (n == m) for m, x in enumerate(state)] + ["0" * 64]}))
        assert sha256(path) == true_sha256(OLD)
    path.unlink()
    path.symlink_to(OTHER)
    assert sha256(path) == true_sha256(OTHER)


def test_a_file_that_has_just_changed_is_not_listed(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"one")
    assert sha256(path) == true_sha256(path)
    assert not cache.exists()


@pytest.mark.parametrize("said", ["", "[]", "{", "[" * 5000, '{"PATH": 1}', '{"PATH": [1, 2, 3, 4, 5, "x"]}'])
def test_a_spoiled_cache_is_written_anew(cache: Path, said: str) -> None:
    cache.parent.mkdir()
    cache.write_text(said.replace("PATH", str(OLD)))
    assert sha256(OLD) == true_sha256(OLD)
    assert entries(cache)[str(OLD)][-1] == true_sha256(OLD)


def test_a_folder_that_cannot_be_written_is_no_error(cache: Path) -> None:
    cache.parent.write_text("a file")
    assert sha256(OLD) == true_sha256(OLD)


def test_the_cache_is_bounded(cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text(json.dumps({f"file {n}": [] for n in range(1000)}))
    sha256(OLD)
    assert list(entries(cache)) == [*(f"file {n}" for n in range(1, 1000)), str(OLD)]
