"""The text of every message, under the call that raises it, as in a session of Python: AREA.txt.

A call has the names of AREA.py and the functions `filled`, `linked` and `piped` below. It asks for what else it needs by name: `folder`, a new
directory; `patch`, a MonkeyPatch that is undone afterwards; or a fixture, which is made once for the area. If a call gives a function, that
function is called too. To add a message, write `>>> ` and the call; `make error-messages` writes the texts.
"""

import ast
import builtins
import importlib.util
import inspect
import os
import platform
import re
import warnings
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from uwaga._base import native

HERE = Path(__file__).parent
AREAS = sorted({path.stem for path in HERE.glob("*.py")} - {"conftest", "record", "test_messages"})

pytestmark = pytest.mark.skipif(native.reason_unavailable() is not None, reason="there is no native library")


# Chat templates are rendered in a process.
@pytest.mark.parametrize("area", [pytest.param(area, marks=[pytest.mark.slow] * (area == "encode")) for area in AREAS])
def test_messages_are_those_of_the_file(area: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    path, names = HERE / f"{area}.txt", names_of(area)
    recorded = path.read_text(encoding="utf-8")
    calls = re.findall("^>>> (.*)", recorded, re.MULTILINE)
    assert len(calls) == len(set(calls))
    rows = []
    for number, call in enumerate(calls):
        folder = tmp_path / "rows" / str(number)
        folder.mkdir(parents=True)
        rows.append(f">>> {call}\n{lasting(message(call, names, folder, request), (folder, tmp_path))}\n")
    if "UWAGA_RECORD_MESSAGES" in os.environ:
        path.write_text("\n".join(rows), encoding="utf-8")
    assert [row for row in rows if row.endswith("\nno error\n")] == []
    assert rows == re.split(r"\n(?=>>> )", recorded)


def filled(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def linked(path: Path, to: str) -> Path:
    path.symlink_to(to)
    return path


def piped(path: Path) -> Path:
    os.mkfifo(path)
    return path


def names_of(area: str) -> dict[str, object]:
    """Return the names that the calls of an area use, besides fixtures."""
    spec = importlib.util.spec_from_file_location(f"messages_{area}", HERE / f"{area}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        if str(error.name).startswith("uwaga"):
            raise
        pytest.skip(f"{error.name} is not installed")
    return {"filled": filled, "linked": linked, "piped": piped} | vars(module)


def message(call: str, names: dict[str, object], folder: Path, request: pytest.FixtureRequest) -> str:
    """Return the type and the text of what a call raises; a warning is raised, too."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = {"folder": folder, "patch": patch}

        def fixture(name: str) -> object:
            return rows[name] if name in rows else request.getfixturevalue(name)

        tree = list(ast.walk(ast.parse(call)))
        used = {node.id for node in tree if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        bound = {node.id for node in tree if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        bound |= {node.arg for node in tree if isinstance(node, ast.arg)}
        fixtures = {name: fixture(name) for name in used - bound - names.keys() - vars(builtins).keys()}
        warnings.simplefilter("error", UserWarning)
        try:
            result = eval(call, names | fixtures)
            if callable(result):
                required = [p.name for p in inspect.signature(result).parameters.values() if p.default is p.empty]
                result(**{name: fixture(name) for name in required})
        except Exception as error:  # noqa: BLE001 (whatever it is, the file shows it)
            return f"{type(error).__name__}: {error}"
    return "no error"


def lasting(text: str, folders: tuple[Path, Path]) -> str:
    """Return the text without what differs between runs and machines: folders, versions, addresses in memory, digests, numbers of errors and processes."""
    for folder in folders:
        text = text.replace(str(folder), "FOLDER")
    libraries = [metadata.version(name) for name in ("transformers",) if find_spec(name) is not None]
    for version in (torch.__version__, platform.python_version(), *libraries):
        text = re.sub(rf"(?<![\w.]){re.escape(version)}(?![\w.])", "VERSION", text)
    text = re.sub(r"\b0x[0-9a-f]{6,}", "0xADDRESS", text)
    text = re.sub(r"\b([0-9a-f]{16}|[0-9a-f]{32}|[0-9a-f]{64})\b", "DIGEST", text)
    text = re.sub(r"\bprocess \d+", "process PID", text)
    text = re.sub(r"\[Errno \d+\] ", "", text)
    return text.encode("utf-8", "backslashreplace").decode()
