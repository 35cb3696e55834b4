"""`uwaga encode --processes`: the bytes of one process, whatever happens to the processes."""

import json
import os
import random
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import chain, count
from os import _exit
from pathlib import Path

import pytest
from typer.testing import CliRunner

from uwaga.cli import app
from uwaga.encode.processes import WorkerError, map_batches

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="only Linux says how much memory a process has had"),
]


def square(batch: object) -> object:
    """What is asked of a process here: a number, or what it shall do with itself."""
    match batch:
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "exit":
            _exit(3)
        case "refuse":
            raise ValueError("no such number")
        case "refuse strangely":
            raise type("Strange", (ValueError,), {})("a class of this process alone")
        case "fail":
            raise RuntimeError("no memory")
        case "unpicklable":
            return lambda: None
        case [path, then] if not Path(path).exists():  # the first one to get this
            Path(path).touch()
            square(then)
        case [_, _]:
            return 7
        case float(seconds):
            time.sleep(seconds)
            return seconds
        case int(number):
            return number * number
    raise AssertionError(batch)


def results(batches: list, **options: object) -> dict:
    options = {"processes": 2, "threads": 1, **options}
    return dict(map_batches(square, list(enumerate(batches)), describe=lambda n: f"batch {n}", **options))


def test_processes_that_end_are_replaced_and_named(tmp_path: Path) -> None:
    said: list[str] = []
    batches = [1, (str(tmp_path / "first"), "die"), 2, (str(tmp_path / "second"), "exit")]
    assert results([]) == {}
    assert results([*batches, *range(36)], say=said.append) == {0: 1, 1: 7, 2: 4, 3: 7} | {
        4 + n: n * n for n in range(36)
    }
    expected = ["was ended by signal 9 (SIGKILL)", "ended with code 3"]
    for how, message in zip(expected, sorted(said, key=lambda message: "code" in message), strict=True):
        assert re.fullmatch(rf"process \d \(pid \d+\) {re.escape(how)}; another process has its documents", message), (
            said
        )


