"""The text of every message, as the file of its area shows it: `make error-messages` writes the files.

A table is `CALLS` in AREA.py: the name of a row, and a call that raises. A call asks for what it needs by the names of its parameters:
`folder`, a new directory; `patch`, a MonkeyPatch that is undone afterwards; or a fixture, which is made once for the area.
"""

import importlib.util
import inspect
import os
import platform
import re
import warnings
from collections.abc import Callable, Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from uwaga._base import native

HERE = Path(__file__).parent
AREAS = sorted({path.stem for path in HERE.glob("*.py")} - {"conftest", "record", "test_messages"})

pytestmark = pytest.mark.skipif(native.reason_unavailable() is not None, reason="there is no native library")


@pytest.mark.parametrize("area", AREAS)
@pytest.mark.usefixtures("one_thread")
def test_messages_are_those_of_the_file(area: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    messages = {}
    for name, call in table(area).items():
        folder = tmp_path / "rows" / str(len(messages))
        folder.mkdir(parents=True)
        messages[name] = lasting(message(call, folder, request), (folder, tmp_path))
    if "UWAGA_RECORD_MESSAGES" in os.environ:
        (HERE / f"{area}.txt").write_text(written(messages), encoding="utf-8")
    assert [name for name, text in messages.items() if text == "no error"] == []
    recorded = (HERE / f"{area}.txt").read_text(encoding="utf-8")
    assert written(messages).split("\n\n[") == recorded.split("\n\n[")


def table(area: str) -> Mapping[str, Callable[..., object]]:
    """Return the calls of an area by the names of their rows."""
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
    return module.CALLS


def message(call: Callable[..., object], folder: Path, request: pytest.FixtureRequest) -> str:
    """Return the type and the text of what a call raises; a warning is raised, too."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own = {"folder": folder, "patch": patch}
        names = [x.name for x in inspect.signature(call).parameters.values() if x.default is x.empty]
        given = {name: own[name] if name in own else request.getfixturevalue(name) for name in names}
        warnings.simplefilter("error", UserWarning)
        try:
            call(**given)
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


def written(messages: Mapping[str, str]) -> str:
    """Return the messages of an area as its file has them."""
    return "\n".join(f"[{name}]\n{text}\n" for name, text in messages.items())
