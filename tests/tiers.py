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
    "sequence_parallel/test_ragged.py::test_models_have_the_bits_of_one_process": ("-2$",),
    "sequence_parallel/test_ragged.py::test_models_of_transformers_have_the_bits_of_one_process": ("-2$",),
    "sequence_parallel/test_ragged.py::test_parts_have_the_bits_of_one_process": ("-2$",),
    "sequence_parallel/test_sequence.py::test_gradients_of_parameters_add_up": ("-2$",),
    "sequence_parallel/test_sequence.py::test_parts_have_the_bits_of_one_process": ("-2$",),
    "sequence_parallel/test_maps.py::test_attend_within_sequence_parallel": ("-2$",),
    "sequence_parallel/test_maps.py::test_statistics_have_the_bits_of_one_process": ("-3$",),
    "sequence_parallel/test_maps.py::test_statistics_of_ragged_batches": ("-2$",),
    "gpu/test_benchmarks.py": (),
    "gpu/test_gpu.py::test_a_training_run": (),
    "gpu/test_gpu.py::test_models": ("gpt2-padded", "bert-ragged"),
    "integrations/test_packed_linear.py::test_torch_compile": (),
    "integrations/test_transformers_compile.py": (r"one_graph\[bert",),
    "integrations/test_transformers_families.py::test_compiled": (),
    "integrations/test_transformers_families.py::test_generation_with_a_static_cache": ("^(llama|gpt2|gemma2)",),
    "integrations/test_transformers_families.py::test_gradients": ("^(bert|llama|t5|gemma2)",),
    "integrations/test_transformers_generate.py::test_assisted_generation": ("llama",),
    "integrations/test_transformers_generate.py::test_continuous_batching": ("llama",),
    "integrations/test_transformers_generate.py::test_decoders": ("^(llama|gpt2|gemma2|mistral)",),
    "maps/statistics/test_gradients.py::test_a_statistic_is_its_own_derivative_twice": ("entropy",),
    "maps/test_tracing.py::test_what_a_tracer_writes_down_computes_the_map": ("torch.jit.trace", "make_fx-(entropy|attend)"),
    "maps/test_triton_compiles.py": (),
    "store/test_crashes.py": ("power_loss",),
    "store/test_histories.py": (r"\[History\]",),
    "models/test_bundled.py::test_it_is_viewed_without_a_network": ("speller",),
    "models/test_families.py::test_a_long_row_has_the_bits_of_the_row_alone": ("-1$",),
    "models/test_generate.py::test_the_best_of_several_beams_is_that_of_transformers": ("gpt2.*plain", "t5.*early"),
    "nn/test_compiled.py::test_it_compiles_to_one_graph": ("^encoder layer",),
    "ops/test_gradients.py::test_the_linear_form_is_its_own_derivative_twice": (),
    "ops/test_gradients.py::test_the_reference_is_its_own_derivative_twice": ("causal",),
    "ops/test_linear_tracing.py::test_a_map_compiles_into_one_graph": ("cpu",),
    "ops/test_linear_tracing.py::test_the_registered_operator_passes_opcheck": ("cpu",),
    "ops/test_memory.py::test_random_histories": (),
    "ops/test_tracing.py::test_a_compiled_program_is_the_program": ("plain",),
    "ops/test_tracing.py::test_a_loop_over_a_static_cache_is_one_graph": (),
    "ops/test_tracing.py::test_a_package_compiled_ahead_of_time_runs": (),
    "ops/test_tracing.py::test_a_width_and_a_scale_that_change_are_compiled_again": (),
    "ops/test_tracing.py::test_inductor_compiles_it_too": (),
    "ops/test_tracing.py::test_ragged_compiles_given_from_outside_or_made_inside": (),
    "ops/test_tracing.py::test_starts_that_are_numbers_share_a_graph": (),
    "ops/test_tracing.py::test_the_operators_pass_opcheck": ("plain-cpu", "ragged-cpu"),
    "plots/test_figures.py::test_without_matplotlib_the_error_names_the_extra": (),
    "train/test_prepare.py::test_killed_preparation_leaves_no_partial_data": (),
    "train/test_api.py::test_compiled_training_agrees_with_eager_within_rounding": (),
    "train/test_context.py": ("weights_agree", "resuming", "written_once", "killed in forward"),
    "train/test_distributed.py": (),
    "train/test_full_disk.py": (),
    "train/test_killed.py": ("killed_twice",),
    "train/test_recipes.py::test_a_recipe_with_its_real_data": (),
    "train/test_recipes.py::test_repetitions_py_writes_the_data_of_the_copyist_recipes": (),
    "train/test_recipes.py::test_the_bundled_bards_loss_is_that_of_its_card": (),
    "train/test_recipes.py::test_the_error_rates_of_the_bundled_speller": (),
    "train/test_recipes.py::test_the_held_out_words_are_as_many_as_the_readme_says": (),
    "train/test_short_runs.py": (r"\[speller\]",),
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
