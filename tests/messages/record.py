"""The messages of the public functions: each area's table of short calls, and the file with their texts.

    python tests/messages/record.py [AREA ...]     # write tests/messages/AREA.txt again

A table is `CALLS` in tests/messages/AREA.py: the name of a row, and a call that raises. A call may ask for what it needs by the
names of its parameters: `folder`, a new empty directory, and `patch`, a MonkeyPatch that is undone afterwards.
"""

import contextlib
import importlib.util
import inspect
import os
import platform
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

HERE = Path(__file__).parent
AREAS = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in ("record", "test_messages"))


def table(area: str) -> Mapping[str, Callable[..., object]]:
    """Return the calls of an area by the names of their rows."""
    spec = importlib.util.spec_from_file_location(f"messages_{area}", HERE / f"{area}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.CALLS


def message(call: Callable[..., object]) -> str:
    """Return the type and the text of what a call raises; warnings are raised too."""
    import pytest

    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", UserWarning)
        names = inspect.signature(call).parameters
        given: dict[str, object] = {}
        folder = ""
        if "folder" in names:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="uwaga-messages-"))
            given["folder"] = Path(folder)
        if "patch" in names:
            given["patch"] = stack.enter_context(pytest.MonkeyPatch.context())
        try:
            call(**given)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is shown)
            return _lasting(f"{type(error).__name__}: {error}", folder)
    return "no error"


def _lasting(text: str, folder: str) -> str:
    """The text without what differs between runs and machines: the folder of the call, addresses in memory, versions."""
    import torch

    import uwaga

    text = text.replace(folder, "FOLDER") if folder else text
    for version in (torch.__version__, uwaga.__version__, platform.python_version()):
        text = re.sub(rf"(?<![\w.]){re.escape(version)}(?![\w.])", "VERSION", text)
    return re.sub(r"\b0x[0-9a-f]{6,}", "0xADDRESS", text)


def written(messages: Mapping[str, str]) -> str:
    """Return the messages of an area as its file has them."""
    return "\n".join(f"[{name}]\n{text}\n" for name, text in messages.items())


def main(areas: list[str]) -> None:
    os.environ |= {"UWAGA_PROFILE": "0", "TRITON_INTERPRET": "1"}  # as tests/conftest.py has it
    sys.path.insert(0, str(HERE.parent))
    for area in areas or AREAS:
        messages = {name: message(call) for name, call in table(area).items()}
        (HERE / f"{area}.txt").write_text(written(messages), encoding="utf-8")
        silent = [name for name, text in messages.items() if text == "no error"]
        if silent:
            raise SystemExit(f"{area}: no error: {', '.join(silent)}")


if __name__ == "__main__":
    main(sys.argv[1:])
