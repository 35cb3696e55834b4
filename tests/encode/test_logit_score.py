"""Rerankers that are causal language models: scores are those of sentence-transformers' CrossEncoder and of the model card's code, on
a tiny random Qwen3 with a tokenizer of Qwen's shape, and each pair has the same bits in any batch.
"""

import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tiny_tokenizer
import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor

from uwaga.encode.reranker import Reranker

transformers = pytest.importorskip("transformers", minversion="5")
pytest.importorskip("sentence_transformers", minversion="6")

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


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def made(*, tied: bool = True, most: int = 256, template: str | None = JINJA, **files: object) -> Path:
        folder, tokenizer = tmp_path / "qwen", qwen_tokenizer()
        torch.manual_seed(0)
        config = transformers.Qwen3Config(
            vocab_size=tokenizer.get_vocab_size(), hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, max_position_embeddings=most, tie_word_embeddings=tied, bos_token_id=1, eos_token_id=2,
        )  # fmt: skip
        model = transformers.Qwen3ForCausalLM(config).eval()
        for name, parameter in model.named_parameters():
            torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.15)
        model.save_pretrained(folder)
        transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, pad_token="<|endoftext|>", bos_token="<|im_start|>", eos_token="<|im_end|>",
            model_max_length=most, chat_template=template,
        ).save_pretrained(folder)  # fmt: skip
        for name, content in files.items():
            (folder / f"{name}.json").write_text(json.dumps(content))
        return folder

    return made


def pairs(count: int) -> list[tuple[str, str]]:
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(1, 14))) + " it" for _ in range(2 * count)]
    return list(zip(texts[::2], texts[1::2], strict=True))


@pytest.mark.parametrize("tied", [True, False])
def test_scores_are_those_of_sentence_transformers(write, tied: bool, assert_as_exact) -> None:
    """One pair after another as the truth; the last is cut, but for the end of the template."""
    from sentence_transformers import CrossEncoder

    folder = write(tied=tied)
    listed = [*pairs(50), (QUERY, "the cat " * 200)]
    raw = {"activation_fn": torch.nn.Identity(), "show_progress_bar": False, "convert_to_tensor": True}

    def theirs(dtype: torch.dtype) -> Tensor:
        model = CrossEncoder(str(folder), device="cpu", model_kwargs={"dtype": dtype})
        return torch.cat([model.predict([pair], **raw) for pair in listed])

    reranker = Reranker.load(folder)
    ours = reranker.scores(listed, overflow="truncate", raw=True)
    assert_as_exact(torch.from_numpy(ours), theirs(torch.float32), lambda: theirs(torch.float64))
    ranked = CrossEncoder(str(folder), device="cpu").rank(QUERY, PASSAGES, show_progress_bar=False)
    own = reranker.rank(QUERY, PASSAGES)
    assert own.indices.tolist() == [each["corpus_id"] for each in ranked]
    np.testing.assert_allclose(own.scores, [each["score"] for each in ranked], rtol=2e-5)


# What real templates do with the texts of a pair; test_template_language.py has the language.
TEMPLATES = {
    "a token": "{{ bos_token }}" + JINJA,
    "a loop": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}",
    "parts": "{% for m in messages %}{{ m.role }}: {% for c in m.content %}{% if c.type == 'text' %}{{ c.text }}{% endif %}{% endfor %}\n{% endfor %}",
}  # fmt: skip
RAW = {"activation_fn": torch.nn.Identity(), "show_progress_bar": False, "convert_to_tensor": True}


def assert_scores_are_theirs(folder: Path, listed: list[tuple[str, str]]) -> None:
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(folder), device="cpu")
    theirs = torch.cat([model.predict([pair], **RAW) for pair in listed]).numpy()
    ours = Reranker.load(folder).scores(listed, overflow="truncate", raw=True)
    # Other texts differ by tenths at least.
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_are_rendered_with_the_texts_themselves(write, name: str) -> None:
    folder = write(template=TEMPLATES[name])
    assert_scores_are_theirs(folder, [*pairs(12), (QUERY, "the cat " * 200), (QUERY * 40, "it")])


def test_a_directory_without_a_template_has_pairs_of_its_tokenizer(write) -> None:
    assert_scores_are_theirs(write(template=None), [*pairs(12), (QUERY, "the cat " * 200)])


