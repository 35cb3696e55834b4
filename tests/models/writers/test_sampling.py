"""Sampling: the distributions, and that a seed decides the tokens. Letters: R rows, V vocabulary, T tokens."""

from collections.abc import Callable

import pytest
import torch

from uwaga import Ragged
from uwaga.models import GPT2Config, GPT2Model, generate
from uwaga.models.generation.options import GenerationOptions
from uwaga.models.generation.sampling import inverse_cdf, process_logits

_NOTHING = dict.fromkeys(("temperature", "top_k", "top_p", "length_penalty", "early_stopping", "seed"))


def _options(**given) -> GenerationOptions:
    return GenerationOptions(
        **(_NOTHING | {"max_new_tokens": 3, "do_sample": True, "num_beams": 1, "eos_token_ids": ()} | given)
    )


@pytest.fixture
def model() -> GPT2Model:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=12, d_model=8, num_layers=1, num_heads=2, d_ff=16, max_position_embeddings=20, eos_token_ids=()
    )
    model = GPT2Model(config).eval()
    model.token_embedding.weight.data.mul_(3)  # some words likelier than others
    return model


FILTERS = [
    {"temperature": 0.7},
    {"temperature": 1.9, "top_k": 5},
    {"top_k": 1},
    {"top_k": 50},
    {"top_p": 0.8},
    {"top_p": 1e-9},
    {"top_p": 1.0},
    {"temperature": 0.3, "top_k": 7, "top_p": 0.6},
]


@pytest.mark.parametrize("given", FILTERS, ids=lambda given: ",".join(f"{k}={v}" for k, v in given.items()))
def test_what_may_be_drawn_is_what_transformers_leaves(transformers, given: dict) -> None:
    logits_RV = torch.randn(50, 30, generator=torch.Generator().manual_seed(1)) * 2
    logits_RV[0, 3:9] = logits_RV[0].max()  # as likely as one another
    warpers = transformers.generation.logits_process
    kinds = {
        "temperature": warpers.TemperatureLogitsWarper,
        "top_k": warpers.TopKLogitsWarper,
        "top_p": warpers.TopPLogitsWarper,
    }
    expected_RV = logits_RV
    for name, kind in kinds.items():
        if name in given:
            expected_RV = kind(given[name])(None, expected_RV)
    assert torch.equal(process_logits(logits_RV, _options(**given)), expected_RV)


def test_tokens_are_drawn_as_often_as_they_are_likely(model: GPT2Model) -> None:
    draws, prompt = 4000, [3, 4, 5]
    written = generate(model, [prompt] * draws, max_new_tokens=1, do_sample=True, temperature=0.8, top_k=6, seed=11)
    counts_V = torch.bincount(torch.tensor(written).flatten(), minlength=12).double()
    with torch.no_grad():
        logits_RV = model(torch.tensor([prompt])).logits[:, -1]
    chance_V = process_logits(logits_RV, _options(temperature=0.8, top_k=6)).double().softmax(-1)[0]
    assert (chance_V > 0).sum() == 6
    # Four standard deviations of a binomial count, and nothing where there is no chance.
    assert ((counts_V - draws * chance_V).abs() <= 4 * (draws * chance_V * (1 - chance_V)).sqrt()).all()


def test_a_share_is_in_the_token_that_it_falls_into() -> None:
    chance_V = torch.tensor([0.0, 0.25, 0.0, 0.75, 0.0]).double()
    shares = torch.tensor([0.0, 0.2499, 0.25, 1 - 2**-53], dtype=torch.float64)
    assert inverse_cdf(chance_V.expand(4, 5), shares).tolist() == [1, 1, 3, 3]


