"""A directory of sentence-transformers means what SentenceTransformer(directory) makes of it: batch 1 of its own encode is the truth.

Letters: R texts, M width.
"""

import copy
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tolerance import assert_as_exact

from uwaga import TextEncoder

pytest.importorskip("transformers", minversion="5")
peer = pytest.importorskip("sentence_transformers", minversion="6")
from sentence_transformers.base.modules import Dense, Normalize, Transformer  # noqa: E402
from sentence_transformers.sentence_transformer.modules import Dropout, LayerNorm, Pooling  # noqa: E402

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


@pytest.fixture
def make(write_model: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """A directory that sentence-transformers saved, with these modules after the transformer."""

    def made(*modules: torch.nn.Module, **settings: object) -> Path:
        folder = write_model(tmp_path / "model", positions=32, tokenizer={"model_max_length": 32})
        torch.manual_seed(1)
        for module in modules:
            for weight in module.parameters():
                torch.nn.init.normal_(weight, 0.0, 0.4)
        model = peer.SentenceTransformer(modules=[Transformer(str(folder)), *modules], device="cpu", **settings)
        model.save(str(tmp_path / "saved"))
        return tmp_path / "saved"

    return made


def agrees(folder: Path, encode: Callable[..., np.ndarray] | None = None, **options: object) -> TextEncoder:
    """The vectors lie no farther from float64 than twice what theirs do, one text after the other."""
    model, encoder = peer.SentenceTransformer(str(folder), device="cpu"), TextEncoder.load(folder)
    exact = copy.deepcopy(model).double()

    def one_by_one(each: torch.nn.Module) -> torch.Tensor:
        return torch.cat([each.encode([text], convert_to_tensor=True, **options) for text in TEXTS])

    own = encoder.encode(TEXTS, **options) if encode is None else encode(encoder)
    assert_as_exact(torch.from_numpy(own), one_by_one(model), lambda: one_by_one(exact))
    assert encoder.embedding_dim == model.get_embedding_dimension()
    return encoder


def alone(encoder: TextEncoder, **options: object) -> np.ndarray:
    return np.concatenate([encoder.encode([text], **options) for text in TEXTS])


@pytest.mark.parametrize(
    ("mode", "include_prompt"),
    [
        *(("cls", True), ("cls", False), ("lasttoken", True), ("lasttoken", False)),  # whose last layer computes one token
        *(("mean", True), ("max", False), ("mean_sqrt_len_tokens", False), ("weightedmean", False)),
        (tuple(MODES), True),
    ],
)  # fmt: skip
def test_pooling_in_every_mode(make: Callable, mode: str | tuple[str, ...], include_prompt: bool) -> None:
    folder = make(Pooling(16, mode, include_prompt=include_prompt), prompts=PROMPTS)
    agrees(folder)
    encoder = agrees(folder, prompt_name="query")
    assert np.array_equal(encoder.encode(TEXTS, prompt_name="query"), alone(encoder, prompt_name="query"))


@pytest.mark.parametrize(
    ("modules", "truncate_dim"),
    [
        (lambda: [Dense(16, 24)], 7),
        (lambda: [Dense(16, 8, bias=False, activation_function=torch.nn.Identity()), Normalize()], 7),
        (lambda: [Dense(16, 24, activation_function=torch.nn.GELU(), use_residual=True), Dropout(0.5)], None),
        (lambda: [Dense(16, 16, activation_function=torch.nn.ReLU(), use_residual=True), Normalize()], None),
        (lambda: [LayerNorm(16), Normalize(), Dense(16, 9)], None),
        (lambda: [Normalize()], None),
    ],
    ids=["dense", "identity", "residual", "relu", "inner norm", "norm"],
)
def test_modules_after_pooling(make: Callable, modules: Callable, truncate_dim: int | None) -> None:
    encoder = agrees(make(Pooling(16), *modules(), truncate_dim=truncate_dim))
    vectors = encoder.encode(TEXTS)
    assert vectors.flags.c_contiguous
    assert np.array_equal(vectors, alone(encoder))
    half = TextEncoder.load(encoder.config.folder, dtype=torch.bfloat16)
    assert np.array_equal(half.encode(TEXTS), alone(half))


def test_a_width_that_is_asked_for(make: Callable) -> None:
    folder = make(Pooling(16), Normalize(), truncate_dim=12)
    assert TextEncoder.load(folder).embedding_dim == 12
    agrees(folder, truncate_dim=7)
    agrees(folder, truncate_dim=16)
    model, encoder = peer.SentenceTransformer(str(folder), device="cpu"), TextEncoder.load(folder, truncate_dim=5)
    assert encoder.encode([]).shape == (0, 5)
    assert encoder.encode([], truncate_dim=3).shape == (0, 3)
    unit = model.encode(TEXTS, truncate_dim=5, normalize_embeddings=True)
    assert np.allclose(encoder.encode(TEXTS, normalize=True), unit, atol=1e-6)
    assert np.linalg.norm(encoder.encode(TEXTS, normalize=True), axis=1) == pytest.approx(1.0)
    assert (np.linalg.norm(encoder.encode(TEXTS), axis=1) < 0.99).all()
    (stream,) = (each.vectors for each in encoder.stream(TEXTS, truncate_dim=4))
    assert np.array_equal(stream, TextEncoder.load(folder).encode(TEXTS, truncate_dim=4))


def test_queries_and_documents_have_their_prompts(make: Callable) -> None:
    folder = make(Pooling(16), prompts=PROMPTS, default_prompt_name="document")
    model, encoder = peer.SentenceTransformer(str(folder), device="cpu"), TextEncoder.load(folder)
    for name in ("encode", "encode_query", "encode_document"):
        for options in ({}, {"prompt": "mat , "}, {"prompt_name": "query"}, {"prompt": ""}):
            expected = np.concatenate([getattr(model, name)([text], **options) for text in TEXTS])
            assert np.allclose(getattr(encoder, name)(TEXTS, **options), expected, atol=2e-6), (name, options)
    tokens = encoder.encode(["cat"], output="tokens", prompt_name="query")
    assert torch.equal(tokens.values, encoder.encode([PROMPTS["query"] + "cat"], output="tokens", prompt="").values)


def test_queries_of_a_model_without_prompts_have_none(make: Callable) -> None:
    folder = make(Pooling(16), prompts={"passage": "mat , ", "clustering": "cat "}, default_prompt_name="clustering")
    model, encoder = peer.SentenceTransformer(str(folder), device="cpu"), TextEncoder.load(folder)
    for name in ("encode", "encode_query", "encode_document"):
        expected = np.concatenate([getattr(model, name)([text]) for text in TEXTS])
        assert np.allclose(getattr(encoder, name)(TEXTS), expected, atol=2e-6), name
    with pytest.raises(ValueError, match="prompt_name must be one of"):
        encoder.encode(TEXTS, prompt_name="title")


@pytest.mark.parametrize("name", [None, "dot", "euclidean", "manhattan"])
def test_similarity_is_that_of_the_model(make: Callable, name: str | None) -> None:
    folder = make(Pooling(16), similarity_fn_name=name)
    model, encoder = peer.SentenceTransformer(str(folder), device="cpu"), TextEncoder.load(folder)
    vectors = encoder.encode(TEXTS)
    own = encoder.similarity(vectors, vectors[:4])
    assert (own.shape, own.dtype) == ((6, 4), np.float32)
    exact = lambda: model.similarity(torch.from_numpy(vectors).double(), torch.from_numpy(vectors[:4]).double())  # noqa: E731
    assert np.allclose(own, exact().numpy(), rtol=1e-5, atol=1e-5)


def test_the_length_is_that_of_the_model(make: Callable) -> None:
    folder = make(Pooling(16))
    long = "the cat sat on the mat and then it ran away"
    for place in ("sentence_bert_config.json", "tokenizer_config.json"):
        described = json.loads((folder / place).read_text())
        length = {"max_seq_length": 7} if place.startswith("sentence") else {"model_max_length": 9}
        (folder / place).write_text(json.dumps(described | length))
        model, encoder = peer.SentenceTransformer(str(folder), device="cpu"), TextEncoder.load(folder)
        assert encoder.max_tokens + 2 == model.max_seq_length
        assert np.allclose(encoder.encode([long], overflow="truncate"), model.encode([long]), atol=2e-6)
        (folder / place).write_text(json.dumps(described))


def test_a_prompt_that_fills_a_window_leaves_nothing_to_pool(make: Callable) -> None:
    folder = make(Pooling(16, include_prompt=False), prompts=PROMPTS)
    encoder = TextEncoder.load(folder)
    encoder.tokenizer.suffix_ids.clear()
    with pytest.raises(ValueError, match="no token to pool"):
        encoder.encode(["dog"], prompt="cat " * 40, overflow="truncate")


@pytest.fixture
def classifier(make: Callable, tmp_path: Path) -> Path:
    """What transformers saved of a cross-encoder."""
    import transformers

    folder = tmp_path / "model"
    make(Pooling(16))
    config = transformers.AutoConfig.from_pretrained(folder, num_labels=1)
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def test_a_classifier_that_is_pooled_is_an_encoder(make: Callable, classifier: Path, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    described = json.loads((folder / "config.json").read_text())
    head = {"architectures": ["BertForSequenceClassification"], "num_labels": 1}
    (folder / "config.json").write_text(json.dumps(described | head))
    (folder / "model.safetensors").write_bytes((classifier / "model.safetensors").read_bytes())
    agrees(folder)
