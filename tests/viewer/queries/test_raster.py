"""Progressive rasters: sampled first, equal to the map's pooled cells when complete."""

import numpy as np
import pytest
from asking import complete, replies_of

import uwaga
from uwaga.viewer.service import ViewService
from uwaga.viewer.shown import View

pytestmark = pytest.mark.usefixtures("one_step")


@pytest.mark.parametrize("pooling", ["sum", "max"])
def test_a_tile_is_sampled_first_and_exact_when_complete(long_map: uwaga.AttentionMap, where, pooling: str) -> None:
    service = ViewService(View.of(long_map))
    asked = where | {"kind": "decoder", "head": 0, "pooling": pooling, "level": 6, "row": 0, "column": 0}
    replies = replies_of(service, request="tile", **asked)
    edges = [*range(0, 9000, 64), 9000]
    expected = long_map.pool(edges, edges, pooling=pooling).weights[0].numpy()
    assert len(replies) > 8
    complete = [reply.meta["complete"] for reply in replies]
    assert complete == sorted(complete)
    # Sums in another order round differently.
    np.testing.assert_allclose(replies[-1].arrays[0], expected, rtol=1e-5, atol=1e-8)
    first = replies[0].arrays[0]
    sampled = ~np.isnan(first)
    assert sampled.any()
    errors = [np.abs(reply.arrays[0] - expected).max() for reply in replies[8:]]
    assert errors[-1] < 1e-6 < errors[0]


def test_tiles_are_adjacent_and_cover_the_axis(long_map: uwaga.AttentionMap, where) -> None:
    service = ViewService(View.of(long_map))
    asked = where | {"kind": "decoder", "head": 0, "pooling": "sum"}
    tile = complete(service, request="tile", **asked, level=0, row=35, column=34).arrays[0]
    assert tile.shape == (9000 - 35 * 256, 256)
    assert np.array_equal(tile, long_map[0, 35 * 256 :, 34 * 256 : 35 * 256])
    last = complete(service, request="tile", **asked, level=3, row=4, column=4).arrays[0]
    assert last.shape == (101, 101)
    edges = [*range(8192, 9000, 8), 9000]
    assert np.array_equal(last, long_map.pool(edges, edges).weights[0])


def test_the_overview_has_every_head_and_is_sampled(long_map: uwaga.AttentionMap, maps) -> None:
    rest = {"layer": 0, "pooling": "sum", "merge": "tokens", "specials": "show"}
    small = complete(ViewService(View.of(maps)), request="overview", side="0", kind="encoder", **rest)
    assert small.meta == {"complete": 1.0, "single": True}
    assert np.array_equal(small.arrays[0], maps["encoder", 0].pool(11, 11).weights[0])
    large = complete(ViewService(View.of(long_map)), request="overview", side="0", kind="decoder", **rest)
    assert large.meta == {"complete": 1.0, "single": False}
    np.testing.assert_allclose(large.arrays[0].sum(-1), 1.0, rtol=1e-5)


def test_a_complete_tile_is_cached(long_map: uwaga.AttentionMap, where) -> None:
    service = ViewService(View.of(long_map))
    asked = where | {"kind": "decoder", "head": 0, "pooling": "sum", "level": 5, "row": 0, "column": 0}
    done = complete(service, request="tile", **asked)
    assert service.answer({"request": "tile", **asked}) is done
