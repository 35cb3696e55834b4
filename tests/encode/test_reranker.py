"""Reranker: scores are those of CrossEncoder, one pair after another, since theirs in a batch is padded; by our model or transformers' own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from factories import factory

from uwaga import Ragged, Reranker
from uwaga.encode.reranker import sigmoid
from uwaga.integrations.transformers.ragged_classifier import RaggedClassifier

transformers = pytest.importorskip("transformers", minversion="5")
pytest.importorskip("sentence_transformers", minversion="6")
from sentence_models import assert_scores_are_theirs, random_pairs, save_model  # noqa: E402
from tiny_tokenizer import PAIR, write_tokenizer  # noqa: E402

_WIDE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_DECODER = _WIDE | {"num_key_value_heads": 2}
UWAGA, PACKED, ONE_BY_ONE = "uwaga", "transformers, packed", "transformers, one by one"
# By name: the family, its settings, how it runs, and whether its tokenizer says that it takes token types.
CASES: dict[str, tuple[str, dict, str, bool]] = {
    "bert": ("bert", _WIDE, UWAGA, True),
    "roberta": ("roberta", _WIDE | {"max_position_embeddings": 65, "type_vocab_size": 1}, UWAGA, False),
    "distilbert": ("distilbert", {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4}, UWAGA, False),
    "deberta": ("deberta-v2", _WIDE | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, ONE_BY_ONE, True),
    "modernbert": ("modernbert", _WIDE | {"local_attention": 6}, PACKED, False),
    "modernbert mean": ("modernbert", _WIDE | {"classifier_pooling": "mean"}, PACKED, False),
    "qwen3": ("qwen3", _DECODER | {"head_dim": 8}, PACKED, False),
    "gpt2": ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}, PACKED, False),
    "prenorm": ("roberta-prelayernorm", _WIDE | {"max_position_embeddings": 65}, PACKED, False),
    "rembert": ("rembert", _WIDE | {"input_embedding_size": 16, "output_embedding_size": 16}, ONE_BY_ONE, True),
    "phi": ("phi", _DECODER, PACKED, False),
}  # fmt: skip


PAIRS = [*random_pairs(40), ("the cat " * 3, "a dog sat on it " * 12)]


@factory
def make(tmp_path: Path, /, case: str) -> Path:
    family, settings, _, has_types = CASES[case]
    folder = tmp_path / "cross"
    shared = {"vocab_size": 64, "type_vocab_size": 3, "max_position_embeddings": 64, "num_labels": 1}
    ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "sep_token_id": 3, "cls_token_id": 2}
    save_model(folder, family, "AutoModelForSequenceClassification", **(shared | ids | settings))
    names = ["input_ids", *(["token_type_ids"] if has_types else []), "attention_mask"]
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": names}
    write_tokenizer(folder, pair=PAIR, model_max_length=40, **kind)
    return folder


@pytest.mark.filterwarnings("ignore:.*unknown keys, which have no effect")  # of other families
@pytest.mark.gate(only=lambda case: case in ("bert", "deberta", "modernbert mean", "qwen3", "gpt2", "prenorm"))
@pytest.mark.parametrize("case", CASES)
def test_scores_are_those_of_cross_encoder_with_the_same_bits_alone(case: str, make: Callable) -> None:
    reranker = assert_scores_are_theirs(make(case), PAIRS)
    assert reranker.explain().engine == CASES[case][2]
    assert reranker.rank(PAIRS[0][0], [PAIRS[0][1]]).indices.tolist() == [0]


def test_bfloat16_has_the_same_bits_alone(make: Callable) -> None:
    reranker = Reranker.load(make("modernbert"), dtype=torch.bfloat16)
    scores = reranker.scores(PAIRS, overflow="truncate", raw=True)
    alone = [reranker.scores([pair], overflow="truncate", raw=True)[0] for pair in PAIRS]
    assert scores.tobytes() == np.float32(alone).tobytes()


class OfWeights(transformers.ModernBertForSequenceClassification):
    """Its number depends on a weight of the body."""

    def forward(self, input_ids: torch.Tensor, **options: Any) -> Any:
        output = super().forward(input_ids, **options)
        output.logits = output.logits + self.model.embeddings.tok_embeddings.weight[0, 0]
        return output


class Twice(transformers.ModernBertForSequenceClassification):
    """Its body runs again, on the tokens in reverse."""

    def forward(self, input_ids: torch.Tensor, **options: Any) -> Any:
        output = super().forward(input_ids, **options)
        output.logits = output.logits + super().forward(input_ids.flip(1), **options).logits
        return output


@pytest.mark.parametrize("kind", [OfWeights, Twice])
@torch.no_grad()
def test_a_classifier_that_reads_more_than_states_runs_whole(make: Callable, kind: type) -> None:
    model = kind.from_pretrained(make("modernbert")).eval()
    texts = [torch.tensor([5, 6, 7]), torch.tensor([8, 9])]
    expected = [model(text[None]).logits[0, 0] for text in texts]
    classifier = RaggedClassifier(model, takes_types=False)
    assert classifier.choice.engine == ONE_BY_ONE
    assert (
        f"the classifier of {kind.__name__} reads more than the states of its body" in classifier.choice.refused[PACKED]
    )
    torch.testing.assert_close(classifier(Ragged.from_list(texts)), torch.stack(expected))


QUERY = "the cat sat"
PASSAGES = ["a dog ran away", "the cat", "the house , the dog", "it", "it"]


def test_rank_sorts_and_equal_scores_keep_their_order(write_reranker: Callable[[], Path]) -> None:
    reranker = Reranker.load(write_reranker())
    scores = reranker.scores([(QUERY, passage) for passage in PASSAGES])
    ranking = reranker.rank(QUERY, PASSAGES)
    assert ranking.scores.tolist() == sorted(scores.tolist(), reverse=True)
    assert scores[ranking.indices].tolist() == ranking.scores.tolist()
    places = ranking.indices.tolist()
    assert places.index(4) == places.index(3) + 1
    assert reranker.rank(QUERY, PASSAGES, top=2).indices.tolist() == places[:2]
    assert reranker.rank(QUERY, []).scores.shape == (0,)


IDENTITY = "torch.nn.modules.linear.Identity"


def saved(**settings: object) -> dict[str, object]:
    """The files of sentence-transformers that make a directory with a classifier one of its own."""
    return {
        "modules": [{"type": "sentence_transformers.base.modules.transformer.Transformer", "path": ""}],
        "config_sentence_transformers": {"model_type": "CrossEncoder"} | settings,
        "sentence_bert_config": {"transformer_task": "sequence-classification"},
    }


@pytest.mark.parametrize(
    ("files", "has_sigmoid"),
    [
        ({}, True),
        (saved(activation_fn=IDENTITY), False),
        (saved(activation_fn="torch.nn.modules.activation.Sigmoid"), True),
        # sentence-transformers reads this file with modules.json alone.
        ({"config_sentence_transformers": {"activation_fn": IDENTITY}}, True),
    ],
)
def test_the_activation_is_the_one_that_the_files_name(
    write_reranker: Callable[[], Path], files: dict, has_sigmoid: bool
) -> None:
    folder = write_reranker()
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    reranker = Reranker.load(folder)
    pairs = [(QUERY, passage) for passage in PASSAGES]
    raw = reranker.scores(pairs, raw=True)
    expected = 1 / (1 + np.exp(-raw.astype(np.float64))) if has_sigmoid else raw
    np.testing.assert_allclose(reranker.scores(pairs), expected, rtol=2**-24 if has_sigmoid else 0)  # of one rounding


def test_a_sigmoid_neither_overflows_nor_loses_small_numbers() -> None:
    result = sigmoid(np.float32([-1e4, -90, 0, 90, 1e4]))
    assert result.tolist() == [0.0, float(np.float32(np.exp(-90.0))), 0.5, 1.0, 1.0]
