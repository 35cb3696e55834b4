"""The Slurm script of the documents on two machines (tests/machines.py)."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from machines import Machines, block_of, two_machines
from trainings import assert_same, config

pytestmark = [pytest.mark.stress, pytest.mark.timeout(900)]


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    (tmp_path / "programs").mkdir()
    with two_machines(tmp_path / "programs") as result:
        yield result


def test_the_slurm_script_trains(machines: Machines, tmp_path: Path) -> None:
    script = tmp_path / "long.sh"
    script.write_text(block_of("guides/several-processes.md", "bash"))
    text = config(tmp_path, "gpt2").read_text()
    for name in ("one", "long"):
        (tmp_path / f"{name}.toml").write_text(text.replace(f'"{tmp_path / "run"}"', f'"{tmp_path / name}"'))
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    ((code, output),) = machines.run([["bash", "-c", f"cd {tmp_path} && bash long.sh"]], seconds=800)
    assert code == 0, output
    command = [sys.executable, "-m", "uwaga.cli", "train", str(tmp_path / "one.toml")]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    assert_same(tmp_path / "one", tmp_path / "long")
