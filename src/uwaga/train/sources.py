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
from uwaga._base.durable import PathConflictError, atomic_create, file_lock, make_folder
from uwaga._base.untrusted import TextFileError
from uwaga.train.config import DataConfig, SourceConfig
from uwaga.train.errors import DataError

# The most bytes of a download, compressed or not.
LARGEST = 2**30
_SECONDS = 60.0  # without an answer


def find(name: str, data: DataConfig) -> Path:
    """The file of a name in data.train: that of the source of this name, else the name is a path. Raises DataError."""
    source = data.sources.get(name)
    if source is None:
        return Path(name)
    folder = env.data()
    names = source.files or (name,)
    for each in names:
        if (folder / each).is_file():
            return _verify(folder / each, source)
    if not data.download:
        wanted = " or ".join(names)
        how = source.instructions or "data.download=true fetches it there"
        raise DataError(f"{name}: there is no {wanted} in {folder}; the source is {source.url}: {how}")
    return _fetch(name, source, folder)


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, decompressed where its name ends in .gz. Raises TextFileError."""
    digest, count = hashlib.sha256(), 0
    with untrusted.open_decompressed(path) as file:
        while piece := file.read(2**20):
            digest.update(piece)
            count += len(piece)
            if count > LARGEST:
                raise TextFileError(f"{path}: is longer than {LARGEST:,} bytes")
    return digest.hexdigest()


def _verify(path: Path, source: SourceConfig) -> Path:
    try:
        digest = sha256(path)
    except TextFileError as error:
        raise DataError(f"{path}: cannot be read: {str(error).removeprefix(f'{path}: ')}") from error
    if digest != source.sha256:
        raise DataError(
            f"{path}: is not the file of the source {source.url}: its SHA-256 is {digest}, not {source.sha256}"
        )
    return path


def _fetch(name: str, source: SourceConfig, folder: Path) -> Path:
    if source.instructions:
        raise DataError(f"{name}: cannot be downloaded as it is: {source.instructions}; the source is {source.url}")
    path = folder / (source.files or (name,))[0].removesuffix(".gz")
    try:
        make_folder(folder)
        with file_lock(folder / ".downloading"):
            if path.is_file():  # by another process of this training
                return _verify(path, source)
            text = _unpack(source, _download(source.url))
            digest = hashlib.sha256(text).hexdigest()
            if digest != source.sha256:
                raise DataError(
                    f"{source.url}: what came has the SHA-256 {digest}, not {source.sha256}; it was not kept"
                )
            with atomic_create(path) as file:
                file.write(text)
    except PathConflictError as error:
        raise DataError(f"{error.filename} {error.strerror}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}") from error
    return path


def _download(url: str) -> bytes:
    if not url.startswith(("https://", "http://")):
        raise DataError(f"{url}: only https:// and http:// are downloaded")
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as reply:
            result: bytes = reply.read(LARGEST + 1)
    except urllib.error.HTTPError as error:
        error.close()  # it is the reply as well
        raise DataError(f"{url}: cannot be downloaded: {error.code} {error.reason}") from error
    except (OSError, HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise DataError(f"{url}: cannot be downloaded: {reason}") from error
    if len(result) > LARGEST:
        raise DataError(f"{url}: is longer than {LARGEST:,} bytes")
    return result


def _unpack(source: SourceConfig, packed: bytes) -> bytes:
    """The file in a zip archive or compressed by gzip. Raises DataError."""
    try:
        if source.member:
            with zipfile.ZipFile(BytesIO(packed)) as archive, archive.open(source.member) as file:
                text = file.read(LARGEST + 1)
        elif packed[:2] == b"\x1f\x8b":
            text = gzip.GzipFile(fileobj=BytesIO(packed)).read(LARGEST + 1)
        else:
            text = packed
    except (zipfile.BadZipFile, KeyError, NotImplementedError, RuntimeError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"{source.url}: cannot be unpacked: {error}") from error
    if len(text) > LARGEST:
        raise DataError(f"{source.url}: is longer than {LARGEST:,} bytes when it is unpacked")
    return text
