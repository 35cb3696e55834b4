"""Two machines of one, for tests of commands that run on several: network namespaces with an address and a host name each, and Slurm's
`scontrol` and `srun` as programs that start processes there. It needs the superuser of a Linux with iproute2."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from documents import DOCS, blocks

HOSTS = ("node1", "node2")

_SCONTROL = "#!/bin/bash\ntr , '\\n' <<< \"$3\"\n"
_SRUN = """#!{python}
import argparse, os, subprocess, sys
parser = argparse.ArgumentParser()
parser.add_argument("--nodes", type=int)
parser.add_argument("--ntasks", type=int)
parser.add_argument("--nodelist")
parser.add_argument("--exclude")
parser.add_argument("command", nargs=argparse.REMAINDER)
asked = parser.parse_args()
hosts = (asked.nodelist or os.environ["SLURM_JOB_NODELIST"]).split(",")
hosts = [host for host in hosts if host != asked.exclude]
tasks = asked.ntasks or len(hosts)
assert tasks <= len(hosts) and asked.nodes in (None, tasks), asked
started = [
    subprocess.Popen(["on", host, *asked.command], env=os.environ | {{"SLURM_PROCID": str(n), "SLURM_NTASKS": str(tasks)}})
    for n, host in enumerate(hosts[:tasks])
]
sys.exit(max(each.wait() for each in started))
"""
# `on HOST COMMAND ...`: on that machine.
_ON = """#!/bin/bash
host=$1; shift
exec ip netns exec "{prefix}$host" unshare --uts bash -c 'hostname '"$host"'; exec "$@"' - "$@"
"""


class Machines:
    """What `two_machines` gives.

    Args:
        folder: for the programs, and what commands print.
        prefix: of the namespaces' names.
    """

    def __init__(self, folder: Path, prefix: str) -> None:
        self.folder, self.prefix = folder, prefix
        texts = {"scontrol": _SCONTROL, "srun": _SRUN.format(python=sys.executable), "on": _ON.format(prefix=prefix)}
        for name, text in texts.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        self.path = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])

    def run(self, commands: list[list[str]], *, seconds: float, **environment: str) -> list[tuple[int, str]]:
        """The exit code and the output of a command on each machine; all that they left running is killed."""
        slurm = {
            "SLURM_JOB_NODELIST": ",".join(HOSTS),
            "SLURM_NNODES": "2",
            "SLURM_CPUS_PER_TASK": "1",
            "SLURM_JOB_ID": "7",
        }
        env = os.environ | slurm | {"PATH": self.path, "OMP_NUM_THREADS": "1"} | environment
        started = []
        for host, command in zip(HOSTS, commands, strict=False):
            # A file: what a command leaves running, as srun in the background, would keep a pipe open.
            with (self.folder / f"{host}.log").open("w") as log:
                started.append(
                    subprocess.Popen(["on", host, *command], env=env, stdout=log, stderr=log, start_new_session=True)
                )
        try:
            codes = [process.wait(seconds) for process in started]
        finally:
            for pid in self.running():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in started:
                process.wait()
        return [(code, (self.folder / f"{host}.log").read_text()) for code, host in zip(codes, HOSTS, strict=False)]

    def running(self) -> list[int]:
        pids = [_ip("netns", "pids", self.prefix + host).split() for host in HOSTS]
        return [int(pid) for of_host in pids for pid in of_host]


def _address(n: int) -> str:
    return f"10.77.0.{n + 1}"


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


@contextmanager
def two_machines(folder: Path) -> Iterator[Machines]:
    """Two of them, HOSTS, which reach each other by their names; skips where this account cannot make them."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("only root can become two machines")
    prefix = f"uwaga{os.getpid()}"
    bridge = f"uw{os.getpid()}"
    names = [prefix + host for host in HOSTS]
    try:
        _ip("link", "add", bridge, "type", "bridge")
        _ip("link", "set", bridge, "up")
        for n, name in enumerate(names):
            _ip("netns", "add", name)
            _ip("link", "add", f"{bridge}{n}", "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", f"{bridge}{n}", "master", bridge, "up")
            _ip("-n", name, "addr", "add", f"{_address(n)}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                _ip("-n", name, "link", "set", device, "up")
            _ip(
                "-n", name, "route", "add", "default", "via", _address(1 - n)
            )  # by which programs find their own address
            (Path("/etc/netns") / name).mkdir(parents=True)
            hosts = [f"{_address(m)} {host}\n" for m, host in enumerate(HOSTS)]
            (Path("/etc/netns") / name / "hosts").write_text("127.0.0.1 localhost\n" + "".join(hosts))
        yield Machines(folder, prefix)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
            shutil.rmtree(Path("/etc/netns") / name, ignore_errors=True)
        subprocess.run(["ip", "link", "delete", bridge], check=False, capture_output=True)


def block_of(document: str, language: str) -> str:
    """Return the first block of code of a language in a document."""
    return next(block.text for block in blocks(DOCS / document) if block.language == language)
