"""Why a head looks there, as a page asks it: the figures of `score_attribution`, the models that have them, refusals, and what ends it."""

import gc
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import tiny_models
import torch
import transformers
from asking import runner_of
from tiny_tokenizer import word_tokenizer

import uwaga
from uwaga.inspect import Edits, score_attribution
from uwaga.inspect.attribution.streams import Part
from uwaga.inspect.run_text import Report
from uwaga.viewer import texts
from uwaga.viewer.service import ViewService
from uwaga.viewer.shown import Maps, Text, View
from uwaga.viewer.texts import RunRequest, TextRunner

pytestmark = pytest.mark.usefixtures("one_thread")

TEXT = "The animal didn't cross the street because it was too tired."
TOKENS = {"merge": "tokens", "specials": "show"}


def service_of(runner: TextRunner, *texts: str, **more: Any) -> ViewService:
    request = RunRequest(*texts, **more)
    return ViewService(runner.run(request), runner=runner, typed=request)


def ask(service: ViewService, kind: str, layer: int, head: int, query: int, key: int, **more: Any) -> Mapping[str, Any]:
    link = {"kind": kind, "layer": layer, "head": head, "query": query, "key": key}
    request = {"request": "why", "side": "0", **TOKENS, "than": None, **link, **more}
    return service.answer(request).meta


def recorded(runner: TextRunner, service: ViewService, side: int = 0) -> uwaga.Recording:
    """The tokens of a side, read by the model directly."""
    reader, shown = runner.reader, service.view.sides[side]
    stacks = {
        "encoder": reader.tokenizer,
        "decoder": reader.target_tokenizer if reader.config.has_both else reader.tokenizer,
    }
    ids = [
        torch.tensor([[stacks[stack].backend.token_to_id(token) for token in shown.tokens[stack]]])
        for stack in shown.stacks
    ]
    with uwaga.watch(reader, values=True) as recording, torch.no_grad():
        reader.read(*ids)
    return recording


CELLS = [
    ("minilm", TEXT, "encoder", 3, 10, 2, 8),
    ("minilm", TEXT, "encoder", 0, 3, 3, 0),
    ("copyist", "seven green birds sing ; seven green birds sing", "decoder", 1, 9, 5, 2),
    ("bard", "To be, or not to be", "decoder", 1, 12, 3, 4),
    ("speller", "attention", "encoder", 2, 4, 3, 0),
    ("speller", "attention", "decoder", 2, 3, 1, 2),
    ("speller", "attention", "cross", 3, 3, 4, 0),
]


IN_GATE = [("minilm", "encoder", False), ("copyist", "decoder", True), ("speller", "cross", True)]


@pytest.mark.gate(only=lambda model, kind, compared: (model, kind, compared) in IN_GATE)
@pytest.mark.parametrize("compared", [False, True], ids=["score", "difference"])
@pytest.mark.parametrize(("model", "text", "kind", "layer", "query", "key", "other"), CELLS)
def test_every_figure_is_that_of_score_attribution(
    model: str, text: str, kind: str, layer: int, query: int, key: int, other: int, compared: bool
) -> None:
    runner = runner_of(model)
    service = service_of(runner, text)
    than = other if compared else None
    reply = ask(service, kind, layer, 1, query, key, than=than)
    recording = recorded(runner, service)
    why = score_attribution(runner.reader, recording, layer, 1, query, key, than=than, kind=kind)
    m = recording.maps[kind, layer].select(0, 1)
    assert reply["tokens"] == [query, key, than]
    assert reply["weights"] == pytest.approx([float(m[query, key]), float(m[query, other]) if compared else None])
    assert (reply["score"], reply["total"]) == (float(why.scores), float(why.total()))
    entry = {"request": "entry", "side": "0", "kind": kind, "layer": layer, "head": 1, "query": query, "key": key}
    shown_in_map = service.answer(entry | TOKENS).meta
    assert shown_in_map["weight"] == reply["weights"][0]
    if not compared:
        assert abs(shown_in_map["score"] - reply["total"]) <= float(why.bound())
    assert abs(reply["score"] - reply["total"]) <= float(why.bound())
    distance = float(why.distance)
    expected = [(share.query, share.key, share.share) for share in why.top(10_000)]
    assert reply["count"] == len(expected)
    shown = [(*(Part(**row[side]) for side in ("query", "key")), row["share"]) for row in reply["shares"]]
    assert shown == expected[:10]
    # Everything sums to the score.
    total = sum(x for *_, x in expected)
    assert total == pytest.approx(reply["total"], abs=1e-9)
    assert sum(x for *_, x in shown) + reply["rest"] == pytest.approx(reply["total"], abs=1e-9)
    assert (distance == 0) == all(part.name != "distance" for part, *_ in expected)
    for share, (*parts, _) in zip(reply["shares"], expected, strict=False):
        for n, side in enumerate(("query", "key")):
            part, source = parts[n], share["sources"][n]
            assert (source is not None) == (part.name == "head")
            if source is None:
                continue
            shares = why.sources(part, side, parts[1 - n])
            assert source["share"] == float(shares[source["token"]]) == float(shares[shares.abs().argmax()])
            stack = "decoder" if part.kind == "decoder" else "encoder"
            assert source["label"] == service.view.sides[0].token_text(stack).labels[source["token"]]
            assert source["to"] in ([query] if side == "query" else [key, than])
            # What the head has brought there it has seen.
            assert float(recording.maps[part.kind, part.layer].select(0, part.head)[source["to"], source["token"]]) > 0