@pytest.mark.parametrize("processes", [1, 2])
def test_a_process_that_stops_is_ended_while_the_others_give_results(tmp_path: Path, processes: int) -> None:
    """A busy machine may end more processes, whose batches others get."""
    said: list[str] = []
    endless = chain([(0, (str(tmp_path / "once"), "stop"))], ((n, 2) for n in count(1)))
    found = map_batches(square, endless, processes=processes, threads=1, timeout=6.0, say=said.append)
    assert next(result for item, result in found if item == 0) == 7
    found.close()
    assert said[0].endswith("gave no result for 6 s and was ended; another process has its documents")


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ("unpicklable", WorkerError, r"^batch 0: process \d \(pid \d+\) has failed: .*pickle"),
        (lambda: 1, Exception, "pickle"),
        pytest.param(
            "die",
            WorkerError,
            r"^batch 0: 10 processes have ended with these; the last, process .* 9 \(SIGKILL\)$",
            marks=pytest.mark.stress,
        ),
        ("refuse", ValueError, r"^no such number$"),
        ("refuse strangely", WorkerError, r": a class of this process alone$"),
        ("fail", WorkerError, r"^batch 0: process \d \(pid \d+\) has failed: RuntimeError: no memory$"),
    ],
)
def test_errors_come_out(batch: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        results([batch], processes=1)


def test_nothing_is_left_running() -> None:
    found = map_batches(square, [(1, 1), (2, 60.0), (3, 60.0)], processes=2, threads=1)
    assert next(found) == (1, 1)
    pids = _workers()
    assert len(pids) == 2
    found.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def _workers() -> set[int]:
    """The processes that were forked by the server of multiprocessing that this process has started."""
    parents: dict[int, int] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    children = {pid for pid, parent in parents.items() if parent == os.getpid()}
    return {pid for pid, parent in parents.items() if parent in children}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    words = ["the", "cat", "sat", "on", "the", "mat", "and", "then", "it", "ran", "away", "from", "a", "house"]
    chosen = random.Random(0)
    path = tmp_path / "docs.jsonl"
    texts = [" ".join(chosen.choices(words, k=1 + n % 37)) for n in range(200)]
    path.write_text("".join(json.dumps({"id": f"d{n}", "text": text}) + "\n" for n, text in enumerate(texts)))
    return path


@pytest.fixture
def encode(
    corpus: Path, write_model: Callable[..., Path], tmp_path: Path, shard_size: Callable[[int, int], None]
) -> Callable[..., str]:
    shard_size(10, 2000)
    model = write_model(tmp_path / "model")

    def run(name: str, *options: str) -> str:
        arguments = ["encode", str(corpus), "-o", str(tmp_path / name), "--model", str(model), "--overflow", "mean"]
        result = CliRunner().invoke(app, [*arguments, *options])
        assert result.exit_code == 0, result.output
        return result.stderr

    return run


@pytest.mark.gate(only=lambda dtype: dtype == "bfloat16")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_file_has_the_bytes_of_one_process(encode: Callable[..., str], tmp_path: Path, dtype: str) -> None:
    encode("1.parquet", "--dtype", dtype)
    encode("2.parquet", "--dtype", dtype, "--processes", "2")
    assert (tmp_path / "1.parquet").read_bytes() == (tmp_path / "2.parquet").read_bytes()
    assert encode("2.parquet", "--dtype", dtype, "--processes", "2") == ""


@pytest.mark.stress
@pytest.mark.parametrize("count", [2, 4])
def test_processes_are_killed_and_stopped_all_the_time(encode: Callable[..., str], tmp_path: Path, count: int) -> None:
    encode("alone.parquet")
    ended = threading.Event()
    killed = 0

    def kill() -> None:
        nonlocal killed
        chosen = random.Random(0)
        parts = tmp_path / "killed.parquet.parts"
        while not ended.wait(0.001):
            is_time = len(list(parts.glob("*.sha256"))) >= 2 * killed  # of 20: the work decides, not the clock
            if is_time and (pids := sorted(_workers())):
                with suppress(ProcessLookupError):  # it has just ended
                    os.kill(chosen.choice(pids), chosen.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP]))
                    killed += 1

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        said = encode("killed.parquet", "--processes", str(count), "--timeout", "20")
    finally:
        ended.set()
        killer.join()
    assert killed > 3
    assert "another process has its documents" in said
    assert (tmp_path / "killed.parquet").read_bytes() == (tmp_path / "alone.parquet").read_bytes()
    assert not (tmp_path / "killed.parquet.parts").exists()


@pytest.mark.stress
def test_the_whole_command_is_killed_and_goes_on_with_another_engine(
    encode: Callable[..., str], tmp_path: Path, corpus: Path
) -> None:
    import subprocess

    encode("alone.parquet")
    # It ends itself before it names the sixth part.
    program = (
        "import os, signal, sys; from uwaga.cli import app; from uwaga.encode import shards\n"
        "shards.groups.__kwdefaults__.update(max_documents=10, max_characters=2000)\n"
        "parts = set()\n"
        "def count(event, arguments):\n"
        "    if event == 'os.rename' and os.fspath(arguments[1]).endswith('.sha256'):\n"
        "        parts.add(os.fspath(arguments[1]))\n"
        "        if len(parts) > 5: os.kill(os.getpid(), signal.SIGKILL)\n"
        "if __name__ == '__main__': sys.addaudithook(count); app()\n"
    )
    script = tmp_path / "encode.py"
    script.write_text(program)
    output = tmp_path / "out.parquet"
    command = [
        sys.executable, str(script), "encode", str(corpus), "-o", str(output), "--model", str(tmp_path / "model"), "--overflow", "mean", "--processes", "2",
    ]  # fmt: skip
    done = subprocess.run(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not output.exists()
    assert len(list(Path(f"{output}.parts").glob("*.sha256"))) == 5
    encode("out.parquet")
    assert output.read_bytes() == (tmp_path / "alone.parquet").read_bytes()
