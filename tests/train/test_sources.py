"""Sources: local files, downloads, and files with another checksum."""

import gzip
import hashlib
import threading
import urllib.request
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from uwaga.train import sources
from uwaga.train.config import DataConfig, SourceConfig
from uwaga.train.errors import DataError

_TEXT = b"First Citizen:\nBefore we proceed any further, hear me speak.\n"
_SHA256 = hashlib.sha256(_TEXT).hexdigest()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """UWAGA_DATA, a folder that does not exist yet."""
    folder = tmp_path / "home"
    monkeypatch.setenv("UWAGA_DATA", str(folder))
    return folder


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The URL of a server of tmp_path/served, on this machine."""
    (tmp_path / "served").mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path / "served")) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()
        thread.join()


def _data(url: str, *, download: bool = False, sha256: str = _SHA256, **more: object) -> DataConfig:
    source = SourceConfig(sha256=sha256, url=url, **{"files": ("play.txt", "play.txt.gz"), **more})
    return DataConfig(train=("play",), sources={"play": source}, download=download)


def _message(data: DataConfig) -> str:
    with pytest.raises(DataError) as raised:
        sources.find("play", data)
    return str(raised.value)


def test_a_name_that_is_not_a_source_is_a_path() -> None:
    assert sources.find("play.txt", DataConfig()) == Path("play.txt")


@pytest.mark.parametrize("name", ["play.txt", "play.txt.gz"])
def test_a_local_file_is_used_compressed_or_not(name: str, home: Path) -> None:
    home.mkdir()
    (home / name).write_bytes(gzip.compress(_TEXT) if name.endswith(".gz") else _TEXT)
    assert sources.find("play", _data("https://example.org/play.txt")) == home / name


def test_a_local_file_that_is_damaged_is_refused(home: Path) -> None:
    home.mkdir()
    (home / "play.txt.gz").write_bytes(gzip.compress(_TEXT)[:-5])
    assert _message(_data("https://example.org/play.txt")).startswith(f"{home / 'play.txt.gz'}: cannot be read: ")


@pytest.mark.parametrize("how", ["plain", "gzip", "zip"])
def test_a_download_is_kept_uncompressed(how: str, tmp_path: Path, home: Path, server: str) -> None:
    member = ""
    if how == "zip":
        member = "corpus/play"
        with zipfile.ZipFile(tmp_path / "served" / "play", "w") as archive:
            archive.writestr(member, _TEXT)
    else:
        (tmp_path / "served" / "play").write_bytes(gzip.compress(_TEXT) if how == "gzip" else _TEXT)
    data = _data(f"{server}/play", download=True, member=member)
    assert sources.find("play", data) == home / "play.txt"
    assert (home / "play.txt").read_bytes() == _TEXT
    (tmp_path / "served" / "play").unlink()
    assert sources.find("play", data) == home / "play.txt"


def test_concurrent_processes_download_a_file_once(
    tmp_path: Path, home: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "served" / "play").write_bytes(_TEXT)
    fetched: list[str] = []
    opened = urllib.request.urlopen
    monkeypatch.setattr("urllib.request.urlopen", lambda url, **how: fetched.append(url) or opened(url, **how))
    data = _data(f"{server}/play", download=True)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: sources.find("play", data), range(8)))
    assert set(results) == {home / "play.txt"}
    assert len(fetched) == 1


def test_a_download_with_another_checksum_is_not_kept(tmp_path: Path, home: Path, server: str) -> None:
    (tmp_path / "served" / "play").write_bytes(b"something else")
    digest = hashlib.sha256(b"something else").hexdigest()
    assert _message(_data(f"{server}/play", download=True)) == (
        f"{server}/play: what came has the SHA-256 {digest}, not {_SHA256}; it was not kept"
    )
    packed = _message(_data(f"{server}/play", download=True, member="corpus/play"))
    assert packed == f"{server}/play: cannot be unpacked: File is not a zip file"
    assert [path.name for path in home.iterdir()] == [".downloading"]


def test_a_download_does_not_replace_files_or_follow_links(tmp_path: Path, home: Path, server: str) -> None:
    (tmp_path / "served" / "play").write_bytes(_TEXT)
    mine = tmp_path / "mine"
    home.mkdir(exist_ok=True)
    data = _data(f"{server}/play", download=True)
    (home / "play.txt").symlink_to(mine)
    assert _message(data) == f"{home / 'play.txt'} cannot be used: it already exists"
    (home / "play.txt").unlink()
    (home / ".downloading").unlink()
    (home / ".downloading").symlink_to(mine)
    lock = f"{home / '.downloading'} cannot be used: it is a link or a folder, not a file"
    assert _message(data) == lock
    assert not mine.exists()


def test_a_download_has_a_maximum_size(
    tmp_path: Path, home: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "LARGEST", 1000)
    (tmp_path / "served" / "play").write_bytes(b"a" * 1001)
    assert _message(_data(f"{server}/play", download=True)) == f"{server}/play: is longer than 1,000 bytes"
    (tmp_path / "served" / "play").write_bytes(gzip.compress(b"a" * 1001))
    unpacked = f"{server}/play: is longer than 1,000 bytes when it is unpacked"
    assert _message(_data(f"{server}/play", download=True)) == unpacked


def test_errors_of_downloads(home: Path, server: str) -> None:
    assert (
        _message(_data(f"{server}/play", download=True)) == f"{server}/play: cannot be downloaded: 404 File not found"
    )


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, home: Path, server: str) -> None:
    (tmp_path / "served" / "play").write_bytes(_TEXT)
    home.write_text("a file where the folder should be")
    assert _message(_data(f"{server}/play", download=True)) == f"{home / 'play.txt'}: cannot be written: File exists"
