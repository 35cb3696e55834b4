"""The benchmarks of a GPU: without one they end with the reason, and on the CPU they can be tried out."""

from pathlib import Path

import forked
import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks" / "gpu"
CONFORMANCE = Path(__file__).parents[1] / "conformance"
pytestmark = pytest.mark.stress
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in ("device", "__main__"))


def _run(path: Path, *options: str) -> tuple[int | None, str, str]:
    """The exit code of a program, and what it prints on both files."""
    start = f"sys.path.insert(0, {str(path.parent)!r}); runpy.run_path({str(path)!r}, run_name='__main__')"
    program = forked.Program(f"import runpy, sys; sys.argv[0] = {str(path)!r}; {start}", *options)
    out, errors = program.communicate()
    return program.returncode, out, errors


@pytest.mark.parametrize("name", [*NAMES, "__main__"])
def test_without_a_gpu_there_is_one_line_that_says_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    said = "benchmarks/gpu" if name == "__main__" else f"benchmarks/gpu/{name}.py"
    why = "this PyTorch is built without CUDA" if torch.version.cuda is None else "PyTorch sees no CUDA device"
    expected = f"{said}: needs a GPU: {why} (torch {torch.__version__})\n"
    assert _run(FOLDER / f"{name}.py") == (1, "", expected)


@pytest.mark.parametrize("name", [*NAMES, "__main__"])
def test_on_the_cpu_it_runs_and_says_that_the_figures_mean_nothing(name: str) -> None:
    code, out, errors = _run(FOLDER / f"{name}.py", "--device", "cpu", "--quick")
    assert code == 0, errors
    lines = out.splitlines()
    titles = [line for line in lines if line.startswith("## ")]
    count = len(NAMES) if name == "__main__" else 1
    assert len(titles) == sum("no GPU: these figures mean nothing" in line for line in lines) == count
    for at in (lines.index(title) for title in titles):
        end = lines.index("", at + 4) if "" in lines[at + 4 :] else len(lines)
        table = lines[at + 4 : end]
        assert len(table) > 2
        assert len({line.count("|") for line in table}) == 1


def test_the_conformance_suite_on_a_gpu_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("UWAGA_CONFORMANCE_DEVICE", "cuda")
    assert "sees no CUDA device" in _run(CONFORMANCE / "conftest.py")[2]
