"""The layers of DESIGN.md, checked by the import contract in pyproject.toml."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_no_layer_imports_a_higher_one(root: Path) -> None:
    program = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_native_code_knows_neither_python_nor_pytorch(root: Path) -> None:
    for source in (root / "native").rglob("*"):
        if source.suffix in {".h", ".cc", ".cpp"}:
            text = source.read_text(encoding="utf-8")
            assert "Python.h" not in text, source
            assert "#include <torch" not in text, source
            assert "#include <ATen" not in text, source
