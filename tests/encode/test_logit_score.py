"""Rerankers that are causal language models: scores are those of sentence-transformers' CrossEncoder and of the model card's code, on
a tiny random Qwen3 with a tokenizer of Qwen's shape, and each pair has the same bits in any batch.
"""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tiny_tokenizer
import torch
from factories import factory
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor

from uwaga.encode.reranker import Reranker

transformers = pytest.importorskip("transformers", minversion="5")
pytest.importorskip("sentence_transformers", minversion="6")
from sentence_models import assert_scores_are_theirs, random_pairs, save_model, save_modules, save_words  # noqa: E402
from sentence_transformers import CrossEncoder  # noqa: E402
from sentence_transformers.base.modules import Transformer  # noqa: E402
from sentence_transformers.cross_encoder.modules import LogitScore  # noqa: E402

WORDS = [*(word for word in tiny_tokenizer.WORDS if not word.startswith("##")), "unbelievable", "naïve", "木", "\n"]
QUERY = "the cat sat on a mat"
PASSAGES = ["a dog ran away", "the cat", "the house, the dog\n\nand then the cat on the mat.", "it", "it", " naïve 木 "]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
CARD = """\
<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer can only be \
"yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: {instruction}
<Query>: {query}
<Document>: {document}<|im_end|>
<|im_start|>assistant
<think>

</think>

"""
# As in directories that sentence-transformers saved.
JINJA = (
    '{%- set instruction = messages | selectattr("role", "eq", "system") | map(attribute="content") | first | default("'
    + INSTRUCTION
    + '") -%}\n{%- set query = messages | selectattr("role", "eq", "query") | map(attribute="content") | first -%}\n'
    '{%- set document = messages | selectattr("role", "eq", "document") | map(attribute="content") | first -%}\n'
    + CARD.format(instruction="{{ instruction }}", query="{{ query }}", document="{{ document }}")
    + "{{ '\\n' if false else '' }}"
)
# tokenizer.json of Qwen: digits alone, words with the space before them.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@cache
def qwen_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(ignore_merges=False))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator([CARD, "yes no yes no " * 9, "yes", "no", *PASSAGES, QUERY] * 3, trainer)
    assert tokenizer.token_to_id("yes") is not None
    return tokenizer


@factory
def write(tmp_path: Path, /, *, tied: bool = True, template: str | None = JINJA) -> Path:
    folder, tokenizer = tmp_path / "qwen", qwen_tokenizer()
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
    ids = {"vocab_size": tokenizer.get_vocab_size(), "bos_token_id": 1, "eos_token_id": 2}
    more = {"num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "tie_word_embeddings": tied}
    save_model(folder, "qwen3", "AutoModelForCausalLM", **sizes, **ids, **more)
    named = {"pad_token": "<|endoftext|>", "bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    save_words(folder, tokenizer, model_max_length=256, chat_template=template, **named)
    return folder


pytestmark = pytest.mark.slow

PAIRS = [(f"{query} it", passage) for query, passage in random_pairs(40, WORDS)]
LONG = (QUERY, "the cat " * 200)  # is cut, except for the end of the template


def test_scores_are_those_of_sentence_transformers(write) -> None:
    folder = write(tied=False)
    reranker = assert_scores_are_theirs(folder, [*PAIRS, LONG])
    ranked = CrossEncoder(str(folder), device="cpu").rank(QUERY, PASSAGES, show_progress_bar=False)
    ours = reranker.rank(QUERY, PASSAGES)
    assert ours.indices.tolist() == [row["corpus_id"] for row in ranked]
    np.testing.assert_allclose(ours.scores, [row["score"] for row in ranked], rtol=2e-5)


# What real templates do with the texts of a pair; test_templates.py has the language.
TEMPLATES = {
    "a token": "{{ bos_token }}" + JINJA,
    "a loop": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}",
    "parts": "{% for m in messages %}{{ m.role }}: {% for c in m.content %}{% if c.type == 'text' %}{{ c.text }}{% endif %}{% endfor %}\n{% endfor %}",
}  # fmt: skip


def compare_some(folder: Path, *more: tuple[str, str]) -> None:
    """Compare few scores, of which those of other texts differ by tenths at least."""
    pairs = [*PAIRS[:8], *more]
    raw = {"activation_fn": torch.nn.Identity(), "show_progress_bar": False}
    model = CrossEncoder(str(folder), device="cpu")
    theirs = np.concatenate([model.predict([pair], **raw) for pair in pairs])
    ours = Reranker.load(folder).scores(pairs, overflow="truncate", raw=True)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("template", [*TEMPLATES.values(), None], ids=[*TEMPLATES, "the tokenizer's own"])
def test_templates_are_rendered_with_the_texts_themselves(write, template: str | None) -> None:
    compare_some(write(template=template), LONG, (QUERY * 40, "it"))


@pytest.mark.parametrize(
    "kwargs",
    [
        {"chat_template": {"add_generation_prompt": True, "style": "short", "restore_suffix": False}},
        {"chat_template": {"bos_token": "<|endoftext|>"}},
    ],
)
def test_arguments_of_the_template(write, kwargs: dict) -> None:
    more = "{{ bos_token }}{{ style }}{{ tools }}{{ common_kwargs }}{% if add_generation_prompt %}<|im_start|>assistant{% endif %}"
    folder = write(template=JINJA + more)
    body = Transformer(str(folder), transformer_task="text-generation", processing_kwargs=kwargs)
    saved = save_modules(folder.parent / "saved", body, LogitScore(300, 301), reader=CrossEncoder)
    compare_some(saved, LONG)


def test_a_pair_that_loses_its_beginning_keeps_the_end_of_the_template(write) -> None:
    folder = write()
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "truncation_side": "left"}))
    compare_some(folder, LONG)


