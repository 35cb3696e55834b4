"""The package where Python is as on Windows (tests/pretended_windows.py): what writes files, locks and maps them."""

import subprocess
import sys
from pathlib import Path

import pytest

from uwaga._base import native

TESTS = Path(__file__).parents[1]
pytestmark = [
    pytest.mark.stress,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which files a process has open"),
]

# The libraries that uwaga imports when it needs them are imported before, on the system that they were installed for.
BEGIN = """
import asyncio, json, multiprocessing, sys
from pathlib import Path
import huggingface_hub, numpy as np, pyarrow.parquet, rich.progress, safetensors.torch, tokenizers, torch, torch._dynamo, torch.distributed, typer, uvicorn
import pretended_windows
pretended_windows.pretend()
import uwaga
from uwaga._base import durable, native
folder = Path(sys.argv[1])
def files(path):
    return sorted(str(each.relative_to(path)) for each in path.rglob("*"))
"""
IMPORTS = """
import importlib, pkgutil
names = [each.name for each in pkgutil.walk_packages(uwaga.__path__, "uwaga.")]
absent = set()
for name in names:
    # Those import libraries that ask for the system as they are imported.
    if not name.startswith(("uwaga.integrations", "uwaga.plots", "uwaga.maps.engines.triton")) and not name.endswith("__main__"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            absent.add(error.name)
assert len(names) > 200 and not absent & {"fcntl", "resource"}, absent
assert native.reason_unavailable() is None
assert not native.library().shares_threads
from uwaga._base import connections
assert connections.max_connections() == connections.MAX_CONNECTIONS
"""
FILES = """
import threading, time
from uwaga._base import untrusted
def raised(kind, do, *arguments):
    try:
        do(*arguments)
    except kind as error:
        return error.strerror
    raise AssertionError(f"no {kind.__name__}")
def write(path, content, how=durable.atomic_replace):
    with how(path) as file:
        file.write(content)
def lock(path, wait=False):
    with durable.file_lock(path, wait=wait):
        pass
path = folder / "data"
write(path, b"one")
write(path, b"two")
assert untrusted.read_file(path, 10) == b"two"
assert raised(durable.PathConflictError, write, path, b"x", durable.atomic_create) == "cannot be used: it already exists"
write(folder / "other", b"other")
assert raised(durable.PathConflictError, durable.rename_noreplace, folder / "other", path) == "cannot be used: it already exists"
durable.rename_noreplace(folder / "other", folder / "third")
durable._REPLACE_SECONDS = (0.0,)
with path.open("rb"):
    why = "cannot be replaced: Windows keeps a file that a program has open or mapped; close it there"
    assert raised(PermissionError, write, path, b"three") == why
mapped = np.memmap(path, mode="r")
assert raised(PermissionError, write, path, b"three") == why
assert bytes(mapped) == b"two" and files(folder) == ["data", "third"]
assert raised(PermissionError, durable.remove_files, folder, ["data", "third"]) and files(folder) == ["data"]
del mapped
durable._REPLACE_SECONDS = (1e-3,) * 10_000
reader = path.open("rb")
threading.Timer(0.2, reader.close).start()
write(path, b"three")  # once the reader has closed it
assert reader.closed
(folder / "link").symlink_to(path)
(folder / "folder").mkdir()
for strange in ("link", "folder"):
    assert raised(durable.PathConflictError, lock, folder / strange).startswith("cannot be used: ")
with durable.file_lock(folder / "lock"):
    assert raised(BlockingIOError, lock, folder / "lock")
    waiting = threading.Thread(target=lock, args=(folder / "lock", True))
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
waiting.join()
with durable.file_lock(folder / "lock", wait=False):
    pass
write(Path("/dev/null"), b"nothing")
with durable.atomic_folder(folder / "made") as made:
    write(made / "inside", b"1")
    durable.mark_folder(made)
import re
opened = (folder / "made" / "inside").open("rb")
assert not durable.remove_folder(folder / "made", re.compile("inside")) and (folder / "made" / "inside").exists()
opened.close()
assert durable.remove_folder(folder / "made", re.compile("inside")) and not (folder / "made").exists()
private = durable.PrivateFolder()
private.write("page", b"1")
private.close()
durable.fsync(folder), durable.fsync(path)
"""
STORE = """
from uwaga.store import SoftDatabaseError
path = folder / "rows.db"
db = uwaga.SoftDatabase.create(path, key_width=8, value_width=4)
db.append(torch.randn(3000, 8), torch.randn(3000, 4))
query = torch.randn(2, 8)
reader = uwaga.SoftDatabase.open(path)
before = reader.attend(query).value
try:
    reader.append(torch.randn(1, 8), torch.randn(1, 4))
except SoftDatabaseError as error:
    assert "another writer has it open" in str(error), error
else:
    raise AssertionError("two writers")
db.delete(range(2000))
assert db.compact() > 0
# The replaced segment is mapped, so it stays, and can be read.
assert len(files(path / "segments")) == 2, files(path)
assert torch.equal(reader.attend(query).value, before) and not list(reader.check())
db.close(), reader.close()
del db, reader
import gc
gc.collect()
with uwaga.SoftDatabase.open(path) as db:
    db.append(torch.randn(3, 8), torch.randn(3, 4))
    assert len(db) == 1003 and not list(db.check())
assert len(files(path / "segments")) == 2, files(path)
"""
TRAINING = """
from uwaga.train import Config, fit
(folder / "text.txt").write_text("one two three four five. " * 400, encoding="utf-8")
(folder / "other.txt").write_text("one two three. " * 100, encoding="utf-8")
text = f'''
objective = "language-model"
model = {{family='gpt2', num_layers=1, num_heads=2, d_model=16, d_ff=32, max_position_embeddings=64}}
data = {{kind = "text", train = [{json.dumps(str(folder / "text.txt"))}], validation = [{json.dumps(str(folder / "other.txt"))}], context_length = 16}}
batch = {{tokens_per_batch = 64}}
schedule = {{steps = %d}}
run = {{output_dir = {json.dumps(str(folder / "run"))}, keep_last = 1, eval_every = 1, device = "cpu"}}
'''
fit(Config.parse(text % 3), progress=False)
result = fit(Config.parse(text % 5), resume=True, progress=False)
assert result.checkpoint.name == "step-000005"
assert not [name for name in files(folder / "run") if ".step" in name], files(folder)
model = uwaga.models.load(result.checkpoint)
uwaga.models.save(model, folder / "copy")
uwaga.models.save(uwaga.models.load(folder / "copy"), folder / "again")
"""


@pytest.mark.parametrize("part", ["IMPORTS", "FILES", "STORE", "TRAINING"])
def test_as_on_windows(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UWAGA_LIBRARY", str(native.library().path))
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=":")
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + globals()[part], str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_pipe_in_the_code_page_of_western_languages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "cp1252")
    command = [sys.executable, "-m", "uwaga.cli", "lesson", "\u017c\u00f3\u0142w kot", "--plain"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "\\u017c\u00f3\\u0142w" in done.stdout.decode("cp1252")
