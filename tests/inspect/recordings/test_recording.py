"""Recordings of calls of attention, without a model.

Letters: R rows, H query heads, G key/value heads, Q queries, K keys, D query/key width.
"""

from types import SimpleNamespace

import pytest
import torch
from small_models import ask
from tiny_tokenizer import word_tokenizer
from torch import Tensor

import uwaga
from uwaga.inspect.recordings.recording import TokenStrings
from uwaga.models.tokenizers.tokenizer import Tokenizer
from uwaga.nn.attention_id import AttentionId

ENCODER, DECODER, CROSS = AttentionId("encoder", 0), AttentionId("decoder", 0), AttentionId("cross", 0)


def operands(length: int = 7, heads: int = 6, key_heads: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(2, n, length, 8, generator=generator) for n in (heads, key_heads))


@pytest.mark.parametrize("heads", [[5, 0, 3], [2, 2]])
@pytest.mark.parametrize("kind", ["padded", "ragged"])
def test_picked_heads_are_those_of_the_whole_map(heads: list[int], kind: str) -> None:
    query, key = operands()
    options = {
        "mask": uwaga.Causal() & (torch.rand(6, 7, 7) > 0.3) if kind == "padded" else uwaga.Causal(),
        "bias": uwaga.AlibiBias(torch.rand(6)),
        "sinks": torch.randn(6),
        "softcap": 3.0,
        "scale": 0.7,
    }
    if kind == "ragged":
        query, key = (uwaga.Ragged.from_list(list(x.transpose(1, 2))) for x in (query, key))
    recording = uwaga.Recording(heads=heads)
    ask(recording, ENCODER, query, key, **options)
    result, whole = recording.maps[ENCODER].to_dense(), uwaga.AttentionMap(query, key, **options).to_dense()
    for part, dense in zip(result, whole, strict=True):
        torch.testing.assert_close(part, dense[heads])


@pytest.mark.parametrize("bias", ["dense", "by distance", "for all heads", "table"])
def test_a_bias_is_kept_of_the_picked_heads(bias: str) -> None:
    query, key = operands()
    by_distance = torch.randn(1, 6, 13)[:, :, 6 + torch.arange(7) - torch.arange(7)[:, None]]
    of_kind = {
        "dense": torch.randn(2, 6, 7, 7),
        "by distance": by_distance,
        "for all heads": by_distance[:, :1],
        "table": uwaga.RelativeBias(torch.randn(8, 6), max_distance=16),
    }[bias]
    recording = uwaga.Recording(heads=[4, 1])
    ask(recording, ENCODER, query, key, bias=of_kind)
    whole = uwaga.AttentionMap(query, key, bias=of_kind).to_dense()
    torch.testing.assert_close(recording.maps[ENCODER].to_dense(), whole[:, [4, 1]])
    if bias == "by distance":  # the 13 numbers of each head, and no matrix
        assert recording.nbytes == 4 * (2 * query[:, :2].numel() + 2 * 13)


def test_a_recording_takes_the_memory_of_the_heads_keys_and_masks_that_it_reads() -> None:
    query, key = operands(length=50)
    size = 2 * 50 * 8  # of one head
    for heads, kept in ((None, 6 + 2), ([3], 1 + 1), ([0, 1, 2], 3 + 1), ([0, 1, 5], 3 + 2)):
        recording = uwaga.Recording(heads=heads)
        ask(recording, ENCODER, query, key)
        assert recording.nbytes == 4 * size * kept
    half, mask = uwaga.Recording(dtype=torch.bfloat16), torch.rand(50, 50) > 0.5
    for layer in range(3):  # that share a mask
        ask(half, AttentionId("encoder", layer), query, key, mask=mask)
    assert half.nbytes == 3 * 2 * size * 8 + mask.numel()
    assert half.maps[ENCODER].shape == (2, 6, 50, 50)
    assert (repr(half), repr(half.maps)) == ("Recording(encoder 0, 1, 2; 40.9 kB)", "Maps(encoder 0, 1, 2)")
    assert repr(uwaga.Recording()) == "Recording(none; 0 bytes)"


