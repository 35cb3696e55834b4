"""The table of readers.py; and that no file is read beside it."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import uwaga

PROGRAM = Path(__file__).with_name("readers.py")
SOURCES = Path(uwaga.__file__).parent
SECONDS, MEGABYTES = 10, 500  # of the processor's time, and of memory
# What opens a file by its name.
OPENERS = {
    "open", "fdopen", "read_text", "read_bytes", "safe_open", "load_file", "memmap", "fromfile", "from_file", "ParquetFile",
    "read_schema", "read_table", "OSFile", "memory_map", "ZipFile", "GzipFile", "file_digest",
}  # fmt: skip
# Where files are opened without `uwaga._base.untrusted`, and why.
OTHER_OPENERS = {
    "uwaga._base.untrusted": "the one place",
    "uwaga._base.durable": "writes, and syncs what was written",
    "uwaga._base.native": "the headers of the library that it loads",
    "uwaga._base.processor": "/proc of the machine",
    "uwaga.encode.vector_files": "writes; finished vectors after untrusted.stat_regular",
    "uwaga.cli.store": "opens databases; their files are opened by uwaga.store",
    "uwaga.cli.view": "as uwaga.cli.store",
    "uwaga.inspect.images": "Pillow, of bytes that untrusted.read_file has read",
    "uwaga.store.catalog": "SQLite, of a regular file; at first immutable, which looks at no other file",
    "uwaga.store.token_database": "opens databases; their files are opened by their catalog and segments",
    "uwaga.store.stored": "as uwaga.store.token_database",
    "uwaga.models.checkpoints.directories": "files of the package",
    "uwaga._base.languages": "a file of the package",
    "uwaga.models.checkpoints.torch_files": "maps what untrusted.open_regular has opened; zipfile reads its directory from there",
    "uwaga._base.safetensors_files": "after its header was read by untrusted.open_regular",
    "uwaga.train.corpus": "maps after untrusted.stat_regular",
    "uwaga.train.api": "a lock",
    "uwaga.train.logger": "writes after untrusted.stat_regular",
    "uwaga.train.sources": "unpacks what was downloaded, bounded by LARGEST",
    "uwaga.viewer.page.bundle": "files of the package",
    "uwaga.lessons.page": "files of the package",
    "uwaga.lessons.steps.trained": "a file of the package",
    "uwaga.cli.terminal": "the null device, where the reader of a pipe has gone",
}
# Readers that no file of a stranger reaches, or that stdin alone does.
NOT_IN_TABLE = {"uwaga.cli.generate:_text": "standard input", "uwaga.cli.view:_text_or_path": "standard input"}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("readers")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "results.json").read_text())


@pytest.mark.stress
@pytest.mark.slow
def test_every_spoiled_file_is_read_or_refused_by_name(results: dict) -> None:
    said = [f"{cell['kind']}, {cell['fault'][:40]}: {cell['said']}" for cell in results["cells"] if cell["said"]]
    assert not said, "\n".join(said)
    assert sum(cell["count"] for cell in results["cells"]) > 1000


@pytest.mark.stress
@pytest.mark.slow
@pytest.mark.timing
def test_no_spoiled_file_takes_much_time_or_memory(results: dict) -> None:
    long = [
        cell
        for cell in results["cells"]
        if cell["seconds"] >= SECONDS * cell["count"] or cell["megabytes"] >= MEGABYTES
    ]
    assert not long


def _calls() -> Iterator[tuple[str, str, str, str]]:
    """The module, the function, the object and the name of every call of the package."""
    for path in sorted(SOURCES.rglob("*.py")):
        module = ".".join(("uwaga", *path.relative_to(SOURCES).with_suffix("").parts)).removesuffix(".__init__")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                inside = [
                    function for function in functions if function.lineno <= node.lineno <= (function.end_lineno or 0)
                ]
                function = max(inside, key=lambda definition: definition.lineno).name if inside else ""
                if isinstance(node.func, ast.Attribute):
                    yield module, function, ast.unparse(node.func.value), node.func.attr
                elif isinstance(node.func, ast.Name):
                    yield module, function, "", node.func.id


@pytest.mark.stress
@pytest.mark.slow
def test_no_file_is_opened_elsewhere() -> None:
    modules = {module for module, _, _, name in _calls() if name in OPENERS}
    torch_load = {
        module
        for module, _, place, name in _calls()
        if (place, name) in {("torch", "load"), ("json", "load"), ("np", "load"), ("sqlite3", "connect")}
    }
    assert modules | torch_load <= OTHER_OPENERS.keys()


@pytest.mark.stress
@pytest.mark.slow
def test_every_reader_is_in_the_table(results: dict) -> None:
    readers = {
        f"{module}:{function}"
        for module, function, place, name in _calls()
        if place == "untrusted" and name in results["readers"] and module != "uwaga._base.untrusted"
    }
    assert readers - NOT_IN_TABLE.keys() == set(results["covered"])
