"""Whether a model has a head follows from the weights in its files, and what it is matters only to who asks for logits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from tiny_tokenizer import write_tokenizer

from uwaga import Reranker, TextEncoder
from uwaga._base.errors import CheckpointError
from uwaga.models import generate, load

transformers = pytest.importorskip("transformers", minversion="5")

_SIZES = {
    "vocab_size": 40,
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
# The class of the body, the architecture with a head, and settings.
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaModel", "LlamaForCausalLM", {}),
    "qwen3": ("Qwen3Model", "Qwen3ForCausalLM", {"head_dim": 12, "num_key_value_heads": 1}),
    "gemma3": ("Gemma3TextModel", "Gemma3ForCausalLM", {"head_dim": 12, "num_key_value_heads": 1, "num_attention_heads": 2}),
    "modernbert": ("ModernBertModel", "ModernBertForMaskedLM", {"cls_token_id": 2, "sep_token_id": 3}),
    "eurobert": ("EuroBertModel", "EuroBertForMaskedLM", {}),
    "bert": ("BertModel", "BertForMaskedLM", {}),
    "distilbert": ("DistilBertModel", "DistilBertForMaskedLM", {"dim": 24, "hidden_dim": 32, "n_layers": 2, "n_heads": 2}),
    "nomic": ("NomicBertModel", "NomicBertForMaskedLM", {}),
}  # fmt: skip
_DECODERS = ("LlamaModel", "Qwen3Model", "Gemma3TextModel")
TEXTS = ["the cat sat on the mat .", "a dog", "it ran away from the house"]


@pytest.fixture
def make(tmp_path: Path) -> Callable[[str], tuple[Path, Any]]:
    """A directory of the body, which config.json calls the model with a head; and the body."""

    def made(case: str) -> tuple[Path, Any]:
        body, architecture, more = CASES[case]
        there = getattr(transformers, body)
        sizes = {key: value for key, value in _SIZES.items() if case != "distilbert" or "_size" not in key[3:]}
        torch.manual_seed(0)
        model = there(there.config_class(**(sizes | {"vocab_size": 40} | more))).eval()
        model.save_pretrained(tmp_path)
        write_tokenizer(tmp_path, tokenizer_class="TokenizersBackend")
        described = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(described | {"architectures": [architecture]}))
        return tmp_path, model

    return made


def check_vectors(folder: Path, model: Any) -> None:
    vectors = TextEncoder.load(folder).encode(TEXTS)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    for text, vector in zip(TEXTS, vectors, strict=True):
        ids = torch.tensor([tokenizer.encode(text).ids])
        with torch.no_grad():
            states = model(input_ids=ids).last_hidden_state[0]
        # As sentence-transformers pools a directory without modules.json.
        expected = states[-1] if type(model).__name__ in _DECODERS else states.mean(0)
        np.testing.assert_allclose(vector, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.gate(only=lambda case: case in ("llama", "modernbert", "distilbert"))
@pytest.mark.parametrize("case", CASES)
def test_a_head_of_another_vocabulary_matters_to_logits_alone(case: str, make: Callable) -> None:
    folder, model = make(case)
    check_vectors(folder, model)  # without a head
    name = {
        "bert": "cls.predictions.decoder.weight",
        "distilbert": "vocab_projector.weight",
        "modernbert": "decoder.weight",
        "nomic": "cls.predictions.decoder.weight",
    }.get(case, "lm_head.weight")
    weights = load_file(folder / "model.safetensors")
    save_file(weights | {name: torch.ones(7, 24)}, folder / "model.safetensors", metadata={"format": "pt"})
    check_vectors(folder, model)
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    assert f"{name} (7, 24)" in str(caught.value)


def test_a_language_model_without_a_head_is_refused_where_logits_are_asked_for(make: Callable) -> None:
    folder, _ = make("llama")
    model = load(folder)
    assert model.lm_head is None
    with pytest.raises(ValueError, match=r"^Transformer: this model has no head for logits$"):
        generate(model, [[3, 4]], max_new_tokens=2)
    with pytest.raises(CheckpointError, match="has no logits of a next token"):
        Reranker.load(folder)
