"""Which recordings scores are read from: of files, of texts without a batch, and not of another text, model or position."""

from pathlib import Path

import pytest
import torch
from test_score_attribution import IDS
from tiny_models import DECODERS, make
from tiny_transformer import made

import uwaga
from uwaga.inspect import Part, score_attribution


@torch.no_grad()
def test_a_text_without_a_batch_is_read_as_one_row(tmp_path: Path) -> None:
    model = made("gpt2")
    right = score_attribution(model, IDS[:1], 2, 1, [5, 4], [3, 2])
    with uwaga.watch(model, values=True) as recording:
        model(IDS[0])
    assert len(recording.maps["decoder", 2].shape) == 3
    recording.save(tmp_path / "one")
    loaded = uwaga.Recording.load(tmp_path / "one")
    head = Part("head", "decoder", 1, 0)
    for given, ids in (
        (IDS[0], None),
        (recording, None),
        (loaded, IDS[0]),
        (loaded, IDS[:1]),
        (loaded, [IDS[0].tolist()]),
    ):
        found = score_attribution(model, given, 2, 1, [5, 4], [3, 2], row=-1, ids=ids)
        torch.testing.assert_close(found.shares(), right.shares())
        torch.testing.assert_close(found[0].sources(head, "key"), right[0].sources(head, "key"))
        assert found[0].back(head, "key", top=1)[0].token == right[0].back(head, "key", top=1)[0].token


@pytest.mark.parametrize(
    ("name", "dtype"), [("copyist", torch.float32), ("copyist", torch.float16), ("minilm", torch.bfloat16)]
)
@torch.no_grad()
def test_another_text_or_model_is_found_out_in_half_precision_too(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
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
    recording.save(tmp_path / "one")
    loaded = uwaga.Recording.load(tmp_path / "one")
    score_attribution(model, loaded, layer, 0, 20, 7, ids=ids)
    for head in range(4):
        with pytest.raises(
            ValueError, match=r"farther than rounding takes it .*the recording is of another model, text"
        ):
            score_attribution(model, loaded, layer, head, 20, 7, ids=ids.flip(1))
    model.get_submodule("encoder.layers" if name == "minilm" else "decoder.layers")[0].attention.output.weight.neg_()
    with pytest.raises(ValueError, match="the recording is of another model, text"):
        score_attribution(model, recording, layer, 0)


@torch.no_grad()
def test_positions_and_rotary_scaling_that_are_not_supported_are_named() -> None:
    import transformers

    padded = make("gpt2", DECODERS["gpt2"], transformers.AutoModel)
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    scaled = make(
        "llama", DECODERS["llama"] | {"max_position_embeddings": 4, "rope_parameters": dynamic}, transformers.AutoModel
    )
    at = torch.tensor([[0, 0, 0, 1, 2, 3, 4]] * 2)
    for model, named, ids in ((padded, {"position_ids": at}, IDS), (scaled, {}, IDS)):
        with uwaga.watch(model, values=True) as recording:
            model(ids, **named)
        with pytest.raises(
            ValueError, match=r"positions that are not 0, 1, .* or rotary scaling that changes with the length"
        ):
            score_attribution(model, recording, 1, 0, 6, 4)
