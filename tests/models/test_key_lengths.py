"""Tokens that others do not see, at the end of Ragged rows: what is refused, and what they change."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from uwaga import Ragged
from uwaga.models.bert.config import BertConfig
from uwaga.models.bert.model import BertModel
from uwaga.models.rotary.config import RotaryConfig
from uwaga.models.rotary.model import RotaryModel

IDS = Ragged.from_list([torch.tensor([3, 4, 5, 6]), torch.tensor([7, 8])])


def bert() -> nn.Module:
    sizes = {"vocab_size": 20, "d_model": 8, "num_layers": 2, "num_heads": 2, "d_ff": 16}
    return BertModel(BertConfig(**sizes, max_position_embeddings=10, outputs=())).eval()


def rotary() -> nn.Module:
    sizes = {"vocab_size": 20, "d_model": 8, "num_heads": 2, "num_kv_heads": 1, "d_k": 4, "d_ff": 16}
    return RotaryModel(RotaryConfig(**sizes, max_position_embeddings=10)).eval()


def encoder() -> nn.Module:
    sizes = {"vocab_size": 20, "d_model": 8, "num_heads": 2, "num_kv_heads": 1, "d_k": 4, "d_ff": 16}
    return RotaryModel(RotaryConfig(**sizes, model_type="eurobert", max_position_embeddings=10)).eval()


MODELS = {"BertModel": bert, "RotaryModel": rotary}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("ids", "options", "message"),
    [
        (torch.ones(2, 4).long(), {}, "key_lengths is for Ragged ids; padded ids have lengths"),
        (
            torch.ones(2, 4).long(),
            {"lengths": torch.tensor([4, 2])},
            "key_lengths is for Ragged ids; padded ids have lengths",
        ),
        (
            IDS,
            {"lengths": torch.tensor([4, 2])},
            "lengths and attention_mask are for padded ids; Ragged ids have no padding",
        ),
        (
            IDS,
            {"key_lengths": torch.tensor([1, 1, 1])},
            "key_lengths must be int64 or int32 (2,), one for each row, not torch.int64 (3,)",
        ),
        (
            IDS,
            {"key_lengths": torch.tensor([1.0, 1.0])},
            "key_lengths must be int64 or int32 (2,), one for each row, not torch.float32 (2,)",
        ),
        (IDS, {"key_lengths": torch.tensor([4, 3])}, "key_lengths of row 1 is 3, and the row has 2 tokens"),
        (IDS, {"key_lengths": torch.tensor([-1, 2])}, "key_lengths of row 0 is -1, and the row has 4 tokens"),
    ],
)
def test_what_is_refused(name: str, ids: torch.Tensor | Ragged, options: dict, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        MODELS[name]()(ids, **{"key_lengths": torch.tensor([2, 2])} | options)
    assert str(caught.value) == f"{name}: {message}"


def test_a_cache_has_no_hidden_tokens() -> None:
    model = rotary()
    with pytest.raises(ValueError, match="RotaryModel: a cache does not support padding"):
        model(IDS, key_lengths=torch.tensor([2, 2]), cache=model.new_cache())


@pytest.mark.parametrize("make", [bert, encoder])
def test_seen_tokens_are_as_without_the_others(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model, lengths = make(), torch.tensor([2, 1])
    with torch.no_grad():
        own = model(IDS, key_lengths=lengths, outputs=()).last_hidden_state
        short = Ragged.from_list([row[:length] for row, length in zip(IDS.to_list(), lengths.tolist(), strict=True)])
        alone = model(short, outputs=()).last_hidden_state
        whole = model(IDS, outputs=()).last_hidden_state
    for with_hidden, without, length in zip(own.to_list(), alone.to_list(), lengths.tolist(), strict=True):
        assert torch.equal(with_hidden[:length], without)
    assert not torch.equal(own.values, whole.values)
    all_seen = IDS.lengths
    assert torch.equal(model(IDS, key_lengths=all_seen, outputs=()).last_hidden_state.values, whole.values)
