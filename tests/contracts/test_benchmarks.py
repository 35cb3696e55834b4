"""Every benchmark runs, on sizes too small to tell anything."""

import subprocess
import sys
from pathlib import Path

import forked
import pytest

pytestmark = pytest.mark.slow

# What the benchmarks import, and what two_trees.py starts.
PARTS = ("harness", "tree_calls", "cases", "timing")
PROGRAMS = sorted(path for path in (Path(__file__).parents[2] / "benchmarks").glob("*.py") if path.stem not in PARTS)

RUN = """
import runpy, sys
from pathlib import Path
sys.argv = sys.argv[1:]
sys.path.insert(0, str(Path(sys.argv[0]).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.stress
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_runs(program: Path) -> None:
    lines = forked.run(RUN, program, "--quick", "--dtype", "float32").splitlines()
    assert lines[0].startswith("## ")
    table = [line for line in lines if line.startswith("| ")]
    assert len(table) > 2
    assert len({line.count("|") for line in table}) == 1


@pytest.mark.stress
def test_a_report_is_appended_with_what_the_figures_depend_on(tmp_path: Path, root: Path) -> None:
    """The harness writes beside itself, so it runs from a copy."""
    for name in ("harness.py", "cases.py", "timing.py", "forward.py"):
        (tmp_path / name).write_text((root / "benchmarks" / name).read_text())
    command = [sys.executable, str(tmp_path / "forward.py"), "--quick", "--dtype", "float32", "--report", "2026-trial"]
    for _ in range(2):
        subprocess.run(command, capture_output=True, text=True, check=True)
    report = (tmp_path / "results" / "2026-trial.md").read_text()
    assert report.count("## Forward") == 2
    assert "`python benchmarks/forward.py --quick --dtype float32 --report 2026-trial`" in report
    assert str(tmp_path) not in report
