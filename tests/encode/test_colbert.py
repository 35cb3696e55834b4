"""Vectors of tokens are those of sentence-transformers' MultiVectorEncoder: batch 1 of its own encode is the truth.

Letters: N tokens, M width.
"""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from factories import factory
from sentence_models import save_modules
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from tiny_tokenizer import WORDS
from tolerance import assert_as_exact

import uwaga
from uwaga import TextEncoder
from uwaga._base.errors import CheckpointError

QUERIES = ["the cat sat", "a dog ran away from the house", "it"]
DOCUMENTS = ["the cat sat on the mat .", "a dog , a cat and then it ran away from the house .", "mat", ". , ."]
EXPANSION = {"strategy": "fixed", "attend": False, "length": 12}


@pytest.fixture
def plain(write_model: Callable[..., Path], tmp_path: Path) -> Path:
    return write_model(tmp_path / "model", positions=32, tokenizer={"model_max_length": 32, "mask_token": "[MASK]"})


def projection(**names: str) -> torch.nn.Module:
    torch.manual_seed(3)
    dense = Dense(
        16, 8, bias=False, activation_function=torch.nn.Identity(), module_input_name="token_embeddings", **names
    )
    torch.nn.init.normal_(dense.linear.weight, 0.0, 0.4)
    return dense


@factory
def make(
    plain: Path,
    tmp_path: Path,
    /,
    *,
    prompts: dict | None = None,
    mask: MultiVectorMask | None = None,
    similarity: str | None = None,
    **options: object,
) -> Path:
    """A directory that MultiVectorEncoder saved."""
    modules = [Transformer(str(plain), **options), projection(), Normalize(module_input_name="token_embeddings")]
    modules.append(MultiVectorMask(skiplist_words=[".", ",", "!"]) if mask is None else mask)
    settings = {"prompts": prompts, "similarity_fn_name": similarity}
    return save_modules(tmp_path / "saved", *modules, reader=MultiVectorEncoder, **settings)


def agrees(folder: Path, **options: Any) -> TextEncoder:
    """Queries and documents, and texts of no task, lie no farther from float64 than twice what theirs do; and have the same bits alone."""
    model, encoder = MultiVectorEncoder(str(folder), device="cpu"), TextEncoder.load(folder)
    exact = copy.deepcopy(model).double()
    for task, texts in (("query", QUERIES), ("document", DOCUMENTS), (None, DOCUMENTS)):
        name = "encode" if task is None else f"encode_{task}"

        def theirs(peer: MultiVectorEncoder, name: str = name, texts: list[str] = texts) -> list[torch.Tensor]:
            return [getattr(peer, name)([text])[0].cpu() for text in texts]

        ours = encoder.encode(texts, output="tokens", task=task, **options)
        assert ours.lengths.tolist() == [len(their) for their in theirs(model)]
        assert_as_exact(ours.values, torch.cat(theirs(model)), lambda theirs=theirs: torch.cat(theirs(exact)))
        for number, text in enumerate(texts):
            assert torch.equal(
                encoder.encode([text], output="tokens", task=task, **options).values, ours.to_list()[number]
            )
    return encoder


@pytest.mark.parametrize(
    "options",
    [
        {"query_expansion": EXPANSION | {"token": "cat"}, "prompts": {"query": "the : ", "document": "a : "}},
        {"query_expansion": {"strategy": "min", "attend": True, "length": 7}},
        {"mask": MultiVectorMask(skiplist_words=["the", "[UNK]"], skiplist_tasks=["query", "document"])},
        {"mask": MultiVectorMask(keep_only_token_ids=[2, 5, 7]), "document_length": 20},
        {"max_seq_length": 9, "query_length": 12, "document_length": 20},
    ],
    ids=["fixed", "min", "skipped", "kept", "lengths"],
)
def test_vectors_of_tokens_are_theirs(make, options: dict) -> None:
    agrees(make(**options), overflow="truncate")


def write_pylate(folder: Path, **settings: object) -> Path:
    """What PyLate 1.x writes: a Transformer and its own Dense, and the rest in config_sentence_transformers.json."""
    dense = projection()
    (folder / "1_Dense").mkdir()
    dense.save(str(folder / "1_Dense"))
    config = json.loads((folder / "1_Dense" / "config.json").read_text())
    kept = {name: config[name] for name in ("in_features", "out_features", "bias", "activation_function")}
    (folder / "1_Dense" / "config.json").write_text(json.dumps(kept))
    modules = [("", "sentence_transformers.models.Transformer"), ("1_Dense", "pylate.models.Dense.Dense")]
    entries = [{"idx": n, "name": str(n), "path": path, "type": kind} for n, (path, kind) in enumerate(modules)]
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 31, "do_lower_case": False}))
    of_pylate = {
        "model_type": "ColBERT", "prompts": {}, "default_prompt_name": None, "similarity_fn_name": "MaxSim",
        "query_prefix": "[unused0]", "document_prefix": "[unused1]", "query_length": 10, "document_length": 25,
        "attend_to_expansion_tokens": False, "skiplist_words": None, "do_query_expansion": True,
    }  # fmt: skip
    written = {name: value for name, value in (of_pylate | settings).items() if value is not ...}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(written))
    return folder


