"""all-MiniLM-L6-v2 with its own weights, beside sentence-transformers, on real text."""

from pathlib import Path

import numpy as np
import pytest

from uwaga import TextEncoder


@pytest.fixture(scope="module")
def texts(request: pytest.FixtureRequest) -> list[str]:
    """The paragraphs of this project's own documents: 1 to a few hundred words, code and tables among them."""
    pages = [path.read_text(encoding="utf-8") for path in sorted(request.config.rootpath.glob("docs/*.md"))]
    paragraphs = [part for page in pages for part in page.split("\n\n") if part.strip()]
    return [*paragraphs[:40], pages[0]]  # the last is longer than the model


@pytest.mark.slow
def test_vectors_are_those_of_sentence_transformers(minilm: Path, texts: list[str]) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    theirs = sentence_transformers.SentenceTransformer(str(minilm), device="cpu").encode(texts, batch_size=8)
    ours = TextEncoder.load(minilm).encode(texts, overflow="truncate")
    cosine = (ours * theirs).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
    assert cosine.min() >= 0.99999
