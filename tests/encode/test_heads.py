"""Whether a model has a head follows from the weights in its files, and what it is matters only to who asks for logits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from factories import factory
from safetensors.torch import load_file, save_file
from sentence_models import save_model
from tiny_tokenizer import write_tokenizer

from uwaga import TextEncoder
from uwaga._base.errors import CheckpointError
from uwaga.models import load

_SIZES = {
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
_IDS = {"vocab_size": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False}
_GROUPED = _SIZES | {"head_dim": 12, "num_key_value_heads": 1}
# By family: the architecture with a head, the weight of its head, and settings.
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "lm_head.weight", _SIZES),
    "qwen3": ("Qwen3ForCausalLM", "lm_head.weight", _GROUPED),
    "gemma3_text": ("Gemma3ForCausalLM", "lm_head.weight", _GROUPED),
    "modernbert": ("ModernBertForMaskedLM", "decoder.weight", _SIZES | {"cls_token_id": 2, "sep_token_id": 3}),
    "eurobert": ("EuroBertForMaskedLM", "lm_head.weight", _SIZES),
    "bert": ("BertForMaskedLM", "cls.predictions.decoder.weight", _SIZES),
    "distilbert": ("DistilBertForMaskedLM", "vocab_projector.weight", {"dim": 24, "hidden_dim": 32, "n_layers": 2, "n_heads": 2}),
    "nomic_bert": ("NomicBertForMaskedLM", "cls.predictions.decoder.weight", _SIZES),
}  # fmt: skip
TEXTS = ["the cat sat on the mat .", "a dog", "it ran away from the house"]


@factory
def make(tmp_path: Path, /, family: str) -> tuple[Path, Any]:
    """A directory of the body, which config.json calls the model with a head; and the body."""
    architecture, _, settings = CASES[family]
    model = save_model(tmp_path, family, **(_IDS | settings))
    write_tokenizer(tmp_path, tokenizer_class="TokenizersBackend")
    described = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(described | {"architectures": [architecture]}))
    return tmp_path, model


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
        expected = states[-1] if "ForCausalLM" in CASES[model.config.model_type][0] else states.mean(0)
        np.testing.assert_allclose(vector, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.gate(only=lambda case: case in ("llama", "modernbert", "distilbert"))
@pytest.mark.parametrize("case", CASES)
def test_a_head_of_another_vocabulary_matters_to_logits_alone(case: str, make: Callable) -> None:
    folder, model = make(case)
    check_vectors(folder, model)  # without a head
    _, name, _ = CASES[case]
    weights = load_file(folder / "model.safetensors")
    save_file(weights | {name: torch.ones(7, 24)}, folder / "model.safetensors", metadata={"format": "pt"})
    check_vectors(folder, model)
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    assert f"{name} (7, 24)" in str(caught.value)
