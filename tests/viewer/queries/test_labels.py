"""Labels of heads on the page: those of `uwaga.inspect.head_labels`, for words too, from a sample where a text is long."""

import pytest
import torch
from asking import replies_of

import uwaga
from uwaga.inspect.run_text import record_text
from uwaga.viewer.messages import Reply
from uwaga.viewer.service import ViewService
from uwaga.viewer.shown import Maps, View

PLAIN = {"merge": "tokens", "specials": "show"}


def ask(service: ViewService, **where: object) -> Reply:
    """The complete reply."""
    *parts, reply = replies_of(
        service, request="labels", **{"side": "0", "kind": "encoder", "layer": 0, **PLAIN, **where}
    )
    assert all(part.meta["labels"] == [] for part in parts)
    return reply


def previous_head(size: int, heads: int = 1) -> uwaga.AttentionMap:
    """Every token looks at the one before."""
    position = torch.eye(size, dtype=torch.float64)
    query = torch.cat((position[:1], position[:-1]))
    return uwaga.AttentionMap(*(40.0 * vectors.expand(heads, -1, -1) for vectors in (query, position)), scale=1.0)


def test_they_are_those_of_python() -> None:
    recording = record_text(
        uwaga.models.open("minilm", dtype="float32"), "The animal didn't cross the street because it was too tired."
    )
    service = ViewService(View.of(recording))
    table = uwaga.inspect.head_labels(recording)
    results = [label for layer in range(6) for label in ask(service, layer=layer).meta["labels"]]
    common = {"broad"}  # what most heads are names none in the table; the page leaves it out when it knows all layers
    assert ["" if result["label"] in common else result["label"] for result in results] == [
        "" if label in common else label for label in table.columns["label"]
    ]
    for result, row in zip(results, table.rows, strict=True):
        assert result["sink"] == pytest.approx(row["sink"], rel=1e-5)
        if row["label"]:
            assert (result["queries"], result["of"]) == (row["queries"], row["of"])
            assert result["share"] == pytest.approx(row["share"], rel=1e-5)


def test_words_and_hidden_specials_have_labels_of_their_own() -> None:
    tokens = ["[CLS]", *(name for word in "abcdefg" for name in (word, f"##{word}")), "[SEP]"]
    service = ViewService(View.of(Maps(previous_head(len(tokens)), tokens=tokens)))
    assert [label["label"] for label in ask(service).meta["labels"]] == ["previous"]
    words = ask(service, merge="words", specials="hide").meta["labels"]
    # Half of a word's weight is on its own first token, half on the word before; six words have one before them.
    assert (words[0]["label"], words[0]["of"]) in (("previous", 6), ("self", 7))


def test_a_long_text_is_sampled() -> None:
    service = ViewService(View.of(previous_head(600, heads=2)))
    reply = ask(service)
    assert reply.meta["sampled"] == 256
    assert [label["label"] for label in reply.meta["labels"]] == ["previous"] * 2
    assert reply.meta["labels"][0]["of"] == 256


def test_the_first_word_is_a_sink_of_a_decoder_only_where_it_is_the_first_token() -> None:
    """Where a special token before it is left out, its links are links as others."""
    tokens = ["[CLS]", "a", "b", "c", "d", "e", "f"]
    position = torch.eye(len(tokens), dtype=torch.float64)
    first = 40.0 * position[[0, 1, 1, 1, 1, 1, 1]]  # every token looks at "a"
    m = uwaga.AttentionMap(first[None], position[None], scale=1.0, mask=uwaga.Causal())
    service = ViewService(View.of(Maps({("decoder", 0): m}, tokens=tokens)))
    hidden = ask(service, kind="decoder", specials="hide").meta["labels"][0]
    assert hidden["sink"] == 0
    assert hidden["link"][1] == 0
    assert hidden["label"] == "gathers"
