"""What goes into a BertModel, and what it says of input that does not fit: the whole text."""

import pytest
import torch

import uwaga
from uwaga.models import BertConfig, BertModel


def model(**options) -> BertModel:
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "d_model": 8, "num_layers": 2, "num_heads": 2, "d_ff": 16, "max_position_embeddings": 10}
    return BertModel(BertConfig(**(sizes | options))).eval()


IDS = torch.arange(3, 15).unflatten(0, (2, 6))
PACKED = uwaga.Ragged(torch.arange(3, 10), torch.tensor([0, 4, 7]))

REFUSED = {
    "a float": (
        {"ids": IDS.float()},
        "BertModel: ids must be int64 or int32, not torch.float32",
    ),
    "a number": (
        {"ids": torch.tensor(3)},
        "BertModel: ids must be (..., Q)\n  ids  ()      <- has rank 0",
    ),
    "packed vectors": (
        {"ids": PACKED.with_values(torch.ones(7, 2).long())},
        "BertModel: ids must be Ragged with values (N,)\n  ids  (7, 2)      <- has rank 2",
    ),
    "an unknown word": (
        {"ids": IDS + 6},
        "BertModel: ids must lie between 0 and 19, but range from 9 to 20",
    ),
    "a row too long": (
        {"ids": torch.ones(1, 11).long()},
        "BertModel: a row has 11 tokens; the model has 10 positions",
    ),
    "a packed row too long": (
        {"ids": uwaga.Ragged(torch.ones(12).long(), torch.tensor([0, 1, 12]))},
        "BertModel: a row has 11 tokens; the model has 10 positions",
    ),
    "token types of another shape": (
        {"ids": IDS, "token_types": IDS[:, :3]},
        "BertModel: token_types must have the shape of ids\n  ids          (2, 6)\n  token_types  (2, 3)      <- has another",
    ),
    "token types of another kind": (
        {"ids": PACKED, "token_types": IDS},
        "BertModel: ids and token_types must both be Ragged, or neither",
    ),
    "an unknown token type": (
        {"ids": IDS, "token_types": torch.full_like(IDS, 2)},
        "BertModel: token_types must lie between 0 and 1, but range from 2 to 2",
    ),
    "a mask of a packed batch": (
        {"ids": PACKED, "lengths": torch.tensor([4, 3])},
        "BertModel: lengths and attention_mask are for padded ids; Ragged ids have no padding",
    ),
    "two masks": (
        {"ids": IDS, "lengths": torch.tensor([4, 3]), "attention_mask": IDS > 3},
        "BertModel: lengths and attention_mask both describe the padding; give one of them",
    ),
    "a mask of ones and zeros": (
        {"ids": IDS, "attention_mask": torch.ones_like(IDS)},
        "BertModel: attention_mask must be bool (True is a token), not torch.int64",
    ),
    "a mask of another shape": (
        {"ids": IDS, "attention_mask": torch.ones(2, 5).bool()},
        "BertModel: attention_mask must have the shape of ids\n"
        "  ids             (2, 6)\n"
        "  attention_mask  (2, 5)      <- has another",
    ),
    "an output that is not there": (
        {"ids": IDS, "outputs": ("tokens", "masked_lm")},
        "BertModel: the model has no output masked_lm, tokens; its outputs: pooled",
    ),
    "an empty document": (
        {"ids": uwaga.Ragged(torch.ones(4).long(), torch.tensor([0, 2, 2, 4]))},
        "BertModel: row 1 is empty: it has no first token",
    ),
    "empty rows": (
        {"ids": torch.ones(2, 0).long()},
        "BertModel: the rows are empty: they have no first token to pool",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_and_named(case: str) -> None:
    arguments, message = REFUSED[case]
    with pytest.raises(ValueError) as caught:
        model()(**arguments)
    assert str(caught.value) == message


def test_a_model_without_token_types_refuses_them() -> None:
    with pytest.raises(ValueError) as caught:
        model(model_type="distilbert", type_vocab_size=0, outputs=())(IDS, token_types=torch.zeros_like(IDS))
    assert str(caught.value) == "BertModel: a distilbert model has no token types"


def test_roberta_has_fewer_positions_than_rows_in_its_table() -> None:
    roberta = model(model_type="roberta", pad_token_id=1)
    assert roberta(IDS.repeat(1, 2)[:, :8]).last_hidden_state.shape == (2, 8, 8)
    with pytest.raises(ValueError) as caught:
        roberta(IDS.repeat(1, 2)[:, :9])
    assert str(caught.value) == "BertModel: a row has 9 tokens; the model has 8 positions"


@torch.no_grad()
def test_an_empty_document_has_no_states_and_disturbs_nobody() -> None:
    tiny = model()
    batch = uwaga.Ragged(torch.arange(3, 9), torch.tensor([0, 0, 4, 4, 6]))
    rows = tiny(batch, outputs=()).last_hidden_state.to_list()
    assert [len(row) for row in rows] == [0, 4, 0, 2]
    without = tiny(uwaga.Ragged(batch.values, torch.tensor([0, 4, 6])), outputs=()).last_hidden_state
    assert torch.equal(torch.cat(rows), without.values)


@torch.no_grad()
def test_only_the_outputs_that_are_asked_for_are_computed() -> None:
    tiny = model(outputs=("pooled", "masked_lm", "tokens"))
    everything = tiny(IDS)
    assert everything.sequence is None
    assert everything.hidden_states is None
    some = tiny(IDS, outputs=("tokens",))
    assert some.pooled is None
    assert some.masked_lm is None
    assert torch.equal(some.tokens, everything.tokens)


@torch.no_grad()
def test_one_document_needs_no_batch() -> None:
    tiny = model()
    assert torch.equal(tiny(IDS[0]).last_hidden_state, tiny(IDS[:1]).last_hidden_state[0])
    is_token = torch.tensor([False, True, True, False, True, False])
    assert torch.equal(
        tiny(IDS[0], attention_mask=is_token).pooled, tiny(IDS[:1], attention_mask=is_token[None]).pooled[0]
    )


@torch.no_grad()
def test_the_first_token_that_is_there_is_pooled() -> None:
    tiny = model()
    is_token = torch.tensor([[False, False, True, True, True, True]])
    output = tiny(IDS[:1], attention_mask=is_token)
    assert torch.equal(output.pooled, tiny.pooler(output.last_hidden_state[:, 2]))


def test_gradients_reach_every_weight_of_a_packed_batch() -> None:
    tiny = model(outputs=("pooled", "masked_lm", "next_sentence", "sequence", "tokens"))
    output = tiny(PACKED)
    (
        output.masked_lm.values.square().sum()
        + output.tokens.values.square().sum()
        + output.sequence.square().sum()
        + output.next_sentence.square().sum()
    ).backward()
    assert [name for name, parameter in tiny.named_parameters() if parameter.grad is None] == []


def test_dropout_is_for_training_alone() -> None:
    tiny = model()
    assert torch.equal(tiny(IDS).last_hidden_state, tiny(IDS).last_hidden_state)
    tiny.train()
    assert not torch.equal(tiny(IDS).last_hidden_state, tiny(IDS).last_hidden_state)


CONFIGS = {
    "d_model": ({"num_heads": 5}, "BertConfig: d_model 768 is not a multiple of num_heads 5"),
    "outputs": (
        {"outputs": ("pooled", "pooled")},
        "BertConfig: outputs must be some of pooled, masked_lm, next_sentence, sequence, tokens, replaced, not ('pooled', 'pooled')",
    ),
    "next sentence": (
        {"outputs": ("next_sentence",)},
        "BertConfig: output next_sentence is computed from pooled, which is not in outputs",
    ),
    "sequence": (
        {"outputs": ("sequence",)},
        "BertConfig: output sequence is computed from pooled, which is not in outputs",
    ),
    "pooled": (
        {"model_type": "distilbert", "type_vocab_size": 0},
        "BertConfig: a distilbert model has no output pooled",
    ),
    "no token types": ({"type_vocab_size": 0}, "BertConfig: a bert model cannot have type_vocab_size 0"),
    "token types": (
        {"model_type": "distilbert", "outputs": ()},
        "BertConfig: a distilbert model cannot have type_vocab_size 2",
    ),
    "labels": ({"labels": ()}, "BertConfig: labels must be at least one name, and all different"),
    "twins": ({"labels": ("a", "a")}, "BertConfig: labels must be at least one name, and all different"),
    "pad_token_id": ({"pad_token_id": 30522}, "BertConfig: pad_token_id 30522 is not in the vocabulary of 30522"),
    "roberta": (
        {"model_type": "roberta", "max_position_embeddings": 2, "pad_token_id": 1},
        "BertConfig: a roberta model needs max_position_embeddings above pad_token_id + 1: 2 and 1",
    ),
    "size": ({"num_layers": 2.0}, "BertConfig: num_layers must be a whole number from 0 to 268,435,456, not 2.0"),
    "chance": ({"dropout": 1.0}, "BertConfig: dropout must be a number from 0 to less than 1, not 1.0"),
    "norm_eps": ({"norm_eps": 0}, "BertConfig: norm_eps must be a number above 0, not 0"),
    "kind": (
        {"activation": "tanh"},
        "BertConfig: activation must be one of 'gelu', 'gelu_tanh', 'relu', 'silu', not 'tanh'",
    ),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_settings_that_make_no_model_are_refused(case: str) -> None:
    options, message = CONFIGS[case]
    with pytest.raises(ValueError) as caught:
        BertConfig(**options)
    assert str(caught.value) == message