def named(folder: Path, place: str) -> None:
    """Several templates by name, of which the one of the name default counts, in one place or another."""
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    other = "{% for m in messages %}no {{ m.content }}{% endfor %}"
    (folder / "chat_template.jinja").unlink()
    if place == "list":
        listed = [{"name": "tool_use", "template": other}, {"name": "default", "template": JINJA}]
        (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": listed}))
        return
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": other}))
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text(other)
    beside = (
        folder / "chat_template.jinja" if place == "beside" else folder / "additional_chat_templates" / "default.jinja"
    )
    beside.write_text(TEMPLATES["parts"])


@pytest.mark.parametrize("place", ["list", "beside", "folder"])
def test_the_template_of_the_name_default_counts(write, place: str) -> None:
    folder = write()
    named(folder, place)
    if place == "list":  # of several templates, sentence-transformers gives messages of typed parts
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        settings["chat_template"][1]["template"] = TEMPLATES["parts"]
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert_scores_are_theirs(folder, pairs(8))


@pytest.mark.parametrize(
    "kwargs",
    [
        {"chat_template": {"add_generation_prompt": True, "style": "short"}},
        {"chat_template": {"restore_suffix": False}},
        {"chat_template": {"chat_template": TEMPLATES["a loop"]}},
        {"chat_template": {"bos_token": "<|endoftext|>", "tools": [{"type": "function"}]}},
        {"common": {"padding_side": "left"}},
        {"text": {"max_length": 150}, "common": {"max_length": 160}},
    ],
)
def test_arguments_of_the_template(write, kwargs: dict) -> None:
    from sentence_transformers import CrossEncoder
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.cross_encoder.modules import LogitScore

    more = "{{ bos_token }}{{ style }}{{ tools }}{{ common_kwargs }}{% if add_generation_prompt %}<|im_start|>assistant{% endif %}"
    folder = write(template=JINJA + more)
    modules = [
        Transformer(str(folder), transformer_task="text-generation", processing_kwargs=kwargs),
        LogitScore(300, 301),
    ]
    CrossEncoder(modules=modules, device="cpu").save_pretrained(str(folder.parent / "saved"))
    assert_scores_are_theirs(folder.parent / "saved", [*pairs(8), (QUERY, "the cat " * 200)])


def test_a_pair_that_loses_its_beginning_keeps_the_end_of_the_template(write) -> None:
    folder = write()
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "truncation_side": "left"}))
    assert_scores_are_theirs(folder, [(QUERY, "it"), (QUERY, "the cat " * 200)])


QWEN3 = "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>user\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"


@pytest.mark.parametrize("instruction", [None, "Find the sentence about the cat"])
def test_a_template_that_carries_no_pair_is_that_of_the_card(write, instruction: str | None, assert_as_exact) -> None:
    """As the card computes it: the template's ends and the pair are tokenised one after another. sentence-transformers refuses."""
    from sentence_transformers import CrossEncoder

    folder = write(template=QWEN3)
    with pytest.raises(ValueError, match="cannot carry a 'query'/'document' pair"):
        CrossEncoder(str(folder), device="cpu").predict([(QUERY, "it")])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = [tokenizer.convert_tokens_to_ids(word) for word in ("yes", "no")]
    listed = pairs(64)
    # The three parts of the card: what is before "<Instruct>", the pair, and what is after it.
    start, rest = CARD.split("<Instruct>")
    middle, end = rest.split("<|im_end|>")[0], "<|im_end|>" + rest.split("<|im_end|>", 1)[1]

    def theirs(dtype: torch.dtype) -> Tensor:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        results = []
        for query, passage in listed:
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
        torch.from_numpy(ours.scores(listed, raw=True)), theirs(torch.float32), lambda: theirs(torch.float64)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_pair_has_the_same_bits_alone(write, dtype: torch.dtype) -> None:
    reranker = Reranker.load(write(), dtype=dtype)
    listed = [*[(QUERY, passage) for passage in PASSAGES], *pairs(40)]
    together = reranker.scores(listed)
    alone = [reranker.scores([pair])[0] for pair in listed]
    assert together.tobytes() == np.float32(alone).tobytes()
    assert reranker.scores([]).shape == (0,)


def test_modules_prompts_and_activations_of_sentence_transformers(write) -> None:
    from sentence_transformers import CrossEncoder
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.cross_encoder.modules import LogitScore

    folder = write()
    modules = [Transformer(str(folder), transformer_task="text-generation"), LogitScore(300, None)]
    model = CrossEncoder(
        modules=modules,
        device="cpu",
        prompts={"cat": "Find the cat"},
        default_prompt_name="cat",
        activation_fn=torch.nn.Identity(),
    )
    model.save_pretrained(str(folder.parent / "saved"))
    ours = Reranker.load(folder.parent / "saved")
    assert not ours.has_sigmoid
    theirs = model.predict([(QUERY, passage) for passage in PASSAGES])
    scores = ours.scores([(QUERY, passage) for passage in PASSAGES])
    np.testing.assert_allclose(scores, theirs, rtol=1e-4, atol=1e-5)
    told = Reranker.load(folder.parent / "saved", instruction="Find the cat")
    assert told.scores([(QUERY, passage) for passage in PASSAGES]).tobytes() == scores.tobytes()
