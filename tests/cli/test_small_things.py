"""What a command says of what is not there, at once; and pipes whose reader has gone."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import forked
import pytest
import typer
from typer.testing import CliRunner

from uwaga._base import env
from uwaga._base.errors import CheckpointError
from uwaga.cli import app
from uwaga.cli.terminal import ending
from uwaga.models.checkpoints import directories

# Commands that write to standard output.
WRITERS = [
    ["--version"],
    ["doctor"],
    ["doctor", "--json"],
    ["generate", "--model", "speller", "cat"],
    ["lesson", "--plain"],
    ["store", "ask", "DB", "the cat", "--model", "MODEL"],
    ["store", "ask", "DB", "the cat", "--model", "MODEL", "--json"],
    ["store", "stats", "DB"],
]
NOT_THERE = {
    "view nowhere/a.txt": "view: there is no file nowhere/a.txt",
    "view text --second nowhere.txt": "view: there is no file nowhere.txt",
    "view text --model ./nowhere": "view: ./nowhere is neither a directory nor the id of a repository on the hub",
    "view text --second-model /no/where": "view: /no/where is neither a directory nor the id of a repository on the hub",
    "view nowhere --ask why": "view: nowhere: there is no such folder",
    "generate --model /no/where text": "generate: /no/where is neither a directory nor the id of a repository on the hub",
    "encode nowhere.txt -o a.parquet": "encode: nowhere.txt: there is no such file",
    "store add db nowhere": "store add: nowhere: there is no such file or folder",
    "store ask nowhere why": "store ask: nowhere: there is no such folder",
    "store stats nowhere": "store stats: nowhere: there is no such folder",
    f"store stats {300 * 'a'}": f"store stats: {300 * 'a'}: File name too long",
    f"view {300 * 'a'} --ask why": f"view: {300 * 'a'}: File name too long",
    "train nowhere.toml": "train: nowhere.toml cannot be read: No such file or directory",
}
# One process: what is not there is found where PyTorch cannot be imported.
PROGRAM = """
import json, sys
sys.modules["torch"] = None
from typer.testing import CliRunner
from uwaga.cli import app
from uwaga.cli.terminal import ending
from uwaga.models.checkpoints import directories
results = [CliRunner().invoke(app, line.split()) for line in json.load(sys.stdin)]
print(json.dumps([(each.exit_code, each.stdout, each.stderr) for each in results]))
"""


POLICY = """
import os, sys
from uwaga.cli import main
sys.argv = ["uwaga", "--version"]
try:
    main()
finally:
    print(os.environ["OMP_WAIT_POLICY"], "torch" in sys.modules, flush=True)
"""


@pytest.mark.slow
def test_what_is_not_there_is_said_before_pytorch_is_imported(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(list(NOT_THERE)),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    for (code, out, said), message in zip(json.loads(done.stdout), NOT_THERE.values(), strict=True):
        assert (code, out) == (1, ""), said
        assert said.startswith(f"uwaga {message}")


@pytest.mark.parametrize(
    ("name", "meant"),
    [("minlm", "did you mean minilm?"), ("gpt2", "give a directory, or one of bard, copyist, minilm, speller")],
)
def test_a_model_that_is_spelled_wrong(name: str, meant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise OSError("there is no network")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    rule = "is not a directory, and cannot be downloaded from the hub"
    with pytest.raises(CheckpointError) as error:
        directories.find(name, None)
    assert str(error.value) == f"{name} {rule}; {meant}\nthere is no network"


@pytest.mark.slow
def test_threads_of_a_command_sleep_while_they_wait() -> None:
    """OpenMP reads the variable once, when PyTorch loads it."""
    environment = {name: value for name, value in os.environ.items() if name not in env.WAITING}
    done = subprocess.run([sys.executable, "-c", POLICY], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1:] == ["passive False"]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory, write_model: Callable[..., Path]) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("store")
    model = write_model(folder / "model")
    (folder / "a.txt").write_text("the cat sat\n\nthe dog ran\n")
    added = CliRunner().invoke(app, ["store", "add", str(folder / "db"), str(folder / "a.txt"), "--model", str(model)])
    assert added.exit_code == 0
    return folder / "db", model


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="pipes of Windows have other errors")
@pytest.mark.gate(only=lambda arguments: arguments[1:2] == ["ask"] and arguments[-1] == "--json")
@pytest.mark.parametrize("arguments", WRITERS, ids=" ".join)
def test_a_pipe_whose_reader_has_gone_is_no_error(arguments: list[str], database: tuple[Path, Path]) -> None:
    writer = command(arguments, database)
    writer.stdout.close()
    writer.stdin.close()
    with writer.stderr:
        assert writer.stderr.read() == ""
    assert writer.wait() in (1, 141)  # as SIGPIPE; rich ends with 1


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.gate(only=lambda arguments: arguments in (["doctor"], ["--help"]))
@pytest.mark.parametrize("arguments", [*WRITERS, ["--help"]], ids=" ".join)
def test_an_output_that_takes_no_more_is_named(arguments: list[str], database: tuple[Path, Path]) -> None:
    full = "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1)\n"
    writer = command(arguments, database, full)
    _, errors = writer.communicate()
    assert errors.startswith("uwaga: standard output cannot be written: ")
    assert writer.returncode == 1


def command(arguments: list[str], database: tuple[Path, Path], first: str = "") -> forked.Program:
    """A command that begins when its standard input ends."""
    names = {"DB": str(database[0]), "MODEL": str(database[1])}
    program = f"{first}import sys; sys.stdin.read(); sys.argv[0] = 'uwaga'; from uwaga.cli import main; main()"
    return forked.Program(program, *(names.get(argument, argument) for argument in arguments))


def test_an_interrupt_ends_quietly(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, ending("generate"):
        raise KeyboardInterrupt
    assert (ended.value.exit_code, capsys.readouterr().err) == (130, "\nuwaga generate: interrupted\n")
