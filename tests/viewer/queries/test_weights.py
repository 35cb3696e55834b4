"""Rows, columns, entries and sums over spans, compared with the map."""

import numpy as np
import pytest
from asking import replies_of

import uwaga
from uwaga.viewer.service import ViewService
from uwaga.viewer.shown import Maps, View


def test_entries_rows_and_columns_are_bit_identical_to_the_map(service: ViewService, maps, where) -> None:
    m = maps["encoder", 0]
    assert np.array_equal(service.answer({"request": "row", **where, "query": 4}).arrays[0], m[0, 1, 4, :])
    assert np.array_equal(service.answer({"request": "column", **where, "key": 2}).arrays[0], m[0, 1, :, 2])
    result = service.answer({"request": "entry", **where, "query": 4, "key": 2}).meta
    assert result["weight"] == float(m[0, 1, 4, 2])
    assert result["score"] == float(m.scores[0, 1, 4, 2])
    assert result["rank"] == int((m[0, 1, 4, :] > m[0, 1, 4, 2]).sum()) + 1


def test_a_hidden_key_has_no_score(service: ViewService, where) -> None:
    result = service.answer({"request": "entry", **where, "layer": 1, "query": 9, "key": 0}).meta
    assert (result["weight"], result["score"], result["visible"], result["rank"]) == (0.0, None, False, None)


@pytest.mark.usefixtures("one_step")
def test_long_columns_are_computed_in_steps(long_map: uwaga.AttentionMap, where) -> None:
    service = ViewService(View.of(long_map))
    where = where | {"kind": "decoder", "head": 0}
    column = replies_of(service, request="column", **where, key=3)
    assert len(column) > 5
    assert np.isnan(column[0].arrays[0]).any()
    assert np.array_equal(column[-1].arrays[0], long_map[0, :, 3])
    of_heads = replies_of(service, request="heads", side="0", kind="decoder", layer=0, axis="column", item=3)
    fractions = [reply.meta["complete"] for reply in of_heads]
    assert fractions == sorted(fractions)
    assert len(fractions) > 5
    assert np.array_equal(of_heads[-1].arrays[0], column[-1].arrays[0][None])


def test_items_of_a_difference_are_named_by_both_texts(maps) -> None:
    first = ["[CLS]", "un", "##seen", "the", "cat", "sat", "on", "the", "mat", ".", "[SEP]"]
    second = ["[CLS]", "un", "##known", "the", "cat", "lay", "on", "a", "mat", ".", "[SEP]"]
    model = View.of(Maps(maps, tokens=first), Maps(maps, tokens=second))
    asked = {"request": "items", "stack": "encoder", "specials": "show", "first": 0, "count": 20}
    result = ViewService(model).answer({**asked, "side": "difference", "merge": "tokens"}).meta
    assert ", ".join(result["labels"]) == "[CLS], un, seen | known, the, cat, sat | lay, on, the | a, mat, ., [SEP]"
    assert result["no_space_before"][2] == 0
    words = ViewService(model).answer({**asked, "side": "difference", "merge": "words"}).meta
    assert words["labels"][1] == "unseen | unknown"
    assert ViewService(model).answer({**asked, "side": "1", "merge": "tokens"}).meta["labels"][5] == "lay"
    longer = View.of(Maps(maps, tokens=first), Maps(maps, tokens=["a", *second[1:2], "##x", *second[3:]]))
    assert (
        ViewService(longer).answer({**asked, "side": "difference", "merge": "tokens"}).meta["labels"][0] == "[CLS] | a"
    )
