"""The benchmarks of a GPU: without one they end with the reason, and on the CPU they can be tried out."""

import runpy
import sys
from pathlib import Path

import pytest
import torch
from processors import pretend_cuda

FOLDER = Path(__file__).parents[2] / "benchmarks" / "gpu"
pytestmark = pytest.mark.stress
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in ("device", "__main__"))


def _run(name: str, monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    for each in (*NAMES, "device"):  # other folders may have modules of these names
        monkeypatch.delitem(sys.modules, each, raising=False)
    monkeypatch.setattr(sys, "argv", [str(FOLDER / f"{name}.py"), *options])
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")


@pytest.mark.parametrize("name", [*NAMES, "__main__"])
def test_without_a_gpu_there_is_one_line_that_says_so(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend_cuda(monkeypatch, is_available=lambda: False)
    with pytest.raises(SystemExit) as ended:
        _run(name, monkeypatch)
    assert ended.value.code == 1
    said = "benchmarks/gpu" if name == "__main__" else f"benchmarks/gpu/{name}.py"
    why = "this PyTorch is built without CUDA" if torch.version.cuda is None else "PyTorch sees no CUDA device"
    assert capsys.readouterr().err == f"{said}: needs a GPU: {why} (torch {torch.__version__})\n"


@pytest.mark.parametrize("name", [*NAMES, "__main__"])
@pytest.mark.filterwarnings("ignore")  # of transformers, about tiny models
def test_on_the_cpu_it_runs_and_says_that_the_figures_mean_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(name, monkeypatch, "--device", "cpu", "--quick")
    lines = capsys.readouterr().out.splitlines()
    titles = [line for line in lines if line.startswith("## ")]
    count = len(NAMES) if name == "__main__" else 1
    assert len(titles) == sum("no GPU: these figures mean nothing" in line for line in lines) == count
    for at in (lines.index(title) for title in titles):
        table = [line for line in lines[at + 4 :] if line][
            : lines[at + 4 :].index("") if "" in lines[at + 4 :] else None
        ]
        assert len(table) > 2
        assert len({line.count("|") for line in table}) == 1


def test_the_conformance_suite_on_a_gpu_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UWAGA_CONFORMANCE_DEVICE", "cuda")
    pretend_cuda(monkeypatch, is_available=lambda: False)
    with pytest.raises(pytest.UsageError) as error:
        runpy.run_path(str(FOLDER.parents[1] / "tests" / "conformance" / "conftest.py"))
    assert "sees no CUDA device" in str(error.value)
