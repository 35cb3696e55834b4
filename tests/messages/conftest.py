"""What the calls of the files share, made once for each area."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import uwaga
from uwaga import Ragged, Reranker, SoftDatabase, TextEncoder
from uwaga.store import TokenDatabase
from uwaga.viewer.shown import Text
from uwaga.viewer.texts import TextRunner


@pytest.fixture
def base(tmp_path: Path) -> Callable[..., Path]:
    """A directory that sentence-transformers saved, by its kind and its family; no call changes it."""
    import random_directories

    return lambda kind, family="bert": random_directories.base(kind, family, tmp_path)


@pytest.fixture
def bert(model: Path) -> TextRunner:
    """What reads a text for a page; it takes 12 tokens."""
    return TextRunner(Text("", model=uwaga.models.open(model, dtype="float32")))


@pytest.fixture
def reranker(write_reranker: Callable[[], Path]) -> Reranker:
    return Reranker.load(write_reranker())


@pytest.fixture
def db(tmp_path: Path) -> Iterator[SoftDatabase]:
    """Rows 1 and 2; no call changes it."""
    with SoftDatabase.create(tmp_path / "db", key_width=3, value_width=2, model="m1") as made:
        made.append(torch.eye(3), torch.ones(3, 2), records=[{"n": n, "t": f"row {n}"} for n in range(3)])
        made.delete([0])
        yield made
        assert len(made) == 2
        assert made.check() == []


@pytest.fixture
def tokens(tmp_path: Path) -> Iterator[TokenDatabase]:
    """Rows of two and one tokens; no call changes it."""
    with TokenDatabase.create(tmp_path / "tokens", width=2) as made:
        made.append(Ragged.from_list([torch.eye(2), torch.ones(1, 2)]))
        yield made
        assert len(made) == 2
        assert made.check() == []
