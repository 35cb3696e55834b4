"""Which scores are split, and from which recordings: known circuits, the strongest scores, generations, files, errors."""

import math

import numpy as np
import pytest
import torch
import transformers
from largest import Largest
from test_score_attribution import IDS, alibi
from tiny_models import DECODERS, PAIRS, make
from tiny_transformer import drawn, made, ragged, tiny
from torch import nn

import uwaga
from uwaga._base.errors import CheckpointError
from uwaga.inspect import Part, ScoreAttribution, score_attribution
from uwaga.models import generate

V, TEXT = 8, 20


def induction_model() -> nn.Module:
    """Two layers of attention alone, by hand: head 0.0 copies each token's predecessor into a space of its own, and head 1.1 looks, from
    a token, for the place that followed the same token (Elhage et al. 2021, "induction heads")."""
    width = 2 * V + TEXT
    model = tiny("gpt2", vocab_size=V, d_model=width, num_heads=2, d_ff=4, max_position_embeddings=TEXT, outputs=())
    token, position, before = slice(0, V), slice(V, V + TEXT), slice(V + TEXT, width)
    with torch.no_grad():
        for x in model.parameters():
            x.zero_()
        for norm in model.modules():
            if isinstance(norm, nn.LayerNorm):
                norm.weight.fill_(1.0)
        model.embeddings.token_embedding.weight[:, token] = torch.eye(V)
        model.embeddings.positions.weight[:, position] = torch.eye(TEXT)
        first, second = (layer.attention for layer in model.decoder.layers)
        half = width // 2  # head 1 of each layer has the rows after these
        first.query.weight[: TEXT - 1, position] = 30 * torch.eye(TEXT)[1:]
        first.key.weight[: TEXT - 1, position] = torch.eye(TEXT)[:-1]
        first.value.weight[:V, token] = torch.eye(V)
        first.output.weight[before, :V] = torch.eye(V)
        second.query.weight[half : half + V, token] = 30 * torch.eye(V)
        second.key.weight[half : half + V, before] = torch.eye(V)
        second.value.weight[half : half + V, token] = torch.eye(V)
    return model


def split(model: nn.Module, ids: object, *where: object, **options: object) -> ScoreAttribution:
    with torch.no_grad(), uwaga.watch(model, values=True) as recording:
        model(ids)
    return score_attribution(model, recording, *where, **options)


@torch.no_grad()
def test_the_circuit_of_a_constructed_induction_head_is_found() -> None:
    ids = torch.tensor([[0, 3, 1, 4, 2, 7, 5, 6, 3, 1, 4, 2, 7]])
    one = split(induction_model(), ids, 1, 1, i=9, most=1)
    assert one.cells == ((9, 3),)  # token 1 looks for what followed token 1
    strongest = one.top(1)[0]
    assert strongest.query == Part("token")
    assert strongest.key == Part("head", "decoder", 0, 0)
    (source,) = one.back(strongest.key, "key", strongest.query, top=1, parts=1)
    assert source.token == 2
    assert source.weight > 0.99
    assert source.parts[0][0] == Part("token")
    assert source.share > 0.9 * strongest.share
    whole = split(induction_model(), ids, 1, 1, list(range(8, 13)), list(range(2, 7)))
    assert [pair[:2] for pair in whole.top(1)] == [(Part("token"), Part("head", "decoder", 0, 0))]


@torch.no_grad()
def test_the_circuit_of_the_trained_model_copyist_is_found() -> None:
    """Heads 1.2 and 1.3 look at the place after the same tokens, rather than at another place, by what head 0.1 wrote at both: at the
    query the token itself and those before it, at the key those before it."""
    model = uwaga.models.load("copyist")
    words = torch.randperm(900, generator=torch.Generator().manual_seed(3))[:40] + 60
    ids = torch.cat((words, words))[None]
    queries = list(range(48, 74))
    keys = [i - 39 for i in queries]
    with uwaga.watch(model, values=True) as recording:
        model(ids)
    wrote = Part("head", "decoder", 0, 1)
    for head in (2, 3):
        rather = score_attribution(model, recording, 1, head, queries, keys, than=[j + 5 for j in keys])
        assert float(rather.weights.mean()) > 0.5
        assert rather.top(1)[0][:2] == (wrote, wrote)
        assert float(rather.scores.mean()) > 9
        plain = score_attribution(model, recording, 1, head, queries, keys)
        for side, nearest in (("query", 0), ("key", 1)):
            by_distance = torch.zeros(6, dtype=torch.float64)
            for one in plain:
                at = one.cells[0][side == "key"]
                by_distance += one.sources(wrote, side, wrote)[at - 5 : at + 1].flip(0)
                assert one.back(wrote, side, wrote, top=1)[0].parts[0][0] == Part("token")
            assert int(by_distance.argmax()) == nearest
            assert (by_distance[nearest:-1] > by_distance[nearest + 1 :]).all()


