"""Commands of the documents on two machines (tests/machines.py): torchrun, and the Slurm script."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from machines import Machines, block_of, two_machines
from trainings import assert_same, config

pytestmark = [pytest.mark.stress, pytest.mark.timeout(900)]

ATTEND = """
import datetime, torch, uwaga
torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(minutes=5))
rank = torch.distributed.get_rank()
torch.manual_seed(0)
whole = torch.randn(1, 2, 600, 16)
part = whole[:, :, 300 * rank : 300 * rank + 300]
output = uwaga.sequence_parallel.attention(part, part, part, mask=uwaga.Causal())
exact = uwaga.attention(whole, whole, whole, mask=uwaga.Causal(), impl="cpu")
print("the bits of one process:", torch.equal(output, exact[:, :, 300 * rank : 300 * rank + 300]))
"""
TORCHRUN = [
    "torchrun",
    "--nnodes",
    "2",
    "--nproc-per-node",
    "1",
    "--rdzv-backend",
    "c10d",
    "--rdzv-endpoint",
    "node1:29500",
]


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    (tmp_path / "programs").mkdir()
    with two_machines(tmp_path / "programs") as result:
        yield result


def test_two_machines(machines: Machines, tmp_path: Path) -> None:
    (tmp_path / "attend.py").write_text(ATTEND)
    for code, output in machines.run([[*TORCHRUN, str(tmp_path / "attend.py")]] * 2, seconds=600):
        assert code == 0, output
        assert "the bits of one process: True" in output


def test_machines_that_take_their_own_name_for_loopback(machines: Machines, tmp_path: Path) -> None:
    """As Debian's /etc/hosts has it; the document says what to do."""
    (tmp_path / "attend.py").write_text(ATTEND.replace("minutes=5", "seconds=40"))  # for which one of them waits
    machines.name_themselves("127.0.1.1")
    command = [*TORCHRUN, str(tmp_path / "attend.py")]
    told = machines.run([command] * 2, seconds=600)
    assert all(code for code, _ in told)
    assert any("connectFullMesh failed" in output for _, output in told), told
    for code, output in machines.run([command] * 2, seconds=600, GLOO_SOCKET_IFNAME="eth0"):
        assert code == 0, output
        assert "the bits of one process: True" in output


def test_the_slurm_script_trains(machines: Machines, tmp_path: Path) -> None:
    script = tmp_path / "long.sh"
    script.write_text(block_of("guides/several-processes.md", "bash"))
    text = config(tmp_path, "gpt2").read_text()
    for name in ("one", "long"):
        (tmp_path / f"{name}.toml").write_text(text.replace('"nowhere"', f'"{tmp_path / name}"'))
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    ((code, output),) = machines.run([["bash", "-c", f"cd {tmp_path} && bash long.sh"]], seconds=800)
    assert code == 0, output
    command = [sys.executable, "-m", "uwaga.cli", "train", str(tmp_path / "one.toml")]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    assert_same(tmp_path / "one", tmp_path / "long")