def test_memory_grows_with_the_tokens_and_not_with_their_square() -> None:
    sizes = []
    for length in (100, 200, 400):
        recording = uwaga.Recording()
        mask = uwaga.Causal() & uwaga.KeyLengths(torch.tensor([length, 5]))
        ask(recording, DECODER, *operands(length), mask=mask)
        sizes.append(recording.nbytes)
    assert sizes[2] - sizes[1] == 2 * (sizes[1] - sizes[0])


def test_what_is_written_into_the_model_s_tensors_later_changes_nothing() -> None:
    query, key = operands(heads=2)
    mask, bias, sinks = torch.rand(7, 7) > 0.3, torch.randn(2, 2, 7, 7), torch.randn(2)
    before = uwaga.AttentionMap(query, key, mask=mask, bias=bias, sinks=sinks).to_dense()
    recording = uwaga.Recording()
    ask(recording, ENCODER, query, key, mask=mask, bias=bias, sinks=sinks)
    for x in (query, key, mask, bias, sinks):
        x.zero_()
    assert torch.equal(recording.maps[ENCODER].to_dense(), before)


def test_steps_keep_their_own_keys_alone() -> None:
    query, key = operands(length=60, heads=2)
    recording = uwaga.Recording()
    for start, stop in ((0, 40), *((n, n + 1) for n in range(40, 60))):
        ask(recording, DECODER, query[:, :, start:stop], key[:, :, :stop], mask=uwaga.Causal())
    assert recording.nbytes == 4 * (query.numel() + key.numel())
    whole = uwaga.AttentionMap(query, key, mask=uwaga.Causal()).to_dense()
    assert torch.equal(recording.maps[DECODER].to_dense(), whole)


def test_rows_may_change_places_and_end() -> None:
    query, key = operands(length=6, heads=2)
    ids = torch.arange(12).reshape(2, 6)
    recording = uwaga.Recording()
    ask(recording, DECODER, query[:, :, :4], key[:, :, :4], ids[:, :4], mask=uwaga.Causal())
    for at, rows in ((4, [1, 0]), (5, [1])):
        asked, looked_at = query[rows][:, :, at : at + 1], key[rows][:, :, : at + 1]
        ask(recording, DECODER, asked, looked_at, ids[rows][:, at : at + 1], mask=uwaga.Causal())
    m = recording.maps[DECODER]
    whole = uwaga.AttentionMap(query, key, mask=uwaga.Causal()).to_dense()
    assert torch.equal(m[0].to_dense(), whole[0, :, :5, :5])
    assert torch.equal(m[1].to_dense(), whole[1])
    assert recording.token_ids("decoder") == [[0, 1, 2, 3, 4], [6, 7, 8, 9, 10, 11]]


def test_rows_that_were_written_alike_are_told_apart_by_what_they_look_at() -> None:
    """In the first layer of a decoder, keys of equal texts are equal; what the rows look at is not."""
    query, memory = operands(length=3, heads=2)
    alike = operands(length=3, heads=2)[1][:1].expand(2, -1, -1, -1)
    recording = uwaga.Recording()
    for stop, rows in ((1, [0, 1]), (2, [0, 1]), (3, [1])):
        last = slice(stop - 1, stop)
        ask(recording, DECODER, query[rows][:, :, last], alike[rows][:, :, :stop], mask=uwaga.Causal())
        ask(recording, CROSS, query[rows][:, :, last], memory[rows])
    whole = uwaga.AttentionMap(query, memory).to_dense()
    m = recording.maps[CROSS]
    assert torch.equal(m[0].to_dense(), whole[0, :, :2])
    assert torch.equal(m[1].to_dense(), whole[1])


ROWS, BOTH = (
    [["a", "b"], ["c", "d"]],
    {"encoder": lambda ids: [f"e{x}" for x in ids], "decoder": lambda ids: [f"d{x}" for x in ids]},
)
WORDS = {"encoder": [["w1", "2"], ["w3", "w4"]]}
TOKENIZER = Tokenizer(word_tokenizer())


