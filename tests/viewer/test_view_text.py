"""uwaga.view of texts: which model reads them, the answer of an encoder-decoder, pairs, and what it says of bad input."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import tiny_models
import torch
import transformers
from tiny_tokenizer import word_tokenizer

import uwaga
from uwaga.inspect.run_text import record_text
from uwaga.viewer import ServedView, Text

pytestmark = pytest.mark.usefixtures("small_front", "one_thread")


def gpt2() -> torch.nn.Module:
    return tiny_models.make("gpt2", tiny_models.small("gpt2"), transformers.AutoModelForCausalLM)


@pytest.fixture
def bert(tmp_path: Path, write_model: Callable[..., Path]) -> Path:
    return write_model(tmp_path / "bert")


def served(*arguments: Any, **options: Any) -> ServedView:
    view = uwaga.view(*arguments, browser=False, block=False, **options)
    assert isinstance(view, ServedView)
    return view


def sides(*arguments: Any, **options: Any) -> list[dict[str, Any]]:
    with served(*arguments, **options) as view:
        return list(view.service.answer({"request": "about"}).meta["sides"])


def test_the_maps_are_those_of_the_model(bert: Path) -> None:
    reader = uwaga.models.open(str(bert), dtype="float32")
    ids = reader.tokenizer.encode(["the cat sat"], with_offsets=False)[0].ids
    with uwaga.watch(reader) as expected, torch.no_grad():
        reader(torch.tensor([[*reader.tokenizer.prefix_ids, *ids, *reader.tokenizer.suffix_ids]]))
    with served("the cat sat", model=bert) as view:
        (side,) = view.service.view.sides
    assert list(side.maps) == list(expected.maps)
    for name, values in side.maps.items():
        same = torch.equal(cast("Any", values[:, :, :]), cast("Any", expected.maps[name][0, :, :, :]))
        assert same, name


def test_a_model_of_transformers_reads_texts_and_what_is_typed() -> None:
    model = uwaga.models.open(gpt2(), tokenizer=word_tokenizer())
    with served("the cat sat", model=model) as view:
        about = view.service.answer({"request": "about"}).meta
        (side,) = about["sides"]
        assert (side["model"], side["title"], side["stacks"]["decoder"]["tokens"]) == (
            "GPT2LMHeadModel",
            "the cat sat",
            3,
        )
        assert about["typing"]["boxes"] == ["text", "second"]
        assert about["typing"]["command"] == "uwaga.view(text, model=uwaga.models.open(model, tokenizer=tokenizer))"
        edits = {"heads": [{"kind": "decoder", "layer": 0, "head": 1, "value": 0.0}]}
        typed = {"text": "the dog ran", "second": None, "target": None, "edits": edits}
        run = view.service.answer({"request": "run", **typed}).meta["run"]
        changed = view.service.answer({"request": "about", "run": run}).meta
        assert [side["title"] for side in changed["sides"]] == [
            "the dog ran",
            "with the changes",
            "the dog ran minus with the changes",
        ]
        assert changed["predictions"]["1"] == {"kind": "next", "stack": "decoder", "tokens": 3}


def test_a_model_of_this_package_has_its_own_tokenizer(bert: Path) -> None:
    model = uwaga.models.load(bert)
    (side,) = sides("The cat sat", model=model)
    assert (side["model"], side["title"]) == ("Transformer", "The cat sat")


def test_two_models_that_are_in_memory() -> None:
    models = [uwaga.models.open(gpt2(), tokenizer=word_tokenizer()) for _ in range(2)]
    first, second, _ = sides(*(Text("the cat", model=model) for model in models))
    assert first["title"] == second["title"] == "the cat"


def test_a_recording_is_called_by_its_model_and_has_its_text_under_it(bert: Path, tmp_path: Path) -> None:
    recording = record_text(uwaga.models.open(str(bert), dtype="float32"), "The cat sat")
    recording.save(tmp_path / "saved.safetensors")
    for each in (recording, uwaga.Recording.load(tmp_path / "saved.safetensors")):
        with served(each) as view:
            about = view.service.answer({"request": "about"}).meta
        assert (about["title"], about["sides"][0]["model"], about["sides"][0]["text_title"]) == (
            "bert",
            "bert",
            "The cat sat",
        )
    recording.model = "/home/somebody/models/own"  # no directory of this machine is told
    with served(recording) as view:
        assert view.service.view.title == "own"
