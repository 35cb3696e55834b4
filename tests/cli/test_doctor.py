import importlib.metadata
import importlib.util
import json
import re
from pathlib import Path

import commands
import processors
import pytest
import torch

import uwaga
from uwaga._base import native
from uwaga.cli import doctor


def findings(*arguments: str) -> dict[str, dict[str, str]]:
    said = json.loads(commands.run("doctor", "--json", *arguments))
    return {finding["name"]: finding for finding in said}


@pytest.fixture(scope="module")
def report() -> dict[str, dict[str, str]]:
    return findings()


@pytest.mark.skipif(native.reason_unavailable() is not None, reason="no native library here")
def test_tells_what_the_kernels_run_on(report: dict[str, dict[str, str]]) -> None:
    assert report["native library"]["value"] == str(native.library().path)
    assert report["instruction set"]["value"] == native.level()
    assert report["thread pool"]["why"] == native.library().why_threads


def test_tells_versions_extras_and_models(report: dict[str, dict[str, str]]) -> None:
    assert report["uwaga"]["value"] == uwaga.__version__
    assert report["torch"]["value"] == torch.__version__
    assert Path(report["bard"]["value"]).joinpath("config.json").is_file()
    declared = importlib.metadata.requires("uwaga") or []
    for distribution, (package, extra, _) in doctor.OPTIONAL.items():
        assert any(re.match(rf"{distribution}\b.*extra == .{extra}.", entry) for entry in declared), distribution
        version = "none" if importlib.util.find_spec(package) is None else importlib.metadata.version(distribution)
        assert report[f"{distribution}"]["value"] == version


def test_shows_every_finding_to_people(report: dict[str, dict[str, str]]) -> None:
    shown = commands.run("doctor", env={"COLUMNS": "200"})
    assert all(finding["name"] in shown for finding in report.values())


def test_tells_the_engine_of_the_linear_map(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UWAGA_LINEAR", "torch")
    processors.forget()
    linear = findings()["linear float32"]
    processors.forget()
    assert linear["value"] == "torch"
    assert linear["why"].startswith("named by UWAGA_LINEAR; a row may have other bits in another batch")
