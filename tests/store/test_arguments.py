"""Arguments of a wrong type to databases, encoders and rerankers: the message names the argument and what to give, and no other library's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import uwaga
from uwaga import Ragged, Reranker, SoftDatabase, TextEncoder, store
from uwaga.corpora import BatchEncoder
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


QUERY = torch.zeros(2)
ASK, FILES = "; uwaga.store.ask takes a text", "; uwaga.store.add_files takes files of texts"
MADE = "is made by {0}.open(path) or {0}.create(path, ...), not by its own name"

# What is called, and the whole message.
SAID: list[tuple[Callable[[Given], Any], str]] = [
    (lambda g: SoftDatabase("x"), "SoftDatabase: " + MADE.format("SoftDatabase")),
    (lambda g: TokenDatabase("x"), "TokenDatabase: " + MADE.format("TokenDatabase")),
    (lambda g: g.db.attend(QUERY, where="year >"), "SoftDatabase: the condition year > cannot be used: it ends before it is complete"),
    (lambda g: g.db.attend(QUERY, where="year = :y", parameters={"z": 1}), "SoftDatabase: the condition year = :y cannot be used: parameters has no value for :y"),
    (lambda g: g.db.attend(QUERY, parameters=[1]), "SoftDatabase: parameters are the values of a condition; give where, too"),
    (lambda g: g.db.search("text"), f"SoftDatabase.search: the query must be a tensor or an array of numbers, not 'text'{ASK}"),
    (lambda g: g.db.attend(["text"]), f"SoftDatabase.attend: the query must be a tensor or an array of numbers, not ['text']{ASK}"),
    (lambda g: g.db.map(None), f"SoftDatabase.map: the query must be a tensor or an array of numbers, not None{ASK}"),
    (lambda g: g.db.append([[1.0, 2.0], [3.0]]), f"SoftDatabase.append: keys must be a tensor or an array of numbers, not [[1.0, 2.0], [3.0]]{FILES}"),
    (lambda g: g.db.append(torch.eye(2), records=5), "SoftDatabase.append: records must be a list of dictionaries, not 5"),
    (lambda g: g.tokens.append(Ragged.from_list([torch.eye(2)]), records="a"), "TokenDatabase.append: records must be a list of dictionaries, not 'a'"),
    (lambda g: g.tokens.search("text"), "TokenDatabase.search: the query must be Ragged, a row for each text, not str"),
    (lambda g: g.tokens.matches("text", 0), "TokenDatabase.matches: the query must be a tensor or an array of numbers, not 'text'"),
    (lambda g: g.tokens.matches(torch.tensor(5.0), 0), "TokenDatabase.matches: the query must be (t, 2), not ()"),
    (lambda g: g.db.counts(5), "SoftDatabase.counts: field must be the name of a field, not 5"),
    (lambda g: SoftDatabase.open(None), "SoftDatabase.open: path must be a string or a path, not None"),
    (lambda g: SoftDatabase.create(b"x", key_width=2), "SoftDatabase.create: path must be a string or a path, not b'x'"),
    (lambda g: store.open_database(5), "open_database: path must be a string or a path, not 5"),
    (lambda g: g.db.export(None), "SoftDatabase.export: path must be a string or a path, not None"),
    (lambda g: g.db.append_parquet(5), "SoftDatabase.append_parquet: path must be a string or a path, not 5"),
    (lambda g: store.ask(g.db, "a", "minilm"), "ask: encoder must be a TextEncoder, such as encoder_of(db) gives, not 'minilm'"),
    (lambda g: store.ask("x.db", "a", g.encoder), "ask: db must be a SoftDatabase, such as open_database(path) gives, not 'x.db'"),
    (lambda g: store.ask_tokens(5, "a", g.encoder), "ask_tokens: db must be a TokenDatabase, such as open_database(path) gives, not 5"),
    (lambda g: store.encoder_of("x.db"), "encoder_of: db must be a SoftDatabase or TokenDatabase, such as open_database(path) gives, not 'x.db'"),
    (lambda g: store.add_files(None, [], g.encoder), "add_files: db must be a SoftDatabase or TokenDatabase, such as open_database(path) gives, not None"),
    (lambda g: store.add_files(g.db, "a.txt", g.encoder), "add_files: files must be an iterable of paths, not one string"),
    (lambda g: store.add_files(g.db, 5, g.encoder), "add_files: files must be an iterable of paths, not 5"),
    (lambda g: g.encoder.encode("text"), "TextEncoder: texts must be an iterable of strings, not one string"),
    (lambda g: g.encoder.encode(None), "TextEncoder: texts must be an iterable of strings, not None"),
    (lambda g: g.encoder.encode_spans(5, "line"), "TextEncoder: texts must be an iterable of strings, not 5"),
    (lambda g: g.encoder.encode(["a"], prompt_name=[1]), "TextEncoder: prompt_name must be one of 'query', 'document', not [1]"),
    (lambda g: g.encoder.similarity("a", "b"), "TextEncoder.similarity: vectors must be a tensor or an array of numbers, not 'a'; encode gives such"),
    (lambda g: g.reranker.rank("a", None), "Reranker: passages must be an iterable of strings, not None"),
    (lambda g: g.reranker.rank("a", ["b"], top="x"), "Reranker: top must be a whole number of at least 1, or None, not 'x'"),
    (lambda g: g.reranker.scores(["ab"]), "Reranker: pair 0 must be a query and a passage, not 'ab'"),
    (lambda g: g.reranker.scores(5), "Reranker: pairs must be an iterable of pairs of a query and a passage, not 5"),
    (lambda g: TextEncoder.load(None), "load: path_or_hub_id must be a string or a path, not None"),
    (lambda g: TextEncoder.load(g.model, dtype="bfloat16"), "load: dtype must be a floating dtype, such as torch.bfloat16, not 'bfloat16'"),
]  # fmt: skip


def test_a_message_names_the_argument_and_what_to_give(given: Given) -> None:
    for call, message in SAID:
        with pytest.raises((ValueError, TypeError)) as caught:
            call(given)
        assert str(caught.value) == message


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

    packages = ["", ".corpora", ".inspect", ".maps", ".models", ".nn", ".ops", ".plots", ".sequence_parallel", ".store", ".train", ".viewer"]  # fmt: skip
    modules = [importlib.import_module(f"uwaga{name}") for name in packages]
    public = {getattr(module, name) for module in modules for name in getattr(module, "__all__", ())}
    classes = [each for each in public if isinstance(each, type) and not issubclass(each, BaseException)]
    assert uwaga.TextEncoder in classes
    assert [each.__qualname__ for each in classes if each.__repr__ is object.__repr__] == []
