"""Recordings that are saved and loaded: the same bits, mapped into memory, with tokens, masks and biases.

Letters: R rows, H query heads, G key/value heads, T tokens, D query/key width, E value width, N packed tokens.
"""

import dataclasses
import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from small_models import ask
from tiny_transformer import tiny
from torch import Tensor

import uwaga
from uwaga._base.errors import DataError
from uwaga.inspect.recordings.copies import tensors
from uwaga.inspect.recordings.recording import TokenStrings
from uwaga.models import Transformer, generate
from uwaga.nn.attention_id import AttentionId
from uwaga.ops.mask_program import MaskProgramBuilder
from uwaga.ops.masks import Mask

ENCODER, CROSS = AttentionId("encoder", 0), AttentionId("cross", 0)
H, G, T, D, E = 6, 2, 9, 8, 5


def decoder(vocab_size: int = 40) -> Transformer:
    return tiny("gpt2", seed=0, vocab_size=vocab_size, max_position_embeddings=64)


def recorded(query, key, value=None, **options) -> uwaga.Recording:
    return ask(uwaga.Recording(), ENCODER, query, key, value=value, **options)


def again(recording: uwaga.Recording, folder: Path) -> uwaga.Recording:
    """The recording from a file, after all of it was compared."""
    recording.save(folder / "a.safetensors")
    result = uwaga.Recording.load(folder / "a.safetensors")
    assert_same(recording, result)
    return result


def dense(recording: uwaga.Recording) -> Iterator[tuple[tuple[str, int], list[Tensor]]]:
    for name, m in recording.maps.items():
        result = m.to_dense()
        yield name, result if isinstance(result, list) else [result]


def assert_same(one: uwaga.Recording, other: uwaga.Recording) -> None:
    assert one.tokens == other.tokens
    assert one.written == other.written
    assert one.model == other.model
    for (name, weights), (other_name, more) in zip(dense(one), dense(other), strict=True):
        assert name == other_name
        assert repr(one.maps[name]) == repr(other.maps[name])
        assert len(weights) == len(more)
        assert all(torch.equal(x, y) for x, y in zip(weights, more, strict=True))
    assert list(one.values) == list(other.values)
    for name, value in one.values.items():
        assert all(torch.equal(x, y) for x, y in zip(tensors(value), tensors(other.values[name]), strict=True))


def operands(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(2, n, T, w, generator=generator).to(dtype) for n, w in ((H, D), (G, D), (G, E)))


