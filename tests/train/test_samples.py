"""Texts that the model generates during training, and error rates of its predictions."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from uwaga.models import Transformer, generate
from uwaga.train import Config, ConfigError
from uwaga.train.corpus import Corpus
from uwaga.train.evaluation import error_rates, model_error_rates, sample_prompts, samples


def _samples(config: Config, corpus: Corpus, model: Transformer) -> list[tuple[str, str]]:
    prompts = sample_prompts(config, corpus)
    texts = samples(model, [ids for _, ids in prompts], config, corpus)
    return [(prompt, text) for (prompt, _), text in zip(prompts, texts, strict=True)]


def test_samples_of_prompts_are_reproducible(parts: Callable) -> None:
    made = parts("language-model", "run.sample_prompts=['Line 1', 'so']", "run.sample_tokens=5")
    made[-1].train()
    result = _samples(*made)
    assert [prompt for prompt, _ in result] == ["Line 1", "so"]
    assert all(0 < len(text) <= 5 for _, text in result)  # eos may be sampled, and is not shown
    torch.rand(3)
    assert _samples(*made) == result
    assert made[-1].training


def test_samples_are_limited_by_max_position_embeddings(parts: Callable) -> None:
    most = "model.max_position_embeddings=16"
    ((_, text),) = _samples(*parts("language-model", most, "run.sample_prompts=['Line 1']", "run.sample_tokens=99"))
    assert 0 < len(text) <= 16 + 1 - len("Line 1")


def test_without_prompts_samples_continue_the_validation_data(parts: Callable) -> None:
    ((prompt, _),) = _samples(*parts("language-model", "run.sample_tokens=3"))
    assert "Line" in prompt or "it goes" in prompt


def test_samples_of_an_encoder_decoder_are_targets_of_validation_sources(parts: Callable) -> None:
    config, corpus, model = parts("encoder-decoder", "run.sample_tokens=4")
    result = _samples(config, corpus, model)
    sources = [source for source, _ in corpus.questions()]
    assert [prompt for prompt, _ in result] == sources[:5]
    tokenizer = corpus.tokenizer
    ids = [*tokenizer.before, *tokenizer.encode([sources[0]])[0].tolist(), *tokenizer.behind]
    expected = generate(model.eval(), [ids], max_new_tokens=4)[0]
    assert result[0][1] == corpus.target_tokenizer.decode(expected)


def test_samples_of_a_masked_language_model_fill_in_masks(parts: Callable) -> None:
    config, corpus, model = parts("masked-language-model", "run.sample_prompts=['so [MASK]t goe[MASK]']")
    ((_, text),) = _samples(config, corpus, model)
    ids = corpus.tokenizer.encode([text])[0]
    assert len(ids) <= len("so it goes")
    assert text.startswith("s")


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
        sample_prompts(config, corpus)
    assert str(caught.value) == said


def test_error_rates_are_of_greedy_decoding_of_all_sources(parts: Callable) -> None:
    config, corpus, model = parts("encoder-decoder", "tokenizer.lowercase=true")
    asked, (reader, writer) = list(corpus.questions()), corpus.tokenizers
    prompts = [[*reader.before, *reader.encode([source])[0].tolist(), *reader.behind] for source, _ in asked]
    written = generate(model.eval(), prompts, max_new_tokens=config.data.context_length)
    texts = [writer.backend.decode([x for x in ids if x > 1], skip_special_tokens=False) for ids in written]
    assert [writer.backend.id_to_token(x) for x in (0, 1, 2)] == ["<pad>", "</s>", "<unk>"]
    targets = [[target.lower() for target in targets] for _, targets in asked]
    assert targets != [list(targets) for _, targets in asked]
    assert model_error_rates(model, config, corpus, all=True) == error_rates(texts, targets)


def test_error_rates_during_training_are_of_a_thousand_sources(parts: Callable, tmp_path: Path) -> None:
    (tmp_path / "many.tsv").write_text("\n".join(f"{n}\tT {n % 7}" for n in range(2500)))
    files = (f"data.train=['{tmp_path}/many.tsv']", "data.pair_format=tsv", "data.validation_fraction=0.5")
    config, corpus, model = parts("encoder-decoder", *files)
    assert model_error_rates(model, config, corpus, all=False).words == 1000
