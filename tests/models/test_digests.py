"""SHA-256 that is not computed again."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from uwaga._base import untrusted
from uwaga.models.checkpoints import directories
from uwaga.models.checkpoints.directories import cached_sha256


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UWAGA_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(directories, "_SETTLED_NS", 0)
    return tmp_path / "data" / "digests.json"


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were read."""
    result, real = [], untrusted.sha256
    monkeypatch.setattr(untrusted, "sha256", lambda path, most: (result.append(path), real(path, most))[1])
    return result


def sha256(path: Path, most: int | None = None) -> str:
    with cached_sha256() as digest:
        return digest(path, most)


def test_a_file_is_read_once_and_again_when_it_has_changed(tmp_path: Path, hashed: list[Path]) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"one")
    for content in (b"one", b"two"):
        path.write_bytes(content)
        os.utime(path, ns=(10**18, 10**18))  # its size and this time are the same as before: the others are not
        for _ in range(3):
            assert sha256(path) == hashlib.sha256(content).hexdigest()
    other = tmp_path / "other"
    other.write_bytes(b"six")
    other.replace(path)
    assert sha256(path) == hashlib.sha256(b"six").hexdigest()
    assert hashed == [path] * 3


def test_a_file_that_has_just_changed_is_not_listed(
    tmp_path: Path, cache: Path, hashed: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directories, "_SETTLED_NS", 60 * 10**9)
    path = tmp_path / "weights"
    path.write_bytes(b"one")
    assert sha256(path) == sha256(path)
    assert hashed == [path] * 2
    assert not cache.exists()


def test_a_limit_holds_for_what_is_listed(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"long")
    sha256(path)
    with pytest.raises(OSError, match="it is longer than 3 bytes"):
        sha256(path, 3)


@pytest.mark.parametrize("said", ["", "[]", "{", "[" * 5000, '{"weights": 1}', None])
def test_a_spoiled_cache_is_written_anew(tmp_path: Path, cache: Path, said: str | None) -> None:
    path, digest = tmp_path / "weights", hashlib.sha256(b"one").hexdigest()
    path.write_bytes(b"one")
    if said is None:
        assert sha256(path) == digest
        said = cache.read_text().replace(digest, "x" * 64)
    cache.parent.mkdir(exist_ok=True)
    cache.write_text(said)
    assert sha256(path) == digest
    assert json.loads(cache.read_text())[str(path)][-1] == digest


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path, cache: Path) -> None:
    cache.parent.write_text("a file")
    path = tmp_path / "weights"
    path.write_bytes(b"one")
    assert sha256(path) == hashlib.sha256(b"one").hexdigest()


def test_the_cache_is_bounded(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directories, "_MOST_DIGESTS", 2)
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(b"one")
        sha256(tmp_path / name)
    assert list(json.loads(cache.read_text())) == [str(tmp_path / "b"), str(tmp_path / "c")]
