"""Every figure that names two words is the exact weight between them, whatever the length of the text and the model."""

from typing import Any

import numpy as np
import pytest
import torch
from asking import complete, runner_of

import uwaga
from uwaga.inspect import Edits
from uwaga.viewer.service import ViewService
from uwaga.viewer.texts import EXAMPLES, RunRequest

PLAIN = {"merge": "tokens", "specials": "show"}
# Characters that are a token or more each, so that the names say how long the texts are.
SENTENCE = "The animal did not cross the street because it was too tired, and the keeper said that she would wait . "
SIZES = {  # of texts, in characters
    "minilm": (3, 10, 31, 60, 300, 1000, 1800),
    "copyist": (6, 60, 300, 900, 2500, 50_000),
    "bard": (3, 65, 257, 1000, 20_000),
}
IN_GATE = {"minilm": (60, 300), "copyist": (60, 300), "bard": (257,)}
CASES = {f"{model}-{size}": (model, (SENTENCE * 500)[:size]) for model, sizes in SIZES.items() for size in sizes}
CASES |= {f"speller-{word}": ("speller", word) for word in ("cat", "attention", "onomatopoeia")}


@pytest.mark.gate(
    only=lambda model, text: (model == "speller" and text == "attention") or len(text) in IN_GATE.get(model, ())
)
@pytest.mark.parametrize(("model", "text"), CASES.values(), ids=CASES)
def test_links_are_exact(model: str, text: str) -> None:
    runner = runner_of(model)
    result = runner.run(RunRequest(text), max_tokens=None)
    service = ViewService(result, runner=runner)
    side = service.answer({"request": "about"}).meta["sides"][0]
    seen = 0
    for layer_map in side["maps"]:
        where = {"side": "0", "kind": layer_map["kind"], "layer": layer_map["layer"], **PLAIN}
        axes = side["kinds"][layer_map["kind"]]
        queries, keys = (
            complete(service, request="items", side="0", stack=axes[axis], first=0, count=200_000, **PLAIN).meta
            for axis in ("queries", "keys")
        )
        reply = complete(service, request="labels", **where).meta
        for head, label in enumerate(reply["labels"]):
            for link in filter(None, (label["link"], (label["coreference"] or {}).get("link"))):
                seen += 1
                query, key, weight = link
                at = {**where, "head": head}
                row = service.answer({"request": "row", "query": query, **at}).arrays[0]
                entry = service.answer({"request": "entry", "query": query, "key": key, **at}).meta["weight"]
                # One float32 number, in the rail, in the headline, which reads the row, and in the map, which reads the entry.
                assert np.float32(weight) == row[key] == np.float32(entry)
                m = result.sides[0].maps[layer_map["kind"], layer_map["layer"]].select(head)
                torch.testing.assert_close(torch.tensor(weight), m[query, key].detach(), rtol=1e-5, atol=1e-7)
                for axis, item in ((queries, query), (keys, key)):
                    assert item not in axis["specials"]
                    assert any(letter.isalnum() for letter in axis["labels"][item])
            if reply["sampled"] is None and label["link"] is not None:
                assert label["link"][2] >= largest(service, where, head, queries, keys) * (1 - 1e-6)
    assert seen or len(text) < 10


def largest(service: ViewService, where: dict[str, Any], head: int, queries: Any, keys: Any) -> float:
    """The largest weight between two words, read by another way: row by row."""
    rows = ({"request": "row", **where, "head": head, "query": query} for query in range(queries["total"]))
    block = np.stack([service.answer(row).arrays[0] for row in rows])

    def words(axis: Any) -> list[int]:
        return [
            at
            for at, label in enumerate(axis["labels"])
            if at not in axis["specials"] and any(letter.isalnum() for letter in label)
        ]

    asked = [at for at in words(keys) if where["kind"] != "decoder" or at]
    if where["kind"] != "cross":
        np.fill_diagonal(block, 0.0)
    return float(block[np.ix_(words(queries), asked)].max(initial=0.0))


@pytest.mark.parametrize(
    ("text", "pronoun"),
    [
        ("The animal didn't cross the street because it was too tired.", True),
        ("The animal crossed the street.", False),
        ("print(s); s.item(); edit", False),
    ],
)
def test_only_a_text_with_a_pronoun_has_heads_that_follow_one(text: str, pronoun: bool) -> None:
    runner = runner_of("minilm")
    service = ViewService(runner.run(RunRequest(text)), runner=runner)
    found = [
        label["coreference"]
        for layer in range(6)
        for label in complete(service, request="labels", side="0", kind="encoder", layer=layer, **PLAIN).meta["labels"]
    ]
    assert any(found) == pronoun
    if pronoun:
        labels = service.answer(
            {"request": "items", "side": "0", "stack": "encoder", "first": 0, "count": 99, **PLAIN}
        ).meta["labels"]
        assert [[labels[at] for at in result["link"][:2]] for result in found if result] == [["it", "animal"]]


