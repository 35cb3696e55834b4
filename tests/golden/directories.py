"""Small random directories of every model type that uwaga reads itself, and of two that transformers reads for it."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from uwaga import models

sys.path.insert(0, str(Path(__file__).parents[1]))
import tiny_tokenizer

# Not "é": these values are recorded.
WORDS = [*tiny_tokenizer.WORDS[:-1], "what", "is", "this", "pen"]
SPECIAL = tiny_tokenizer.SPECIAL
VOCABULARY = len(SPECIAL + WORDS)

_IDS: dict[str, Any] = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
_WIDE = _IDS | {
    "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip
_LABELS = {"num_labels": 3}
_GROUPED = _WIDE | {"num_key_value_heads": 2}
_NARROW = _WIDE | {"embedding_size": 16}
_GEMMA = _GROUPED | {"head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 20}
_MODERN = _WIDE | {"local_attention": 6, "global_attn_every_n_layers": 2, "cls_token_id": 2, "sep_token_id": 3}
_DISTIL = _IDS | {"dim": 24, "hidden_dim": 40, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64}
_GPT2 = _IDS | {"n_positions": 64, "n_embd": 24, "n_layer": 3, "n_head": 4}
_T5 = _IDS | {
    "d_model": 20, "d_kv": 6, "d_ff": 28, "num_layers": 2, "num_heads": 3, "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12, "decoder_start_token_id": 0,
}  # fmt: skip
_MARIAN = _IDS | {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 2, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24, "decoder_ffn_dim": 20, "max_position_embeddings": 64, "decoder_start_token_id": 0, "forced_eos_token_id": None,
}  # fmt: skip
_ROPE = {"rope_theta": 300.0, "factor": 4.0}
_YARN = {"rope_parameters": _ROPE | {"rope_type": "yarn", "original_max_position_embeddings": 16}}
_V1_1 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}

# Name: class of transformers, settings. The part of the name before a space is the model type.
THEIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertModel", _WIDE),
    "bert masked": ("BertForMaskedLM", _WIDE),
    "bert sequence": ("BertForSequenceClassification", _WIDE | _LABELS),
    "bert tokens": ("BertForTokenClassification", _WIDE | _LABELS | {"hidden_act": "gelu_new", "type_vocab_size": 4}),
    "roberta": ("RobertaModel", _WIDE),
    "roberta sequence": ("RobertaForSequenceClassification", _WIDE | _LABELS),
    "roberta masked": ("RobertaForMaskedLM", _WIDE),
    "xlm-roberta": ("XLMRobertaModel", _WIDE),
    "xlm-roberta sequence": ("XLMRobertaForSequenceClassification", _WIDE | {"num_labels": 1}),
    "camembert masked": ("CamembertForMaskedLM", _WIDE),
    "distilbert": ("DistilBertModel", _DISTIL),
    "distilbert sequence": ("DistilBertForSequenceClassification", _DISTIL | _LABELS),
    "distilbert masked": ("DistilBertForMaskedLM", _DISTIL),
    "mpnet": ("MPNetModel", _WIDE | {"pad_token_id": 1}),
    "mpnet masked": ("MPNetForMaskedLM", _WIDE | {"pad_token_id": 1}),
    "electra": ("ElectraModel", _NARROW),
    "electra masked": ("ElectraForMaskedLM", _NARROW),
    "electra sequence": ("ElectraForSequenceClassification", _NARROW | _LABELS),
    "albert": ("AlbertModel", _NARROW | {"num_hidden_groups": 3}),
    "albert masked": ("AlbertForMaskedLM", _NARROW | {"inner_group_num": 2}),
    "gte": ("GteModel", _WIDE),
    "gte masked": ("GteForMaskedLM", _WIDE | {"type_vocab_size": 0}),
    "nomic_bert": ("NomicBertModel", _WIDE),
    "nomic_bert masked": ("NomicBertForMaskedLM", _WIDE),
    "jina_embeddings_v3": ("JinaEmbeddingsV3Model", _WIDE),
    "jina_embeddings_v3 sequence": ("JinaEmbeddingsV3ForSequenceClassification", _WIDE | _LABELS),
    "llama": ("LlamaForCausalLM", _GROUPED),
    "llama bare": ("LlamaModel", _GROUPED | {"rms_norm_eps": 1e-3}),
    "llama dynamic": ("LlamaForCausalLM", _GROUPED | {"tie_word_embeddings": True, "rope_parameters": _ROPE | {"rope_type": "dynamic"}}),
    "llama biases": ("LlamaForCausalLM", _GROUPED | {"attention_bias": True, "mlp_bias": True, "head_dim": 8}),
    "mistral": ("MistralForCausalLM", _GROUPED | {"sliding_window": 4, "head_dim": 16} | _YARN),
    "qwen2": ("Qwen2ForCausalLM", _GROUPED | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    "qwen3": ("Qwen3ForCausalLM", _GROUPED | {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3 sequence": ("Qwen3ForSequenceClassification", _GROUPED | {"head_dim": 16, "num_labels": 1}),
    "eurobert": ("EuroBertModel", _GROUPED),
    "eurobert masked": ("EuroBertForMaskedLM", _GROUPED),
    "gemma2": ("Gemma2ForCausalLM", _GEMMA | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma3_text": ("Gemma3ForCausalLM", _GEMMA | {"num_hidden_layers": 7}),
    "gemma3_text both ways": ("Gemma3TextModel", _GEMMA | {"use_bidirectional_attention": True}),
    "modernbert": ("ModernBertModel", _MODERN),
    "modernbert masked": ("ModernBertForMaskedLM", _MODERN),
    "modernbert sequence": ("ModernBertForSequenceClassification", _MODERN | _LABELS),
    "gpt2": ("GPT2LMHeadModel", _GPT2),
    "gpt2 scaled": ("GPT2LMHeadModel", _GPT2 | {"scale_attn_by_inverse_layer_idx": True, "tie_word_embeddings": False}),
    "gpt2 bare": ("GPT2Model", _GPT2),
    "t5": ("T5ForConditionalGeneration", _T5),
    "t5 1.1": ("T5ForConditionalGeneration", _T5 | _V1_1 | {"num_decoder_layers": 3}),
    "t5 encoder": ("T5EncoderModel", _T5 | {"feed_forward_proj": "gated-silu"}),
    "mt5": ("MT5ForConditionalGeneration", _T5 | _V1_1),
    "marian": ("MarianMTModel", _MARIAN | {"scale_embedding": True, "activation_function": "swish"}),
    # Not ours: what transformers computes.
    "deberta-v2": ("DebertaV2Model", _WIDE),
    "bart": ("BartForConditionalGeneration", _MARIAN | {"decoder_attention_heads": 2}),
    "phi3": ("Phi3ForCausalLM", _GROUPED),
}  # fmt: skip
FOREIGN = ("deberta-v2", "bart", "phi3")
_SMALL = {"vocab_size": VOCABULARY, "d_model": 16, "num_heads": 2, "d_ff": 24}
# Name: class of uwaga and settings, of the types that only uwaga writes.
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "uwaga-gpt3": ("gpt2", _SMALL | {"num_layers": 3, "max_position_embeddings": 64, "band": 4}),
    "uwaga-transformer": ("transformer", _SMALL | {"num_layers": 2, "num_decoder_layers": 2}),
    "uwaga-transformer pre": ("transformer", _SMALL | {"num_layers": 2, "num_decoder_layers": 1, "norm": "pre", "tie_word_embeddings": False}),
    "uwaga-transformer decoder": ("transformer", _SMALL | {"num_layers": 0, "num_decoder_layers": 2, "position_encoding": "alibi"}),
}  # fmt: skip
NAMES = (*THEIRS, *OURS)
# What sentence-transformers reads beside a model: the way of pooling.
POOLING = {"deberta-v2": "mean", "bert": "mean", "roberta": "cls", "xlm-roberta": "mean", "distilbert": "mean", "mpnet": "mean", "electra": "cls", "albert": "mean",
           "gte": "cls", "nomic_bert": "mean", "jina_embeddings_v3": "mean", "modernbert": "mean", "eurobert": "mean", "qwen3": "lasttoken",
           "gpt2 bare": "weightedmean", "llama bare": "lasttoken", "gemma3_text both ways": "mean", "t5 encoder": "mean"}  # fmt: skip


def draw(module: nn.Module) -> nn.Module:
    """All parameters at random: as transformers starts them, biases are 0 and all weights of a row alike."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return module.eval()


