import json
from pathlib import Path

import pytest
from factories import factory


@pytest.fixture(autouse=True)
def _own_caches(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mapped weights of this test alone."""
    monkeypatch.setenv("UWAGA_DATA", str(tmp_path_factory.mktemp("data")))


@pytest.fixture
def folder(model: Path) -> Path:
    return model


@factory
def describe(folder: Path, *kinds: str, pooling: dict | None = None, sentence: dict | None = None) -> None:
    """Make a directory one of sentence-transformers."""
    kinds = kinds or ("Transformer", "Pooling", "Normalize")
    places = {kind: "" if kind == "Transformer" else f"{number}_{kind}" for number, kind in enumerate(kinds)}
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": place} for kind, place in places.items()]
    (folder / "modules.json").write_text(json.dumps(modules))
    if "Pooling" in kinds:
        (folder / places["Pooling"]).mkdir(exist_ok=True)
        (folder / places["Pooling"] / "config.json").write_text(json.dumps(pooling or {"pooling_mode": "mean"}))
    (folder / "sentence_bert_config.json").write_text(json.dumps(sentence or {"max_seq_length": 12}))