@pytest.fixture
def prefixed(plain: Path) -> Path:
    """With ColBERT's markers in the vocabulary, in the place of two words: as text they would be cut into pieces."""
    text = (plain / "tokenizer.json").read_text()
    for word, marker in (("un", "[unused0]"), ("house", "[unused1]")):
        text = text.replace(f'"{word}":', f'"{marker}":')
    (plain / "tokenizer.json").write_text(text)
    return plain


@pytest.mark.gate(only=lambda settings: len(settings) in (0, 4))
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"do_query_expansion": False},
        {"attend_to_expansion_tokens": True},
        {"attend_to_expansion_tokens": ..., "attend_to_mask_tokens": True},
        {"skiplist_words": ["cat"], "query_length": 14, "query_prefix": "[unused0] ", "prompts": {"query": "the cat "}},
    ],
)
def test_directories_of_pylate(prefixed: Path, settings: dict) -> None:
    encoder = agrees(write_pylate(prefixed, **settings))
    assert encoder.config.similarity == "maxsim"


@pytest.mark.gate(only=lambda metadata: metadata != {})
@pytest.mark.parametrize(
    "metadata",
    [None, {}, {"query_maxlen": 11, "doc_maxlen": 20, "attend_to_mask_tokens": True, "mask_punctuation": False}],
)
def test_directories_of_colbert(prefixed: Path, metadata: dict | None) -> None:
    from safetensors.torch import load_file, save_file

    weights = {f"bert.{name}": x for name, x in load_file(prefixed / "model.safetensors").items()}
    save_file(
        weights | {"linear.weight": projection().linear.weight.detach()},
        prefixed / "model.safetensors",
        {"format": "pt"},
    )
    config = json.loads((prefixed / "config.json").read_text()) | {"architectures": ["HF_ColBERT"]}
    (prefixed / "config.json").write_text(json.dumps(config))
    if metadata is not None:
        (prefixed / "artifact.metadata").write_text(json.dumps(metadata))
    encoder = agrees(prefixed)
    assert encoder.has_token_vectors
    assert encoder.embedding_dim == 8
    save_file(weights, prefixed / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match="the projection") as caught:
        TextEncoder.load(prefixed)
    assert str(caught.value).endswith("must be (any, 16) floating numbers; there is none")


@pytest.mark.parametrize("similarity", ["maxsim", "meanmaxsim"])
def test_similarity_is_theirs(make, similarity: str) -> None:
    folder = make(query_expansion=EXPANSION, similarity=similarity)
    model, encoder = MultiVectorEncoder(str(folder), device="cpu"), TextEncoder.load(folder)
    queries, documents = (
        encoder.encode(texts, output="tokens", task=task)
        for task, texts in (("query", WORDS[:12]), ("document", [*DOCUMENTS, *WORDS[:12]]))
    )
    ours = torch.from_numpy(encoder.similarity(queries, documents))
    lists = queries.to_list(), documents.to_list()

    def theirs(dtype: torch.dtype) -> torch.Tensor:
        rows = [[model.similarity([q.to(dtype)], [d.to(dtype)]) for d in lists[1]] for q in lists[0]]
        return torch.cat([torch.cat(row, 1) for row in rows])

    by = queries.lengths[:, None] if similarity == "meanmaxsim" else 1
    exact = uwaga.maxsim(queries.with_values(queries.values.double()), documents.with_values(documents.values.double()))
    assert_as_exact(ours, theirs(torch.float32), lambda: exact / by)


def test_the_report_counts_what_the_model_reads(make) -> None:
    encoder = TextEncoder.load(make(query_expansion=EXPANSION))
    encoder.encode(QUERIES, output="tokens", task="query")
    assert encoder.report.tokens.tolist() == [12, 12, 12]
    encoder.encode(DOCUMENTS, output="tokens", task="document")
    assert encoder.report.tokens.tolist() == [9, 16, 3, 5]
    encoder = TextEncoder.load(make(query_expansion={**EXPANSION, "length": 6}))
    cut = encoder.encode(QUERIES, output="tokens", task="query", overflow="truncate")
    assert cut.lengths.tolist() == [6, 6, 6]
    assert encoder.report.cut.tolist() == [1]


def test_an_encoder_without_a_head_gives_its_hidden_states(plain: Path) -> None:
    encoder = TextEncoder.load(plain)
    states = encoder.encode(DOCUMENTS, output="tokens", task="document").values
    assert torch.equal(states, encoder.encode(DOCUMENTS, output="tokens").values)
    scaled = encoder.encode(DOCUMENTS, output="tokens", normalize=True).values
    assert torch.equal(scaled, torch.nn.functional.normalize(states, dim=-1))


def test_bfloat16_has_vectors_in_float32(make) -> None:
    encoder = TextEncoder.load(make(), dtype=torch.bfloat16)
    assert encoder.encode(DOCUMENTS, output="tokens").values.dtype == torch.float32
    assert encoder.encode([], output="tokens").values.shape == (0, 8)
