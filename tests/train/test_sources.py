"""Sources: local files, downloads, and files with another checksum."""

import gzip
import hashlib
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
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
def requests() -> list[str]:
    """The paths that the server was asked for."""
    return []


@pytest.fixture
def server(tmp_path: Path, requests: list[str]) -> Iterator[str]:
    """The URL of a server of tmp_path/served, on this machine."""
    (tmp_path / "served").mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            requests.append(self.path)

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path / "served")) as serving:
        thread = threading.Thread(target=partial(serving.serve_forever, poll_interval=0.01))
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


@pytest.mark.parametrize("name", ["play.txt", "play.txt.gz"])
def test_a_local_file_is_used_compressed_or_not(name: str, home: Path) -> None:
    home.mkdir()
    (home / name).write_bytes(gzip.compress(_TEXT, mtime=0) if name.endswith(".gz") else _TEXT)
    assert sources.find("play", _data("https://example.org/play.txt")) == home / name


def _zipped() -> bytes:
    with zipfile.ZipFile(written := BytesIO(), "w") as archive:
        archive.writestr("corpus/play", _TEXT)
    return written.getvalue()


@pytest.mark.parametrize(
    ("served", "member"), [(_TEXT, ""), (gzip.compress(_TEXT, mtime=0), ""), (_zipped(), "corpus/play")]
)
def test_a_download_is_kept_uncompressed(tmp_path: Path, home: Path, server: str, served: bytes, member: str) -> None:
    (tmp_path / "served" / "play").write_bytes(served)
    data = _data(f"{server}/play", download=True, member=member)
    assert sources.find("play", data) == home / "play.txt"
    assert (home / "play.txt").read_bytes() == _TEXT
    (tmp_path / "served" / "play").unlink()
    assert sources.find("play", data) == home / "play.txt"


def test_concurrent_processes_download_a_file_once(
    tmp_path: Path, home: Path, server: str, requests: list[str]
) -> None:
    (tmp_path / "served" / "play").write_bytes(_TEXT)
    data = _data(f"{server}/play", download=True)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: sources.find("play", data), range(8)))
    assert set(results) == {home / "play.txt"}
    assert requests == ["/play"]


@pytest.mark.parametrize(
    ("served", "member", "said"),
    [
        (b"something else", "", "{url}: what came has the SHA-256 "),
        (b"something else", "corpus/play", "{url}: cannot be unpacked: File is not a zip file"),
        (b"a" * 1001, "", "{url}: is longer than 1,000 bytes"),
        (gzip.compress(b"a" * 1001, mtime=0), "", "{url}: is longer than 1,000 bytes"),
        (None, "", "{url}: cannot be downloaded: File not found"),
    ],
)
def test_what_is_not_the_source_is_not_kept(
    tmp_path: Path,
    home: Path,
    server: str,
    monkeypatch: pytest.MonkeyPatch,
    served: bytes | None,
    member: str,
    said: str,
) -> None:
    monkeypatch.setattr(sources, "LARGEST", 1000)
    if served is not None:
        (tmp_path / "served" / "play").write_bytes(served)
    message = _message(_data(f"{server}/play", download=True, member=member))
    assert message.startswith(said.format(url=f"{server}/play"))
    assert [path.name for path in home.iterdir()] == [".downloading"]


def test_a_damaged_file_and_a_folder_that_cannot_be_written_are_named(tmp_path: Path, home: Path, server: str) -> None:
    (tmp_path / "served" / "play").write_bytes(_TEXT)
    home.write_text("a file where the folder should be")
    assert _message(_data(f"{server}/play", download=True)) == f"{home}: File exists"
    home.unlink()
    home.mkdir()
    (home / "play.txt.gz").write_bytes(gzip.compress(_TEXT, mtime=0)[:-5])
    assert _message(_data(f"{server}/play")).startswith(f"{home / 'play.txt.gz'}: the gzip file is damaged: ")


@pytest.mark.parametrize("name", ["play.txt", ".downloading"])
def test_a_download_does_not_replace_files_or_follow_links(tmp_path: Path, home: Path, server: str, name: str) -> None:
    (tmp_path / "served" / "play").write_bytes(_TEXT)
    home.mkdir()
    (home / name).symlink_to(tmp_path / "mine")
    assert _message(_data(f"{server}/play", download=True)).startswith(f"{home / name}: cannot be used: ")
    assert not (tmp_path / "mine").exists()