@pytest.mark.parametrize("most", [1, 200, 10_000])  # with 200, some queries have more than eight of the strongest
@torch.no_grad()
def test_the_strongest_of_a_head_a_row_and_a_column_are_those_of_the_dense_map(most: int) -> None:
    model = made("gpt2")
    ids = torch.randint(4, 20, (2, 30), generator=torch.Generator().manual_seed(0))
    with uwaga.watch(model, values=True) as recording:
        model(ids)
    dense = recording.maps["decoder", 2].to_dense()[1, 1]

    def right(cells: list[tuple[int, int]]) -> list[tuple[int, int]]:
        order = sorted(cells, key=lambda cell: (-float(dense[cell]), *cell))
        return [cell for cell in order if dense[cell] > 0][:most]

    every = [(i, j) for i in range(30) for j in range(30)]
    found = score_attribution(model, recording, 2, 1, row=1, most=most)
    assert list(found.cells) == right(every)
    assert torch.equal(found.weights, torch.stack([dense[cell] for cell in found.cells]))
    assert list(score_attribution(model, recording, 2, 1, i=20, row=1, most=most).cells) == right(
        [(20, j) for j in range(30)]
    )
    assert list(score_attribution(model, recording, 2, 1, j=9, row=-1, most=most).cells) == right(
        [(i, 9) for i in range(30)]
    )


@torch.no_grad()
def test_a_generation_and_ragged_and_padded_texts_are_read_as_alone() -> None:
    model = made("gpt2").double()
    texts = [[4, 5, 6, 7, 8], [9, 10, 11, 12, 13, 14, 15]]
    alone = split(model, torch.tensor([texts[1]]), 2, 0, [6, 5], [2, 3])
    padded = torch.tensor([[*texts[0], 0, 0], texts[1]])
    packed = split(model, ragged(texts), 2, 0, [6, 5], [2, 3], row=1)
    with uwaga.watch(model, values=True) as recording:
        model(padded, lengths=torch.tensor([5, 7]))
    of_padded = score_attribution(model, recording, 2, 0, [6, 5], [2, 3], row=1)
    with uwaga.watch(model, values=True) as recording:
        written = generate(model, [[9, 10, 11, 12]], max_new_tokens=4)[0]
    of_generation = score_attribution(model, recording, 2, 0, [6, 5], [2, 3])
    again = split(model, torch.tensor([[9, 10, 11, 12, *written]]), 2, 0, [6, 5], [2, 3])
    for one, other in ((packed, alone), (of_padded, alone), (of_generation, again)):
        torch.testing.assert_close(one.shares(), other.shares(), rtol=1e-9, atol=1e-12)
    typed = torch.tensor([[0, 0, 1, 1, 1, 0, 1], [1] * 7])
    bert = made("bert").double()
    with uwaga.watch(bert, values=True) as recording:
        bert(IDS, token_types=typed)
    of_types = score_attribution(bert, recording, 1, 0, 4, 3, row=1, token_types=typed)
    assert of_types.query_parts[1] == Part("type")
    torch.testing.assert_close(of_types.total(), of_types.scores, rtol=1e-9, atol=1e-12)


@torch.no_grad()
def test_positions_are_numbers_of_numpy_and_pytorch_too() -> None:
    model = made("gpt2")
    expected = split(model, IDS, 2, 1, [5, 4], [3, 2], than=[1, 0], row=1)
    several, than = (np.array([5, 4]), torch.tensor([3, -5])), np.array([1, 0])
    found = split(model, IDS, np.int64(2), torch.tensor(1), *several, than=than, row=np.int64(1), most=3)
    assert found.cells == ((5, 3), (4, 2))
    assert torch.equal(found[np.int64(1)].shares(), expected[1].shares())
    assert found.top(torch.tensor(2)) == expected.top(2)


