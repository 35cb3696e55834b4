"""View models: accepted maps and tokens, kinds of maps, and errors."""

import torch
from tiny_transformer import tiny

import uwaga
from uwaga.viewer.shown import Maps, View


def a_map(*shape: int, **options) -> uwaga.AttentionMap:
    return uwaga.AttentionMap(torch.randn(*shape, 4), torch.randn(*shape, 4), **options)


def test_the_tokens_of_a_recording_are_used() -> None:
    with uwaga.watch(model := tiny("gpt2"), tokens=["a", "Ġb", "c"]) as recording, torch.no_grad():
        model(torch.tensor([[5, 6, 7]]))
    (side,) = View.of(recording).sides
    assert list(side.maps) == [("decoder", 0), ("decoder", 1)]
    assert side.maps["decoder", 1].shape == (4, 3, 3)
    assert (side.title, side.tokens) == ("a bc", {"decoder": ["a", "Ġb", "c"]})


def test_one_row_of_a_padded_or_ragged_batch() -> None:
    ragged = uwaga.Ragged.from_list([torch.randn(n, 2, 4) for n in (3, 5)])
    assert View.of(Maps(uwaga.AttentionMap(ragged, ragged), row=1)).sides[0].sizes == {"encoder": 5}
    assert View.of(Maps(a_map(2, 3, 6), row=1)).sides[0].maps["encoder", 0].shape == (3, 6, 6)


def test_kinds_of_maps_are_inferred_from_shape_and_mask() -> None:
    assert list(View.of([a_map(2, 6), a_map(2, 6)]).sides[0].maps) == [("encoder", 0), ("encoder", 1)]
    assert list(View.of(a_map(6, mask=uwaga.Causal())).sides[0].maps) == [("decoder", 0)]
    cross = uwaga.AttentionMap(torch.randn(3, 4), torch.randn(5, 4))
    assert View.of(cross).sides[0].sizes == {"decoder": 3, "encoder": 5}
