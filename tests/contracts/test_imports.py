"""What `import uwaga` costs and needs: always in a process of its own."""

import statistics
from collections.abc import Callable
from pathlib import Path

import forked
import pytest

FreshPython = Callable[..., str]

OPTIONAL = (
    "typer", "rich", "numpy", "hypothesis", "pytest", "jaxtyping", "transformers", "starlette", "uvicorn", "anywidget",
)  # fmt: skip


@pytest.mark.timing
def test_import_costs_less_than_50_ms_beyond_torch(fresh_python: FreshPython) -> None:
    program = "import torch, time; t = time.perf_counter(); import uwaga; print(time.perf_counter() - t)"
    assert statistics.median(float(fresh_python(program)) for _ in range(5)) < 0.050


@pytest.mark.slow
@pytest.mark.parametrize("package", ["uwaga", "uwaga.cli"])
def test_import_alone_imports_neither_torch_nor_pydantic(fresh_python: FreshPython, package: str) -> None:
    program = f"import {package}, sys; print({{'torch', 'pydantic'}} & set(sys.modules))"
    assert fresh_python(program).strip() == "set()"


@pytest.mark.slow
def test_encoding_serving_storing_and_training_import_no_compiler() -> None:
    """It takes seconds."""
    sizes = {"vocab_size": 9, "d_model": 4, "num_heads": 1, "d_ff": 4, "num_layers": 1, "max_position_embeddings": 4}
    program = f"""
import sys, uwaga.encode.reranker, uwaga.serve.app, uwaga.store
from uwaga.models import config
from uwaga.train.model import new_model
new_model(config("gpt2", **{sizes}), 0)
print('torch._dynamo' in sys.modules)
"""
    assert forked.run(program) == "False\n"


@pytest.mark.slow
def test_works_without_optional_packages_and_without_the_native_library(
    fresh_python: FreshPython, tmp_path: Path
) -> None:
    """None in sys.modules is how Python says that an import shall fail. Each case is forked after the import of torch, which itself imports
    some of these packages if it finds them."""
    gone, other = tmp_path / "gone.so", tmp_path / "other.so"
    other.write_text("not a library")
    cases = [f"sys.modules |= dict.fromkeys({OPTIONAL!r})"]
    cases += [f"os.environ['UWAGA_LIBRARY'] = {str(path)!r}" for path in (other, gone)]
    program = f"""
import os, sys, torch
x = torch.eye(3)
for case in {cases!r}:
    if os.fork() == 0:
        exec(case)
        import uwaga
        print(tuple(uwaga.attention(x, x, x).shape), uwaga.explain(x, x, x).engine)
        if case == {cases[-1]!r}:
            try:
                uwaga.attention(x, x, x, impl="cpu")
            except ValueError as error:
                print(error)
        sys.stdout.flush()
        os._exit(0)
    assert os.wait()[1] == 0, case
"""
    *found, said = fresh_python(program).splitlines()
    assert [line[:6] for line in found] == ["(3, 3)"] * len(cases)
    assert [line.split()[-1] for line in found[-2:]] == ["torch", "torch"]
    assert said == f"attention: engine 'cpu' cannot serve this call: there is no native library at {gone}"


def test_the_base_reads_no_variable_behind_the_back_of_env(root) -> None:
    for source in (root / "src" / "uwaga").rglob("*.py"):
        if source.parent.name != "cli" and source.name != "env.py":
            assert "os.environ" not in source.read_text(encoding="utf-8"), source