MASKS = {
    "none": None,
    "causal": uwaga.Causal(),
    "strict, with a start": uwaga.Causal(include_self=False, start=1),
    "starts": uwaga.Causal(start=torch.tensor([0, 0])),
    "window": uwaga.Window(3, None),
    "lengths": uwaga.KeyLengths(torch.tensor([4, 9])),
    "documents": uwaga.Documents(torch.arange(T) // 4),
    "asked": uwaga.Documents(torch.arange(T) // 4, query_ids=torch.arange(T) // 5),
    "dense": torch.rand(2, 1, T, T, generator=torch.Generator().manual_seed(1)) > 0.4,
    "combined": (uwaga.Causal() & uwaga.Window(5, 0)) | uwaga.KeyLengths(torch.tensor([1, 2])),
}
BIASES = {
    "alibi": uwaga.AlibiBias(torch.rand(H)),
    "relative": uwaga.RelativeBias(torch.randn(8, H), bidirectional=False, max_distance=16),
    "by distance": torch.randn(1, H, 2 * T - 1)[:, :, T - 1 + torch.arange(T) - torch.arange(T)[:, None]],
    "dense bias": torch.randn(2, H, T, T),
}


@pytest.mark.parametrize(
    "options",
    [
        *({"mask": mask} for mask in MASKS.values()),
        *({"bias": bias, "scale": 0.3, "softcap": 2.5, "sinks": torch.randn(H)} for bias in BIASES.values()),
    ],
    ids=[*MASKS, *BIASES],
)
def test_masks_and_biases_are_described_as_data(options: dict, tmp_path: Path) -> None:
    recording = recorded(*operands(), **options)
    again(recording, tmp_path)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_each_dtype_keeps_its_bits(dtype: torch.dtype, tmp_path: Path) -> None:
    query, key, value = operands(dtype)
    recording = recorded(query, key, value, mask=uwaga.Causal())
    result = again(recording, tmp_path)
    assert torch.equal(result.values[ENCODER], value)
    assert result.values[ENCODER].dtype == dtype


def test_a_generation_of_rows_of_other_lengths(tmp_path: Path) -> None:
    model = decoder()
    with uwaga.watch(model, values=True) as recording:
        answers = generate(model, [[5, 6, 7], [8]], max_new_tokens=4)
    result = again(recording, tmp_path)
    assert_same(recording, pickle.loads(pickle.dumps(recording)))
    assert result.model == "gpt2"
    assert [x.shape[1] for x in result.maps["decoder", 1].to_dense()] == [6, 4]
    with torch.no_grad(), uwaga.watch(model, values=True) as whole:
        model(torch.tensor([[5, 6, 7, *answers[0][:-1]]]))
    for name, value in whole.values.items():
        torch.testing.assert_close(result.values[name].to_list()[0].transpose(0, 1)[None], value)


def test_an_encoder_and_a_decoder_with_biases_by_distance(tmp_path: Path) -> None:
    model = tiny("t5", seed=0, num_decoder_layers=1, d_k=4)
    names = {"encoder": lambda ids: [f"e{x}" for x in ids], "decoder": lambda ids: [f"d{x}" for x in ids]}
    with uwaga.watch(model, tokenizer=names, values=True) as recording:
        generate(model, [[5, 6, 7, 1]], max_new_tokens=4)
    again(recording, tmp_path)
    # The layers share a table, which is in the file once.
    stored = load_file(tmp_path / "a.safetensors")
    assert sum("bias" in name for name in stored) == 2


@pytest.mark.parametrize("heads", [[5, 0, 3], [2, 2]])
def test_selected_heads(heads: list[int], tmp_path: Path) -> None:
    query, key, value = operands()
    recording = uwaga.Recording(heads=heads, model="m", strings=TokenStrings(None, [["a"] * T, ["b"] * T]))
    ask(recording, ENCODER, query, key, value=value)
    result = again(recording, tmp_path)
    used = result.values[ENCODER]
    for place, head in enumerate(heads):
        assert torch.equal(used[:, place * used.shape[1] // len(heads)], value[:, head * G // H])


def test_the_file_is_as_large_as_the_recording(tmp_path: Path) -> None:
    query, key = torch.randn(1, 4, 1024, 16), torch.randn(1, 4, 1024, 16)
    recording = uwaga.Recording(strings=TokenStrings(None, [f"token {n % 99}" for n in range(1024)]))
    ask(recording, ENCODER, query, key)
    again(recording, tmp_path)
    # A number of four bytes per token, and the header.
    least = recording.nbytes + 4 * 1024
    assert least < (tmp_path / "a.safetensors").stat().st_size < least + 8192


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what is mapped where")
def test_operands_are_mapped(tmp_path: Path) -> None:
    recorded(*operands()).save(tmp_path / "a.safetensors")
    result = uwaga.Recording.load(tmp_path / "a.safetensors")
    mapped = [line.split(None, 5) for line in Path("/proc/self/maps").read_text().splitlines()]
    ends = [
        [int(end, 16) for end in words[0].split("-")]
        for words in mapped
        if words[5:] == [str(tmp_path / "a.safetensors")]
    ]
    m = result.maps[ENCODER]
    for x in (m.query, m.key):
        assert any(first <= x.data_ptr() < last for first, last in ends)


def test_a_loaded_recording_is_saved_over_its_own_file(tmp_path: Path) -> None:
    recording = recorded(*operands(), mask=uwaga.Causal())
    result = again(recording, tmp_path)
    result.save(tmp_path / "a.safetensors")
    assert_same(recording, uwaga.Recording.load(tmp_path / "a.safetensors"))
    assert_same(recording, result)


@dataclasses.dataclass(frozen=True, slots=True)
class Odd(Mask):
    """Odd keys."""

    def encode(self, builder: MaskProgramBuilder) -> None:
        builder.dense(torch.arange(T) % 2 == 1)


def test_what_cannot_be_described_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    recording = recorded(*operands(), mask=uwaga.Causal() & Odd())
    with pytest.raises(ValueError) as raised:
        recording.save(tmp_path / "a")
    assert "a mask of the type Odd cannot be written" in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file({"a": torch.zeros(3)}, path)
    with pytest.raises(DataError) as raised:
        uwaga.Recording.load(path)
    assert "not a recording of uwaga" in str(raised.value)
    path.write_text("once upon a time")
    with pytest.raises(DataError, match="is not a valid safetensors file"):
        uwaga.Recording.load(path)


def places(inside: object, path: tuple = ()) -> Iterator[tuple]:
    """Every place in a JSON value, from the outside in."""
    items = inside.items() if isinstance(inside, dict) else enumerate(inside) if isinstance(inside, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


OTHERS = [
    None, True, -1, 0, 1, 2**31, 2**61, 10**400, 1e300, 0.5, "", "x", "a\0b", "\x1b[2J", [], ["x"], [0], {}, {"a": [1]},
    {"tensor": "encoder.0.query"}, {"tensor": "encoder.tokens"}, {"type": "Causal", "include_self": True, "start": None},
]  # fmt: skip


@pytest.mark.gate(only=lambda stride: stride > 1)
@pytest.mark.parametrize(("kind", "stride"), [("padded", 5), ("ragged", 7), ("padded", 1), ("ragged", 1)])
def test_whatever_a_description_says_is_read_or_rejected(kind: str, stride: int, tmp_path: Path) -> None:
    """Every place of a description gets other values; with `stride`, every fifth or seventh of them, in turn."""
    query, key, value = operands()
    mask: Mask = (uwaga.Causal(start=0) & uwaga.Window(4, None)) | uwaga.KeyLengths(torch.tensor([4, 9]))
    if kind == "ragged":
        query, key, value = (uwaga.Ragged.from_list([row.transpose(0, 1) for row in x]) for x in (query, key, value))
        mask = uwaga.Causal() & uwaga.Documents(torch.arange(2 * T) // 4)
    bias = uwaga.AlibiBias(torch.ones(H)) if kind == "ragged" else uwaga.RelativeBias(torch.ones(8, H), max_distance=16)
    recording = uwaga.Recording(heads=[4, 1, 5], strings=TokenStrings(None, [["a"] * T, ["b"] * T]))
    ask(recording, ENCODER, query, key, value=value, mask=mask, bias=bias, sinks=torch.ones(H))
    recording.save(tmp_path / "a")
    with safe_open(tmp_path / "a", framework="pt") as file:
        described = json.loads(file.metadata()["uwaga"])
    stored, path, refused = load_file(tmp_path / "a"), tmp_path / "b", []
    for number, place in enumerate(places(described)):
        for other in OTHERS[number % stride :: stride]:
            changed = json.loads(json.dumps(described))
            inside = changed
            for step in place[:-1]:
                inside = inside[step]
            inside[place[-1]] = other
            save_file(stored, path, metadata={"uwaga": json.dumps(changed)})
            try:
                result = uwaga.Recording.load(path)
                assert result.tokens.keys() <= {"encoder", "decoder"}
                for m in result.maps.values():
                    m.entropy()
                for layer_values in result.values.values():
                    assert list(tensors(layer_values))
            except DataError as error:
                refused.append(str(error))
    assert len(refused) > 300 / stride
    assert [said for said in refused if not said.startswith(f"{path}: ")] == []