def write(name: str, folder: Path) -> Path:
    """The directory of a model, as transformers or uwaga saves it, with a tokenizer."""
    if name in OURS:
        models.save(draw(new(*OURS[name])), folder)
    else:
        class_name, settings = THEIRS[name]
        there = getattr(transformers, class_name)
        torch.manual_seed(0)
        draw(there(there.config_class(**settings))).save_pretrained(folder)
    write_tokenizer(folder)
    if name in POOLING:
        (folder / "1_Pooling").mkdir()
        width = json.loads((folder / "config.json").read_text())
        width = width.get("hidden_size") or width.get("d_model") or width.get("dim") or width["n_embd"]
        (folder / "1_Pooling/config.json").write_text(
            json.dumps({"word_embedding_dimension": width, "pooling_mode": POOLING[name], "include_prompt": True})
        )
        modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
        (folder / "modules.json").write_text(
            json.dumps(
                [
                    {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
                    for at, (path, kind) in enumerate(modules)
                ]
            )
        )
        (folder / "config_sentence_transformers.json").write_text(
            json.dumps({"prompts": {"query": "what is ", "document": ""}, "similarity_fn_name": "cosine"})
        )
    return folder


def new(family: str, settings: dict[str, Any]) -> nn.Module:
    """A model of one of uwaga's own types."""
    torch.manual_seed(0)
    model_type = {"transformer": "uwaga-transformer"}.get(family, family)
    return models.Transformer(models.config(model_type, **settings))


def write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    vocabulary = {word: number for number, word in enumerate(SPECIAL + WORDS)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    settings = {**names, "model_max_length": 60, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
