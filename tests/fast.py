"""The order of tests, and their tiers: `pytest --fast` leaves out what is marked slow, and fails on what should have been; what is
marked stress, here below, `make test` leaves to `make stress`.

Slow is what starts a browser, a process, a training or a compiler, or takes seconds; `@pytest.mark.slow` says so. A test of the
fast tier that does one of these fails, so that the tier stays fast.
"""

import multiprocessing.process
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
import torch

# Of what there is much of its kind, the cases that stay in `make test`, by a part of their ids; none: all are for `make stress`.
STRESS = {
    "attacks/test_readers.py": ("common",),
    "attacks/test_training_data.py::test_a_line_of_ten_megabytes_is_cut_into_rows": ("text-words",),
    "attacks/test_viewer_requests.py::test_a_thousand_that_take_no_answers": ("page", "question"),
    "cli/test_encode_killed.py": (),
    "conformance/test_exactness.py::test_engine_is_as_exact_as_twice_the_usual": ("-random-", "outliers-bfloat16"),
    "conformance/test_maps.py::test_statistics_are_as_exact_as_twice_the_usual": ("-random-", "peaked-bfloat16"),
    "contracts/test_benchmarks.py::test_runs": ("forward", "ragged", "maps]", "maps_reading"),
    "contracts/test_build.py::test_builds_and_works_without_a_native_library": ("no-compiler",),
    "conformance/test_triton.py::test_statistics_are_as_exact_as_twice_the_usual": ("two tiles", "starts", "documents"),
    "gpu/test_benchmarks.py::test_on_the_cpu_it_runs_and_says_that_the_figures_mean_nothing": ("forward", "__main__"),
    "gpu/test_pretended.py::test_a_training_run": ("gpt2",),
    "gpu/test_pretended.py::test_models": ("gpt2-padded", "bert-ragged", "t5-padded"),
    "integrations/test_edit.py::test_a_compiled_model_is_edited_too": (),
    "integrations/test_edit_transformers.py::test_a_compiled_model_is_edited_too": ("uwaga",),
    "integrations/test_packed_linear.py::test_torch_compile": ("bert",),
    "integrations/test_transformers_compile.py::test_a_generation_with_a_static_cache_is_one_graph": ("llama",),
    "integrations/test_transformers_compile.py::test_a_window_in_a_static_cache_makes_no_more_graphs_than_eager_attention": (),
    "integrations/test_transformers_compile.py::test_layers_one_by_one": ("bert-compiled3",),
    "integrations/test_transformers_families.py::test_compiled": ("gpt2", "t5"),
    "integrations/test_transformers_generate.py::test_continuous_batching": ("llama", "gpt2"),
    "maps/recordings/test_files.py::test_whatever_a_description_says_is_read_or_refused_by_name": ("ragged",),
    "maps/test_tracing.py::test_what_a_tracer_writes_down_computes_the_map": ("torch.jit.trace", "make_fx-"),
    "models/test_bundled.py::test_it_is_viewed_without_a_network": ("speller", "copyist"),
    "ops/test_gradients.py::test_the_reference_is_its_own_derivative_twice": ("causal", "an empty row", "dropout"),
    "ops/test_linear_tracing.py::test_a_map_compiles_into_one_graph": ("cpu",),
    "ops/test_tracing.py::test_a_package_compiled_ahead_of_time_runs": (),
    "ops/test_tracing.py::test_a_width_and_a_scale_that_change_are_compiled_again": ("None",),
    "ops/test_tracing.py::test_inductor_compiles_it_too": (),
    "train/data/test_prepare.py::test_killed_preparation_leaves_no_partial_data": (),
    "train/test_api.py::test_compiled_training_agrees_with_eager_within_rounding": (),
    "train/test_distributed.py": (),
    "train/test_full_disk.py": (),
    "train/test_killed.py": (),
    "train/test_recipes.py::test_a_recipe_with_its_real_data": ("speller.toml",),
    "train/test_recipes.py::test_repetitions_py_writes_the_data_of_the_copyist_recipes": (),
    "train/test_recipes.py::test_the_bundled_bards_loss_is_that_of_its_card": (),
    "viewer/front/test_languages.py::test_every_text_of_a_page_comes_from_a_table": ("lesson", "explore", "text"),
    "viewer/front/test_languages.py::test_no_page_overflows": ("pl-360",),
    "viewer/front/test_lesson.py::test_no_element_is_wider_than_the_page": ("360",),
    "viewer/front/test_views.py::test_the_first_screen": ("light",),
    "viewer/page/test_snapshot.py::test_a_text_of_512_tokens_in_a_model_of_144_heads_is_under_20_megabytes": (),
    "viewer/test_api.py::test_the_error_without_the_extra_names_it": ("starlette",),
}  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="leave out tests that are marked slow or timing")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files whose tests are mostly slow come first, so that of several processes none gets a long one at the end."""
    for item in items:
        if _is_stress(item):
            item.add_marker(pytest.mark.stress)
    slow_of_file: dict[object, list[bool]] = defaultdict(list)
    for item in items:
        slow_of_file[item.path].append(item.get_closest_marker("slow") is not None)
    share = {path: sum(slow) / len(slow) for path, slow in slow_of_file.items()}
    items.sort(key=lambda item: -share[item.path])  # stable: within a file nothing changes
    if config.getoption("--fast"):
        slow = [item for item in items if item.get_closest_marker("slow") or item.get_closest_marker("timing")]
        config.hook.pytest_deselected(items=slow)
        gone = set(map(id, slow))
        items[:] = [item for item in items if id(item) not in gone]


def _is_stress(item: pytest.Item) -> bool:
    file, _, test = item.nodeid.removeprefix("tests/").partition("::")
    name, _, case = test.partition("[")
    kept = STRESS.get(f"{file}::{name}", STRESS.get(file))
    return kept is not None and not any(part in case or not case for part in kept)


@pytest.fixture(scope="session", autouse=True)
def _nothing_slow(request: pytest.FixtureRequest) -> Iterator[None]:
    if not request.config.getoption("--fast"):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "__init__", _refused("starts a process"))
        patch.setattr(multiprocessing.process.BaseProcess, "start", _refused("starts a process"))
        patch.setattr(torch, "compile", _refused("compiles"))
        patch.setattr("uwaga.train.loop.Loop.run", _refused("trains"))
        yield


def _refused(what: str) -> Any:
    def refuse(*_: object, **__: object) -> NoReturn:
        pytest.fail(f"a test of the fast tier {what}: mark it slow")

    return refuse
