"""What can be shown, and how it is named."""

import pytest
import torch

import uwaga
from uwaga.models import GPT2Config, GPT2Model
from uwaga.viewer.exhibit import Exhibit


def a_map(*shape: int, **options) -> uwaga.AttentionMap:
    return uwaga.AttentionMap(torch.randn(*shape, 4), torch.randn(*shape, 4), **options)


def test_a_recording_brings_its_tokens() -> None:
    model = GPT2Model(
        GPT2Config(vocab_size=40, d_model=16, num_layers=2, num_heads=4, d_ff=32, max_position_embeddings=64)
    ).eval()
    with uwaga.watch(model, tokens=["a", "Ġb", "c"]) as recording, torch.no_grad():
        model(torch.tensor([[5, 6, 7]]))
    (side,) = Exhibit.of(recording).sides
    assert list(side.maps) == [("decoder", 0), ("decoder", 1)]
    assert side.maps["decoder", 1].shape == (4, 3, 3)
    assert (side.title, side.tokens) == ("a bc", {"decoder": ["a", "Ġb", "c"]})


def test_rows_of_a_batch_and_of_a_ragged_one() -> None:
    ragged = uwaga.Ragged.from_list([torch.randn(n, 2, 4) for n in (3, 5)])
    assert Exhibit.of(uwaga.AttentionMap(ragged, ragged), row=1).sides[0].sizes == {"encoder": 5}
    assert Exhibit.of(a_map(2, 3, 6), row=1).sides[0].maps["encoder", 0].shape == (3, 6, 6)


def test_maps_are_named_by_what_they_are() -> None:
    assert list(Exhibit.of([a_map(2, 6), a_map(2, 6)]).sides[0].maps) == [("encoder", 0), ("encoder", 1)]
    assert list(Exhibit.of(a_map(6, mask=uwaga.Causal())).sides[0].maps) == [("decoder", 0)]
    cross = uwaga.AttentionMap(torch.randn(3, 4), torch.randn(5, 4))
    assert Exhibit.of(cross).sides[0].sizes == {"decoder": 3, "encoder": 5}


WRONG = [
    (lambda: Exhibit.of([]), "view: there are no maps to show"),
    (lambda: Exhibit.of("text"), "view: there is nothing to see in a str: give a recording, or maps"),
    (lambda: Exhibit.of([1]), "view: 0 must be a map of attention, not a int"),
    (
        lambda: Exhibit.of({("middle", 0): a_map(3)}),
        "view: maps are named by layer or by (kind, layer), such as ('encoder', 0), not ('middle', 0)",
    ),
    (lambda: Exhibit.of(a_map(2, 3, 6), row=2), "view: encoder 0 has the shape (2, 3, 6, 6), and no row 2"),
    (
        lambda: Exhibit.of([a_map(3), a_map(4)]),
        "view: the maps are not of one text: encoder 1 has 4 tokens of the encoder, and another map 3",
    ),
    (lambda: Exhibit.of(a_map(3), tokens=["a"]), "view: 1 tokens are named, and the encoder has 3"),
    (
        lambda: Exhibit.of(a_map(3), tokens={"decoder": ["a"]}),
        "view: there are tokens of 'decoder', of which there is no map: encoder",
    ),
]


@pytest.mark.parametrize(("make", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_cannot_be_shown_is_refused(make, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        make()
    assert str(caught.value) == message
