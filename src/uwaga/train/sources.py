"""Files of data by the names of their official sources: found under UWAGA_DATA, downloaded on request, always checked by SHA-256."""

import gzip
import hashlib
import urllib.error
import urllib.request
import zipfile
import zlib
from http.client import HTTPException
from io import BytesIO
from pathlib import Path

from uwaga._base import env, untrusted
from uwaga._base.durable import atomic_create, file_lock, make_folder
from uwaga.train.config import DataConfig, SourceConfig
from uwaga.train.errors import DataError

# The most bytes of a download, compressed or not.
LARGEST = 2**30
_SECONDS = 60.0  # without an answer
_UNPACKING_ERRORS = (
    zipfile.BadZipFile, KeyError, NotImplementedError, RuntimeError, EOFError, OSError, zlib.error,
)  # fmt: skip


def find(name: str, data: DataConfig) -> Path:
    """Return the file of the source of this name. Raises DataError."""
    source, folder = data.sources[name], env.data()
    names = source.files or (name,)
    for file in names:
        if (folder / file).is_file():
            return _verified(folder / file, source)
    if data.download and not source.instructions:
        return _fetch(folder / names[0].removesuffix(".gz"), source)
    how = source.instructions or "data.download=true fetches it there"
    raise DataError(f"{name}: there is no {' or '.join(names)} in {folder}; the source is {source.url}: {how}")


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, decompressed if its name ends in .gz. Raises DataError."""
    digest = hashlib.sha256()
    with untrusted.open_decompressed(path) as file:
        while piece := file.read(2**20):
            digest.update(piece)
    return digest.hexdigest()


def _verified(path: Path, source: SourceConfig) -> Path:
    if (digest := sha256(path)) != source.sha256:
        raise DataError(
            f"{path}: is not the file of the source {source.url}: its SHA-256 is {digest}, not {source.sha256}"
        )
    return path


def _fetch(path: Path, source: SourceConfig) -> Path:
    try:
        make_folder(path.parent)
        with file_lock(path.with_name(".downloading")):
            if path.is_file():  # by another process of this training
                return _verified(path, source)
            text = _unpacked(source, _download(source.url))
            if (digest := hashlib.sha256(text).hexdigest()) != source.sha256:
                raise DataError(
                    f"{source.url}: what came has the SHA-256 {digest}, not {source.sha256}; it was not kept"
                )
            with atomic_create(path) as file:
                file.write(text)
    except OSError as error:
        raise DataError(f"{error.filename or path}: {error.strerror or error}") from error
    return path


def _download(url: str) -> bytes:
    if not url.startswith(("https://", "http://")):
        raise DataError(f"{url}: only https:// and http:// are downloaded")
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as reply:
            result: bytes = reply.read(LARGEST + 1)
    except (OSError, HTTPException, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it is the reply as well
        raise DataError(f"{url}: cannot be downloaded: {getattr(error, 'reason', error)}") from error
    return _bounded(url, result)


def _unpacked(source: SourceConfig, packed: bytes) -> bytes:
    """Return the file in a zip archive or compressed by gzip. Raises DataError."""
    try:
        if source.member:
            with zipfile.ZipFile(BytesIO(packed)) as archive, archive.open(source.member) as file:
                text = file.read(LARGEST + 1)
        elif packed[:2] == b"\x1f\x8b":
            text = gzip.GzipFile(fileobj=BytesIO(packed)).read(LARGEST + 1)
        else:
            text = packed
    except _UNPACKING_ERRORS as error:
        raise DataError(f"{source.url}: cannot be unpacked: {error}") from error
    return _bounded(source.url, text)


def _bounded(url: str, content: bytes) -> bytes:
    if len(content) > LARGEST:
        raise DataError(f"{url}: is longer than {LARGEST:,} bytes, unpacked or not")
    return content
