"""What `import uwaga` costs and needs: always in a process of its own."""

import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

FreshPython = Callable[..., str]

SMALL_CALL = (
    "import torch, uwaga; x = torch.eye(3); print(uwaga.attention(x, x, x).shape, uwaga.explain(x, x, x).engine)"
)


@pytest.mark.timing
def test_import_costs_less_than_50_ms_beyond_torch(fresh_python: FreshPython) -> None:
    program = "import torch, time; t = time.perf_counter(); import uwaga; print(time.perf_counter() - t)"
    assert statistics.median(float(fresh_python(program)) for _ in range(5)) < 0.050


@pytest.mark.slow
@pytest.mark.parametrize("package", ["uwaga", "uwaga.cli"])
def test_import_alone_imports_neither_torch_nor_pydantic(fresh_python: FreshPython, package: str) -> None:
    program = f"import {package}, sys; print({{'torch', 'pydantic'}} & set(sys.modules))"
    assert fresh_python(program).strip() == "set()"


@pytest.mark.gate("is not")
@pytest.mark.slow
@pytest.mark.parametrize("content", [None, "not a library"], ids=["is not", "is something else"])
def test_works_where_the_native_library(content: str | None, fresh_python: FreshPython, tmp_path: Path) -> None:
    library = tmp_path / "libuwaga_native.so"
    if content is not None:
        library.write_text(content)
    assert fresh_python(SMALL_CALL, UWAGA_LIBRARY=str(library)).split() == ["torch.Size([3,", "3])", "torch"]


@pytest.mark.stress
@pytest.mark.slow
def test_a_named_engine_without_its_library_raises_and_says_why(fresh_python: FreshPython, tmp_path) -> None:
    program = """
import torch, uwaga
x = torch.eye(3)
try:
    uwaga.attention(x, x, x, impl="cpu")
except ValueError as error:
    print(error)
"""
    nowhere = tmp_path / "gone.so"
    assert fresh_python(program, UWAGA_LIBRARY=str(nowhere)).strip() == (
        f"attention: engine 'cpu' cannot serve this call: there is no native library at {nowhere}"
    )


OPTIONAL = (
    "typer", "rich", "numpy", "hypothesis", "pytest", "jaxtyping", "transformers", "starlette", "uvicorn", "anywidget",
)  # fmt: skip


@pytest.mark.slow
def test_works_without_each_optional_package(fresh_python: FreshPython) -> None:
    """None in sys.modules is how Python says that an import shall fail. Each package is missing in a process of its own, forked after
    the import of torch, which itself imports some of these where it finds them, and takes most of the time."""
    program = f"""
import os, sys, torch
for package in {OPTIONAL}:
    if os.fork() == 0:
        sys.modules[package] = None
        {SMALL_CALL}
        sys.stdout.flush()
        os._exit(0)
    assert os.wait()[1] == 0, package
"""
    assert fresh_python(program).count("torch.Size([3, 3])") == len(OPTIONAL)


def test_the_base_reads_no_variable_behind_the_back_of_env(root) -> None:
    for source in (root / "src" / "uwaga").rglob("*.py"):
        if source.parent.name != "cli" and source.name != "env.py":
            assert "os.environ" not in source.read_text(encoding="utf-8"), source