def test_of_words_it_is_the_pair_of_pieces_with_the_largest_weight() -> None:
    runner = runner_of("minilm")
    service = service_of(runner, TEXT)
    words = {"merge": "words", "specials": "hide"}
    axis = service.answer({"request": "items", "side": "0", "stack": "encoder", "first": 0, "count": 99, **words})
    split = axis.meta["labels"].index("didn't")
    first, last = axis.arrays[0][split]
    assert last - first > 1
    m = service.view.sides[0].maps["encoder", 2].select(5)
    it, street = axis.meta["labels"].index("it"), axis.meta["labels"].index("street")
    key = int(m[axis.arrays[0][it][0], first:last].argmax()) + first
    reply = ask(service, "encoder", 2, 5, it, split, than=street, **words)
    assert reply["tokens"] == [axis.arrays[0][it][0], key, axis.arrays[0][street][0]]
    assert reply["labels"][1] in ("didn", "'", "t")
    assert ask(service, "encoder", 2, 5, split, split, **words)["tokens"][0] in range(first, last)


def test_a_model_of_transformers_has_them_too() -> None:
    model = tiny_models.make("t5", tiny_models.PAIRS["t5"], transformers.AutoModelForSeq2SeqLM)
    runner = TextRunner(Text("", model=uwaga.models.open(model, tokenizer=word_tokenizer())))
    service = service_of(runner, "the cat sat", target="the dog ran")
    reply = ask(service, "cross", 1, 1, 2, 1)
    why = score_attribution(runner.reader, recorded(runner, service), 1, 1, 2, 1, kind="cross")
    assert reply["total"] == float(why.total())
    assert [row["share"] for row in reply["shares"]] == [share.share for share in why.top(10)]


def test_a_family_that_is_not_known_is_refused() -> None:
    model = tiny_models.make("gpt_neox", tiny_models.small("gpt_neox"), transformers.AutoModelForCausalLM)
    service = service_of(
        TextRunner(Text("", model=uwaga.models.open(model, tokenizer=word_tokenizer()))), "the cat sat"
    )
    assert service.answer({"request": "about"}).meta["why"] == {"0": ""}
    assert ask(service, "decoder", 1, 1, 2, 1) == {"error": "family"}


