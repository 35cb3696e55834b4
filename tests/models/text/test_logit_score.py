"""Rerankers that are causal language models: scores are those of sentence-transformers' CrossEncoder and of the model card's code, on
a tiny random Qwen3 with a tokenizer of Qwen's shape, and each pair has the same bits in any batch.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny_tokenizer
import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor

from uwaga._base.errors import CheckpointError
from uwaga.models.text import logit_score
from uwaga.models.text.reranker import Reranker

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
            num_key_value_heads=2, head_dim=16, max_position_embeddings=most, tie_word_embeddings=tied, bos_token_id=0, eos_token_id=2,
        )  # fmt: skip
        model = transformers.Qwen3ForCausalLM(config).eval()
        for name, parameter in model.named_parameters():
            torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.15)
        model.save_pretrained(folder)
        transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, pad_token="<|endoftext|>", eos_token="<|im_end|>", model_max_length=most,
            chat_template=template,
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


@pytest.mark.parametrize("instruction", [None, "Find the sentence about the cat"])
def test_a_directory_without_a_template_has_that_of_the_card(write, instruction: str | None, assert_as_exact) -> None:
    """As the card computes it: the template's ends and the pair are tokenised one after another."""
    folder = write(template="{% for message in messages %}{{ message.content }}{% endfor %}")
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

    ours = Reranker.load(folder, instruction=instruction).scores(listed, raw=True)
    assert_as_exact(torch.from_numpy(ours), theirs(torch.float32), lambda: theirs(torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_pair_has_the_same_bits_alone(write, dtype: torch.dtype) -> None:
    reranker = Reranker.load(write(), dtype=dtype)
    listed = [*[(QUERY, passage) for passage in PASSAGES], *pairs(40)]
    together = reranker.scores(listed)
    alone = [reranker.scores([pair])[0] for pair in listed]
    assert together.tobytes() == np.float32(alone).tobytes()
    assert reranker.scores([]).shape == (0,)


def test_the_output_projection_is_of_two_rows(write, monkeypatch: pytest.MonkeyPatch) -> None:
    from uwaga.models.rotary.model import RotaryModel

    shapes, linear_map = [], logit_score.linear_map

    def counted(x: Tensor, weight: Tensor) -> Tensor:
        shapes.append((tuple(x.shape), tuple(weight.shape)))
        return linear_map(x, weight)

    monkeypatch.setattr(logit_score, "linear_map", counted)
    monkeypatch.setattr(RotaryModel, "logits", lambda *_, **__: pytest.fail("logits of the whole vocabulary"))
    Reranker.load(write()).rank(QUERY, PASSAGES)
    assert shapes == [((6, 32), (2, 32))]


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


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for m in messages %}query document{{ m.content }}{% endfor %}", "has For, and Reranker evaluates"),
        ("{{ 'query document' * 99999999 }}", "has Mul, and Reranker evaluates"),
        ("{{ 'query document'.__class__.mro() }}", "has Call, and Reranker evaluates"),
        ("{{ messages | tojson }} query document", "has tojson, and Reranker evaluates"),
        ("query document", "has not one query and one document after it"),
        ("{{ query document", "cannot be rendered: expected token"),
        (
            '{{ (messages | selectattr("role", "eq", "document") | first).content }}'
            '{{ (messages | selectattr("role", "eq", "query") | first).content }}',
            "has not one query and one document after it",
        ),
    ],
)  # fmt: skip
def test_templates_that_are_not_evaluated(write, template: str, message: str) -> None:
    with pytest.raises(CheckpointError, match="its template for pairs") as caught:
        Reranker.load(write(template=template))
    assert f"its template for pairs {message}" in str(caught.value)


def test_what_is_no_reranker_of_this_kind(write, tmp_path: Path) -> None:
    folder = write()
    with pytest.raises(ValueError, match="has 505 tokens") as caught:
        Reranker.load(folder).rank(QUERY, ["the cat " * 200])
    assert str(caught.value).endswith(
        "tokens with the query, and the model takes at most 256; set the option overflow to truncate"
    )
    model = Reranker.load(folder).model
    with pytest.raises(CheckpointError) as caught:
        logit_score.read(folder, (), model, Tokenizer(models.BPE()))
    assert str(caught.value) == (
        f"{folder} is no reranker: its tokenizer lacks the tokens yes and no, and it has no module LogitScore"
    )


@pytest.mark.parametrize("number", [-1, 10**6, "yes", True, None])
def test_a_token_that_is_not_in_the_vocabulary(write, number: object) -> None:
    listed = [
        {"type": f"sentence_transformers.{name}", "path": path}
        for name, path in (("Transformer", ""), ("LogitScore", "1"))
    ]
    kind, task = {"model_type": "CrossEncoder"}, {"transformer_task": "text-generation"}
    folder = write(modules=listed, config_sentence_transformers=kind, sentence_bert_config=task)
    (folder / "1").mkdir()
    (folder / "1" / "config.json").write_text(json.dumps({"true_token_id": number, "false_token_id": None}))
    with pytest.raises(CheckpointError) as caught:
        Reranker.load(folder)
    assert str(caught.value) == (
        f"{folder / '1' / 'config.json'}: true_token_id must be a token of the vocabulary, not {number!r}"
    )
