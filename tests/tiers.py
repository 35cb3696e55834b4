"""Which tests run where, by markers; no test is in two tiers.

- fast: not marked. What starts a browser, a process, a training or a compiler, or takes seconds, is marked `slow`; a test that is not
  and does one of these fails.
- slow: those that have caught something or stand for a whole part. `make test`, which decides whether a change goes in, runs fast and
  slow, `make fast` the first alone.
- stress: marked so, or named below: more cases of what `make test` shows on a few. `make nightly` runs them.
- timing: what measures time or a process's memory, or floods. It runs alone, in `make nightly`.

What a test needs and does not find is a failure with `--no-missing`, which the Makefile gives; with plain pytest it is a skip.
"""

import multiprocessing.process
import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import pytest
import torch

# Of what there is much of its kind: the cases that stay in `make test`, by regular expressions that are looked for in their ids; where
# an entry is a whole file, in the name of the test with its case. None: all are stress.
STRESS: Mapping[str, Sequence[str]] = {
    "attacks/test_readers.py": (),
    "attacks/test_training_data.py::test_a_line_of_ten_megabytes_is_cut_into_rows": (),
    "cli/test_encode_killed.py": (r"\[every",),
    "conformance/test_exactness.py::test_engine_is_as_exact_as_twice_the_usual": (
        "^cpu.*-random-", "^cpu.*-outliers-bfloat16", "^(torch|flex|linear)-.*-random-float32",
    ),
    "conformance/test_fuzz.py": ("dense_call_is_exact", "ragged_call_is_exact"),
    "conformance/test_hidden.py::test_hidden_numbers_never_leak": ("^cpu", "^(torch|flex).*-nan-.*float32"),
    "conformance/test_map_fuzz.py": ("any_map_is_exact.*cpu",),
    "conformance/test_map_hidden.py::test_hidden_numbers_never_leak": ("^cpu.*-nan-torch.float32", "^cpu.*-infinity-torch.bfloat16"),
    "conformance/test_map_identities.py": (r"\[cpu",),
    "conformance/test_maps.py::test_statistics_are_as_exact_as_twice_the_usual": ("^cpu.*-random-", "^cpu.*-peaked-bfloat16"),
    "conformance/test_triton.py::test_statistics_are_as_exact_as_twice_the_usual": (),
    "contracts/test_benchmarks.py": (),
    "contracts/test_imports.py::test_a_named_engine_without_its_library_raises_and_says_why": (),
    "contracts/test_imports.py::test_works_where_the_native_library": ("is not",),
    "contracts/test_notebooks.py": ("induction_heads",),
    "plots/test_figures.py::test_without_matplotlib_the_error_names_the_extra": (),
    "viewer/front/test_languages.py": ("saved_lesson", "overflows.pl-360", "from_a_table.explore"),
    "viewer/front/test_lesson.py": (
        "opens_at_the_lesson", r"numbers_of_work_through.(Scores|Softmax)", "question_is_answered", "wider.*360", r"three_screens.*\[pl",
        "has_a_drawing", "word_of_the_picture", "opens_at_the_word", "one_step_is_printed",
    ),
    "viewer/front/test_map.py": ("readout_has_the_weights",),
    "viewer/front/test_reading.py": ("hostile_tokens", "saved_page_has_exact"),
    "viewer/front/test_shell.py": ("driven_by_the_wall", "used_url"),
    "viewer/front/test_typing.py": ("shown_with_what_comes_next",),
    "viewer/front/test_views.py": ("the_first_screen.light", "cross_attention_of_the_bundled", "story.minilm.*tired", "story.copyist-The", "story.speller"),
    "viewer/front/test_widget.py": ("overview",),
    "lessons/test_provenance.py": (r"rule_gives\[default", "rules_"),
    "viewer/page/test_snapshot.py::test_a_text_of_512_tokens_in_a_model_of_144_heads_is_under_20_megabytes": (),
    "viewer/test_api.py::test_the_error_without_the_extra_names_it": ("starlette",),
}  # fmt: skip

