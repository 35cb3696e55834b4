"""TextEncoder over tokenizers, ways of pooling and kinds of families: batch 1 of sentence-transformers' own encode is the truth, on
random checkpoints with real tokenizers. tests/models/test_families.py has every family.

Letters: R texts, M width.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from uwaga import TextEncoder
from uwaga.models import load
from uwaga.models.families import family_of

pytest.importorskip("transformers", minversion="5")
peer = pytest.importorskip("sentence_transformers", minversion="6")
from random_tokenizers import FAMILIES  # noqa: E402
from sentence_models import alone, assert_vectors_are_theirs, save_model, save_modules  # noqa: E402
from sentence_transformers.base.modules import Normalize, Transformer  # noqa: E402
from sentence_transformers.sentence_transformer.modules import Dense, Pooling  # noqa: E402

TEXTS = [
    "The cat sat on the mat.",
    "a dog",
    "Then it ran away from the house, unbelievable as that is; nobody had left a door open for the old cat or for the young dog.",
    "cat",
    "It ran.",
    "naïve café 木 🙂",
]
_WIDE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
_GROUPED = _WIDE | {"num_key_value_heads": 2}
_T5 = {"d_model": 32, "d_ff": 64, "d_kv": 8, "num_layers": 3, "num_heads": 4, "relative_attention_max_distance": 16}
_ROPE = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
_GEMMA = {
    "head_dim": 16, "sliding_window": 9, "use_bidirectional_attention": True,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}  # fmt: skip
# By name: the family of transformers, its settings, the family whose tokenizer it has, and the way of pooling.
CASES: dict[str, tuple[str, dict, str, str]] = {
    "mpnet": ("mpnet", _WIDE, "mpnet", "mean"),
    "roberta": ("roberta", _WIDE, "roberta", "cls"),
    "gte head_dim": ("gte", _WIDE | {"head_dim": 16}, "gte", "cls"),
    "jina v3": ("jina_embeddings_v3", _WIDE, "xlm-roberta", "weightedmean"),
    "modernbert": ("modernbert", _WIDE | {"local_attention": 8, "global_attn_every_n_layers": 2}, "modernbert", "mean"),
    "t5": ("t5", _T5, "t5", "mean"),
    "qwen3": ("qwen3", _GROUPED | {"head_dim": 16}, "qwen3", "lasttoken"),
    "llama of version 3": ("llama", _GROUPED | {"rope_parameters": _ROPE}, "llama", "lasttoken"),
    "embeddinggemma": ("gemma3_text", _GROUPED | _GEMMA, "gemma3_text", "mean"),
    "eurobert": ("eurobert", _GROUPED, "eurobert", "mean"),
}


@pytest.fixture(params=CASES, ids=lambda name: name.replace(" ", "-"))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A directory that transformers and sentence-transformers saved."""
    family, settings, words, pooling = CASES[request.param]
    made = FAMILIES[words][0]()
    made.model_max_length = 160
    made.pad_token = made.pad_token or next(token for token in ("[PAD]", "<s>", made.eos_token) if token in made.vocab)
    made.backend_tokenizer.enable_truncation(5)  # the settings of a last use, which say nothing
    made.backend_tokenizer.enable_padding(length=7)
    ids = {f"{name}_token_id": getattr(made, f"{name}_token_id") for name in ("pad", "bos", "eos")}
    sizes = {"vocab_size": len(made)} | ({} if family == "t5" else {"max_position_embeddings": 170})
    maker = "T5EncoderModel" if family == "t5" else "AutoModel"
    save_model(tmp_path / "transformer", family, maker, **sizes, **ids, **settings)
    made.save_pretrained(tmp_path / "transformer")
    modules = [Transformer(str(tmp_path / "transformer")), Pooling(32, pooling)]
    if request.param in ("embeddinggemma", "t5"):
        for sizes in ((32, 48), (48, 32)):
            modules.append(Dense(*sizes, bias=False, activation_function=nn.Identity()))
    modules.append(Normalize())
    return save_modules(tmp_path / "saved", *modules, prompts={"query": "dog: "})


