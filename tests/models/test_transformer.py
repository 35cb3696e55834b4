"""`Transformer`: what its arguments mean, what it and `Config` refuse, and what it has in common with the paper and with PyTorch's."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_transformer import IDS, PACKED, SHORT, bert, eurobert, gpt2, llama, paper, t5, tiny

import uwaga
from uwaga import Ragged
from uwaga.models import Transformer, config, load, save

# What the arguments mean.


@torch.no_grad()
def test_an_empty_row_has_no_states_and_disturbs_nobody() -> None:
    model = bert()
    batch = Ragged(torch.arange(3, 9), torch.tensor([0, 0, 4, 4, 6]))
    rows = model(batch, outputs=()).last_hidden_state.to_list()
    assert [len(row) for row in rows] == [0, 4, 0, 2]
    without = model(Ragged(batch.values, torch.tensor([0, 4, 6])), outputs=()).last_hidden_state
    assert torch.equal(torch.cat(rows), without.values)


@torch.no_grad()
def test_only_the_outputs_that_are_asked_for_are_computed() -> None:
    model = bert(outputs=("pooled", "logits", "tokens"))
    everything = model(IDS)
    assert everything.sequence is None
    assert everything.hidden_states is None
    some = model(IDS, outputs=("tokens",))
    assert some.pooled is None
    assert some.logits is None
    assert torch.equal(some.tokens, everything.tokens)


@pytest.mark.stress
@torch.no_grad()
def test_a_stack_may_be_compiled_by_itself() -> None:
    """A module that torch.compile wraps has a __len__ that raises TypeError, and so no truth value."""
    model = bert(num_layers=1)
    plain = model(IDS, outputs=()).last_hidden_state
    model.encoder = torch.compile(model.encoder, backend="eager")
    torch.testing.assert_close(model(IDS, outputs=()).last_hidden_state, plain)


@torch.no_grad()
def test_one_row_needs_no_batch() -> None:
    model = bert()
    assert torch.equal(model(IDS[0]).last_hidden_state, model(IDS[:1]).last_hidden_state[0])
    is_token = torch.tensor([False, True, True, False, True, False])
    alone, batch = model(IDS[0], attention_mask=is_token), model(IDS[:1], attention_mask=is_token[None])
    assert torch.equal(alone.pooled, batch.pooled[0])
    assert torch.equal(batch.pooled, model.pooler(batch.last_hidden_state[:, 1]))  # the first token that is there


@pytest.mark.parametrize("make", [eurobert, llama])
@torch.no_grad()
def test_tokens_after_key_lengths_are_seen_by_none(make: Callable[..., Transformer]) -> None:
    model, lengths = make(outputs=()), torch.tensor([2, 1])
    masked = model(PACKED, key_lengths=lengths).last_hidden_state
    short = Ragged.from_list([row[:n] for row, n in zip(PACKED.to_list(), lengths.tolist(), strict=True)])
    alone, whole = model(short).last_hidden_state, model(PACKED).last_hidden_state
    for with_hidden, without, n in zip(masked.to_list(), alone.to_list(), lengths.tolist(), strict=True):
        assert torch.equal(with_hidden[:n], without)
    assert not torch.equal(masked.values, whole.values)
    assert torch.equal(model(PACKED, key_lengths=PACKED.lengths).last_hidden_state.values, whole.values)


@torch.no_grad()
def test_logits_of_one_token_alone() -> None:
    for only, at in (("first", 0), ("last", -1)):
        rows = llama()(PACKED).logits.to_list()
        assert torch.equal(llama()(PACKED, only=only).logits.values, torch.stack([row[at] for row in rows]))


@pytest.mark.parametrize(
    "make",
    [lambda: bert(outputs=("pooled", "logits", "sequence", "tokens")), lambda: llama(tie_word_embeddings=False), t5],
)
def test_gradients_reach_every_weight_of_a_ragged_batch(make: Callable[[], Transformer]) -> None:
    model = make()
    output = model(PACKED, *([PACKED] * model.config.has_both))
    total = output.logits.values.square().sum()
    for name in ("tokens", "sequence", "pooled"):
        part = getattr(output, name)
        total = total if part is None else total + (part.values if isinstance(part, Ragged) else part).square().sum()
    total.backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


# Layers: those that share weights, and those that see a band.


def test_layers_of_a_loaded_albert_share_their_parameters(tmp_path: Path) -> None:
    """Training moves one set of weights: a file has no other one."""
    save(tiny("albert", seed=0, **SHORT | {"num_layers": 3, "embedding_size": 4, "pad_token_id": 0}), tmp_path)
    model = load(tmp_path)
    layers = model.encoder.layers
    for name, parameter in layers[0].named_parameters():
        assert layers[1].get_parameter(name) is layers[2].get_parameter(name) is parameter, name


def test_every_second_layer_of_a_gpt3_sees_a_band() -> None:
    model = gpt2(num_layers=4, band=3)
    assert model.config.model_type == "uwaga-gpt3"
    with torch.no_grad(), uwaga.watch(model) as recording:
        model(torch.randint(20, (2, 9)))
    past = torch.ones(9, 9).tril().bool()
    band = past & ~torch.ones(9, 9).tril(-3).bool()
    for (_, n), found in recording.maps.items():
        dense = found.to_dense()
        visible = band if n % 2 else past
        assert (dense[..., visible] > 0).all()
        assert (dense[..., ~visible] == 0).all()


@torch.no_grad()
def test_a_band_as_wide_as_the_text_is_no_band(tmp_path: Path, transformers) -> None:
    banded, dense = gpt2(band=9), gpt2()
    dense.load_state_dict(banded.state_dict())
    ids = torch.randint(20, (2, 9))
    assert torch.equal(banded(ids).logits, dense(ids).logits)
    save(banded, tmp_path)
    assert load(tmp_path).config.windows == (None, 9)
    # transformers would compute something else under the name gpt2.
    with pytest.raises(ValueError, match="uwaga-gpt3"):
        transformers.AutoConfig.from_pretrained(tmp_path)


# The original Transformer.


@pytest.mark.parametrize(
    ("more", "published"),
    [({}, 65e6), ({"d_model": 1024, "num_heads": 16, "d_ff": 4096, "dropout": 0.3}, 213e6)],
    ids=["base", "big"],
)
def test_sizes_are_those_of_the_papers_table_3(more: dict, published: float) -> None:
    """Its vocabulary is said to have "about 37000" words, and its numbers of parameters are rounded."""
    with torch.device("meta"):
        model = Transformer(config("uwaga-transformer", **more))
    m, f, v = model.config.d_model, model.config.d_ff, model.config.vocab_size
    attention, feed_forward, norm = 4 * (m * m + m), 2 * m * f + f + m, 2 * m
    expected = v * m + 6 * (attention + feed_forward + 2 * norm) + 6 * (2 * attention + feed_forward + 3 * norm)
    assert sum(parameter.numel() for parameter in model.parameters()) == expected
    assert expected == pytest.approx(published, rel=0.03)


def test_encoder_decoder_and_head_share_one_embedding() -> None:
    model = paper()
    ids = torch.tensor([[3, 4, 5]])
    model(ids, ids).logits.sum().backward()
    assert model.decoder_embeddings is None
    assert model.lm_head.decoder is None
    words = "embeddings.token_embedding.weight"
    assert [name for name, weight in model.named_parameters() if weight.shape == (30, 16)] == [words]
    hidden = torch.randn(2, 16)  # words are scaled on the way in (section 3.4), and not on the way out
    torch.testing.assert_close(model.logits(hidden), hidden @ model.embeddings.token_embedding.weight.T)


@pytest.mark.parametrize(("kind", "more"), [("encoder", {"num_decoder_layers": 0}), ("decoder", {"num_layers": 0})])
@torch.no_grad()
def test_alibi_lowers_scores_by_the_distance(kind: str, more: dict) -> None:
    """Slopes of four heads are 1/4, 1/16, 1/64 and 1/256 (Press et al. 2022, section 3); here nothing else decides the weights."""
    model = paper(num_heads=4, position_encoding="alibi", **more)
    for layer in getattr(model, kind).layers:
        layer.attention.query.weight.zero_()
        layer.attention.query.bias.zero_()
    with uwaga.watch(model) as recording:
        model(IDS)
    distances = (torch.arange(6)[:, None] - torch.arange(6)).abs()
    scores = -distances * torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256])[:, None, None]
    if kind == "decoder":
        scores = scores.masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf)
    for found in recording.maps.values():
        torch.testing.assert_close(found.to_dense(), scores.softmax(-1).expand(2, 4, 6, 6))