# Skips that are no missing part: what another platform, processor or account has, and data that is not published with the project.
_MAY_SKIP = (
    "the data of the recipes is not in UWAGA_DATA",
    "only root can become another user",
    "only root can become two machines",
    "this process may not mount a disk",
    "there is no unshare",
    "this account may not open so many connections",
    "this processor has one instruction set",
    "there is a GPU",
    "is about glibc's malloc",
    "only Linux says how much memory a process has had",
    "reads ELF, the format of Linux",
    "Triton's compiler for NVIDIA's GPUs is on Linux alone",
    "Spark needs Java",
    "forks, so as to load PyTorch once for many runs",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="leave out what is marked slow, stress or timing")
    parser.addoption(
        "--no-missing", action="store_true", help="fail, in place of skipping, where something is not installed"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files whose tests are mostly slow come first, so that of several processes none gets a long one at the end."""
    narrowed = any("::" in each for each in config.args) or bool(
        {"UWAGA_LEVEL", "UWAGA_CONFORMANCE_DEVICE"} & os.environ.keys()
    )
    _mark_stress(items, is_whole=not narrowed)
    slow_of_file: dict[object, list[bool]] = defaultdict(list)
    for item in items:
        slow_of_file[item.path].append(item.get_closest_marker("slow") is not None)
    share = {path: sum(slow) / len(slow) for path, slow in slow_of_file.items()}
    items.sort(key=lambda item: -share[item.path])  # stable: within a file nothing changes
    if config.getoption("--fast"):
        others = [item for item in items if any(map(item.get_closest_marker, ("slow", "stress", "timing")))]
        config.hook.pytest_deselected(items=others)
        gone = set(map(id, others))
        items[:] = [item for item in items if id(item) not in gone]


def _mark_stress(items: Sequence[pytest.Item], *, is_whole: bool) -> None:
    """Mark what STRESS leaves out. Raises UsageError: an entry keeps cases that are not there; where single tests, a level or a device
    were asked for (not `is_whole`), they may be others."""
    met: dict[str, set[str]] = {}
    for item in items:
        file, _, test = item.nodeid.removeprefix("tests/").partition("::")
        name, _, case = test.partition("[")
        entry = next((each for each in (f"{file}::{name}", file) if each in STRESS), None)
        if entry is None:
            continue
        kept = {part for part in STRESS[entry] if re.search(part, test if entry == file else case.removesuffix("]"))}
        met.setdefault(entry, set()).update(kept)
        if not kept:
            item.add_marker(pytest.mark.stress)
    for entry, values in met.items():
        if is_whole and (gone := set(STRESS[entry]) - values):
            raise pytest.UsageError(f"tests/tiers.py: {entry} has no case for {sorted(gone)}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Iterator[Any]:
    report = yield
    if item.config.getoption("--no-missing"):
        _fail_if_missing(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[Any]:
    report = yield
    if collector.config.getoption("--no-missing"):
        _fail_if_missing(report)
    return report


def _fail_if_missing(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
        _, _, reason = report.longrepr
        if not any(each in reason for each in _MAY_SKIP):
            report.outcome = "failed"
            report.longrepr = f"{report.nodeid}: what it needs is missing: {reason}"


@pytest.fixture(autouse=True)
def _nothing_slow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that is not marked slow starts nothing slow."""
    if any(map(request.node.get_closest_marker, ("slow", "stress", "timing"))):
        return
    monkeypatch.setattr(subprocess.Popen, "__init__", _refused("starts a process"))
    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", _refused("starts a process"))
    monkeypatch.setattr(torch, "compile", _refused("compiles"))
    monkeypatch.setattr("uwaga.train.api.Loop.run", _refused("trains"))


def _refused(what: str) -> Any:
    def refuse(*_: object, **__: object) -> NoReturn:
        pytest.fail(f"a test that is not marked slow {what}")

    return refuse
