"""Arguments of a wrong type to databases, encoders and rerankers: the message names the argument and what to give, and no other library's."""

from pathlib import Path

import pytest
import torch

import uwaga
from uwaga import Ragged, Reranker, SoftDatabase, TextEncoder
from uwaga.encode import BatchEncoder
from uwaga.nn import KeyValueCache
from uwaga.store import TokenDatabase


class Given:
    """A database of each kind, and models."""

    def __init__(self, folder: Path, model: Path, reranker: Path) -> None:
        self.folder, self.model = folder, model
        self.db = SoftDatabase.create(folder / "db", key_width=2)
        self.db.append(torch.eye(2), records=[{"text": "east", "year": 1}, {"text": "north", "year": 2}])
        self.tokens = TokenDatabase.create(folder / "tokens", width=2)
        self.tokens.append(Ragged.from_list([torch.eye(2)]))
        self.encoder, self.reranker = TextEncoder.load(model), Reranker.load(reranker)


@pytest.fixture
def given(tmp_path: Path, write_model, write_reranker) -> Given:
    return Given(tmp_path, write_model(tmp_path / "model"), write_reranker())


ASK, FILES = "; uwaga.store.ask takes a text", "; uwaga.store.add_files takes files of texts"


def test_what_is_printed_is_one_line_that_says_what_it_is(given: Given) -> None:
    folder = given.folder
    of_encoder = f"TextEncoder('{folder}/model', embedding_dim=16, max_tokens=10, torch.float32, cpu)"
    assert repr(given.encoder) == of_encoder
    assert repr(given.reranker) == f"Reranker('{folder}/reranker', max_tokens=12, torch.float32, cpu)"
    assert repr(given.db) == f"SoftDatabase('{folder}/db', 2 rows, heads=1, key_width=2, dtype=float32)"
    assert (
        repr(given.tokens)
        == f"TokenDatabase('{folder}/tokens', 1 rows, heads=1, key_width=2, dtype=float32, tokens=True)"
    )
    given.db.close()
    assert repr(given.db) == f"SoftDatabase('{folder}/db', closed)"
    assert repr(KeyValueCache(3)) == "KeyValueCache(3 layers, start=0)"
    batches = BatchEncoder(given.model, overflow="mean")
    assert repr(batches) == f"BatchEncoder('{folder}/model', dtype='float32', overflow='mean')"


def test_every_public_class_has_a_repr_of_its_own() -> None:
    import importlib

    packages = ["", ".encode", ".inspect", ".maps", ".models", ".nn", ".ops", ".plots", ".sequence_parallel", ".store", ".train", ".viewer"]  # fmt: skip
    modules = [importlib.import_module(f"uwaga{name}") for name in packages]
    public = {getattr(module, name) for module in modules for name in getattr(module, "__all__", ())}
    classes = [each for each in public if isinstance(each, type) and not issubclass(each, BaseException)]
    assert uwaga.TextEncoder in classes
    assert [each.__qualname__ for each in classes if each.__repr__ is object.__repr__] == []