def test_the_second_text_has_them_and_a_changed_model_has_not() -> None:
    runner = runner_of("bard")
    service = service_of(runner, "To be", "or not")
    assert service.answer({"request": "about"}).meta["why"] == {"0": "", "1": ""}
    why = score_attribution(runner.reader, recorded(runner, service, 1), 1, 0, 4, 2)
    assert ask(service, "decoder", 1, 0, 4, 2, side="1")["total"] == float(why.total())
    off = Edits.from_dict({"heads": [{"kind": "decoder", "layer": 0, "head": 0, "value": 0.0}]})
    changed = service_of(runner, "To be", edits=off)
    assert changed.answer({"request": "about"}).meta["why"] == {"0": "", "1": "changed"}
    assert "total" in ask(changed, "decoder", 1, 0, 4, 2)
    assert ask(changed, "decoder", 1, 0, 4, 2, side="1") == {"error": "model"}


def test_a_key_that_is_hidden_has_no_score() -> None:
    service = service_of(runner_of("bard"), "To be")
    for link in ({"query": 1, "key": 3}, {"query": 1, "key": 0, "than": 4}):
        assert ask(service, "decoder", 1, 0, **{"query": 1, "key": 0} | link) == {"error": "hidden"}


def test_maps_alone_have_no_model() -> None:
    m = uwaga.AttentionMap(*torch.randn(2, 2, 4, 8))
    service = ViewService(View.of({("encoder", 0): m}))
    assert service.answer({"request": "about"}).meta["why"] == {"0": "model"}
    assert ask(service, "encoder", 0, 0, 1, 2) == {"error": "model"}


def test_nothing_is_kept_of_values_before_a_score_is_split_and_one_text_after() -> None:
    kept: list[weakref.ref[uwaga.Recording]] = []
    runner = runner_of("bard")

    class Noting:
        """The runner, with notes of what is read with values."""

        about = runner.about

        def run(self, typed: RunRequest, report: Report = lambda _: None) -> View:
            run = runner.run(typed, report)
            source = run.sides[0].scores
            assert source is not None

            def noted(report: Report) -> uwaga.Recording:
                result = source.recorded(report)
                kept.append(weakref.ref(result))
                return result

            return replace(run, sides=(replace(run.sides[0], scores=source._replace(recorded=noted)),))

    reader: Any = Noting()
    service = ViewService(reader.run(RunRequest("To be")), runner=reader)
    assert not kept
    ask(service, "decoder", 1, 0, 3, 2)
    ask(service, "decoder", 0, 1, 4, 2)
    assert len(kept) == 1  # the text was not read again
    assert kept[0]() is not None
    typed = {"request": "run", "second": None, "target": None, "edits": None}
    ask(service, "decoder", 0, 1, 4, 2, run=service.answer({**typed, "text": "or not"}).meta["run"])
    gc.collect()
    assert [reference() is None for reference in kept] == [True, False]
    for size in range(1, 6):  # freed with its text
        service.answer({**typed, "text": "x" * size})
    gc.collect()
    assert kept[1]() is None


def test_a_text_whose_values_are_too_large_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "_MAX_VALUES_BYTES", 1000)
    error = ask(service_of(runner_of("bard"), "To be"), "decoder", 1, 0, 3, 2)["error"]
    assert "1,000" in error or "1000" in error, error


@pytest.mark.usefixtures("small_front")
def test_a_recording_with_values_and_its_model() -> None:
    model: Any = tiny_models.make("gpt2", tiny_models.small("gpt2"), transformers.AutoModelForCausalLM)
    ids = torch.tensor([[5, 6, 7, 8], [8, 7, 6, 5]])
    recordings = []
    for values in (False, True):
        with uwaga.watch(model, values=values) as recording, torch.no_grad():
            model(ids)
        recordings.append(recording)
    with uwaga.view(recordings[0], model=model, browser=False, block=False) as shown:
        assert ask(shown.service, "decoder", 0, 0, 3, 1)["error"].startswith("the recording has no values")
    with uwaga.view(Maps(recording, row=1), recording, model=model, browser=False, block=False) as shown:
        about = shown.service.answer({"request": "about"}).meta
        assert about["why"] == {"0": "", "1": ""}
        assert about["sides"][0]["model"] == "GPT2LMHeadModel"
        for side, row in (("0", 1), ("1", 0)):
            why = score_attribution(model, recording, 1, 0, 3, 1, row=row)
            assert ask(shown.service, "decoder", 1, 0, 3, 1, side=side)["total"] == float(why.total())
