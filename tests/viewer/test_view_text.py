"""uwaga.view of texts: which model reads them, the answer of an encoder-decoder, pairs, and what it says of bad input."""

from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
import transformers
from tiny_tokenizer import word_tokenizer
from tiny_transformer import tiny

import uwaga
from uwaga.inspect.run_text import record_text
from uwaga.viewer import ServedView, Text
from uwaga.viewer.shown import Maps, View

pytestmark = pytest.mark.usefixtures("small_front", "one_thread")


def gpt2() -> torch.nn.Module:
    return tiny_models.make("gpt2", tiny_models.small("gpt2"), transformers.AutoModelForCausalLM)


def served(*arguments: Any, **options: Any) -> ServedView:
    view = uwaga.view(*arguments, browser=False, block=False, **options)
    assert isinstance(view, ServedView)
    return view


def sides(*arguments: Any, **options: Any) -> list[dict[str, Any]]:
    with served(*arguments, **options) as view:
        return list(view.service.answer({"request": "about"}).meta["sides"])


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


def test_a_text_says_which_layers_are_recorded_and_how_much_is_written() -> None:
    t5 = tiny_models.make("t5", tiny_models.PAIRS["t5"], transformers.AutoModelForSeq2SeqLM)
    model = uwaga.models.open(t5, tokenizer=word_tokenizer())
    (side,) = sides(Text("the cat sat", model=model, new_tokens=3, layers=[1]))
    assert {(shown["kind"], shown["layer"]) for shown in side["maps"]} == {("encoder", 1), ("decoder", 1), ("cross", 1)}
    assert side["stacks"]["decoder"]["tokens"] == 3
    (side,) = sides(Text("the cat sat", model=model, target="a dog"))
    assert side["stacks"]["decoder"]["tokens"] == 3  # the start token and two words


def test_a_recording_is_called_by_its_model_and_has_its_text_under_it(bert: Path, tmp_path: Path) -> None:
    recording = record_text(uwaga.models.open(str(bert), dtype="float32"), "The cat sat")
    recording.save(tmp_path / "saved.safetensors")
    for shown in (recording, uwaga.Recording.load(tmp_path / "saved.safetensors")):
        with served(shown) as view:
            about = view.service.answer({"request": "about"}).meta
        assert (about["title"], about["sides"][0]["model"], about["sides"][0]["text_title"]) == (
            "bert",
            "bert",
            "The cat sat",
        )
    recording.model = "/home/somebody/models/own"  # no directory of this machine is told
    with served(recording) as view:
        assert view.service.view.title == "own"


def a_map(*shape: int, **options) -> uwaga.AttentionMap:
    return uwaga.AttentionMap(torch.randn(*shape, 4), torch.randn(*shape, 4), **options)


def test_the_tokens_of_a_recording_are_used() -> None:
    with uwaga.watch(model := tiny("gpt2"), tokens=["a", "Ġb", "c"]) as recording, torch.no_grad():
        model(torch.tensor([[5, 6, 7]]))
    (side,) = View.of(recording).sides
    assert list(side.maps) == [("decoder", 0), ("decoder", 1)]
    assert side.maps["decoder", 1].shape == (4, 3, 3)
    assert (side.title, side.tokens) == ("a bc", {"decoder": ["a", "Ġb", "c"]})


def test_one_row_of_a_padded_or_ragged_batch() -> None:
    ragged = uwaga.Ragged.from_list([torch.randn(n, 2, 4) for n in (3, 5)])
    assert View.of(Maps(uwaga.AttentionMap(ragged, ragged), row=1)).sides[0].sizes == {"encoder": 5}
    assert View.of(Maps(a_map(2, 3, 6), row=1)).sides[0].maps["encoder", 0].shape == (3, 6, 6)


def test_kinds_of_maps_are_inferred_from_shape_and_mask() -> None:
    assert list(View.of([a_map(2, 6), a_map(2, 6)]).sides[0].maps) == [("encoder", 0), ("encoder", 1)]
    assert list(View.of(a_map(6, mask=uwaga.Causal())).sides[0].maps) == [("decoder", 0)]
    cross = uwaga.AttentionMap(torch.randn(3, 4), torch.randn(5, 4))
    assert View.of(cross).sides[0].sizes == {"decoder": 3, "encoder": 5}
