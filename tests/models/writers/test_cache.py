"""Tokens one by one with a cache, against all of them at once. Letters: R rows, N packed tokens."""

from collections.abc import Callable

import pytest
import torch

from uwaga import Ragged


@pytest.fixture(params=["gpt2", "t5 1.1", "marian"])
def model(request: pytest.FixtureRequest, make_twins: Callable):
    return make_twins(request.param).ours.double()


@pytest.fixture(autouse=True)
def _single_again(model):
    yield
    model.float()


@torch.no_grad()
def test_ragged_rows_read_in_pieces_give_what_they_give_at_once(model, draw_ids: Callable) -> None:
    rows = [draw_ids(length, seed=length) for length in (9, 3, 5)]
    cuts = [(0, 4, 7, 8, 9), (0, 1, 1, 2, 3), (0, 2, 2, 4, 5)]
    prompts = Ragged.from_list([draw_ids(length) for length in (4, 2, 7)])
    has_pair = model.config.model_type != "gpt2"
    decode = model.decode if has_pair else lambda ids, _, cache=None: model(ids, cache=cache).last_hidden_state
    memory, cache = model(prompts).memory if has_pair else None, model.new_cache()
    pieces: list[list[torch.Tensor]] = [[], [], []]
    for step in range(4):
        part = Ragged.from_list([row[cut[step] : cut[step + 1]] for row, cut in zip(rows, cuts, strict=True)])
        for kept, piece in zip(pieces, decode(part, memory, cache=cache).to_list(), strict=True):
            kept.append(piece)
    whole = decode(Ragged.from_list(rows), memory).to_list()
    for kept, row in zip(pieces, whole, strict=True):
        torch.testing.assert_close(torch.cat(kept), row, rtol=0, atol=1e-12)


def test_padding_beside_a_cache_is_refused(make_twins: Callable, draw_ids: Callable) -> None:
    model = make_twins("gpt2").ours
    with pytest.raises(ValueError) as caught:
        model(draw_ids(2, 4), lengths=torch.tensor([4, 2]), cache=model.new_cache())
    assert str(caught.value) == (
        "GPT2Model: a cache does not support padding: give Ragged ids instead of lengths or attention_mask"
    )


def test_a_cache_of_another_model_is_refused(make_twins: Callable, draw_ids: Callable) -> None:
    with pytest.raises(ValueError) as caught:
        make_twins("gpt2").ours(draw_ids(2, 4), cache=make_twins("t5").ours.new_cache())
    assert str(caught.value) == "GPT2Model: the cache has 2 layers, the model 3"
