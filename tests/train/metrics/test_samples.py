"""Texts that the model generates during training, and error rates of its predictions."""

from collections.abc import Callable

import pytest
import torch

from uwaga import Ragged
from uwaga.models import generate
from uwaga.train import ConfigError
from uwaga.train.metrics.evaluation import ErrorRateEvaluator, error_rates
from uwaga.train.metrics.samples import Sample, SampleGenerator, format_sample


def test_samples_of_prompts_are_reproducible(parts: Callable) -> None:
    config, corpus, model = parts("language-model", "run.sample_prompts=['Line 1', 'so']", "run.sample_tokens=5")
    model.train()
    sample_generator = SampleGenerator(config, corpus)
    result = sample_generator.samples(model)
    assert [sample.prompt for sample in result] == ["Line 1", "so"]
    assert all(0 < len(sample.text) <= 5 for sample in result)  # eos may be sampled, and is not shown
    torch.rand(3)
    assert sample_generator.samples(model) == result
    assert model.training


def test_samples_are_limited_by_max_position_embeddings(parts: Callable) -> None:
    config, corpus, model = parts(
        "language-model", "model.max_position_embeddings=16", "run.sample_prompts=['Line 1']", "run.sample_tokens=99"
    )
    assert 0 < len(SampleGenerator(config, corpus).samples(model)[0].text) <= 16 + 1 - len("Line 1")


def test_without_prompts_samples_continue_the_validation_data(parts: Callable) -> None:
    config, corpus, model = parts("language-model", "run.sample_tokens=3")
    (result,) = SampleGenerator(config, corpus).samples(model)
    assert "Line" in result.prompt or "it goes" in result.prompt


def test_samples_of_an_encoder_decoder_are_targets_of_validation_sources(parts: Callable) -> None:
    config, corpus, model = parts("encoder-decoder", "run.sample_tokens=4")
    result = SampleGenerator(config, corpus).samples(model)
    sources = [question.source for question in corpus.questions()]
    assert [sample.prompt for sample in result] == sources[:5]
    tokenizer = corpus.tokenizer
    ids = [*tokenizer.before, *tokenizer.encode([sources[0]])[0].tolist(), *tokenizer.behind]
    expected = generate(model.eval(), [ids], max_new_tokens=4)[0]
    assert result[0].text == (corpus.target_tokenizer or tokenizer).decode(expected)


def test_samples_of_a_masked_language_model_fill_in_masks(parts: Callable) -> None:
    config, corpus, model = parts("masked-language-model", "run.sample_prompts=['so [MASK]t goe[MASK]']")
    (result,) = SampleGenerator(config, corpus).samples(model)
    ids = corpus.tokenizer.encode([result.text])[0]
    assert len(ids) <= len("so it goes")
    assert result.text.replace(" ", "").startswith("so"[:1])


@pytest.mark.parametrize(
    ("objective", "prompt", "said"),
    [
        ("language-model", "x" * 17, f"run.sample_prompts: {'x' * 17!r} has 17 tokens, and data.context_length is 16"),
        ("masked-language-model", "so", "run.sample_prompts: 'so' has no [MASK] to fill in"),
    ],
)
def test_an_invalid_prompt_is_refused_before_training(parts: Callable, objective: str, prompt: str, said: str) -> None:
    config, corpus, _ = parts(objective, f"run.sample_prompts=[{prompt!r}]")
    with pytest.raises(ConfigError) as caught:
        SampleGenerator(config, corpus)
    assert str(caught.value) == said


def test_control_characters_are_escaped_in_samples() -> None:
    assert format_sample(Sample("a", "b\x1b[2J\nc")) == "a > b<U+001B>[2J\nc"


def test_error_rates_are_of_greedy_decoding_of_all_sources(parts: Callable) -> None:
    config, corpus, model = parts("encoder-decoder")
    result = ErrorRateEvaluator(config, corpus).evaluate(model, all=True)
    asked = list(corpus.questions())
    assert result.words == len(asked)
    tokenizer = corpus.tokenizer
    prompts = [[*tokenizer.before, *tokenizer.encode([each.source])[0].tolist(), *tokenizer.behind] for each in asked]
    written = generate(model.eval(), prompts, max_new_tokens=config.data.context_length)
    target = corpus.target_tokenizer or tokenizer
    texts = [target.backend.decode([x for x in ids if x > 1], skip_special_tokens=False) for ids in written]
    assert [target.backend.id_to_token(x) for x in (0, 1, 2)] == ["<pad>", "</s>", "<unk>"]
    assert result.rates == error_rates(texts, [each.targets for each in asked])


@pytest.mark.parametrize("is_unknown", [False, True])
def test_targets_are_normalized_and_unknown_tokens_are_errors(
    parts: Callable, monkeypatch: pytest.MonkeyPatch, is_unknown: bool
) -> None:
    config, corpus, model = parts("encoder-decoder", "tokenizer.lowercase=true")
    tokenizer, asked = corpus.tokenizer, list(corpus.questions())
    assert any(target != target.lower() for each in asked for target in each.targets)
    more = [*tokenizer.encode([" "])[0], tokenizer.special.unk] if is_unknown else []
    right = [[*tokenizer.encode([each.targets[0]])[0], *more, tokenizer.special.eos] for each in asked]
    answers = iter(torch.tensor(ids) for ids in right)

    def generate_answers(_: object, prompts: Ragged, **__: object) -> Ragged:
        return Ragged.from_list([next(answers) for _ in prompts.to_list()])

    monkeypatch.setattr("uwaga.train.metrics.evaluation.generate", generate_answers)
    result = ErrorRateEvaluator(config, corpus).evaluate(model, all=True).rates
    assert (result.phoneme > 0, result.word) == (is_unknown, float(is_unknown))


def test_error_rates_during_training_are_of_some_sources(parts: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uwaga.train.metrics.evaluation._SAMPLED_SOURCES", 7)
    monkeypatch.setattr("uwaga.train.metrics.evaluation._GENERATE_ROWS", 3)
    config, corpus, model = parts("encoder-decoder", "run.sample_tokens=2")
    assert ErrorRateEvaluator(config, corpus).evaluate(model, all=False).words == 7
