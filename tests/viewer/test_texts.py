"""Texts that are typed into a page: their maps and predictions are the model's, changed or not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import runner_of

import uwaga
from uwaga.inspect import Edits
from uwaga.inspect import run_text as run_text_module
from uwaga.inspect.run_text import run_text
from uwaga.viewer.service import ViewService
from uwaga.viewer.shown import Text, View
from uwaga.viewer.texts import RunRequest, TextRunner

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory, write_model: Callable[..., Path]) -> TextRunner:
    return TextRunner(Text("", model=uwaga.models.open(write_model(tmp_path_factory.mktemp("bert")), dtype="float32")))


@pytest.fixture(scope="module")
def bard() -> TextRunner:
    return runner_of("bard")


@pytest.fixture(scope="module")
def speller() -> TextRunner:
    return runner_of("speller")


def whole(run: View, side: int, name: tuple[str, int]) -> torch.Tensor:
    return torch.as_tensor(run.sides[side].maps[name][:, :, :])


def test_a_writer_predicts_the_next_token(bard: TextRunner) -> None:
    run = bard.run(RunRequest("To be, or not to"))
    model: Any = bard.reader
    ids = bard.reader.tokenizer.encode(["To be, or not to"], with_offsets=False)[0].ids
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0].softmax(-1)
    predictions = run.predictions["0"]
    assert (predictions.kind, predictions.stack, len(predictions)) == ("next", "decoder", len(ids))
    words, probabilities = predictions.top(3, len(ids), 5)
    values, best = expected[3:].topk(5)
    torch.testing.assert_close(torch.from_numpy(probabilities[0]), values)
    backend = bard.reader.tokenizer.backend
    assert words == [[backend.id_to_token(number) for number in row] for row in best.tolist()]


def test_what_an_encoder_decoder_writes_is_read_again(speller: TextRunner) -> None:
    run = speller.run(RunRequest("attention"))
    reading = run_text(speller.reader, "attention")
    assert reading.written is not None
    words, _ = run.predictions["0"].top(0, len(reading.written), 1)
    backend = speller.reader.target_tokenizer.backend
    assert [word for (word,) in words] == [backend.id_to_token(number) for number in reading.written]
    assert run.sides[0].sizes == {"encoder": 10, "decoder": len(reading.written)}


def test_changes_are_those_of_edit(bert: TextRunner) -> None:
    edits = {
        "heads": [{"kind": "encoder", "layer": 0, "head": 1, "value": 0.0}],
        "scores": [{"kind": "encoder", "layer": 0, "head": 0, "queries": [2], "keys": [1]}],
        "weights": [],
    }
    run = bert.run(RunRequest("the cat sat", edits=Edits.from_dict(edits)))
    reader = bert.reader
    ids = torch.tensor([reader.tokenizer.backend.encode("the cat sat").ids])
    changes = {"heads": {("encoder", 0, 1): 0.0}, "scores": {("encoder", 0, 0): uwaga.Links(2, 1)}}
    with uwaga.edit(reader, **changes), uwaga.watch(reader) as recording, torch.no_grad():  # type: ignore[arg-type]
        reader(ids)
    for layer in (0, 1):
        assert torch.equal(
            whole(run, 1, ("encoder", layer)), torch.as_tensor(recording.maps["encoder", layer][0, :, :, :])
        )
    assert whole(run, 1, ("encoder", 0))[0, 2, 1] == 0
    assert whole(run, 0, ("encoder", 0))[0, 2, 1] > 0
    assert not torch.equal(whole(run, 0, ("encoder", 1)), whole(run, 1, ("encoder", 1)))
    assert run.python.startswith("with uwaga.edit(model, heads={('encoder', 0, 1): 0.0}, scores=")
    plain = bert.run(RunRequest("the cat sat"))
    assert torch.equal(whole(plain, 0, ("encoder", 1)), whole(run, 0, ("encoder", 1)))  # nothing remains


def test_changes_of_a_generation_keep_what_was_written(speller: TextRunner) -> None:
    edits = {
        "heads": [
            {"kind": "cross", "layer": layer, "head": head, "value": 0.0} for layer in range(4) for head in range(2)
        ]
    }
    run = speller.run(RunRequest("attention", edits=Edits.from_dict(edits)))
    before, after = run.sides
    assert before.sizes == after.sizes
    assert list(before.tokens["decoder"]) == list(after.tokens["decoder"])
    assert run.predictions["0"].top(0, 3, 1)[1].tolist() != run.predictions["1"].top(0, 3, 1)[1].tolist()


def test_what_an_encoder_decoder_generates_from_is_bounded(
    speller: TextRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_text_module, "MAX_GENERATED_FROM", 5)
    assert speller.run(RunRequest("attention", target="K")).sides[0].sizes["encoder"] == 10
    shortened = replace(speller, first=replace(speller.first, truncate=True)).run(RunRequest("attention"))
    assert shortened.sides[0].sizes["encoder"] == 5


def test_a_run_ends_between_two_layers(bard: TextRunner, speller: TextRunner) -> None:
    class StoppedError(Exception):
        pass

    for runner, text in ((bard, "To be"), (speller, "attention")):
        calls: list[int] = []

        def check(_: float, calls: list[int] = calls) -> None:
            calls.append(0)
            if len(calls) == 3:
                raise StoppedError

        with pytest.raises(StoppedError):
            runner.run(RunRequest(text), check)
        assert len(calls) == 3
        runner.run(RunRequest(text))  # nothing that was to end it is left in the model
        assert len(calls) == 3


def test_of_a_text_that_is_too_long_the_first_tokens_are_read(bert: TextRunner) -> None:
    text = "the cat " * 20
    side = bert.run(RunRequest(text, long="first")).sides[0]
    assert list(side.tokens["encoder"]) == ["[CLS]", *["the", "cat"] * 5, "[SEP]"]
    service = ViewService(bert.run(RunRequest("the cat")), runner=bert)
    request = {"request": "run", "text": text, "second": None, "target": None, "edits": None}
    assert service.answer(request).meta == {
        "error": f"the text has 42 tokens, special ones included, and {bert.reader.title} takes 12",
        "most": 12,
    }
    number = service.answer({**request, "long": "first"}).meta["run"]
    about = service.answer({"request": "about", "run": number}).meta
    assert about["typed"] == {"text": text, "second": None, "target": None, "edits": None, "long": "first"}
    assert bert.run(RunRequest("the cat " * 3, long="first"), max_tokens=5).sides[0].sizes["encoder"] == 5