def test_a_seed_says_what_is_drawn(model: GPT2Model) -> None:
    def drawn(*prompts: list[int], **options) -> list[list[int]]:
        return generate(model, list(prompts), do_sample=True, **({"max_new_tokens": 8, "seed": 5} | options))

    a, b = drawn([3, 4], [5])
    assert drawn([5], [3, 4]) == [b, a]
    assert drawn([3, 4]) == [a]
    assert drawn([3, 4], seed=6) != [a]
    assert drawn([3, 4], max_new_tokens=3) == [a[:3]]
    again = drawn([3, 4], [3, 4], [3, 4])
    assert again[0] == a
    assert len(set(map(tuple, again))) == 3


def test_without_a_seed_pytorchs_generator_says(model: GPT2Model) -> None:
    def drawn() -> list[list[int]]:
        return generate(model, [[3, 4]], max_new_tokens=12, do_sample=True)

    torch.manual_seed(1)
    first, second = drawn(), drawn()
    assert first != second
    torch.manual_seed(1)
    assert [drawn(), drawn()] == [first, second]


def test_greedy_takes_nothing_from_pytorchs_generator(model: GPT2Model) -> None:
    before = torch.get_rng_state()
    generate(model, [[3, 4]], max_new_tokens=3)
    generate(model, [[3, 4]], max_new_tokens=3, do_sample=True, seed=1)
    assert torch.equal(torch.get_rng_state(), before)


