"""What is printed of databases, encoders and rerankers."""

from pathlib import Path

import torch

from uwaga import Ragged, Reranker, SoftDatabase, TextEncoder
from uwaga.encode import BatchEncoder
from uwaga.nn import KeyValueCache
from uwaga.store import TokenDatabase


def test_what_is_printed_is_one_line_that_says_what_it_is(tmp_path: Path, write_model, write_reranker) -> None:
    model = write_model(tmp_path / "model")
    with SoftDatabase.create(tmp_path / "db", key_width=2) as db:
        db.append(torch.eye(2))
        assert repr(db) == f"SoftDatabase('{tmp_path}/db', 2 rows, heads=1, key_width=2, dtype=float32)"
    with TokenDatabase.create(tmp_path / "t", width=2) as tokens:
        tokens.append(Ragged.from_list([torch.eye(2)]))
        assert (
            repr(tokens) == f"TokenDatabase('{tmp_path}/t', 1 rows, heads=1, key_width=2, dtype=float32, tokens=True)"
        )
    for given, text in (
        (db, f"SoftDatabase('{tmp_path}/db', closed)"),
        (TextEncoder.load(model), f"TextEncoder('{model}', embedding_dim=16, max_tokens=10, torch.float32, cpu)"),
        (Reranker.load(write_reranker()), f"Reranker('{tmp_path}/reranker', max_tokens=12, torch.float32, cpu)"),
        (KeyValueCache(3), "KeyValueCache(3 layers, start=0)"),
        (BatchEncoder(model, overflow="mean"), f"BatchEncoder('{model}', dtype='float32', overflow='mean')"),
    ):
        assert repr(given) == text
