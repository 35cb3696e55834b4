"""Heads that follow what a pronoun refers to: the shift by its definition, the real head, and none in random models."""

import pytest
import torch
from asking import complete

import uwaga
from uwaga.inspect import Edits, WinogradPair, coreference_heads
from uwaga.inspect.run_text import record_text
from uwaga.models import Model, Transformer
from uwaga.viewer.service import ViewService
from uwaga.viewer.shown import Text
from uwaga.viewer.texts import RunRequest, TextRunner

PAIR = WinogradPair("The cat left the box because it was {}.", ("hungry", "empty"), "it", ("cat", "box"))


@pytest.fixture(scope="module")
def reader() -> Model:
    return uwaga.models.open("minilm", dtype="float32")


def test_a_shift_is_read_off_the_maps_of_both_sentences(reader: Model) -> None:
    leans = []
    for word in PAIR.words:
        recording = record_text(reader, PAIR.text.format(word))
        it, cat, box = (recording.tokens["encoder"][0].index(name) for name in ("it", "cat", "box"))
        leans.append(recording.maps["encoder", 3][0, :, it, cat] - recording.maps["encoder", 3][0, :, it, box])
    rows = [row for row in coreference_heads(reader, [PAIR]).rows if row["layer"] == 3]
    result = torch.tensor([row["shift"] for row in rows])
    torch.testing.assert_close(result, (leans[0] - leans[1]) / 2, rtol=0, atol=1e-5)
    assert [row["right"] for row in rows] == (result >= 0.05).tolist()
    assert [row["wrong"] for row in rows] == (result <= -0.05).tolist()


def test_one_head_of_minilm_follows_pronouns(reader: Model) -> None:
    labelled = [row for row in coreference_heads(reader).rows if row["label"]]
    assert [(row["kind"], row["layer"], row["head"]) for row in labelled] == [("encoder", 3, 1)]
    assert labelled[0]["right"] > 5 * labelled[0]["wrong"]


@pytest.mark.stress
def test_no_head_of_a_random_model_does(reader: Model) -> None:
    """72 heads, some of which move the right way for most pairs by chance: the sign test is corrected for their number."""
    torch.manual_seed(0)
    model = Transformer(reader.config).eval()
    for layer in model.encoder.layers:
        torch.nn.init.normal_(layer.attention.query.weight, std=0.2)  # weights that are far from equal
        torch.nn.init.normal_(layer.attention.key.weight, std=0.2)
    model.tokenizer, model.title = reader.tokenizer, "random"
    assert not any(coreference_heads(model).columns["label"])


def test_in_a_decoder_nothing_moves_before_the_word_is_read() -> None:
    assert set(coreference_heads("bard", [PAIR]).columns["shift"]) == {0.0}


@pytest.mark.stress
def test_a_page_names_the_head_except_where_the_model_is_changed(reader: Model) -> None:
    runner = TextRunner(Text("", model=reader))
    edits = {"heads": [{"kind": "encoder", "layer": 0, "head": 0, "value": 0.0}], "scores": [], "weights": []}
    service = ViewService(runner.run(RunRequest("It rained.", edits=Edits.from_dict(edits))))
    where = {"request": "labels", "kind": "encoder", "layer": 3, "merge": "tokens", "specials": "show"}
    for side, follows in (("0", [1]), ("1", [])):
        labels = complete(service, side=side, **where).meta["labels"]
        assert [head for head, label in enumerate(labels) if label["coreference"]] == follows