@pytest.mark.parametrize(
    ("model", "text", "kind", "merge"),
    [
        ("minilm", SENTENCE[:60], "encoder", "words"),
        ("copyist", SENTENCE[:60], "decoder", "words"),
        ("minilm", "attention", "encoder", "tokens"),
        ("speller", "attention", "cross", "tokens"),
        ("bard", SENTENCE * 4, "decoder", "tokens"),
    ],
)
def test_a_page_opens_on_what_is_written_and_a_short_text_is_read_in_words(
    model: str, text: str, kind: str, merge: str
) -> None:
    runner = runner_of(model)
    service = ViewService(runner.run(RunRequest(text)), runner=runner)
    start = {"side": "0", "kind": kind, "layer": 0, "head": 0, "merge": merge}
    assert service.answer({"request": "about"}).meta["start"] == start
    if merge == "words":
        # Each cell of a small map is the exact weight between two words, which the arcs are drawn from.
        where = {"side": "0", "kind": kind, "layer": 0, "merge": merge, "specials": "show"}
        cells = complete(service, request="overview", pooling="sum", **where).arrays[0]
        for query in range(cells.shape[1]):
            row = service.answer({"request": "row", "head": 1, "query": query, **where}).arrays[0]
            assert np.array_equal(cells[1, query], row)


CUT = {"kind": "encoder", "layer": 3, "head": 1, "queries": [10], "keys": [2]}  # it, animal


def changed(model: str, text: str, edits: dict[str, Any]) -> tuple[Any, ViewService]:
    runner = runner_of(model)
    result = runner.run(RunRequest(text, edits=Edits.from_dict(edits)))
    return result, ViewService(result, runner=runner)


def test_the_similarity_of_both_sides_is_that_of_the_encoder() -> None:
    text, wide = EXAMPLES["minilm"][0], "The street was wide."
    encoder = uwaga.TextEncoder.load("minilm")
    plain, other = encoder.encode([text, wide])
    with uwaga.edit(encoder.model, Edits.from_dict({"scores": [CUT]})):
        cut = encoder.encode([text])[0]
    runner = runner_of("minilm")
    for request, vector in (
        (RunRequest(text, edits=Edits.from_dict({"scores": [CUT]})), cut),
        (RunRequest(text, second=wide), other),
    ):
        about = ViewService(runner.run(request), runner=runner).answer({"request": "about"}).meta
        assert about["similarity"] == pytest.approx(float(plain @ vector), abs=2e-6)
    assert ViewService(runner.run(RunRequest(text))).answer({"request": "about"}).meta["similarity"] is None


@pytest.mark.parametrize(
    ("model", "text", "kind"), [("bard", "To be, or not to", "decoder"), ("speller", "cat", "cross")]
)
def test_probabilities_are_exact_before_and_after_a_change(model: str, text: str, kind: str) -> None:
    edits = {"heads": [{"kind": kind, "layer": layer, "head": 0, "value": 0.0} for layer in range(4)]}
    result, service = changed(model, text, edits)
    sides = [result.predictions[side] for side in ("0", "1")]
    before, after = (side.logits(side.states).double().softmax(-1).detach().numpy() for side in sides)
    reply = service.answer({"request": "predictions", "side": "1", "first": 0, "count": 256})
    named = dict(zip(("after", "before"), reply.arrays, strict=True))
    best = np.argsort(-np.maximum(before, after), axis=-1)[:, :5]
    for name, exact in (("before", before), ("after", after)):
        np.testing.assert_allclose(named[name], np.take_along_axis(exact, best, -1), rtol=2e-5, atol=1e-9)
    assert np.abs(named["after"] - named["before"]).max() > 0.01
    plain = service.answer({"request": "predictions", "side": "0", "first": 0, "count": 256})
    assert len(plain.arrays) == 1


def test_texts_of_other_words_are_compared_in_tokens() -> None:
    runner = runner_of("minilm")
    same, other = "The animal was too tired.", "The animal was too worn-out."
    for second, merge in (("The animal was too wide.", "words"), (other, "tokens")):
        service = ViewService(runner.run(RunRequest(same, second=second)), runner=runner)
        assert service.answer({"request": "about"}).meta["start"]["merge"] == merge
