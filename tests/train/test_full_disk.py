"""Training on a disk that gets full: a small tmpfs in a mount namespace of its own."""

import subprocess
import sys
from pathlib import Path

import pytest
from trainings import write_config

pytestmark = pytest.mark.stress

# Mounts a tmpfs of the given size, trains into it until it is full, prints and loads the checkpoints there, makes it larger and
# resumes. Each step is a process forked from this one, which has imported PyTorch and started no threads.
PROGRAM = """
import os, subprocess, sys
from pathlib import Path
import uwaga.train.api
from uwaga.cli import app
from uwaga.models import load

kilobytes, disk, config = sys.argv[1:]
out = Path(disk, "run")

def run_forked(step, *arguments):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    step(*arguments)
    sys.stdout.flush()
    os._exit(0)

def train(*options):
    sys.argv = ["uwaga", "train", config, *options]
    app()

def load_last():
    load(out / (out / "last").read_text().strip())
    print("loads")

subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", disk], check=True)
assert run_forked(train) == 1
print("ls:", *sorted(path.name for path in out.iterdir() if "step" in path.name), flush=True)
assert run_forked(load_last) == 0
subprocess.run(["mount", "-o", "remount,size=20m", disk], check=True)
assert run_forked(train, "--resume") == 0
"""


@pytest.fixture
def namespace() -> list[str]:
    command = ["unshare", "--map-root-user", "--mount"]
    try:
        done = subprocess.run([*command, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if done.returncode:
        pytest.skip("this process may not mount a disk")
    return command


def test_the_last_good_checkpoint_stays_and_training_resumes(tmp_path: Path, namespace: list[str]) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    config = write_config(
        tmp_path, "model.d_model=32", "model.d_ff=64", "schedule.steps=8", f"run.output_dir={disk}/run", "run.eval_every=1",
        "run.keep_last=9",
    )  # fmt: skip
    # A checkpoint takes about 170 kilobytes.
    command = [*namespace, sys.executable, "-c", PROGRAM, "600", str(disk), config]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    failed = next(line for line in done.stderr.splitlines() if line.startswith("uwaga train: "))
    assert failed.startswith("uwaga train: the checkpoint of step ")
    assert "cannot be written" in failed
    assert "No space left on device" in failed
    last = failed.rpartition("the last good checkpoint is ")[2]
    listed = next(line for line in done.stdout.splitlines() if line.startswith("ls: ")).split()[1:]
    assert listed[-1] == Path(last).name
    assert not [name for name in listed if name.startswith(".")]
    assert "loads" in done.stdout
    assert "step 8 of 8" in done.stdout