@pytest.mark.parametrize("folder", ["t5"], indirect=True)
def test_prefixed_names_in_shards_are_the_same_model(folder: Path) -> None:
    """As a directory of a model with a head has them, or one that was too large for a file."""
    expected = TextEncoder.load(folder).encode(TEXTS)
    prefix = family_of(load(folder).config.model_type, "").prefix
    tensors = {prefix + name: x for name, x in load_file(folder / "model.safetensors").items()}
    (folder / "model.safetensors").unlink()
    files = {name: f"model-0000{1 + n % 2}-of-00002.safetensors" for n, name in enumerate(sorted(tensors))}
    for file in set(files.values()):
        part = {name: x for name, x in tensors.items() if files[name] == file}
        save_file(part, folder / file, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    assert np.array_equal(TextEncoder.load(folder).encode(TEXTS), expected)


def test_vectors_are_those_of_sentence_transformers(folder: Path) -> None:
    assert_vectors_are_theirs(folder, TEXTS)
    plain = folder.parent / "transformer"  # is pooled by the mean, or the last token
    expected = peer.SentenceTransformer(str(plain), device="cpu")
    vectors = np.concatenate([expected.encode([text]) for text in TEXTS])
    assert np.allclose(TextEncoder.load(plain).encode(TEXTS), vectors, atol=1e-5, rtol=1e-4)


@pytest.mark.gate(only=lambda folder: folder == "modernbert")
@pytest.mark.parametrize("folder", CASES, indirect=True)
def test_bfloat16_gives_a_text_the_same_bits_alone(folder: Path) -> None:
    random = np.random.default_rng(0)
    words = " ".join(TEXTS).split()
    texts = [*TEXTS, *(" ".join(random.choice(words, random.integers(1, 25))) for _ in range(58))]
    encoder = TextEncoder.load(folder, dtype=torch.bfloat16)
    vectors = encoder.encode(texts)
    assert np.array_equal(vectors, alone(encoder, texts))
    exact = TextEncoder.load(folder).encode(texts)
    usual = peer.SentenceTransformer(str(folder), device="cpu").bfloat16()
    theirs = torch.cat([usual.encode([text], convert_to_tensor=True).float() for text in texts]).numpy()
    # 1 - cosine is the square of an error: of its mean over enough texts that no single text decides.
    assert _off(vectors, exact) <= 1.5 * _off(theirs, exact)


def _off(vectors: np.ndarray, exact: np.ndarray) -> float:
    """The mean 1 - cosine of the texts."""
    sizes = np.linalg.norm(vectors, axis=1) * np.linalg.norm(exact, axis=1)
    return float((1 - (exact * vectors).sum(1) / sizes).mean())


@pytest.mark.parametrize("folder", ["t5"], indirect=True)
def test_relative_positions_have_no_longest_text(folder: Path) -> None:
    """Unless the directory says so: T5's own config has no limit."""
    (folder / "sentence_bert_config.json").write_text("{}")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": int(1e30)}))
    encoder = TextEncoder.load(folder)
    long = " ".join(TEXTS[2:5] * 20)
    model = peer.SentenceTransformer(str(folder), device="cpu")
    model.max_seq_length = 100_000
    vector = encoder.encode([long])
    assert int(encoder.report.tokens[0]) > 600
    assert np.allclose(vector, model.encode([long]), atol=1e-5)
    assert np.array_equal(encoder.encode([TEXTS[0], long], overflow="truncate")[1:], vector)


@pytest.mark.slow
def test_minilm_on_real_text(minilm: Path, request: pytest.FixtureRequest) -> None:
    """Paragraphs of this project's own documents: 1 to a few hundred words, code and tables among them."""
    pages = [path.read_text(encoding="utf-8") for path in sorted(request.config.rootpath.glob("docs/*.md"))]
    texts = [*[part for page in pages for part in page.split("\n\n") if part.strip()][:20], pages[0]]  # too long
    theirs = peer.SentenceTransformer(str(minilm), device="cpu").encode(texts, batch_size=8)
    ours = TextEncoder.load(minilm).encode(texts, overflow="truncate")
    cosine = (ours * theirs).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
    assert cosine.min() >= 0.99999
