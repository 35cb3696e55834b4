import json

import pytest
from typer.testing import CliRunner

from uwaga._base import native
from uwaga.cli import app, doctor


def findings(*arguments: str) -> dict[str, dict[str, str]]:
    result = CliRunner().invoke(app, ["doctor", "--json", *arguments])
    assert result.exit_code == 0, result.output
    return {finding["topic"] + "/" + finding["name"]: finding for finding in json.loads(result.stdout)}


def test_tells_versions_and_machine() -> None:
    import torch

    import uwaga

    found = findings()
    assert found["versions/uwaga"]["value"] == uwaga.__version__
    assert found["versions/torch"]["value"] == torch.__version__
    assert found["machine/processor"]["status"] == "ok"


@pytest.mark.skipif(native.reason_unavailable() is not None, reason="no native library here")
def test_tells_what_the_kernels_run_on() -> None:
    found = findings()
    assert found["kernels/native library"]["value"] == str(native.library().path)
    assert found["kernels/instruction set"]["value"] == native.level()
    assert found["kernels/instruction set"]["value"] in found["kernels/possible"]["value"].split(", ")
    assert found["kernels/thread pool"]["why"] == native.library().thread_pool.reason


def test_tells_why_there_is_no_native_library_and_exits_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "reason_unavailable", lambda: "it was left at home")
    found = findings()["kernels/native library"]
    assert (found["value"], found["status"]) == ("none", "missing")
    assert found["why"] == (
        "it was left at home; the PyTorch engine serves. To build it: pip install with a C++ compiler present"
    )


def test_tells_a_variable_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UWAGA_THREADS", "many")
    found = findings()
    assert found["threads/uwaga"]["why"] == "UWAGA_THREADS must be a whole number of at least 1, not 'many'"
    assert found["environment/UWAGA_THREADS"]["value"] == "many"


def test_shows_every_finding_to_people() -> None:
    shown = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    for finding in doctor.examine():
        assert finding.name in shown.stdout