@pytest.mark.parametrize(
    ("tokenizer", "strings", "expected"),
    [
        (SimpleNamespace(id_to_token=lambda token_id: None if token_id == 2 else f"w{token_id}"), None, WORDS),
        (SimpleNamespace(convert_ids_to_tokens=lambda ids: [2 if x == 2 else f"w{x}" for x in ids]), None, WORDS),
        (TOKENIZER, None, {"encoder": [[TOKENIZER.backend.id_to_token(x) for x in row] for row in ([1, 2], [3, 4])]}),
        (lambda ids: ["2" if token_id == 2 else f"w{token_id}" for token_id in ids], None, WORDS),
        (BOTH, None, {"encoder": [["e1", "e2"], ["e3", "e4"]], "decoder": [["d1", "d2"], ["d3", "d4"]]}),
        (None, ROWS, {"encoder": ROWS}),
        (None, {"encoder": ROWS}, {"encoder": ROWS}),
    ],
    ids=["tokenizers", "transformers", "uwaga", "function", "a function each", "rows", "rows of a stack"],
)
def test_tokens_are_called_as_the_tokenizer_or_the_caller_says(
    tokenizer: object, strings: object, expected: dict
) -> None:
    recording = uwaga.Recording(strings=TokenStrings(tokenizer, strings))
    for where in (ENCODER, DECODER)[: len(expected)]:
        ask(recording, where, *operands(length=2), torch.tensor([[1, 2], [3, 4]]))
    assert recording.tokens == expected


@pytest.mark.parametrize("options", [{}, {"heads": [0, 5]}, {"dtype": torch.bfloat16}])
def test_max_bytes_is_the_limit_of_nbytes(options: dict) -> None:
    (query, key), mask = operands(), torch.rand(7, 7) > 0.3

    def kept(**limit: int) -> uwaga.Recording:
        recording = uwaga.Recording(**options, **limit)
        for layer in (0, 1):
            ask(recording, AttentionId("encoder", layer), query, key, mask=mask, sinks=torch.randn(6))
        return recording

    size = kept().nbytes
    assert kept(max_bytes=size).nbytes == size
    message = rf"^watch: the recording would keep {size} bytes \(.*\), more than max_bytes={size - 1}; "
    with pytest.raises(ValueError, match=message):
        kept(max_bytes=size - 1)


def test_max_bytes_counts_what_is_kept_of_both_stacks_and_not_what_was_dropped() -> None:
    ragged = uwaga.Ragged.from_list([torch.randn(n, 2, 8) for n in (3, 5)])
    query, key = operands(heads=2)

    def read(recording: uwaga.Recording) -> uwaga.Recording:
        ask(recording, ENCODER, ragged, ragged)
        ask(recording, DECODER, query, key, mask=uwaga.Causal())
        for number in (1, 2):  # two more passes of the text
            longer = torch.cat((key, torch.zeros(2, 2, number, 8)), dim=2)
            ask(recording, DECODER, query[:, :, number - 1 : number], longer, mask=uwaga.Causal())
        return recording

    size = read(uwaga.Recording()).nbytes
    limited = uwaga.Recording(max_bytes=size)
    for _ in range(3):  # new texts replace the earlier ones
        assert read(limited).nbytes == size


def test_a_recording_that_is_too_large_has_no_part_of_the_pass() -> None:
    query, key = operands()
    recording = uwaga.Recording(max_bytes=query.nbytes + key.nbytes + 100)
    ask(recording, ENCODER, query, key)
    with pytest.raises(ValueError, match=r"^watch: the recording would keep "):
        ask(recording, AttentionId("encoder", 1), query, key)
    assert (list(recording.maps), recording.nbytes) == ([], 0)
    ask(recording, ENCODER, query, key)
    torch.testing.assert_close(recording.maps[ENCODER].lse, uwaga.AttentionMap(query, key).lse)


def test_operands_are_kept_on_the_device_that_was_named() -> None:
    recording = uwaga.Recording(device="meta", heads=[1])
    ask(recording, ENCODER, *operands(heads=2), mask=uwaga.KeyLengths(torch.tensor([7, 5])), sinks=torch.ones(2))
    m = recording.maps[ENCODER]
    assert {x.device.type for x in (m.query, m.key)} == {"meta"}


def test_a_pass_without_tokens(tmp_path) -> None:
    query, key = (torch.empty(2, heads, 0, 8) for heads in (6, 2))
    recording = uwaga.Recording()
    ask(recording, ENCODER, query, key, torch.empty(2, 0, dtype=torch.int64))
    recording.save(tmp_path / "recording.safetensors")
    for version in (recording, uwaga.Recording.load(tmp_path / "recording.safetensors")):
        assert version.maps[ENCODER].to_dense().shape == (2, 6, 0, 0)
