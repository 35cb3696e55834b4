"""Reranker: scores are those of CrossEncoder, one pair after another, since theirs in a batch is padded; by our model or transformers' own."""

import json
import random
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tolerance import assert_as_exact
from torch import nn
from waiting import HANG

from uwaga import Ragged, Reranker
from uwaga.encode.reranker import sigmoid
from uwaga.integrations.transformers import ragged_classifier
from uwaga.models import opening

transformers = pytest.importorskip("transformers", minversion="5")
peer = pytest.importorskip("sentence_transformers", minversion="6")
from tiny_tokenizer import WORDS, write_tokenizer  # noqa: E402
from tokenizers import Tokenizer, processors  # noqa: E402

_WIDE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_DECODER = _WIDE | {"num_key_value_heads": 2}
OWN, PACKED, ONE_BY_ONE = "uwaga", "transformers, packed", "transformers, one by one"
# By name: the family, its settings, how it runs, and whether its tokenizer says that it takes token types.
CASES: dict[str, tuple[str, dict, str, bool]] = {
    "bert": ("bert", _WIDE, OWN, True),
    "roberta": ("roberta", _WIDE | {"max_position_embeddings": 65, "type_vocab_size": 1}, OWN, False),
    "distilbert": ("distilbert", {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4}, OWN, False),
    "deberta": ("deberta-v2", _WIDE | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, ONE_BY_ONE, True),
    "modernbert": ("modernbert", _WIDE | {"local_attention": 6}, PACKED, False),
    "modernbert mean": ("modernbert", _WIDE | {"classifier_pooling": "mean"}, PACKED, False),
    "qwen3": ("qwen3", _DECODER | {"head_dim": 8}, PACKED, False),
    "gpt2": ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}, PACKED, False),
    "prenorm": ("roberta-prelayernorm", _WIDE | {"max_position_embeddings": 65}, PACKED, False),
    "rembert": ("rembert", _WIDE | {"input_embedding_size": 16, "output_embedding_size": 16}, ONE_BY_ONE, True),
    "phi": ("phi", _DECODER, PACKED, False),
}  # fmt: skip


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    def made(case: str) -> Path:
        family, settings, _, has_types = CASES[case]
        folder = tmp_path / "cross"
        shared = {"vocab_size": 64, "type_vocab_size": 3, "max_position_embeddings": 64, "num_labels": 1}
        ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "sep_token_id": 3, "cls_token_id": 2}
        config = transformers.AutoConfig.for_model(family, **shared | ids | settings)
        torch.manual_seed(1)
        model = transformers.AutoModelForSequenceClassification.from_config(config).eval()
        with torch.no_grad():
            for name, x in model.named_parameters():
                x.copy_(float("norm" in name.lower() and name.endswith("weight")) + 0.2 * torch.randn(x.shape))
        model.save_pretrained(folder)
        names = ["input_ids", *(["token_type_ids"] if has_types else []), "attention_mask"]
        kind = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": names}
        write_tokenizer(folder, model_max_length=40, **kind)
        words = Tokenizer.from_file(str(folder / "tokenizer.json"))
        words.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", words.token_to_id("[CLS]")), ("[SEP]", words.token_to_id("[SEP]"))],
        )
        words.save(str(folder / "tokenizer.json"))
        return folder

    return made


def pairs() -> list[tuple[str, str]]:
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in range(96)]
    return [*zip(texts[::2], texts[1::2], strict=True), ("the cat " * 3, "a dog sat on it " * 12)]


@pytest.mark.filterwarnings("ignore:.*unknown keys, which have no effect")  # of other families
@pytest.mark.gate(only=lambda case: case not in ("modernbert", "prenorm", "rembert", "phi"))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.replace(" ", "-"))
def test_scores_are_those_of_cross_encoder_with_the_same_bits_alone(case: str, make: Callable) -> None:
    folder, listed = make(case), pairs()
    reranker = Reranker.load(folder)
    assert reranker.explain().engine == CASES[case][2]
    raw = {"activation_fn": nn.Identity(), "show_progress_bar": False, "convert_to_tensor": True}

    def theirs(dtype: torch.dtype) -> torch.Tensor:
        model = peer.CrossEncoder(str(folder), device="cpu", model_kwargs={"dtype": dtype})
        return torch.cat([model.predict([pair], **raw) for pair in listed])

    scores = reranker.scores(listed, overflow="truncate", raw=True)
    assert_as_exact(torch.from_numpy(scores), theirs(torch.float32), lambda: theirs(torch.float64))
    alone = [reranker.scores([pair], overflow="truncate", raw=True)[0] for pair in listed]
    assert scores.tobytes() == np.float32(alone).tobytes()
    assert reranker.rank(*listed[0][:1], [listed[0][1]]).indices.tolist() == [0]