QWEN3 = "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>user\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"


@pytest.mark.gate(only=lambda instruction: instruction is None)
@pytest.mark.parametrize("instruction", [None, "Find the sentence about the cat"])
def test_a_template_that_carries_no_pair_is_that_of_the_card(write, instruction: str | None, assert_as_exact) -> None:
    """As the card computes it: the template's ends and the pair are tokenised one after another. sentence-transformers refuses."""
    folder = write(template=QWEN3)
    with pytest.raises(ValueError, match="cannot carry a 'query'/'document' pair"):
        CrossEncoder(str(folder), device="cpu").predict([(QUERY, "it")])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = [tokenizer.convert_tokens_to_ids(word) for word in ("yes", "no")]
    pairs = PAIRS
    # The three parts of the card: what is before "<Instruct>", the pair, and what is after it.
    start, rest = CARD.split("<Instruct>")
    middle, end = rest.split("<|im_end|>")[0], "<|im_end|>" + rest.split("<|im_end|>", 1)[1]

    def theirs(dtype: torch.dtype) -> Tensor:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        results = []
        for query, passage in pairs:
            filled = "<Instruct>" + middle.format(instruction=instruction or INSTRUCTION, query=query, document=passage)
            numbers = [
                number for part in (start, filled, end) for number in tokenizer.encode(part, add_special_tokens=False)
            ]
            with torch.no_grad():
                logits = model(torch.tensor([numbers])).logits[0, -1]
            results.append(logits[ids[0]] - logits[ids[1]])
        return torch.stack(results)

    ours = Reranker.load(folder, instruction=instruction)
    assert "its chat template carries no pair" in ours.explain().reason
    assert_as_exact(
        torch.from_numpy(ours.scores(pairs, raw=True)), theirs(torch.float32), lambda: theirs(torch.float64)
    )


def test_a_pair_has_the_same_bits_alone_in_bfloat16(write) -> None:
    reranker = Reranker.load(write(), dtype=torch.bfloat16)
    pairs = [*[(QUERY, passage) for passage in PASSAGES], *PAIRS]
    alone = [reranker.scores([pair])[0] for pair in pairs]
    assert reranker.scores(pairs).tobytes() == np.float32(alone).tobytes()
    assert reranker.scores([]).shape == (0,)


def test_modules_prompts_and_activations_of_sentence_transformers(write) -> None:
    folder, pairs = write(), [(QUERY, passage) for passage in PASSAGES]
    modules = [Transformer(str(folder), transformer_task="text-generation"), LogitScore(300, None)]
    prompts = {"prompts": {"cat": "Find the cat"}, "default_prompt_name": "cat"}
    identity = {"activation_fn": torch.nn.Identity()}
    saved = save_modules(folder.parent / "saved", *modules, reader=CrossEncoder, **prompts, **identity)
    ours = Reranker.load(saved)
    assert not ours.has_sigmoid
    scores = ours.scores(pairs)
    np.testing.assert_allclose(scores, CrossEncoder(str(saved), device="cpu").predict(pairs), rtol=1e-4, atol=1e-5)
    told = Reranker.load(saved, instruction="Find the cat")
    assert told.scores(pairs).tobytes() == scores.tobytes()
