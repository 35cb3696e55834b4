"""Labels of heads: heads made by construction, heads of real models, and random ones, which have none."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import uwaga
from uwaga.inspect.heads.labels import LEAST, MIN_QUERIES, HeadLabel, LabelShares, common_labels
from uwaga.inspect.run_text import record_text

WORDS = ["a", "b", "c", "d", "e", "f", "g", "a", "b", "c", "d", "e", "f", "g"]
Weight = Callable[[int, int], float]


def labels_of(
    weights_HQK: Tensor, kind: str = "encoder", words: list[str] = WORDS, sink: float = 0.5
) -> list[HeadLabel]:
    """Of words between [CLS] and [SEP], with `sink` of each row on [CLS]."""
    heads, size = weights_HQK.shape[0], len(words) + 2
    tokens = ["[CLS]", *words, "[SEP]"]
    whole = torch.zeros(heads, size, size, dtype=torch.float64)
    whole[:, 1:-1, 1:-1] = (1 - sink) * weights_HQK / weights_HQK.sum(-1, keepdim=True).clamp_min(1e-300)
    whole[:, :, 0] = 1 - whole.sum(-1)
    ids = torch.tensor([sorted(set(tokens)).index(token) for token in tokens])
    special = torch.tensor([token.startswith("[") for token in tokens])
    result = LabelShares(heads, kind, ids, ids, special, special)
    result.add(range(size), whole)
    return result.labels()


def label(weight: Weight, kind: str = "encoder", words: list[str] = WORDS) -> HeadLabel:
    size = len(words)
    return labels_of(torch.tensor([[[float(weight(i, j)) for j in range(size)] for i in range(size)]]), kind, words)[0]


@pytest.mark.parametrize(
    ("name", "weight"),
    [
        ("previous", lambda i, j: j == i - 1),
        ("next", lambda i, j: j == i + 1),
        ("self", lambda i, j: j == i),
        ("duplicate", lambda i, j: i != j and WORDS[i] == WORDS[j]),
        ("induction", lambda i, j: (0 < j < i and WORDS[i] == WORDS[j - 1]) or 0.01),
        ("broad", lambda i, j: 1),
        ("ahead", lambda i, j: (j == i + 2) + (j == i + 4) or 1e-4),
        ("back", lambda i, j: (j == i - 2) + (j == i - 4) or 1e-4),
        ("gathers", lambda i, j: j == 4),
    ],
)
def test_heads_made_by_construction(name: str, weight: Weight) -> None:
    result = label(weight)
    assert result.label == name
    assert result.share >= LEAST[name]
    assert result.queries >= MIN_QUERIES
    assert result.sink > 0.5


def test_random_heads_have_no_label() -> None:
    torch.manual_seed(0)
    for kind in ("encoder", "decoder"):
        scores = 4 * torch.randn(300, 14, 14, dtype=torch.float64)
        if kind == "decoder":
            scores = scores.masked_fill(torch.ones(14, 14).triu(1).bool(), -math.inf)
        assert {head_label.label for head_label in labels_of(scores.softmax(-1), kind)} == {""}


def test_what_rests_on_fewer_than_five_queries_names_nothing() -> None:
    rare = ["a", "b", "c", "a", "b", "c", "d", "e", "f"]  # six queries have a copy
    assert label(lambda i, j: (i != j and rare[i] == rare[j]) or 0.2, words=rare).label == "duplicate"
    rarer = ["a", "b", "c", "a", "b", "g", "d", "e", "f"]  # four
    assert label(lambda i, j: (i != j and rarer[i] == rarer[j]) or 0.2, words=rarer).label != "duplicate"


def test_distance_explains_heads_of_positions_and_not_those_of_content() -> None:
    torch.manual_seed(0)
    assert label(lambda i, j: j == i - 1).by_position > 0.99
    by_content = torch.rand(14).tolist()
    assert label(lambda i, j: by_content[j] ** 4).by_position < 0.2
    assert math.isnan(labels_of(torch.rand(1, 14, 14), "cross")[0].by_position)


def test_a_label_that_most_heads_have_names_none() -> None:
    assert common_labels(["broad"] * 5 + ["self"] * 2 + [""]) == {"broad"}
    assert common_labels(["broad"] * 4 + [""] * 4) == common_labels(["broad"] * 3) == set()


def test_heads_of_minilm() -> None:
    text = "The animal didn't cross the street because it was too tired, and the street was too wide for it anyway."
    recording = record_text(uwaga.models.open("minilm", dtype="float32"), text)
    results = {(row["layer"], row["head"]): row for row in uwaga.inspect.head_labels(recording).rows}
    assert len(results) == 72
    named = {(0, 2): "previous", (1, 8): "next", (2, 9): "duplicate"}
    assert {head: results[head]["label"] for head in named} == named
    dense = recording.maps["encoder", 0].to_dense()
    assert isinstance(dense, Tensor)
    off = dense[0, 2, 1:-1, 1:-1].double()
    # [CLS] is no word: the first word has nothing before it, and counts as a query without it.
    expected = torch.cat((torch.zeros(1), off.diagonal(-1) / off.sum(1)[1:])).mean()
    assert results[0, 2]["share"] == pytest.approx(float(expected), rel=1e-6)


def test_the_induction_head_of_copyist() -> None:
    text = "seven green birds sing at dawn ; the old clock stopped ; seven green birds sing at dawn ; the old"
    rows = uwaga.inspect.head_labels(record_text(uwaga.models.open("copyist", dtype="float32"), text)).rows
    assert [(row["layer"], row["head"]) for row in rows if row["label"] == "induction"] == [(1, 2)]
