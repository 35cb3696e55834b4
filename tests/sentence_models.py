"""Random models in directories that transformers and sentence-transformers save, and the comparison with what they compute of them."""

import copy
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", minversion="5")
pytest.importorskip("sentence_transformers", minversion="6")
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer
from tiny_models import draw
from tiny_tokenizer import WORDS
from tolerance import assert_as_exact

from uwaga import Reranker, TextEncoder


def save_model(folder: Path, family: str, maker: str = "AutoModel", **settings: object) -> Any:
    """Save a random model and return it. maker: the name of a class of transformers; settings: of its config."""
    config, kind = transformers.AutoConfig.for_model(family, **settings), getattr(transformers, maker)
    model = kind.from_config(config) if maker.startswith("Auto") else kind(config)
    draw(model)
    model.save_pretrained(folder)
    return model.eval()


def save_words(folder: Path, tokenizer: object, **settings: object) -> None:
    """Save a tokenizer of the library tokenizers."""
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **settings).save_pretrained(folder)


def save_modules(
    folder: Path, *modules: torch.nn.Module, reader: Callable[..., Any] = SentenceTransformer, **settings: object
) -> Path:
    reader(modules=list(modules), device="cpu", **settings).save_pretrained(str(folder))
    return folder


def random_pairs(count: int, words: Sequence[str] = WORDS) -> list[tuple[str, str]]:
    """Return pairs of texts of 1 to 12 words."""
    rng = random.Random(0)
    return [tuple(" ".join(rng.choices(words, k=rng.randint(1, 12))) for _ in range(2)) for _ in range(count)]


def alone(encoder: TextEncoder, texts: Sequence[str], **options: Any) -> np.ndarray:
    return np.concatenate([encoder.encode([text], **options) for text in texts])


def assert_vectors_are_theirs(
    folder: Path, texts: Sequence[str], *, overflow: str = "error", **options: Any
) -> TextEncoder:
    """Check that vectors are about as exact as those of sentence-transformers, one text after another, and have the same bits alone."""
    model, encoder = SentenceTransformer(str(folder), device="cpu"), TextEncoder.load(folder)
    exact = copy.deepcopy(model).double()
    exact[0].model.set_experts_implementation("eager")  # the other one has no float64

    def theirs(peer: SentenceTransformer) -> torch.Tensor:
        return torch.cat([peer.encode([text], convert_to_tensor=True, **options) for text in texts])

    vectors = encoder.encode(texts, overflow=overflow, **options)
    assert_as_exact(torch.from_numpy(vectors), theirs(model), lambda: theirs(exact))
    assert encoder.embedding_dim == model.get_embedding_dimension()
    assert np.array_equal(vectors, alone(encoder, texts, overflow=overflow, **options))
    return encoder


def assert_scores_are_theirs(folder: Path, pairs: Sequence[tuple[str, str]]) -> Reranker:
    """Check that scores are about as exact as those of CrossEncoder, one pair after another, and have the same bits alone."""
    raw = {"activation_fn": torch.nn.Identity(), "show_progress_bar": False, "convert_to_tensor": True}

    def theirs(dtype: torch.dtype) -> torch.Tensor:
        model = CrossEncoder(str(folder), device="cpu", model_kwargs={"dtype": dtype}).to(dtype)
        return torch.cat([model.predict([pair], **raw) for pair in pairs])

    reranker = Reranker.load(folder)
    scores = reranker.scores(pairs, overflow="truncate", raw=True)
    assert_as_exact(torch.from_numpy(scores), theirs(torch.float32), lambda: theirs(torch.float64))
    alone = [reranker.scores([pair], overflow="truncate", raw=True)[0] for pair in pairs]
    assert scores.tobytes() == np.float32(alone).tobytes()
    return reranker
