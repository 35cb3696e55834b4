"""What models write, token for token as transformers' generate: greedy, by beams, drawn, and where texts end. Greedy texts of every model type
are in test_families.py.

Letters: R rows, V vocabulary, T tokens.
"""

from itertools import product

import pytest
import tiny_families
import torch
from tiny_families import Twins
from tiny_transformer import writer
from torch import Tensor

from uwaga import Ragged
from uwaga.models import Transformer, config, generate
from uwaga.models.generating import GenerationOptions, process_logits

CASES = [
    "gpt2-GPT2LMHeadModel",
    "t5-T5ForConditionalGeneration",
    "t5-1.1",
    "marian-MarianMTModel",
    "marian-two-vocabularies",
]
LENGTHS = (5, 1, 9, 3, 7)
ENDS = {"none": (), "many": (1, 6, 9, 17, 22, 31)}


@pytest.fixture(params=CASES[:2])
def twins(request: pytest.FixtureRequest) -> Twins:
    return tiny_families.twins(request.param)


@pytest.fixture
def prompts() -> list[list[int]]:
    return [tiny_families.ids(length, seed=length).tolist() for length in LENGTHS]


def theirs(twins, prompts: list[list[int]], ends: tuple[int, ...], **options) -> list[list[int]]:
    """What transformers writes after prompts that it pads: on the left, or for an encoder on the right."""
    config, is_pair, longest = twins.peer.config, twins.peer.config.is_encoder_decoder, max(map(len, prompts))
    pad = config.pad_token_id
    fills = [[pad] * (longest - len(ids)) for ids in prompts]
    rows = [ids + fill if is_pair else fill + ids for ids, fill in zip(prompts, fills, strict=True)]
    masks = [
        [1] * len(ids) + [0] * len(fill) if is_pair else [0] * len(fill) + [1] * len(ids)
        for ids, fill in zip(prompts, fills, strict=True)
    ]
    if config.model_type == "marian":
        options["bad_words_ids"] = [[pad]]
    written = twins.peer.generate(
        torch.tensor(rows),
        attention_mask=torch.tensor(masks),
        eos_token_id=list(ends) or None,
        pad_token_id=pad,
        **({"do_sample": False} | options),
    )
    new = written[:, 1:] if is_pair else written[:, longest:]
    return [_until_end(row, ends) for row in new.tolist()]


def _until_end(row: list[int], ends: tuple[int, ...]) -> list[int]:
    places = [place for place, token in enumerate(row) if token in ends]
    return row[: places[0] + 1] if places else row


@pytest.mark.slow
@pytest.mark.gate(only=lambda twins: twins in CASES[:2])
@pytest.mark.parametrize("twins", CASES, indirect=True)
@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS.keys())
def test_the_best_of_several_beams_is_that_of_transformers(
    twins, prompts: list[list[int]], ends: tuple[int, ...]
) -> None:
    options = {"max_new_tokens": 9, "num_beams": 3}
    assert generate(twins.ours, prompts, eos_token_ids=ends, **options) == theirs(twins, prompts, ends, **options)


@pytest.mark.gate(only=lambda twins: twins in CASES[:2])
@pytest.mark.parametrize("twins", CASES, indirect=True)
def test_more_beams_than_words_to_begin_with(twins, prompts: list[list[int]]) -> None:
    options = {"max_new_tokens": 4, "num_beams": 30}
    assert generate(twins.ours, prompts, eos_token_ids=(3,), **options) == theirs(twins, prompts, (3,), **options)


def test_the_ends_of_the_config_are_the_default(twins, prompts: list[list[int]]) -> None:
    ends = twins.ours.config.eos_token_ids
    assert ends
    short = [ids[:4] for ids in prompts]
    assert generate(twins.ours, short) == generate(twins.ours, short, eos_token_ids=ends, max_new_tokens=20)


ALONE = {"greedy": {}, "beams": {"num_beams": 3}, "drawn": {"do_sample": True, "seed": 5}}


@pytest.mark.gate(only=lambda name, way: way == "greedy" or name in CASES[:2])
@pytest.mark.parametrize(
    ("name", "way"),
    list(product([*CASES[:2], "marian-MarianMTModel", "uwaga-gpt3", "uwaga-transformer-slopes"], ALONE)),
)
def test_a_prompt_goes_on_alone_as_among_others(name: str, way: str, prompts: list[list[int]]) -> None:
    model, options = tiny_families.twins(name).ours, ALONE[way]
    together = generate(model, prompts, max_new_tokens=6, **options)
    assert together == [generate(model, [row], max_new_tokens=6, **options)[0] for row in prompts]
    assert not {token for row in together for token in row} & set(model.config.never_generated)


