"""`only`: one token of each row is all that is computed of the last layer. What is refused, and who uses it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from uwaga import Ragged, TextEncoder
from uwaga.models.bert.config import BertConfig
from uwaga.models.bert.model import BertModel
from uwaga.models.rotary.config import RotaryConfig
from uwaga.models.rotary.model import RotaryModel

IDS = Ragged.from_list([torch.tensor([3, 4, 5, 6]), torch.tensor([7, 8])])
_SIZES = {"vocab_size": 20, "d_model": 8, "num_heads": 2, "d_ff": 16, "max_position_embeddings": 10}


def bert(**more: object) -> BertModel:
    return BertModel(BertConfig(**_SIZES | {"num_layers": 1, "outputs": ("pooled", "masked_lm")} | more)).eval()


def rotary() -> RotaryModel:
    return RotaryModel(RotaryConfig(**_SIZES, num_kv_heads=1, d_k=4)).eval()


@pytest.mark.parametrize(
    ("make", "ids", "options", "message"),
    [
        (bert, IDS, {"only": "mean"}, "BertModel: only must be None, 'first' or 'last', not 'mean'"),
        (bert, torch.ones(2, 4).long(), {"only": "last"}, "BertModel: only='last' is for Ragged batches, not for padded ones"),
        (bert, IDS, {"only": "last"}, "BertModel: with only='last' there is no output pooled, masked_lm, of other tokens"),
        (bert, IDS, {"only": "first"}, "BertModel: with only='first' there is no output masked_lm, of other tokens"),
        (
            bert,
            IDS,
            {"only": "first", "outputs": (), "output_hidden_states": True},
            "BertModel: only='first' leaves out states that output_hidden_states asks for",
        ),
        (
            rotary,
            Ragged(torch.tensor([3]), torch.tensor([0, 0, 1])),
            {"only": "last"},
            "RotaryModel: row 0 is empty: it has no last token",
        ),
    ],
)  # fmt: skip
def test_what_only_refuses(make: Callable, ids: object, options: dict, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        make()(ids, **options)
    assert str(caught.value) == message


@torch.no_grad()
def test_logits_of_the_last_token_alone() -> None:
    model = rotary()
    logits = model(IDS).logits.to_list()
    assert torch.equal(model(IDS, only="last").logits.values, torch.stack([row[-1] for row in logits]))


@torch.no_grad()
def test_a_model_without_layers_gives_its_embeddings() -> None:
    model = bert(num_layers=0)
    first = model(IDS, outputs=()).last_hidden_state.values[[0, 4]]
    assert torch.equal(model(IDS, outputs=(), only="first").last_hidden_state.values, first)


@pytest.mark.parametrize(("mode", "only"), [("cls", "first"), ("lasttoken", "last"), ("mean", None)])
def test_text_encoders_compute_what_is_pooled(
    write_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, only: str | None
) -> None:
    folder = write_model(tmp_path / "model")
    encoder, texts = TextEncoder.load(folder), ["the cat", "a dog ran", "it"]
    encoder.config = replace(encoder.config, pooling=(mode,))
    seen, forward = list[str | None](), encoder.model.forward

    def counted(*ids: Ragged, only: str | None = None, **options: object) -> object:
        seen.append(only)
        return forward(*ids, only=only, **options)

    monkeypatch.setattr(encoder.model, "forward", counted)
    vectors = encoder.encode(texts)
    assert seen == [only]
    monkeypatch.setattr(encoder.model, "forward", lambda *ids, only=None, **options: forward(*ids, **options))
    assert encoder.encode(texts).tobytes() == vectors.tobytes()