_MODEL = {"vocab_size": 12, "d_model": 8, "num_layers": 1, "num_heads": 2, "d_ff": 16, "max_position_embeddings": 10}
_WHOLE = "must be a whole number of at least 1, not"
WRONG: dict[str, tuple[object, dict, str]] = {
    "no tokens": ([[3]], {"max_new_tokens": 0}, f"max_new_tokens {_WHOLE} 0"),
    "a fraction of tokens": ([[3]], {"max_new_tokens": 2.5}, f"max_new_tokens {_WHOLE} 2.5"),
    "a yes": ([[3]], {"do_sample": "yes"}, "do_sample must be true or false, not 'yes'"),
    "no beams": ([[3]], {"num_beams": 0}, f"num_beams {_WHOLE} 0"),
    "drawn beams": (
        [[3]],
        {"do_sample": True, "num_beams": 2},
        "do_sample=True and num_beams > 1 exclude each other",
    ),
    "a cold text": (
        [[3]],
        {"do_sample": True, "temperature": 0},
        "temperature must be a number above 0, not 0",
    ),
    "temperature of greed": ([[3]], {"temperature": 0.5}, "temperature has no effect without do_sample=True"),
    "seed of greed": ([[3]], {"seed": 1}, "seed has no effect without do_sample=True"),
    "top_k": (
        [[3]],
        {"do_sample": True, "top_k": 0},
        "top_k must be a whole number of at least 1, not 0",
    ),
    "top_p": ([[3]], {"do_sample": True, "top_p": 1.5}, "top_p must be a number above 0 and up to 1, not 1.5"),
    "seed": (
        [[3]],
        {"do_sample": True, "seed": -1},
        "seed must be a whole number from 0 to 18,446,744,073,709,551,615, not -1",
    ),
    "a penalty of one beam": ([[3]], {"length_penalty": 2.0}, "length_penalty has no effect without num_beams > 1"),
    "a penalty of nan": (
        [[3]],
        {"num_beams": 2, "length_penalty": float("nan")},
        "length_penalty must be a number, not nan",
    ),
    "stopping": (
        [[3]],
        {"num_beams": 2, "early_stopping": "soon"},
        "early_stopping must be one of True, False, 'never', not 'soon'",
    ),
    "an unknown end": ([[3]], {"eos_token_ids": 12}, "eos_token_ids must be an id from 0 to 11, not 12"),
    "an end that is a word": ([[3]], {"eos_token_ids": ["."]}, "eos_token_ids must be an id from 0 to 11, not '.'"),
    "padding of lists": ([[3]], {"pad_token_id": 0}, "pad_token_id needs prompts that are a tensor"),
    "unknown padding": (
        torch.ones(1, 2).long(),
        {"pad_token_id": -1},
        "pad_token_id must be an id from 0 to 11, not -1",
    ),
    "a text": (
        "once upon a time",
        {},
        "prompts must be a list, also for one text: [text]",
    ),
    "one prompt": (
        [3, 4],
        {},
        "prompts must be a list of texts or of lists of ids, Ragged, or a padded tensor (R, T)",
    ),
    "a flat tensor": (torch.ones(3).long(), {}, "padded prompts must be (R, T), not (3,)"),
    "lengths of lists": ([[3]], {"lengths": torch.tensor([1])}, "lengths need prompts that are a padded tensor (R, T)"),
    "an unknown id": ([[3], [4, 12]], {}, "prompts must lie between 0 and 11, but range from 3 to 12"),
    "ids with fractions": (torch.ones(1, 2), {}, "prompts must be int64 or int32, not torch.float32"),
    "an empty prompt": ([[3], []], {}, "prompt 1 is empty"),
    "a prompt longer than the model": (
        [[3], [4] * 11],
        {"max_new_tokens": 1},
        "prompt 1 of 11 tokens and 1 new tokens need 11 positions, but the model has 10; shorten it to 10 tokens or fewer",
    ),
    "more than the model has positions for": (
        [[3] * 6],
        {"max_new_tokens": 6},
        "prompt 0 of 6 tokens and 6 new tokens need 11 positions, but the model has 10; max_new_tokens may be at most 5",
    ),
    "a streamer of two": ([[3], [4]], {"streamer": print}, "a streamer takes one prompt, not 2"),
    "a streamer of beams": (
        [[3]],
        {"streamer": print, "num_beams": 2},
        "a streamer cannot be used with a beam search, whose tokens are known only at its end",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(name: str) -> None:
    prompts, options, message = WRONG[name]
    model = GPT2Model(GPT2Config(eos_token_ids=(), **_MODEL)).eval()
    with pytest.raises(ValueError) as caught:
        generate(model, prompts, **({"max_new_tokens": 2} | options))
    assert str(caught.value) == f"generate: {message}"


def test_the_last_position_is_used() -> None:
    """The last new token is written and not read: it needs no position."""
    model = GPT2Model(GPT2Config(eos_token_ids=(), **_MODEL)).eval()
    assert len(generate(model, [[3] * 6], max_new_tokens=5)[0]) == 5


def test_a_model_in_training_mode_is_refused() -> None:
    with pytest.raises(ValueError) as caught:
        generate(GPT2Model(GPT2Config(**_MODEL)), [[3]])
    assert str(caught.value) == ("generate: the model is in training mode, with dropout; call model.eval() first")


def test_models_that_write_nothing_say_so(make_twins: Callable) -> None:
    without_head = GPT2Model(GPT2Config(tie_word_embeddings=False, has_lm_head=False, **_MODEL)).eval()
    with pytest.raises(ValueError) as caught:
        generate(without_head, [[3]], max_new_tokens=2)
    assert str(caught.value) == "GPT2Model: this model has no head for logits"
    with pytest.raises(ValueError) as caught:
        generate(make_twins("t5 encoder").ours, [[3]])
    assert str(caught.value) == "T5Model: this model has only an encoder, and cannot decode"


def test_logits_that_are_nan_are_refused() -> None:
    model = GPT2Model(GPT2Config(**_MODEL)).eval()
    model.norm.weight.data[0] = torch.nan
    with pytest.raises(ValueError) as caught:
        generate(model, [[3]], max_new_tokens=2)
    assert str(caught.value) == "generate: the model's logits contain NaN"


def test_int32_prompts_are_those_of_int64() -> None:
    model = GPT2Model(GPT2Config(eos_token_ids=(), **_MODEL)).eval()
    packed = Ragged(torch.tensor([3, 4, 5]), torch.tensor([0, 2, 3]))
    expected = generate(model, packed, max_new_tokens=3)
    result = generate(model, packed.with_values(packed.values.int()), max_new_tokens=3)
    assert torch.equal(result.values, expected.values)
