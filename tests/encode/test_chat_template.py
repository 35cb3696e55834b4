"""Chat templates of embedding models and classifiers: vectors and scores are those of sentence-transformers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from uwaga.encode.encoder import TextEncoder
from uwaga.encode.reranker import Reranker

transformers = pytest.importorskip("transformers", minversion="5")
pytest.importorskip("sentence_transformers", minversion="6")

SPECIAL = ["<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PARTS = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content[0].text }}{{ eos_token }}{% endfor %}"
TEXTS = ["a cat", " the dog ran away\n", "木 née", "it sat on a mat, and then it ran " * 9, "x" * 56, "x" * 57]
PAIRS = [("a cat", "the dog ran away"), ("née", " 木 "), ("a cat", "it sat on a mat, and then " * 9)]


def tokenizer() -> Tokenizer:
    """A token for each byte, and special ones around a text that has none."""
    letters = {each: index + len(SPECIAL) for index, each in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary = {**{each: index for index, each in enumerate(SPECIAL)}, **letters}
    result = Tokenizer(models.BPE(vocabulary, []))
    result.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    result.decoder = decoders.ByteLevel()
    result.add_special_tokens(SPECIAL)
    around = [("<s>", 1), ("</s>", 2)]
    result.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=around
    )
    return result


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def made(kind: str = "Qwen3Model", template: str | None = CHATML) -> Path:
        folder = tmp_path / "model"
        torch.manual_seed(0)
        sizes = {
            "vocab_size": 261,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
        }
        given = {
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "max_position_embeddings": 96,
            "num_labels": 1,
        }
        config = {
            "Qwen3": lambda: transformers.Qwen3Config(**sizes, **given, num_key_value_heads=2, head_dim=16),
            "Llama": lambda: transformers.LlamaConfig(**sizes, **given, num_key_value_heads=2),
            "BertF": lambda: transformers.BertConfig(**sizes, **given),
            "XLNet": lambda: transformers.XLNetConfig(
                vocab_size=261, d_model=32, n_layer=2, n_head=4, d_inner=64, num_labels=1, pad_token_id=0
            ),
        }[kind[:5]]()  # fmt: skip
        model = getattr(transformers, kind)(config).eval()
        for name, parameter in model.named_parameters():
            torch.nn.init.normal_(parameter, 1.0 if "norm" in name.lower() else 0.0, 0.15)
        model.save_pretrained(folder)
        transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizer(), pad_token="<pad>", bos_token="<s>", eos_token="</s>", model_max_length=64,
            chat_template=template,
        ).save_pretrained(folder)  # fmt: skip
        return folder

    return made


def with_modules(folder: Path, pooling: str = "lasttoken", **options: Any) -> Path:
    """The directory as sentence-transformers saves it."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    of_model = {key: options.pop(key) for key in ("prompts", "default_prompt_name") if key in options}
    modules = [Transformer(str(folder), **options), Pooling(32, pooling)]
    saved = folder.parent / "saved"
    SentenceTransformer(modules=modules, device="cpu", **of_model).save_pretrained(str(saved))
    return saved


def assert_vectors_are_theirs(folder: Path, **options: Any) -> None:
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(folder), device="cpu")
    right = np.stack([theirs.encode([text], show_progress_bar=False, **options)[0] for text in TEXTS])
    vectors = TextEncoder.load(folder).encode(TEXTS, overflow="truncate", **options)
    np.testing.assert_allclose(vectors, right, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(("kind", "template"), [("Qwen3Model", CHATML), ("LlamaModel", PARTS), ("XLNetModel", CHATML)])
def test_vectors_of_a_plain_directory(write, kind: str, template: str) -> None:
    assert_vectors_are_theirs(write(kind, template))


@pytest.mark.parametrize("name", ["Qwen2Tokenizer", "GPT2Tokenizer", "PreTrainedTokenizerFast"])
def test_special_tokens_that_only_the_class_has(write, name: str) -> None:
    folder = write(template="{{ unk_token | length }}{{ bos_token | length }}{{ cls_token | length }}" + CHATML)
    path = folder / "tokenizer_config.json"
    settings = {key: value for key, value in json.loads(path.read_text()).items() if key != "bos_token"}
    path.write_text(json.dumps(settings | {"tokenizer_class": name}))
    assert_vectors_are_theirs(folder)


@pytest.mark.parametrize(
    "options",
    [
        {"pooling": "mean", "prompts": {"query": "Find it"}, "default_prompt_name": "query"},
        {"processing_kwargs": {"chat_template": {"add_generation_prompt": True, "restore_suffix": False}}},
    ],
    ids=["prompt", "arguments"],
)
def test_vectors_of_a_saved_directory(write, options: dict[str, Any]) -> None:
    assert_vectors_are_theirs(with_modules(write(), **options))


def test_a_prompt_is_the_message_of_the_system(write) -> None:
    assert_vectors_are_theirs(write(), prompt="Find the cat")


def test_modules_without_the_modality_message_read_texts_as_they_are(write) -> None:
    folder = with_modules(write())
    path = folder / "sentence_bert_config.json"
    path.write_text(json.dumps({"max_seq_length": 64}))
    assert_vectors_are_theirs(folder)
    assert TextEncoder.load(folder).config.chat is None


@pytest.mark.parametrize("kind", ["Qwen3ForSequenceClassification", "BertForSequenceClassification"])
def test_scores_of_a_classifier(write, kind: str) -> None:
    from sentence_transformers import CrossEncoder

    folder = write(kind)
    right = [CrossEncoder(str(folder), device="cpu").predict([pair], show_progress_bar=False)[0] for pair in PAIRS]
    scores = Reranker.load(folder).scores(PAIRS, overflow="truncate")
    np.testing.assert_allclose(scores, right, rtol=1e-4, atol=2e-5)


def test_the_report_has_what_was_read(write) -> None:
    encoder = TextEncoder.load(write())
    encoder.encode(TEXTS, overflow="truncate")
    # 6 tokens are before a text and 2 after it; 64 are read.
    assert encoder.report.stop.tolist() == [5, 18, 5, 64 - 6 - 2, 56, 56]
    with pytest.raises(
        ValueError, match=r"document 3 has 304 tokens, .* at most 64; set the option overflow to truncate$"
    ):
        encoder.encode(TEXTS)
