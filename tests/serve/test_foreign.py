"""A family that is not uwaga's own is served as any other: its vectors are those of encode."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from uwaga import TextEncoder

pytest.importorskip("transformers", minversion="5")
from tiny_foreign import write_deberta

TEXTS = ["the cat sat on the mat", "a dog", "it ran away ."]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_deberta(tmp_path_factory.mktemp("served") / "deberta")


def test_its_vectors_are_those_of_encode_alone(serving: Callable, encoder: TextEncoder) -> None:
    async def test(client) -> None:
        answer = await client.post("/v1/embeddings", {"input": TEXTS})
        vectors = np.float32([each["embedding"] for each in answer.json["data"]])
        assert vectors.tobytes() == np.concatenate([encoder.encode([text]) for text in TEXTS]).tobytes()

    assert encoder.explain().engine == "transformers, one by one"
    serving(test)