@pytest.mark.parametrize("case", ["modernbert", "deberta"])
def test_bfloat16_has_the_same_bits_alone(case: str, make: Callable) -> None:
    reranker, listed = Reranker.load(make(case), dtype=torch.bfloat16), pairs()
    scores = reranker.scores(listed, overflow="truncate", raw=True)
    alone = [reranker.scores([pair], overflow="truncate", raw=True)[0] for pair in listed]
    assert scores.tobytes() == np.float32(alone).tobytes()


def test_a_classifier_that_reads_more_than_states_runs_whole(make: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, listed = make("modernbert"), pairs()
    expected = Reranker.load(folder).scores(listed, overflow="truncate", raw=True)

    def refuse(*_: object, **__: object) -> None:
        raise TypeError("it wants attentions")

    monkeypatch.setattr("uwaga.integrations.transformers.ragged_classifier.GivenStates.forward", refuse)
    reranker = Reranker.load(folder)
    choice = reranker.explain()
    assert choice.engine == ONE_BY_ONE
    assert choice.refused[PACKED].endswith("reads more than the states of its body: it wants attentions")
    assert reranker.scores(listed, overflow="truncate", raw=True).tobytes() == expected.tobytes()


def test_a_classifier_that_gives_other_numbers_from_states_runs_whole(
    make: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, listed = make("modernbert"), pairs()
    expected = Reranker.load(folder).scores(listed, overflow="truncate", raw=True)
    forward = ragged_classifier.GivenStates.forward

    def other(self: nn.Module, *given: object, **more: object) -> object:
        output = forward(self, *given, **more)
        output.last_hidden_state = output.last_hidden_state + 1
        return output

    monkeypatch.setattr(ragged_classifier.GivenStates, "forward", other)
    reranker = Reranker.load(folder)
    why = "the classifier of ModernBertForSequenceClassification reads more than the states of its body"
    assert reranker.explain().refused == {PACKED: why}
    assert reranker.scores(listed, overflow="truncate", raw=True).tobytes() == expected.tobytes()


def test_a_classifier_reads_types_only_where_its_model_does(make: Callable) -> None:
    ids, types = Ragged.from_list([torch.tensor([5, 6, 7])]), torch.tensor([0, 1, 1])
    typed = opening.read_classifier(make("rembert"), None)
    assert not torch.equal(typed(ids), typed(ids, types))
    plain = opening.read_classifier(make("prenorm"), None)
    assert torch.equal(plain(ids), plain(ids, types))


@torch.no_grad()
def test_two_threads_score_texts_by_one_classifier(make: Callable) -> None:
    """Each number follows from the states of its own text, and the model itself keeps its body meanwhile."""
    model = opening.read_classifier(make("prenorm"), None)
    first, second = (Ragged.from_list([torch.tensor(ids)]) for ids in ([5, 6, 7], [8, 9]))
    right, body = [model(first), model(second)], model.model.base_model
    inside, go = threading.Event(), threading.Event()
    results: list[torch.Tensor] = []
    thread = threading.Thread(target=torch.no_grad()(lambda: results.append(model(first))))

    def wait(*_: object) -> None:
        if threading.current_thread() is thread:
            inside.set()
            assert go.wait(HANG)

    (given,) = (each for each in model.modules() if isinstance(each, ragged_classifier.GivenStates))
    hook = given.register_forward_pre_hook(wait)
    thread.start()
    assert inside.wait(HANG)
    assert model.model.base_model is body
    results.append(model(second))
    go.set()
    thread.join()
    hook.remove()
    assert torch.equal(results[1], right[0])
    assert torch.equal(results[0], right[1])


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
