"""The statistics table: equal to `uwaga.inspect.head_table`, and close to it where a long text is sampled."""

import numpy as np
import pytest
import torch
from asking import complete, replies_of

import uwaga
from uwaga.inspect import head_table
from uwaga.viewer.queries.statistics import of_rows
from uwaga.viewer.service import ViewService
from uwaga.viewer.shown import View


def test_the_columns_are_those_of_the_head_table(service: ViewService, maps) -> None:
    names = ["[CLS]", "un", "##seen", "the", "cat", "sat", "on", "the", "mat", ".", "[SEP]"]
    tokens = torch.tensor([sorted(set(names)).index(name) for name in names])
    result = service.answer({"request": "statistics", "side": "0", "kind": "encoder", "layer": 1}).meta
    assert (result["complete"], result["sampled"]) == (1.0, None)
    expected = head_table(maps["encoder", 1].select(0), tokens).columns
    for name, column in result["columns"].items():
        assert column == pytest.approx(expected[name], abs=1e-12), name


def test_a_long_text_is_sampled_and_marked_so(long_map: uwaga.AttentionMap) -> None:
    replies = replies_of(ViewService(View.of(long_map)), request="statistics", side="0", kind="decoder", layer=0)
    assert replies[-1].meta["sampled"] == 256
    whole = head_table(long_map.select()).columns
    for name in ("entropy", "peak", "sink", "previous_token"):
        assert replies[-1].meta["columns"][name][0] == pytest.approx(whole[name][0], rel=0.5), name


def test_statistics_of_sampled_rows_equal_their_definitions() -> None:
    x, tokens = torch.randn(60, 8).double(), torch.randint(0, 12, (60,))
    m = uwaga.AttentionMap(x, x, mask=uwaga.Causal())
    expected = head_table(m, tokens).columns
    for name, values in of_rows(m.to_dense().numpy(), np.arange(60), tokens.numpy()).items():
        assert np.nanmean(values) == pytest.approx(expected[name][0], rel=1e-9), name


def test_cross_attention_has_no_distances() -> None:
    m = uwaga.AttentionMap(torch.randn(2, 7, 8), torch.randn(2, 5, 8))
    result = ViewService(View.of(m)).answer({"request": "statistics", "side": "0", "kind": "cross", "layer": 0}).meta
    assert list(result["columns"]) == [
        "entropy",
        "normalized_entropy",
        "peak",
        "effective_count",
        "sink",
        "learned_sink",
    ]


def test_the_difference_is_that_of_the_statistics(maps, long_map: uwaga.AttentionMap) -> None:
    """Of each text's own, exact or sampled, which takes steps."""
    other = {name: uwaga.AttentionMap(*torch.randn(2, *m.shape[:-1], 8) * 3) for name, m in maps.items()}
    x = torch.randn(1, 9000, 16)
    for service, kind, sampled in (
        (ViewService(View.of(maps, other)), "encoder", None),
        (ViewService(View.of(long_map, uwaga.AttentionMap(x, x, mask=uwaga.Causal()))), "decoder", 256),
    ):
        first, second, result = (
            complete(service, request="statistics", side=side, kind=kind, layer=0).meta
            for side in ("0", "1", "difference")
        )
        assert (result["complete"], result["sampled"]) == (1.0, sampled)
        assert list(result["columns"]) == [name for name in first["columns"] if name in second["columns"]]
        for name, column in result["columns"].items():
            sides = zip(first["columns"][name], second["columns"][name], strict=True)
            assert column == [None if None in pair else pair[0] - pair[1] for pair in sides], name
