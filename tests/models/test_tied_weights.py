"""A tied weight may have any one of its names in a file, as in transformers: GPT-2, T5, BERT and relatives, Marian."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from uwaga.models import load

_T5 = {"vocab_size": 11, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
_BERT = {
    "vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8,
    "max_position_embeddings": 16,
}  # fmt: skip
_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
_MARIAN = {
    "vocab_size": 11, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "max_position_embeddings": 8, "pad_token_id": 0,
    "decoder_start_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
_T5_NAMES = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")

# The class in transformers, its settings, and the names of one weight; the first is that which it saves.
CASES: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "gpt2": (
        "GPT2LMHeadModel",
        {"vocab_size": 11, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2},
        ("transformer.wte.weight", "lm_head.weight"),
    ),
    "t5": ("T5ForConditionalGeneration", _T5, _T5_NAMES),
    "t5 1.1": (
        "T5ForConditionalGeneration", _T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, _T5_NAMES,
    ),
    "t5 encoder": ("T5EncoderModel", _T5, _T5_NAMES[:2]),
    "mt5": ("MT5ForConditionalGeneration", _T5, _T5_NAMES),
    "bert": (
        "BertForMaskedLM", _BERT, ("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
    ),
    "bert, the bias": ("BertForMaskedLM", _BERT, ("cls.predictions.bias", "cls.predictions.decoder.bias")),
    "roberta": (
        "RobertaForMaskedLM", _BERT, ("roberta.embeddings.word_embeddings.weight", "lm_head.decoder.weight"),
    ),
    "roberta, the bias": ("RobertaForMaskedLM", _BERT, ("lm_head.bias", "lm_head.decoder.bias")),
    "distilbert": (
        "DistilBertForMaskedLM",
        {"vocab_size": 11, "dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 8},
        ("distilbert.embeddings.word_embeddings.weight", "vocab_projector.weight"),
    ),
    "electra": (
        "ElectraForMaskedLM",
        _BERT | {"embedding_size": 4},
        ("electra.embeddings.word_embeddings.weight", "generator_lm_head.weight"),
    ),
    "albert": (
        "AlbertForMaskedLM",
        _BERT | {"embedding_size": 4, "bos_token_id": 1, "eos_token_id": 1},
        ("albert.embeddings.word_embeddings.weight", "predictions.decoder.weight"),
    ),
    "gte": (
        "GteForMaskedLM", _BERT, ("gte.embeddings.word_embeddings.weight", "lm_head.decoder.weight"),
    ),
    "nomic": (
        "NomicBertForMaskedLM",
        _BERT,
        ("nomic_bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
    ),
    "jina v3": (
        "JinaEmbeddingsV3ForMaskedLM", _BERT, ("roberta.embeddings.word_embeddings.weight", "lm_head.decoder.weight"),
    ),
    "modernbert": (
        "ModernBertForMaskedLM", _BERT | _IDS, ("model.embeddings.tok_embeddings.weight", "decoder.weight"),
    ),
    "eurobert": (
        "EuroBertForMaskedLM",
        _BERT | _IDS | {"tie_word_embeddings": True},
        ("model.embed_tokens.weight", "lm_head.weight"),
    ),
    "gemma2": (
        "Gemma2ForCausalLM",
        _BERT | _IDS | {"num_key_value_heads": 1, "head_dim": 4},
        ("model.embed_tokens.weight", "lm_head.weight"),
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        _BERT | _IDS | {"num_key_value_heads": 1, "head_dim": 4},
        ("model.embed_tokens.weight", "lm_head.weight"),
    ),
    "marian": (
        "MarianMTModel",
        _MARIAN,
        ("model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"),
    ),
    "marian of two vocabularies": (
        "MarianMTModel",
        _MARIAN | {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 12},
        ("model.decoder.embed_tokens.weight", "lm_head.weight"),
    ),
}  # fmt: skip


@pytest.fixture(params=CASES, ids=lambda name: name.replace(" ", "-"))
def saved(request: pytest.FixtureRequest, transformers, tmp_path: Path) -> tuple[Any, Path, tuple[str, ...]]:
    """The class in transformers, a directory that it saved, and the names of its tied weight."""
    name, settings, names = CASES[request.param]
    there = getattr(transformers, name)
    torch.manual_seed(0)
    there(there.config_class(**settings)).save_pretrained(tmp_path)
    return there, tmp_path, names


def _write(folder: Path, weights: dict[str, torch.Tensor], *, files: int) -> None:
    """Into one file; or into two, of which the second has the last weight."""
    if files == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    (folder / "model.safetensors").unlink(missing_ok=True)
    names = list(weights)
    parts = {"model-00001-of-00002.safetensors": names[:-1], "model-00002-of-00002.safetensors": names[-1:]}
    for file, part in parts.items():
        save_file({name: weights[name] for name in part}, folder / file, metadata={"format": "pt"})
    listed = {name: file for file, part in parts.items() for name in part}
    index = {"metadata": {"total_size": 1}, "weight_map": listed}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("files", [1, 2])
def test_any_one_of_its_names_is_enough(saved: tuple[Any, Path, tuple[str, ...]], files: int) -> None:
    there, folder, names = saved
    ours = load(folder).state_dict()
    weights = load_file(folder / "model.safetensors")
    tied = weights.pop(names[0])
    for name in (*names, names[1:]):
        given = (name,) if isinstance(name, str) else name
        _write(folder, weights | {each: tied.clone() for each in given}, files=files)
        state = load(folder).state_dict()
        # A T5 whose file has a head and an embedding may have both: they are equal.
        assert state.keys() - ours.keys() <= {"lm_head.weight"}
        assert all(torch.equal(state[each], ours.get(each, tied)) for each in state)
        model, told = there.from_pretrained(folder, output_loading_info=True)
        assert not told["missing_keys"]
        assert all(torch.equal(model.state_dict()[each], tied) for each in names if each in model.state_dict())
