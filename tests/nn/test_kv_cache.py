"""A cache gives what the whole sequence gives: in pieces, rewound, reordered, with rows of different lengths.

Letters: R rows, Q new tokens, K tokens so far, H heads, G key heads, D, E widths of a head, M width, N packed tokens.
"""

from collections.abc import Callable

import pytest
import torch

import uwaga
from uwaga import AlibiBias, Causal, Documents, KeyLengths, Ragged, RelativeBias, ShapeError, Window
from uwaga.nn import Encoder, KeyValueCache, LayerSpec, MultiHeadAttention, RotaryPositions

LENGTHS = [4, 1, 6]
MORE = [2, 2, 2]
ROTARY = RotaryPositions(4)


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


def _x(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def _encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder(LayerSpec(d_model=12, num_heads=4, d_ff=8, num_kv_heads=2, d_k=6), 2, dtype=torch.float64)


def _rows(*lengths: int, seed: int = 0) -> list[torch.Tensor]:
    return [_x(n, 12, seed=seed + at) for at, n in enumerate(lengths)]


# What a language model may ask for, each over one row of all tokens and, through a cache, over the new ones.
OPTIONS = {
    "causal": {"mask": Causal()},
    "a window": {"mask": Causal() & Window(2, None)},
    "either": {"mask": Causal(include_self=False) | Window(1, 0)},
    "alibi": {"mask": Causal(), "bias": AlibiBias(torch.tensor([0.5, 0.1, 1.0, 2.0]))},
    "buckets": {"mask": Causal(), "bias": RelativeBias(_x(8, 4, seed=9), bidirectional=False, max_distance=20)},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("pieces", [[7], [3, 1, 1, 2], [1] * 7])
def test_pieces_give_what_the_whole_gives(name: str, pieces: list[int]) -> None:
    encoder, x, cache = _encoder(), _x(3, 7, 12), KeyValueCache(2)
    results = [
        encoder(piece, **OPTIONS[name], rotary=ROTARY(piece, cache.start), cache=cache) for piece in x.split(pieces, 1)
    ]
    torch.testing.assert_close(torch.cat(results, 1), encoder(x, **OPTIONS[name], rotary=ROTARY(x)))
    assert cache.start == 7
    assert cache.lengths.tolist() == [7, 7, 7]


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("kind", ["padded", "packed evenly", "packed"])
def test_ragged_prompts_go_on_without_padding(name: str, kind: str) -> None:
    encoder, cache = _encoder(), KeyValueCache(2)
    added = [1, 0, 3] if kind == "packed" else MORE
    rows = _rows(*(before + new for before, new in zip(LENGTHS, added, strict=True)))
    prompts = Ragged.from_list([row[:n] for row, n in zip(rows, LENGTHS, strict=True)])
    more = Ragged.from_list([row[n:] for row, n in zip(rows, LENGTHS, strict=True)])
    next_tokens = more.to_padded() if kind == "padded" else more

    options = OPTIONS[name]
    first = encoder(prompts, **options, rotary=ROTARY(prompts), cache=cache).to_list()
    assert cache.start.tolist() == LENGTHS
    result = encoder(next_tokens, **options, rotary=ROTARY(next_tokens, cache.start), cache=cache)
    assert isinstance(result, Ragged) is (kind != "padded")
    second = result.to_list() if isinstance(result, Ragged) else list(result)
    assert cache.lengths.tolist() == [len(row) for row in rows]
    for row, *parts in zip(rows, first, second, strict=True):
        torch.testing.assert_close(torch.cat(parts), encoder(row, **options, rotary=ROTARY(row)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kept_keys_give_the_same_bits(dtype: torch.dtype) -> None:
    query, key, value = (_x(2, 4, 7, 6, seed=n, dtype=dtype) for n in range(3))
    cache = KeyValueCache(1)[0].attention
    results = []
    for q, k, v in zip(*(x.split([4, 1, 2], 2) for x in (query, key, value)), strict=True):
        view = cache.append(k, v)
        results.append(uwaga.attention(q, view.key, view.value, mask=Causal()))
    assert torch.equal(torch.cat(results, 2), uwaga.attention(query, key, value, mask=Causal()))


def test_rows_of_different_lengths_give_the_same_bits() -> None:
    rows = [_x(n + 1, 4, 6, seed=n, dtype=torch.float32) for n in LENGTHS]
    cache = KeyValueCache(1)[0].attention
    prompts = Ragged.from_list([row[:-1] for row in rows])
    cache.append(prompts, prompts)
    last = torch.stack([row[-1:] for row in rows]).transpose(1, 2)
    view = cache.append(last, last)
    output = uwaga.attention(last, view.key, view.value, mask=view.mask(Causal()))
    for row, out in zip(rows, output, strict=True):
        heads = row.transpose(0, 1)
        assert torch.equal(out, uwaga.attention(heads, heads, heads, mask=Causal())[:, -1:])


def test_a_rewound_cache_goes_on_as_if_the_rest_had_not_been() -> None:
    encoder, x, cache = _encoder(), _x(3, 7, 12), KeyValueCache(2)
    encoder(x[:, :5], mask=Causal(), cache=cache)
    encoder(_x(3, 2, 12, seed=5), mask=Causal(), cache=cache)
    cache.rewind(5)
    assert cache.start == 5
    result = encoder(x[:, 5:], mask=Causal(), cache=cache)
    torch.testing.assert_close(result, encoder(x, mask=Causal())[:, 5:])


_SHOWN, _IDS = torch.tensor([True, False, True, True, False, True]), torch.tensor([0, 0, 1, 1, 0, 1])
_FROM_2 = AlibiBias(torch.rand(4), start=2)
# Options over a cache of rows of 3 and 5 tokens and a new one, and, from the number of a row, those over the row alone.
OVER_ROWS: dict[str, tuple[dict, Callable[[int], dict]]] = {
    "none": ({}, lambda n: {}),
    "a dense mask is over the longest row": ({"mask": _SHOWN}, lambda n: {"mask": _SHOWN[: (4, 6)[n]]}),
    "starts that are said": (
        {"mask": Causal(start=1), "bias": _FROM_2},
        lambda n: {"mask": Causal(start=1), "bias": _FROM_2},
    ),
    "documents and lengths": (
        {"mask": Documents(_IDS, query_ids=torch.tensor([1])) & KeyLengths(torch.tensor([3, 5]))},
        lambda n: {"mask": (_IDS == 1)[: (4, 6)[n]] & (torch.arange((4, 6)[n]) < (3, 5)[n])},
    ),
}


@pytest.mark.parametrize("name", OVER_ROWS)
def test_options_over_rows_of_different_lengths_mean_each_row(name: str) -> None:
    layer, rows, cache = MultiHeadAttention(12, 4, dtype=torch.float64), _rows(3, 5), KeyValueCache(1)[0].attention
    options, of_row = OVER_ROWS[name]
    layer(Ragged.from_list(rows), cache=cache)
    more = _x(2, 1, 12, seed=4)
    for n, (row, token, out) in enumerate(zip(rows, more, layer(more, **options, cache=cache), strict=True)):
        torch.testing.assert_close(out, layer(token, torch.cat((row, token)), **of_row(n)))


def test_kept_keys_are_copies_and_what_was_refused_changes_nothing() -> None:
    cache, key = KeyValueCache(1), _x(1, 2, 3, 4)
    before, of_layer = key.clone(), cache[0].attention
    of_layer.append(key, key)
    key.zero_()
    with pytest.raises(ShapeError):
        of_layer.append(key, key[..., :3])
    with pytest.raises(ValueError):
        cache.rewind(torch.tensor([4]))
    assert torch.equal(of_layer.append(key[:, :, :0], key[:, :, :0]).key, before)


def test_rows_are_rewound_each_to_its_own_length() -> None:
    encoder, rows, cache = _encoder(), _rows(5, 3, 6), KeyValueCache(2)
    encoder(torch.stack([torch.cat((row, _x(7, 12, seed=8)))[:7] for row in rows]), mask=Causal(), cache=cache)
    cache.rewind(torch.tensor([4, 2, 5]))
    last = torch.stack([row[-1:] for row in rows])
    result = encoder(last, mask=Causal(), cache=cache)
    for row, out in zip(rows, result, strict=True):
        torch.testing.assert_close(out, encoder(row, mask=Causal())[-1:])


@pytest.mark.parametrize("order", [[2, 0, 1], [1, 1, 0, 2, 1], [2]])
def test_reordered_rows_go_on_as_the_rows_they_became(order: list[int]) -> None:
    encoder, rows, cache = _encoder(), _rows(*LENGTHS), KeyValueCache(2)
    encoder(Ragged.from_list(rows), mask=Causal(), cache=cache)
    cache.reorder(torch.tensor(order))
    assert cache.start.tolist() == [LENGTHS[row] for row in order]
    more = _x(len(order), 1, 12, seed=3)
    result = encoder(more, mask=Causal(), cache=cache)
    for row, token, out in zip(order, more, result, strict=True):
        torch.testing.assert_close(out, encoder(torch.cat((rows[row], token)), mask=Causal())[-1:])
