"""Rows of a table: names of every layer, and layouts that come back as they went."""

import pytest
import torch

from uwaga.models.checkpoints import tables
from uwaga.models.checkpoints.tables import AS_IS, TRANSPOSED, Table, WeightMapping, pair


def test_a_row_is_there_once_for_every_layer() -> None:
    expanded = list(WeightMapping("h.{n}.a", "layers.{n}.a", "layers.{n}.b", layout=tables.stacked(2)).expand({"n": 2}))
    assert [(row.theirs, row.ours) for row in expanded] == [
        ("h.0.a", ("layers.0.a", "layers.0.b")),
        ("h.1.a", ("layers.1.a", "layers.1.b")),
    ]


def test_letters_count_apart() -> None:
    table = Table(
        body=(WeightMapping("e.{e}", "e.{e}"), WeightMapping("d.{d}", "d.{d}"), WeightMapping("w", "w")),
        counts={"e": 1, "d": 2},
    )
    assert [row.theirs for row in table.rows()] == ["e.0", "d.0", "d.1", "w"]


def test_a_pair_is_a_weight_and_a_bias() -> None:
    assert [(row.theirs, row.ours) for row in pair("a.b", "c")] == [
        ("a.b.weight", ("c.weight",)),
        ("a.b.bias", ("c.bias",)),
    ]


@pytest.mark.parametrize("is_prefixed", [True, False])
def test_names_of_the_body_are_read_with_a_prefix_and_without(is_prefixed: bool) -> None:
    table = Table(
        body=pair("e.LayerNorm", "norm"),
        heads=(WeightMapping("head.weight", "head"),),
        prefix="bert.",
        is_prefixed=is_prefixed,
        legacy={".LayerNorm.gamma": ".LayerNorm.weight"},
    )
    for name in ("e.LayerNorm.weight", "bert.e.LayerNorm.weight", "e.LayerNorm.gamma", "bert.e.LayerNorm.gamma"):
        assert table.canonical(name) == "e.LayerNorm.weight"
    written = [name for name, _ in table.saved()]
    stem = "bert." if is_prefixed else ""
    assert written == [f"{stem}e.LayerNorm.weight", f"{stem}e.LayerNorm.bias", "head.weight"]


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        (AS_IS, (4, 6)),
        (TRANSPOSED, (4, 6)),
        (tables.stacked(3), (9, 2)),
        (tables.stacked(3), (9,)),
        (tables.stacked_transposed(3), (2, 9)),
    ],
)
def test_a_layout_gives_back_what_it_read(layout: tables.WeightLayout, shape: tuple[int, ...]) -> None:
    stored = torch.randn(shape)
    assert torch.equal(layout.write(layout.read(stored)), stored)


def test_stacked_weights_map_as_the_stack_does() -> None:
    """GPT-2 computes x @ w for q, k and v at once; we compute x @ q.T, x @ k.T, x @ v.T."""
    x, w = torch.randn(5, 2).double(), torch.randn(2, 9).double()
    parts = tables.stacked_transposed(3).read(w)
    assert [tuple(part.shape) for part in parts] == [(3, 2)] * 3
    torch.testing.assert_close(torch.cat([torch.nn.functional.linear(x, part) for part in parts], -1), x @ w)
