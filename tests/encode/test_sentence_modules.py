"""A directory of sentence-transformers means what SentenceTransformer(directory) makes of it: batch 1 of its own encode is the truth.

Letters: R texts, M width.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from factories import factory

from uwaga import TextEncoder

pytest.importorskip("transformers", minversion="5")
peer = pytest.importorskip("sentence_transformers", minversion="6")
from sentence_models import alone, assert_vectors_are_theirs, save_model, save_modules  # noqa: E402
from sentence_transformers.base.modules import Dense, Normalize, Transformer  # noqa: E402
from sentence_transformers.sentence_transformer.modules import Dropout, LayerNorm, Pooling  # noqa: E402
from tiny_tokenizer import SPECIAL, WORDS  # noqa: E402

TEXTS = [
    "the cat sat on the mat .",
    "a dog",
    "then it ran away from the house , unbelievable",
    "cat",
    "it ran .",
    "mat on mat",
]
PROMPTS = {"query": "the cat : ", "document": "on a mat , "}
MODES = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]


@factory
def make(write_model: Callable[..., Path], tmp_path: Path, /, *modules: torch.nn.Module, **settings: object) -> Path:
    """A directory that sentence-transformers saved, with these modules after the transformer."""
    folder = write_model(tmp_path / "model", positions=32, tokenizer={"model_max_length": 32})
    torch.manual_seed(1)
    for module in modules:
        for weight in module.parameters():
            torch.nn.init.normal_(weight, 0.0, 0.4)
    return save_modules(tmp_path / "saved", Transformer(str(folder)), *modules, **settings)


@pytest.mark.gate(only=lambda mode: mode in ("cls", "lasttoken") or isinstance(mode, tuple))
@pytest.mark.parametrize(
    ("mode", "include_prompt"),
    [
        *(("cls", False), ("lasttoken", True), ("lasttoken", False)),  # whose last layer computes one token
        *(("mean", True), ("max", False), ("mean_sqrt_len_tokens", False), ("weightedmean", False)),
        (tuple(MODES), True),
    ],
)  # fmt: skip
def test_pooling_in_every_mode(make: Callable, mode: str | tuple[str, ...], include_prompt: bool) -> None:
    folder = make(Pooling(16, mode, include_prompt=include_prompt), prompts=PROMPTS)
    assert_vectors_are_theirs(folder, TEXTS, prompt_name="query")


@pytest.mark.parametrize(
    ("modules", "truncate_dim"),
    [
        (lambda: [Dense(16, 24)], 7),
        (lambda: [Dense(16, 8, bias=False, activation_function=torch.nn.Identity()), Normalize()], 7),
        (lambda: [Dense(16, 24, activation_function=torch.nn.GELU(), use_residual=True), Dropout(0.5)], None),
        (lambda: [LayerNorm(16), Normalize(), Dense(16, 9, activation_function=torch.nn.ReLU())], None),
    ],
    ids=["dense", "identity", "residual", "inner norm"],
)
def test_modules_after_pooling(make: Callable, modules: Callable, truncate_dim: int | None) -> None:
    encoder = assert_vectors_are_theirs(make(Pooling(16), *modules(), truncate_dim=truncate_dim), TEXTS)
    assert encoder.encode(TEXTS).flags.c_contiguous
    half = TextEncoder.load(encoder.config.folder, dtype=torch.bfloat16)
    assert np.array_equal(half.encode(TEXTS), alone(half, TEXTS))


def test_a_width_that_is_asked_for(make: Callable) -> None:
    folder = make(Pooling(16), Normalize(), truncate_dim=12)
    assert TextEncoder.load(folder).embedding_dim == 12
    assert_vectors_are_theirs(folder, TEXTS, truncate_dim=7)
    model, encoder = peer.SentenceTransformer(str(folder), device="cpu"), TextEncoder.load(folder, truncate_dim=5)
    assert encoder.encode([]).shape == (0, 5)
    unit = model.encode(TEXTS, truncate_dim=5, normalize_embeddings=True)
    assert np.allclose(encoder.encode(TEXTS, normalize=True), unit, atol=1e-6)
    assert (np.linalg.norm(encoder.encode(TEXTS), axis=1) < 0.99).all()
    (stream,) = (part.vectors for part in encoder.stream(TEXTS, truncate_dim=4))
    assert np.array_equal(stream, TextEncoder.load(folder).encode(TEXTS, truncate_dim=4))


@pytest.mark.parametrize(
    ("prompts", "default"),
    [(PROMPTS, "document"), ({"passage": "mat , ", "query": "", "clustering": "cat "}, "clustering")],
)
def test_queries_and_documents_have_their_prompts(make: Callable, prompts: dict, default: str) -> None:
    folder = make(Pooling(16), prompts=prompts, default_prompt_name=default)
    model, encoder = peer.SentenceTransformer(str(folder), device="cpu"), TextEncoder.load(folder)
    for name in ("encode", "encode_query", "encode_document"):
        for options in ({}, {"prompt": "mat , "}, {"prompt_name": "query"}, {"prompt": ""}):
            expected = np.concatenate([getattr(model, name)([text], **options) for text in TEXTS])
            assert np.allclose(getattr(encoder, name)(TEXTS, **options), expected, atol=2e-6), (name, options)
    tokens = encoder.encode(["cat"], output="tokens", prompt_name="query")
    assert torch.equal(tokens.values, encoder.encode([prompts["query"] + "cat"], output="tokens", prompt="").values)


@pytest.mark.parametrize("name", [None, "dot", "euclidean", "manhattan"])
def test_similarity_is_that_of_the_model(make: Callable, name: str | None) -> None:
    folder = make(Pooling(16), similarity_fn_name=name)
    model, encoder = peer.SentenceTransformer(str(folder), device="cpu"), TextEncoder.load(folder)
    vectors = encoder.encode(TEXTS)
    ours = encoder.similarity(vectors, vectors[:4])
    assert (ours.shape, ours.dtype) == ((6, 4), np.float32)
    exact = lambda: model.similarity(torch.from_numpy(vectors).double(), torch.from_numpy(vectors[:4]).double())  # noqa: E731
    assert np.allclose(ours, exact().numpy(), rtol=1e-5, atol=1e-5)


def test_a_prompt_that_fills_a_window_leaves_nothing_to_pool(make: Callable) -> None:
    folder = make(Pooling(16, include_prompt=False), prompts=PROMPTS)
    encoder = TextEncoder.load(folder)
    encoder.tokenizer.suffix_ids.clear()
    with pytest.raises(ValueError, match="no token to pool"):
        encoder.encode(["dog"], prompt="cat " * 40, overflow="truncate")


def test_a_classifier_that_is_pooled_is_an_encoder(make: Callable) -> None:
    folder = make(Pooling(16))
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    ids = {"vocab_size": len(SPECIAL + WORDS), "max_position_embeddings": 32, "num_labels": 1}
    save_model(folder, "bert", "BertForSequenceClassification", **sizes, **ids)
    assert_vectors_are_theirs(folder, TEXTS)
