"""The package builds from its own files: with a compiler, without one, and when told not to try."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.stress

pytest.importorskip("scikit_build_core", reason="the build backend is not installed here: `make setup` installs it")

NO_COMPILER = {"CXX": "/nonexistent/c++"}


def build(root: Path, folder: Path, **variables: str) -> tuple[int, list[Path]]:
    environment = {name: value for name, value in os.environ.items() if name not in {"CXX", "UWAGA_BUILD_NATIVE"}}
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    command += ["--config-settings", f"build-dir={folder / 'build'}", "--wheel-dir", str(folder), str(root)]
    done = subprocess.run(command, env=environment | variables, capture_output=True, text=True, check=False)
    return done.returncode, list(folder.glob("*.whl"))


@pytest.mark.parametrize("variables", [NO_COMPILER, {"UWAGA_BUILD_NATIVE": "0"}], ids=["no-compiler", "told-not-to"])
def test_builds_and_works_without_a_native_library(root: Path, tmp_path: Path, variables: dict[str, str]) -> None:
    status, wheels = build(root, tmp_path, **variables)
    assert status == 0
    assert wheels[0].name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheels[0]) as wheel:
        assert not [name for name in wheel.namelist() if "_native" in name.split("/")]
        assert "uwaga/viewer/front/main.js" in wheel.namelist()
        wheel.extractall(tmp_path / "installed")
    # Without site, the editable package of this environment is not there to be found instead.
    torch_is_in = next(path for path in sys.path if (Path(path) / "torch").is_dir())
    program = f"""
import sys
sys.path[:0] = [{str(tmp_path / "installed")!r}, {torch_is_in!r}]
import torch, uwaga
x = torch.eye(3)
print(uwaga.explain(x, x, x).engine, uwaga.attention(x, x, x).shape[0], uwaga.__file__)
"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True)
    engine, rows, file = done.stdout.split()
    assert (engine, rows) == ("torch", "3")
    assert Path(file).is_relative_to(tmp_path)


def test_a_build_that_must_have_the_library_fails_without_a_compiler(root: Path, tmp_path: Path) -> None:
    status, wheels = build(root, tmp_path, UWAGA_BUILD_NATIVE="1", **NO_COMPILER)
    assert status != 0
    assert wheels == []
