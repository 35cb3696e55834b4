"""BERT and its relatives against transformers, on random checkpoints that it saved, and back.

Letters: B batch, Q tokens, H heads.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tolerance import once
from torch import Tensor

import uwaga
from uwaga.maps.map import AttentionMap, map_options
from uwaga.models import load, save
from uwaga.ops.attention.hooks import hooked, looking

_SIZES = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 16,
    "id2label": {0: "no", 1: "yes", 2: "perhaps"},
    "label2id": {"no": 0, "yes": 1, "perhaps": 2},
}
_HIDDEN = {"Bert": "intermediate_size", "DistilBert": "hidden_dim"}

# Our output, and the field of transformers' that it must equal.
_LOGITS = {
    "Model": {"pooled": "pooler_output"},
    "ForMaskedLM": {"masked_lm": "logits"},
    "ForPreTraining": {
        "masked_lm": "prediction_logits",
        "next_sentence": "seq_relationship_logits",
    },
    "ForNextSentencePrediction": {"next_sentence": "logits"},
    "ForSequenceClassification": {"sequence": "logits"},
    "ForTokenClassification": {"tokens": "logits"},
}
_EVERYWHERE = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
_CASES = [("Bert", head, {}) for head in _LOGITS]
_CASES += [(stem, head, {}) for stem in ("Roberta", "DistilBert", "MPNet") for head in _EVERYWHERE]
_CASES += [(stem, "ForMaskedLM", {}) for stem in ("XLMRoberta", "Camembert")]
_CASES += [
    ("Bert", "ForMaskedLM", {"tie_word_embeddings": False}),
    ("Bert", "ForMaskedLM", {"hidden_act": "gelu_new"}),
    ("Roberta", "ForMaskedLM", {"hidden_act": "silu", "pad_token_id": 3}),
    ("MPNet", "ForMaskedLM", {"tie_word_embeddings": False, "hidden_act": "relu"}),
    ("DistilBert", "ForMaskedLM", {"activation": "relu", "tie_word_embeddings": False}),
    ("Bert", "Model", {"layer_norm_eps": 1e-3, "type_vocab_size": 4}),
]
_NARROW = {"embedding_size": 16}
_CASES += [(stem, head, _NARROW) for stem in ("Electra", "Albert") for head in _EVERYWHERE]
_CASES += [
    ("Electra", "ForPreTraining", _NARROW | {"hidden_act": "relu"}),
    ("Electra", "Model", {"embedding_size": 24, "type_vocab_size": 3}),
    ("Electra", "ForMaskedLM", _NARROW | {"tie_word_embeddings": False, "hidden_act": "silu", "layer_norm_eps": 1e-3}),
    ("Albert", "Model", {"embedding_size": 24, "num_hidden_groups": 3, "hidden_act": "gelu"}),
    ("Albert", "Model", _NARROW | {"num_hidden_groups": 2, "inner_group_num": 2, "layer_norm_eps": 1e-3}),
    ("Albert", "ForMaskedLM", _NARROW | {"tie_word_embeddings": False, "hidden_act": "relu", "inner_group_num": 2}),
]
_ROTARY = ("Gte", "NomicBert", "JinaEmbeddingsV3")
_YARN = {"rope_type": "yarn", "rope_theta": 300.0, "factor": 4.0, "original_max_position_embeddings": 4}
_CASES += [(stem, head, {}) for stem in _ROTARY for head in _EVERYWHERE]
_CASES += [
    ("Gte", "Model", {"type_vocab_size": 0, "hidden_act": "silu", "layer_norm_eps": 1e-3}),
    ("Gte", "ForMaskedLM", {"type_vocab_size": 3, "rope_parameters": _YARN, "hidden_act": "relu"}),
    ("Gte", "ForMaskedLM", {"tie_word_embeddings": False}),
    ("NomicBert", "Model", {"head_dim": 10, "hidden_act": "gelu", "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}),
    ("NomicBert", "ForMaskedLM", {"hidden_act": "gelu_new", "type_vocab_size": 4}),
    ("JinaEmbeddingsV3", "Model", {"rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 2.0}}),
    ("JinaEmbeddingsV3", "ForMaskedLM", {"hidden_act": "silu", "type_vocab_size": 2, "tie_word_embeddings": False}),
]  # fmt: skip
_OWN_LOGITS = {("Electra", "ForPreTraining"): {"replaced": "logits"}}
_WITHOUT_POOLER = ("DistilBert", "Electra", "Gte", "NomicBert")


_ROWS = 42  # of a batch: enough draws of the two or three logits of a sequence (tolerance.py)


def _name(case: object) -> str:
    return ",".join(f"{key}={value}" for key, value in case.items()) if isinstance(case, dict) else str(case)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Twins:
    """One model thrice: here, in transformers, and there in float64."""

    folder: Path
    ours: uwaga.models.BertModel
    peer: torch.nn.Module
    exact: torch.nn.Module
    logits: dict[str, str]


@pytest.fixture(scope="module", params=_CASES, ids=lambda case: "-".join(filter(None, map(_name, case))))
def twins(
    request: pytest.FixtureRequest, transformers, randomize: Callable, tmp_path_factory: pytest.TempPathFactory
) -> Twins:
    stem, head, options = request.param
    folder = tmp_path_factory.mktemp("twins")
    sizes = {**_SIZES, _HIDDEN.get(stem, "intermediate_size"): 40, **options}
    torch.manual_seed(0)
    peer = randomize(getattr(transformers, stem + head)(getattr(transformers, stem + "Config")(**sizes)))
    peer.save_pretrained(folder / "theirs")
    exact = type(peer).from_pretrained(folder / "theirs", dtype=torch.float64).eval()
    logits = {} if stem in _WITHOUT_POOLER and head == "Model" else _OWN_LOGITS.get((stem, head), _LOGITS[head])
    return Twins(folder=folder, ours=load(folder / "theirs"), peer=peer, exact=exact, logits=logits)


def compare(
    twins: Twins, ours: uwaga.models.bert.model.BertOutput, inputs: dict, check: Callable, is_token: Tensor
) -> None:
    """Every state and every logit, where there is a token."""
    with torch.no_grad():
        peer = twins.peer(**inputs, output_hidden_states=True)
    exact = once(torch.no_grad()(lambda: twins.exact(**inputs, output_hidden_states=True)))
    assert len(ours.hidden_states) == len(peer.hidden_states)
    for n, value in enumerate(ours.hidden_states):
        check(value[is_token], peer.hidden_states[n][is_token], lambda n=n: exact().hidden_states[n][is_token])
    for field, theirs in twins.logits.items():
        value = getattr(ours, field)
        where = is_token if value.shape[:2] == is_token.shape else slice(None)
        check(value[where], peer[theirs][where], lambda theirs=theirs, where=where: exact()[theirs][where])


def random_ids(config: uwaga.models.BertConfig, *shape: int) -> Tensor:
    """Any words but the padding token."""
    return torch.randint(4, config.vocab_size, shape, generator=torch.Generator().manual_seed(2))


def test_layers_of_albert_share_their_parameters(transformers, tmp_path: Path) -> None:
    """As modules each is watched and edited by its number; training moves one set of weights."""
    sizes = {**_SIZES, "embedding_size": 8, "intermediate_size": 40, "num_hidden_groups": 2, "inner_group_num": 2}
    transformers.AlbertModel(transformers.AlbertConfig(**sizes)).save_pretrained(tmp_path)
    model = load(tmp_path)
    assert model.config.layer_weights == (0, 1, 0, 1, 2, 3)
    layers = model.encoder.layers
    for name, parameter in layers[0].named_parameters():
        assert layers[2].get_parameter(name) is parameter, name
        assert layers[1].get_parameter(name) is not parameter, name
    ids = random_ids(model.config, 2, 9)
    with uwaga.watch(model) as recording:
        model(ids)
    assert [layer for _, layer in recording.maps] == [0, 1, 2, 3, 4, 5]
    model.train()(ids).last_hidden_state.square().sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    save(model, tmp_path / "trained")
    again = load(tmp_path / "trained").eval()
    with torch.no_grad():
        assert torch.equal(again(ids).last_hidden_state, model.eval()(ids).last_hidden_state)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "BertConfig: an albert model needs num_hidden_groups from 1 to num_layers 12, not None"),
        ({"num_hidden_groups": 13}, "BertConfig: an albert model needs num_hidden_groups from 1 to num_layers 12, not 13"),
        ({"num_hidden_groups": 1, "num_layers": 1025}, "BertConfig: num_layers 1025 times inner_group_num 1 is more than 1024 layers"),
        ({"model_type": "bert"}, "BertConfig: a bert model cannot have embedding_size 8"),
        ({"model_type": "electra", "inner_group_num": 2, "outputs": ()}, "BertConfig: an electra model has no groups of layers"),
        ({"model_type": "electra"}, "BertConfig: an electra model has no output pooled"),
        ({"rotary_base": 10.0, "num_hidden_groups": 1}, "BertConfig: an albert model cannot have rotary_base 10.0"),
        ({"d_k": 8, "num_hidden_groups": 1}, "BertConfig: an albert model cannot have rotary_scaling or d_k, which need rotary_base"),
        ({"num_hidden_groups": 1, "outputs": ("replaced",)}, "BertConfig: an albert model has no output replaced"),
    ],
)  # fmt: skip
def test_settings_of_groups_and_embeddings_that_contradict_each_other(settings: dict, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        uwaga.models.BertConfig(**{"model_type": "albert", "embedding_size": 8, **settings})
    assert str(caught.value) == message


@torch.no_grad()
def test_states_and_logits_are_those_of_transformers(twins: Twins, assert_as_exact: Callable) -> None:
    ids = random_ids(twins.ours.config, _ROWS, 9)
    inputs = {"input_ids": ids}
    types = None
    if twins.ours.config.type_vocab_size > 1:
        types = inputs["token_type_ids"] = (torch.arange(9) > 4).long().expand(_ROWS, 9)
    is_token = torch.ones(_ROWS, 9).bool()
    compare(twins, twins.ours(ids, token_types=types, output_hidden_states=True), inputs, assert_as_exact, is_token)


@torch.no_grad()
def test_padded_rows_are_those_of_transformers(twins: Twins, assert_as_exact: Callable) -> None:
    lengths = torch.tensor([9, 1, 4]).repeat(_ROWS // 3)
    is_token = torch.arange(9) < lengths[:, None]
    ids = torch.where(is_token, random_ids(twins.ours.config, _ROWS, 9), twins.ours.config.pad_token_id)
    inputs = {"input_ids": ids, "attention_mask": is_token.long()}
    by_lengths = twins.ours(ids, lengths=lengths, output_hidden_states=True)
    compare(twins, by_lengths, inputs, assert_as_exact, is_token)
    by_mask = twins.ours(ids, attention_mask=is_token, output_hidden_states=True)
    assert torch.equal(by_mask.last_hidden_state[is_token], by_lengths.last_hidden_state[is_token])


@torch.no_grad()
def test_rows_padded_on_the_left_are_those_of_transformers(twins: Twins, assert_as_exact: Callable) -> None:
    """Their states, that is: what transformers pools there is the state of the padding."""
    is_token = torch.arange(9) >= torch.tensor([0, 8, 5])[:, None]
    ids = torch.where(is_token, random_ids(twins.ours.config, 3, 9), twins.ours.config.pad_token_id)
    inputs = {"input_ids": ids, "attention_mask": is_token.long()}
    states_alone = dataclasses.replace(twins, logits={})
    compare(
        states_alone,
        twins.ours(ids, attention_mask=is_token, output_hidden_states=True),
        inputs,
        assert_as_exact,
        is_token,
    )


@torch.no_grad()
def test_packed_documents_are_those_that_transformers_pads(twins: Twins, assert_as_exact: Callable) -> None:
    groups = [random_ids(twins.ours.config, _ROWS // 3, length) for length in (6, 1, 9)]
    # RoBERTa counts no place for a padding token, wherever it stands.
    groups[2][:, 3] = twins.ours.config.pad_token_id
    output = twins.ours(uwaga.Ragged.from_list([row for ids in groups for row in ids]), output_hidden_states=True)

    def theirs(model: torch.nn.Module) -> list:
        return [model(ids, output_hidden_states=True) for ids in groups]

    peer, exact = theirs(twins.peer), once(lambda: theirs(twins.exact))

    def check(result: uwaga.Ragged | Tensor, field: Callable) -> None:
        def packed(outputs: list) -> Tensor:
            parts = [field(of) for of in outputs]
            return torch.cat([x.flatten(0, 1) for x in parts] if isinstance(result, uwaga.Ragged) else parts)

        values = result.values if isinstance(result, uwaga.Ragged) else result
        assert_as_exact(values, packed(peer), lambda: packed(exact()))

    for layer, states in enumerate(output.hidden_states):
        check(states, lambda of, layer=layer: of.hidden_states[layer])
    for field, name in twins.logits.items():
        check(getattr(output, field), lambda of, name=name: of[name])


@torch.no_grad()
def test_attention_maps_are_those_of_transformers(twins: Twins, assert_as_exact: Callable) -> None:
    lengths = torch.tensor([9, 4])
    is_token = torch.arange(9) < lengths[:, None]
    ids = torch.where(is_token, random_ids(twins.ours.config, 2, 9), twins.ours.config.pad_token_id)
    seen: list[AttentionMap] = []
    look = looking(lambda asked, _: seen.append(AttentionMap(asked.query, asked.key, **map_options(asked.options))))
    with hooked({layer.attention: look for layer in twins.ours.encoder.layers}):
        twins.ours(ids, lengths=lengths)

    def weights(model: torch.nn.Module) -> list[Tensor]:
        model.set_attn_implementation("eager")
        result = model(input_ids=ids, attention_mask=is_token.long(), output_attentions=True).attentions
        model.set_attn_implementation("sdpa")
        return [x.transpose(1, 2)[is_token] for x in result]

    exact = once(lambda: weights(twins.exact))
    for n, (value, peer) in enumerate(zip(seen, weights(twins.peer), strict=True)):
        assert_as_exact(value.to_dense().transpose(1, 2)[is_token], peer, lambda n=n: exact()[n])


def test_what_is_saved_here_loads_there_with_nothing_missing(twins: Twins) -> None:
    save(twins.ours, twins.folder / "ours")
    back, info = type(twins.peer).from_pretrained(twins.folder / "ours", output_loading_info=True)
    # A parameter that transformers keeps and does not read where the decoder is not tied.
    unread = (
        {"cls.predictions.bias", "lm_head.bias", "predictions.bias"}
        if not twins.ours.config.tie_word_embeddings
        else set()
    )
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    assert set(info["missing_keys"]) <= unread
    there, here = back.state_dict(), twins.peer.state_dict()
    assert there.keys() == here.keys()
    for name in here.keys() - unread:
        assert torch.equal(there[name], here[name]), name
    # They complete what their own saved config left out; what both say must agree.
    ours, theirs = back.config.to_dict(), twins.peer.config.to_dict()
    assert {key for key in theirs if theirs[key] != ours[key]} <= {"_name_or_path", "classifier_dropout", "dtype"}


def test_what_is_saved_here_loads_here(twins: Twins) -> None:
    save(twins.ours, twins.folder / "ours")
    again = load(twins.folder / "ours")
    assert dataclasses.replace(again.config, kept={}) == dataclasses.replace(twins.ours.config, kept={})
    assert again.config.labels == ("no", "yes", "perhaps")
    state = again.state_dict()
    for name, weight in twins.ours.state_dict().items():
        assert torch.equal(state[name], weight), name