def test_beams_find_the_best_of_all_texts_where_they_are_as_many() -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 5, "d_model": 16, "num_layers": 0, "num_decoder_layers": 2, "num_heads": 2, "d_ff": 32}
    model = Transformer(config("uwaga-transformer", eos_token_ids=(), **sizes)).eval()
    model.embeddings.token_embedding.weight.data.mul_(3)
    texts = torch.cartesian_prod(*[torch.arange(5)] * 3)
    with torch.no_grad():
        prompt = torch.tensor([[2, 4]]).expand(len(texts), 2)
        logits = model(torch.cat((prompt, texts), 1)).logits[:, 1:-1].log_softmax(-1)
    chance = logits.gather(-1, texts[..., None]).sum((1, 2))
    assert generate(model, [[2, 4]], max_new_tokens=3, num_beams=25)[0] == texts[chance.argmax()].tolist()


def test_prompts_come_back_as_what_they_are(twins, prompts: list[list[int]]) -> None:
    assert generate(twins.ours, []) == generate(twins.ours, [], num_beams=2) == []
    options = {"max_new_tokens": 7, "eos_token_ids": ENDS["many"]}
    expected = generate(twins.ours, prompts, **options)
    packed = generate(twins.ours, Ragged.from_list([torch.tensor(ids) for ids in prompts]), **options)
    assert isinstance(packed, Ragged)
    assert [row.tolist() for row in packed.to_list()] == expected


class Listener:
    """What a streamer is told: lists of tokens, and the end."""

    def __init__(self) -> None:
        self.told: list[list] = []

    def put(self, value: Tensor) -> None:
        self.told.append(value.flatten().tolist())

    def end(self) -> None:
        self.told.append([])


def test_a_streamer_hears_what_transformers_tells(twins, prompts: list[list[int]]) -> None:
    ours, peers = Listener(), Listener()
    written = generate(twins.ours, prompts[:1], max_new_tokens=5, eos_token_ids=(), streamer=ours)
    theirs(twins, prompts[:1], (), max_new_tokens=5, streamer=peers)
    assert ours.told == peers.told
    assert ours.told[1:] == [*([token] for token in written[0]), []]


# Drawn.


_NOTHING = dict.fromkeys(("temperature", "top_k", "top_p", "seed"))


def _options(**options) -> GenerationOptions:
    return GenerationOptions(
        **(_NOTHING | {"max_new_tokens": 3, "do_sample": True, "num_beams": 1, "eos_token_ids": ()} | options)
    )


@pytest.fixture
def model() -> Transformer:
    model = writer(max_position_embeddings=20)
    model.embeddings.token_embedding.weight.data.mul_(3)  # some words likelier than others
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


@pytest.mark.parametrize("filters", FILTERS, ids=lambda filters: ",".join(f"{k}={v}" for k, v in filters.items()))
def test_what_may_be_drawn_is_what_transformers_leaves(transformers, filters: dict) -> None:
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
        if name in filters:
            expected_RV = kind(filters[name])(None, expected_RV)
    assert torch.equal(process_logits(logits_RV, _options(**filters)), expected_RV)


def test_a_seed_says_what_is_drawn(model: Transformer) -> None:
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


def test_without_a_seed_pytorchs_generator_says(model: Transformer) -> None:
    """And nothing else takes numbers from it."""

    def drawn() -> list[list[int]]:
        return generate(model, [[3, 4]], max_new_tokens=12, do_sample=True)

    torch.manual_seed(1)
    first, second = drawn(), drawn()
    assert first != second
    torch.manual_seed(1)
    before = torch.get_rng_state()
    generate(model, [[3, 4]], max_new_tokens=3)
    generate(model, [[3, 4]], max_new_tokens=3, do_sample=True, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert [drawn(), drawn()] == [first, second]


def test_the_last_position_is_used() -> None:
    """The last new token is written and not read: it needs no position."""
    assert len(generate(writer(), [[3] * 6], max_new_tokens=5)[0]) == 5
