"""config.json of transformers: what is read, what is refused, what is warned of; each message whole."""

import json
import warnings
from pathlib import Path

import pytest

from uwaga._base.errors import CheckpointError
from uwaga.models.bert import checkpoint, factorized, rotary
from uwaga.models.checkpoints import load_save

WHERE = "model/config.json"
BERT: dict[str, object] = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "hidden_size": 8,
    "num_attention_heads": 2,
}


def read(**changes: object):
    return checkpoint.FAMILY.read_config(BERT | changes, WHERE, frozenset())


REFUSED = {
    "a word for a number": (
        {"hidden_size": "8"},
        "hidden_size must be a whole number from 1 to 268,435,456, not '8'",
    ),
    "a switch for a number": (
        {"num_hidden_layers": True},
        "num_hidden_layers must be a whole number from 0 to 268,435,456, not True",
    ),
    "a number beyond reason": (
        {"vocab_size": 10**12},
        "vocab_size must be a whole number from 1 to 268,435,456, not 1000000000000",
    ),
    "a list": ({"layer_norm_eps": [1]}, "layer_norm_eps must be a number above 0, not [1]"),
    "another activation": (
        {"hidden_act": "tanh"},
        "hidden_act must be one of 'gelu', 'gelu_new', 'gelu_pytorch_tanh', 'relu', 'silu', 'swish', not 'tanh'",
    ),
    "relative positions": (
        {"position_embedding_type": "relative_key"},
        "position_embedding_type is 'relative_key'; only 'absolute' or None is supported",
    ),
    "a decoder": ({"is_decoder": True}, "is_decoder is True; only False is supported"),
    "quantized weights": (
        {"quantization_config": {"bits": 4}},
        "quantization_config is {'bits': 4}; only None is supported",
    ),
    "heads that do not divide": (
        {"num_attention_heads": 3},
        "BertConfig: d_model 8 is not a multiple of num_heads 3",
    ),
    "another head": (
        {"architectures": ["BertForQuestionAnswering"]},
        "architecture 'BertForQuestionAnswering'; supported: BertModel, BertForMaskedLM, "
        "BertForSequenceClassification, BertForTokenClassification, BertForPreTraining, BertForNextSentencePrediction",
    ),
    "two architectures": (
        {"architectures": ["BertModel", "BertForMaskedLM"]},
        "architectures must be a list of one name, not ['BertModel', 'BertForMaskedLM']",
    ),
    "an architecture that is no name": (
        {"architectures": [{}]},
        "architecture {}; supported: BertModel, BertForMaskedLM, BertForSequenceClassification, "
        "BertForTokenClassification, BertForPreTraining, BertForNextSentencePrediction",
    ),
    "labels with a gap": (
        {"id2label": {"0": "a", "2": "b"}},
        "id2label must have the keys 0, 1, ... without a gap",
    ),
    "more labels than anybody has": (
        {"num_labels": 10**9},
        "num_labels must be a whole number from 1 to 65,536, not 1000000000",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_computed_here_is_refused(case: str) -> None:
    changes, message = REFUSED[case]
    with pytest.raises(CheckpointError) as caught:
        read(**changes)
    assert str(caught.value) == f"{WHERE}: {message}"


OWN_CODE = {
    "jina v2": (
        {"model_type": "bert", "position_embedding_type": "alibi"},
        "position_embedding_type is 'alibi': a Jina v2, whose code is in its own directory; transformers has no class for it to compare "
        "with, so that it is not read",
    ),
    "jina v3 of flash attention": (
        {"model_type": "xlm-roberta", "position_embedding_type": "rotary"},
        "position_embedding_type is 'rotary': a Jina v3 or GTE of code in its own directory; those of transformers have the model_type "
        "jina_embeddings_v3 and gte",
    ),
    "a mixture of experts": (
        {"model_type": "nomic_bert", "num_experts": 8, "n_embd": 768},
        "num_experts is 8: a mixture of experts, which is not computed",
    ),
    "nomic's own keys": (
        {"model_type": "nomic_bert", "n_embd": 512},
        "n_embd is 512, a key of the authors' own code; transformers reads none of these and has the sizes of v1.5, where it is 768",
    ),
}


@pytest.mark.parametrize("case", OWN_CODE)
def test_models_with_code_of_their_own_are_refused_by_name(case: str) -> None:
    config, message = OWN_CODE[case]
    with pytest.raises(CheckpointError) as caught:
        load_save.family_of(config["model_type"], WHERE).read_config(config, WHERE, frozenset())
    assert str(caught.value) == f"{WHERE}: {message}"


def test_keys_of_own_code_beside_those_of_transformers_have_no_effect() -> None:
    """As transformers keeps them when it saves a model that it loaded."""
    old = {"model_type": "nomic_bert", "hidden_size": 24, "num_attention_heads": 4, "n_embd": 512}
    assert load_save.family_of("nomic_bert", WHERE).read_config(old, WHERE, frozenset()).d_model == 24


def test_own_keys_of_nomic_v1_5_mean_what_transformers_makes_of_them(transformers) -> None:
    """It reads none of them: its defaults are the sizes of v1.5."""
    own = {
        "n_embd": 768, "n_head": 12, "n_inner": 3072, "n_layer": 12, "n_positions": 8192, "activation_function": "swiglu", "prenorm": False,
        "layer_norm_epsilon": 1e-12, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "vocab_size": 30528, "type_vocab_size": 2,
        "use_flash_attn": True, "qkv_proj_bias": False,
    }  # fmt: skip
    theirs = transformers.NomicBertConfig(**own).to_dict() | {"classifier_dropout": 0.0}  # None: as hidden_dropout_prob
    ours = load_save.family_of("nomic_bert", WHERE).read_config(own | {"model_type": "nomic_bert"}, WHERE, frozenset())
    written = load_save.family_of("nomic_bert", WHERE).write_config(ours)
    assert {key: written[key] for key in rotary.KEYS["nomic_bert"] if key in theirs} == {
        key: theirs[key] for key in rotary.KEYS["nomic_bert"] if key in theirs
    }
    assert written["rope_parameters"] == theirs["rope_parameters"]


def test_unknown_keys_are_warned_of_and_kept() -> None:
    with pytest.warns(UserWarning, match="unknown keys") as caught:
        config = read(new_trick=7, _name_or_path="x")
    assert [str(warning.message) for warning in caught] == [
        f"{WHERE} has unknown keys, which have no effect: new_trick"
    ]
    assert config.kept["new_trick"] == 7


def test_what_is_absent_is_what_transformers_takes(transformers) -> None:
    """Of every model type, so that a short config.json means the same here and there."""
    stems = {
        "albert": "Albert",
        "camembert": "Camembert",
        "distilbert": "DistilBert",
        "electra": "Electra",
        "gte": "Gte",
        "jina_embeddings_v3": "JinaEmbeddingsV3",
        "mpnet": "MPNet",
        "nomic_bert": "NomicBert",
        "roberta": "Roberta",
        "xlm-roberta": "XLMRoberta",
    }
    for model_type, keys in (checkpoint.KEYS | factorized.KEYS | rotary.KEYS).items():
        theirs = getattr(transformers, f"{stems.get(model_type, 'Bert')}Config")().to_dict()
        family = load_save.family_of(model_type, WHERE)
        ours = family.write_config(family.read_config({"model_type": model_type}, WHERE, frozenset()))
        # theirs says None there for "as hidden_dropout_prob"
        ours["classifier_dropout"] = theirs.get("classifier_dropout")
        keys = {**keys, "rope_parameters": None} if model_type in rotary.KEYS else keys
        if "head_dim" in keys:  # of GTE and Jina v3 it is a model's own default, and not the config's
            theirs.setdefault("head_dim", theirs["hidden_size"] // theirs["num_attention_heads"])
        theirs["tie_word_embeddings"] = theirs.get("tie_word_embeddings", True)  # a constant of NomicBertConfig
        assert {key: ours[key] for key in keys} == {key: theirs[key] for key in keys}, model_type


def test_labels_are_numbers_where_they_have_no_names() -> None:
    assert read().labels == ("LABEL_0", "LABEL_1")
    assert read(num_labels=3).labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert read(id2label={"1": "b", "0": "a"}).labels == ("a", "b")


def test_every_key_of_a_published_config_is_known(minilm: Path) -> None:
    parsed = json.loads((minilm / "config.json").read_text())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = checkpoint.FAMILY.read_config(parsed, WHERE, frozenset())
    assert (config.d_model, config.num_layers, config.num_heads, config.max_position_embeddings) == (384, 6, 12, 512)


@pytest.mark.parametrize("model_type", ["mamba", None, ["bert"]])
def test_other_kinds_of_models_are_refused(model_type: object) -> None:
    with pytest.raises(CheckpointError) as caught:
        load_save.family_of(model_type, WHERE)
    known = ", ".join(load_save.MODEL_TYPES)
    assert str(caught.value) == f"{WHERE}: model_type is {model_type!r}; supported: {known}"
    assert "bert" in load_save.MODEL_TYPES


def test_every_family_that_is_listed_is_there() -> None:
    from uwaga.models.checkpoints import load_save
    from uwaga.models.checkpoints.tables import Family

    for model_type in load_save.MODEL_TYPES:
        assert isinstance(load_save.family_of(model_type, WHERE), Family)


@pytest.mark.parametrize(("name", "value"), [("pad_token_id", 1), ("relative_attention_num_buckets", 32)])
def test_what_mpnet_of_transformers_takes_whatever_the_file_says(name: str, value: int) -> None:
    with pytest.raises(CheckpointError) as caught:
        load_save.family_of("mpnet", WHERE).read_config({"model_type": "mpnet", name: 0}, WHERE, frozenset())
    assert str(caught.value) == (
        f"{WHERE}: {name} must be {value} (MPNet of transformers takes {value} for it, whatever the file says: positions of another model "
        "have other rows), not 0"
    )