@torch.no_grad()
def test_results_are_shown_in_short_and_one_is_taken_of_several() -> None:
    found = split(made("gpt2"), IDS, 1, 0, most=5)
    assert len(found) == 5
    assert repr(found).startswith("ScoreAttribution(decoder 1.0; 6 x 6 parts of 5 scores at (0, 0), ")
    one = found[-1]
    assert isinstance(one, ScoreAttribution)
    assert one.cells == found.cells[-1:]
    assert torch.equal(one.shares(), list(found)[4].shares())
    head = next(part for part in one.key_parts if part.name == "head")
    (source,) = one.back(head, "key", top=1, parts=2)
    assert [part.name in ("token", "position", "bias") for part, _ in source.parts] == [True] * 2
    assert (one.total() - one.scores).abs() <= one.bound()
    by_distance = split(alibi(), IDS, 0, 0, 6, 0)
    assert any(share.query == Part("distance") for share in by_distance.top(99))
    assert math.isclose(sum(share.share for share in by_distance.top(99)), float(by_distance.total()), rel_tol=1e-6)


@torch.no_grad()
def test_the_strongest_scores_of_a_head_need_no_matrix_of_all_pairs() -> None:
    tokens = 8192
    model = drawn(tiny("gpt2", max_position_embeddings=tokens, vocab_size=20, d_model=8, num_heads=2, d_ff=16))
    with uwaga.watch(model, values=True) as recording:
        model(torch.randint(20, (1, tokens), generator=torch.Generator().manual_seed(0)), outputs=())
    with Largest() as largest:
        assert len(score_attribution(model, recording, 1, 1, most=100)) == 100
    assert largest.bytes <= 2 * 2**26 < tokens**2 * 4  # of weights, and of their double


def test_transformers_that_cannot_be_read_say_so() -> None:
    message = r"^score_attribution: BartModel is of an unknown family; supported are uwaga\.models\.Transformer, "
    with pytest.raises(ValueError, match=message):
        split(make("bart", PAIRS["bart"], transformers.AutoModel), IDS, 0, 0)
    unsupported = make("gpt2", DECODERS["gpt2"] | {"add_cross_attention": True}, transformers.AutoModel)
    with pytest.raises(CheckpointError, match="add_cross_attention is True"):
        split(unsupported, IDS, 0, 0)


@torch.no_grad()
def test_a_text_without_a_batch_is_read_as_one_row() -> None:
    model = made("gpt2")
    right = split(model, IDS[:1], 2, 1, [5, 4], [3, 2])
    with uwaga.watch(model, values=True) as recording:
        model(IDS[0])
    assert len(recording.maps["decoder", 2].shape) == 3
    head = Part("head", "decoder", 1, 0)
    found = score_attribution(model, recording, 2, 1, [5, 4], [3, 2], row=-1)
    torch.testing.assert_close(found.shares(), right.shares())
    torch.testing.assert_close(found[0].sources(head, "key"), right[0].sources(head, "key"))
    assert found[0].back(head, "key", top=1)[0].token == right[0].back(head, "key", top=1)[0].token


@pytest.mark.parametrize(
    ("name", "dtype"), [("copyist", torch.float32), ("copyist", torch.float16), ("minilm", torch.bfloat16)]
)
@torch.no_grad()
def test_another_model_is_found_out_in_half_precision_too(name: str, dtype: torch.dtype) -> None:
    model = uwaga.models.load(name, dtype=dtype)
    ids = torch.randint(300, 800, (1, 30), generator=torch.Generator().manual_seed(3))
    with uwaga.watch(model, values=True) as recording:
        model(ids)
    layer = max(layer for _, layer in recording.maps)
    of_head = [score_attribution(model, recording, layer, head) for head in range(4)]
    for found in of_head:
        assert ((found.total() - found.scores).abs() <= found.bound()).all()
        # A fiftieth of the largest score in float32, and less than that score in half precision.
        assert found.bound().mean() < found.scores.abs().amax() * (0.02 if dtype == torch.float32 else 1)
    model.get_submodule("encoder.layers" if name == "minilm" else "decoder.layers")[0].attention.output.weight.neg_()
    with pytest.raises(ValueError, match="the recording is of another model, text"):
        score_attribution(model, recording, layer, 0)


@torch.no_grad()
def test_positions_and_rotary_scaling_that_are_not_supported_are_named() -> None:
    padded = make("gpt2", DECODERS["gpt2"], transformers.AutoModel)
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    options = DECODERS["llama"] | {"max_position_embeddings": 4, "rope_parameters": dynamic}
    scaled = make("llama", options, transformers.AutoModel)
    message = r"positions that are not 0, 1, .* or rotary scaling that changes with the length"
    for model, named in ((padded, {"position_ids": torch.tensor([[0, 0, 0, 1, 2, 3, 4]] * 2)}), (scaled, {})):
        with uwaga.watch(model, values=True) as recording:
            model(IDS, **named)
        with pytest.raises(ValueError, match=message):
            score_attribution(model, recording, 1, 0, 6, 4)
