"""The original Transformer as the paper has it: its size, its halves alone, its shared embeddings, its two ways to write."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from torch import nn

from uwaga.models import Transformer, TransformerConfig, generate, load, save

_SIZES = {
    "vocab_size": 30,
    "d_model": 16,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 2,
    "d_ff": 32,
    "eos_token_ids": (),
}
KINDS = {
    "both": {},
    "both, pre-norm, a head of its own": {
        "norm": "pre",
        "tie_word_embeddings": False,
        "lm_head_bias": True,
        "pad_token_id": 1,
    },
    "both, two vocabularies": {"decoder_vocab_size": 25, "num_decoder_heads": 4, "decoder_d_ff": 24},
    "encoder alone": {"num_decoder_layers": 0},
    "decoder alone": {"num_layers": 0},
    "decoder alone, pre-norm": {"num_layers": 0, "norm": "pre", "activation": "gelu", "scale_embedding": False},
    "both, distances": {"position_encoding": "alibi", "num_decoder_heads": 4},
    "decoder alone, distances": {"position_encoding": "alibi", "num_layers": 0},
    "decoder alone, slopes": {"position_encoding": "alibi", "num_layers": 0, "alibi_slopes": (2.0, 0.0)},
}


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest) -> Transformer:
    torch.manual_seed(0)
    return Transformer(TransformerConfig(**(_SIZES | KINDS[request.param]))).eval()


@pytest.mark.parametrize(
    ("more", "published"),
    [({}, 65e6), ({"d_model": 1024, "num_heads": 16, "d_ff": 4096, "dropout": 0.3}, 213e6)],
    ids=["base", "big"],
)
def test_sizes_are_those_of_the_papers_table_3(more: dict, published: float) -> None:
    """Its vocabulary is said to have "about 37000" words, and its numbers of parameters are rounded."""
    with torch.device("meta"):
        model = Transformer(TransformerConfig(**more))
    m, f, v = model.config.d_model, model.config.d_ff, model.config.vocab_size
    attention, feed_forward, norm = 4 * (m * m + m), 2 * m * f + f + m, 2 * m
    expected = v * m + 6 * (attention + feed_forward + 2 * norm) + 6 * (2 * attention + feed_forward + 3 * norm)
    assert sum(parameter.numel() for parameter in model.parameters()) == expected
    assert expected == pytest.approx(published, rel=0.03)


def test_encoder_decoder_and_head_share_one_embedding() -> None:
    model = Transformer(TransformerConfig(**_SIZES)).eval()
    ids = torch.tensor([[3, 4, 5]])
    model(ids, ids).logits.sum().backward()
    assert model.decoder_token_embedding is None
    assert model.lm_head is None
    assert [name for name, weight in model.named_parameters() if weight.shape == (30, 16)] == ["token_embedding.weight"]
    seen: list[torch.Tensor] = []
    model.positions.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(ids, ids)
    # Scaled by the root of the width on the way in (section 3.4), and not on the way out.
    assert torch.equal(seen[0], model.token_embedding.weight[ids] * 4)
    assert torch.equal(seen[1], seen[0])
    hidden = torch.randn(2, 16)
    torch.testing.assert_close(model.logits(hidden), hidden @ model.token_embedding.weight.T)


def test_torchs_transformer_computes_the_same() -> None:
    """With the same weights, between embedding and logits."""
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(**_SIZES)).eval().double()
    peer = nn.Transformer(16, 2, 2, 2, 32, batch_first=True, dtype=torch.float64).eval()
    peer.encoder.norm = peer.decoder.norm = None  # torch adds one that the paper has not
    _copy_to_torch(model, peer)
    ids, decoder_ids = torch.randint(30, (2, 7)), torch.randint(30, (2, 5))
    x, y = (model.positions(model.token_embedding(each) * 4) for each in (ids, decoder_ids))
    causal = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(model(ids, decoder_ids).last_hidden_state, peer(x, y, tgt_mask=causal))


def test_torchs_transformer_computes_the_same_over_alibi() -> None:
    """Slopes of four heads: 1/4, 1/16, 1/64 and 1/256 (Press et al. 2022, section 3); none in cross-attention."""
    torch.manual_seed(0)
    sizes = _SIZES | {"num_heads": 4, "position_encoding": "alibi"}
    model = Transformer(TransformerConfig(**sizes)).eval().double()
    peer = nn.Transformer(16, 4, 2, 2, 32, batch_first=True, dtype=torch.float64).eval()
    peer.encoder.norm = peer.decoder.norm = None
    _copy_to_torch(model, peer)
    ids, decoder_ids = torch.randint(30, (1, 7)), torch.randint(30, (1, 5))
    x, y = (model.token_embedding(each) * 4 for each in (ids, decoder_ids))
    causal = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    # With gradients: torch's fast path, which it takes without them, gives something else for a mask of every head.
    expected = peer(x, y, src_mask=_alibi(7), tgt_mask=_alibi(5) + causal)
    torch.testing.assert_close(model(ids, decoder_ids).last_hidden_state, expected)


def _alibi(tokens: int) -> torch.Tensor:
    distances = (torch.arange(tokens)[:, None] - torch.arange(tokens)).abs()
    return -distances * torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256], dtype=torch.float64)[:, None, None]


def test_text_behind_another_is_far_away_for_alibi() -> None:
    """Where one stands does not matter, only how far apart: what is read is the same anywhere."""
    torch.manual_seed(0)
    model = Transformer(
        TransformerConfig(**_SIZES | {"position_encoding": "alibi", "num_layers": 0, "num_decoder_layers": 1})
    ).eval()
    words = torch.randint(30, (1, 6)).repeat(1, 700)
    with torch.no_grad():
        logits = model(words).logits
    torch.testing.assert_close(logits[:, -6:], logits[:, -606:-600], atol=1e-5, rtol=1e-5)


def test_a_head_of_slope_0_has_no_positions() -> None:
    """Without a mask its output is the same for tokens in any order; that of a head with a slope is not."""
    torch.manual_seed(0)
    layers = {"num_layers": 1, "num_decoder_layers": 0, "position_encoding": "alibi"}
    words = torch.randint(30, (1, 9))
    for slopes, is_same in (((0.0, 0.0), True), ((0.0, 0.5), False)):
        model = Transformer(TransformerConfig(**_SIZES | layers, alibi_slopes=slopes)).eval().double()
        with torch.no_grad():
            as_is, rolled = model(words).memory, model(words.roll(4, 1)).memory.roll(-4, 1)
        assert torch.allclose(as_is, rolled, rtol=0, atol=1e-12) == is_same


def _copy_to_torch(model: Transformer, peer: nn.Transformer) -> None:
    for ours, theirs in ((model.encoder, peer.encoder), (model.decoder, peer.decoder)):
        for mine, torchs in zip(ours.layers, theirs.layers, strict=True):
            pairs = [(mine.attention, torchs.self_attn)]
            norms = [mine.attention_norm, mine.feed_forward_norm]
            if hasattr(mine, "cross_attention"):
                pairs.append((mine.cross_attention, torchs.multihead_attn))
                norms.insert(1, mine.cross_attention_norm)
            for attention, other in pairs:
                parts = (attention.query, attention.key, attention.value)
                other.in_proj_weight.data = torch.cat([part.weight for part in parts])
                other.in_proj_bias.data = torch.cat([part.bias for part in parts])
                other.out_proj.load_state_dict(attention.output.state_dict())
            torchs.linear1.load_state_dict(mine.feed_forward.up.state_dict())
            torchs.linear2.load_state_dict(mine.feed_forward.down.state_dict())
            for number, norm in enumerate(norms, start=1):
                getattr(torchs, f"norm{number}").load_state_dict(norm.state_dict())


def test_every_kind_is_saved_and_loaded(model: Transformer, tmp_path: Path) -> None:
    save(model, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "uwaga-transformer"
    again = load(tmp_path)
    assert dataclasses.replace(again.config, kept={}) == model.config
    state = again.state_dict()
    assert state.keys() == model.state_dict().keys()
    for name, weight in model.state_dict().items():
        assert torch.equal(state[name], weight), name


@pytest.mark.parametrize("model", [kind for kind in KINDS if kind != "encoder alone"], indirect=True)
def test_a_decoder_sees_only_the_past(model: Transformer) -> None:
    ids = torch.tensor([[3, 4, 5, 6]])
    given = [ids] if model.encoder is None else [torch.tensor([[7, 8]]), ids]
    changed = [*given[:-1], torch.tensor([[3, 4, 9, 6]])]
    with torch.no_grad():
        a, b = model(*given).logits, model(*changed).logits
    assert torch.equal(a[:, :2], b[:, :2])
    assert not torch.equal(a[:, 2:], b[:, 2:])


@pytest.mark.parametrize(
    "options", [{"num_beams": 4}, {"do_sample": True, "seed": 3, "top_p": 0.9}], ids=["beams", "drawn"]
)
def test_it_writes_by_beams_and_by_drawing(model: Transformer, options: dict) -> None:
    prompts = [[3, 4, 5], [6], [7, 8, 9, 10]]
    if model.decoder is None:
        with pytest.raises(ValueError) as caught:
            generate(model, prompts, **options)
        assert str(caught.value) == "Transformer: this model has only an encoder, and cannot decode"
        return
    written = generate(model, prompts, max_new_tokens=6, **options)
    assert [len(ids) for ids in written] == [6, 6, 6]
    assert written == [generate(model, [ids], max_new_tokens=6, **options)[0] for ids in prompts]
    assert model.config.pad_token_id not in {token for ids in written for token in ids}


@pytest.mark.parametrize("seed", range(3))
def test_beams_find_the_best_of_all_texts_where_they_are_as_many(seed: int) -> None:
    torch.manual_seed(seed)
    sizes = _SIZES | {"vocab_size": 5, "num_layers": 0}
    model = Transformer(TransformerConfig(**sizes)).eval()
    model.token_embedding.weight.data.mul_(3)
    texts = torch.cartesian_prod(*[torch.arange(5)] * 3)
    with torch.no_grad():
        prompt = torch.tensor([[2, 4]]).expand(len(texts), 2)
        logits = model(torch.cat((prompt, texts), 1)).logits[:, 1:-1].log_softmax(-1)
    chance = logits.gather(-1, texts[..., None]).sum((1, 2))
    assert generate(model, [[2, 4]], max_new_tokens=3, num_beams=25)[0] == texts[chance.argmax()].tolist()


def test_the_padding_token_is_in_the_vocabulary() -> None:
    with pytest.raises(ValueError) as caught:
        TransformerConfig(**_SIZES, pad_token_id=30)
    assert str(caught.value) == "TransformerConfig: pad_token_id 30 is not in the vocabulary of 30"
