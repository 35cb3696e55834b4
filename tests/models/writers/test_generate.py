"""What models write, token for token as transformers' generate: greedy, by beams, and where texts end.

Letters: R rows, T tokens.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from uwaga import Ragged
from uwaga.models import GPT2Config, GPT2Model, Transformer, TransformerConfig, generate

CASES = ["gpt2", "t5", "t5 1.1", "marian", "marian of two vocabularies"]
LENGTHS = (5, 1, 9, 3, 7)
ENDS = {"none": (), "many": (1, 6, 9, 17, 22, 31)}
BEAMS = {
    "plain": {},
    "short": {"length_penalty": 0.0},
    "shorter": {"length_penalty": -0.5},
    "long": {"length_penalty": 2.0},
    "early": {"early_stopping": True},
    "never": {"early_stopping": "never", "length_penalty": 0.7},
}


@pytest.fixture(params=CASES, ids=lambda name: name.replace(" ", "-"))
def twins(request: pytest.FixtureRequest, make_twins: Callable):
    return make_twins(request.param)


@pytest.fixture
def prompts(draw_ids: Callable) -> list[list[int]]:
    return [draw_ids(length, seed=length).tolist() for length in LENGTHS]


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


def test_greedy_texts_are_those_of_transformers(twins, prompts: list[list[int]]) -> None:
    free = generate(twins.ours, prompts, max_new_tokens=12, eos_token_ids=())
    assert free == theirs(twins, prompts, (), max_new_tokens=12)
    assert {len(row) for row in free} == {12}
    # Rows end at different steps where what ends one of them late is not written by the others.
    for ends in [(row[place],) for row, place in zip(free, (0, 2, 4, 7, 11), strict=True)] + [ENDS["many"]]:
        result = generate(twins.ours, prompts, max_new_tokens=12, eos_token_ids=ends)
        assert result == [_until_end(row, ends) for row in free]
        assert result == theirs(twins, prompts, ends, max_new_tokens=12)


@pytest.mark.slow
@pytest.mark.parametrize("options", BEAMS.values(), ids=BEAMS.keys())
@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS.keys())
def test_the_best_of_several_beams_is_that_of_transformers(
    twins, prompts: list[list[int]], ends: tuple[int, ...], options: dict
) -> None:
    options = options | {"max_new_tokens": 9, "num_beams": 3}
    assert generate(twins.ours, prompts, eos_token_ids=ends, **options) == theirs(twins, prompts, ends, **options)


def test_more_beams_than_words_to_begin_with(twins, prompts: list[list[int]]) -> None:
    options = {"max_new_tokens": 4, "num_beams": 30}
    assert generate(twins.ours, prompts, eos_token_ids=(3,), **options) == theirs(twins, prompts, (3,), **options)


def test_the_ends_of_the_config_are_the_default(twins, prompts: list[list[int]]) -> None:
    ends = twins.ours.config.eos_token_ids
    assert ends
    short = [ids[:4] for ids in prompts]
    assert generate(twins.ours, short) == generate(twins.ours, short, eos_token_ids=ends, max_new_tokens=20)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"do_sample": True, "seed": 5}], ids=lambda x: "-".join(x))
def test_a_prompt_goes_on_alone_as_among_others(twins, prompts: list[list[int]], options: dict) -> None:
    together = generate(twins.ours, prompts, max_new_tokens=6, **options)
    assert together == [generate(twins.ours, [ids], max_new_tokens=6, **options)[0] for ids in prompts]


def test_prompts_come_back_as_what_they_are(twins, prompts: list[list[int]]) -> None:
    expected = generate(twins.ours, prompts, max_new_tokens=7, eos_token_ids=ENDS["many"])
    packed = generate(
        twins.ours,
        Ragged.from_list([torch.tensor(ids) for ids in prompts]),
        max_new_tokens=7,
        eos_token_ids=ENDS["many"],
    )
    assert isinstance(packed, Ragged)
    assert [row.tolist() for row in packed.to_list()] == expected
    longest = max(map(len, prompts))
    padded = torch.tensor([ids + [4] * (longest - len(ids)) for ids in prompts])
    lengths = torch.tensor([len(ids) for ids in prompts])
    rows = generate(twins.ours, padded, lengths=lengths, max_new_tokens=7, eos_token_ids=ENDS["many"], pad_token_id=2)
    assert isinstance(rows, Tensor)
    assert rows.tolist() == [row + [2] * (max(map(len, expected)) - len(row)) for row in expected]
    filled = generate(twins.ours, padded, lengths=lengths, max_new_tokens=7, eos_token_ids=ENDS["many"])
    assert set(filled[rows != filled].tolist()) <= {twins.ours.config.pad_token_id}


class Listener:
    """What a streamer is told."""

    def __init__(self) -> None:
        self.told: list[list[int]] = []
        self.ends = 0

    def put(self, value: Tensor) -> None:
        assert not self.ends
        self.told.append(value.tolist())

    def end(self) -> None:
        self.ends += 1


@pytest.mark.parametrize("options", [{}, {"do_sample": True, "seed": 1}], ids=["greedy", "drawn"])
def test_a_streamer_hears_what_transformers_tells(twins, prompts: list[list[int]], options: dict) -> None:
    ours = Listener()
    written = generate(twins.ours, prompts[:1], max_new_tokens=5, eos_token_ids=(), streamer=ours, **options)
    assert ours.ends == 1
    assert [token for told in ours.told[1:] for token in told] == written[0]
    if not options:
        peers = Listener()
        theirs(twins, prompts[:1], (), max_new_tokens=5, streamer=peers)
        assert ours.told == [row[0] if isinstance(row[0], list) else row for row in peers.told]


def test_no_prompts_give_no_texts(twins) -> None:
    assert generate(twins.ours, []) == []
    assert generate(twins.ours, [], num_beams=2) == []


def test_bands_generate_what_reading_everything_again_gives(draw_ids: Callable) -> None:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=40,
        d_model=24,
        num_layers=4,
        num_heads=4,
        d_ff=40,
        max_position_embeddings=30,
        band=3,
        eos_token_ids=(),
    )
    _check_by_reading_again(GPT2Model(config).eval(), draw_ids, lambda model, rows: model(rows).logits)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("is_tied", [True, False])
def test_a_decoder_alone_generates_what_reading_everything_again_gives(
    draw_ids: Callable, norm: str, is_tied: bool
) -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "d_model": 24, "num_decoder_layers": 2, "num_heads": 4, "d_ff": 40}
    model = Transformer(
        TransformerConfig(num_layers=0, norm=norm, tie_word_embeddings=is_tied, eos_token_ids=(), **sizes)
    ).eval()
    _check_by_reading_again(model, draw_ids, lambda model, rows: model(rows).logits)


def _check_by_reading_again(model, draw_ids: Callable, logits: Callable) -> None:
    rows = [draw_ids(length, seed=length) for length in (4, 1, 7)]
    written = generate(model, [row.tolist() for row in rows], max_new_tokens=8)
    with torch.no_grad():
        for _ in range(8):
            last = [x[-1].argmax() for x in logits(model, Ragged.from_list(rows)).to_list()]
            rows = [torch.cat((row, token[None])) for row, token in zip(rows, last, strict=True)]
    assert written == [row[-8:].tolist() for row in rows]
