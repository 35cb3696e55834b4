"""Models of transformers as they are opened and read texts: their maps, predictions and changes are those of the model itself."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
import transformers
from factories import factory
from safetensors.torch import load_file, save_file
from tiny_tokenizer import read_as_it_is, word_tokenizer

import uwaga
from uwaga._base.errors import CheckpointError
from uwaga.inspect.run_text import RecordError, TextTooLongError, run_text
from uwaga.models import Model, Transformer
from uwaga.viewer.shown import Text
from uwaga.viewer.texts import RunRequest, TextRunner

TEXT = "the cat sat on the mat ."
CAUSAL, MASKED, BOTH = (
    transformers.AutoModelForCausalLM,
    transformers.AutoModelForMaskedLM,
    transformers.AutoModelForSeq2SeqLM,
)
FAMILIES = {
    "bert": MASKED, "esm": MASKED, "modernbert": MASKED, "roberta": MASKED,
    "gemma2": CAUSAL, "gpt2": CAUSAL, "gpt_neox": CAUSAL, "gpt_oss": CAUSAL, "llama": CAUSAL, "opt": CAUSAL, "qwen3": CAUSAL,
    "bart": BOTH, "m2m_100": BOTH, "t5": BOTH, "umt5": BOTH,
}  # fmt: skip


def make(family: str) -> Any:
    return tiny_models.make(family, tiny_models.small(family), FAMILIES[family])


@pytest.fixture(scope="module")
def reader() -> Callable[[str], Model]:
    models: dict[str, Model] = {}

    def get(family: str) -> Model:
        if family not in models:
            models[family] = uwaga.models.open(make(family), tokenizer=word_tokenizer(family=family))
        return models[family]

    return get


@pytest.mark.gate(only=lambda family: family in ("bert", "modernbert", "gpt2", "gpt_oss", "llama", "bart", "t5"))
@pytest.mark.parametrize("family", FAMILIES)
def test_maps_and_predictions_are_those_of_the_whole_model(
    family: str, reader: Callable[[str], Model], assert_as_exact: Callable[..., None]
) -> None:
    opened = reader(family)
    ids = torch.tensor([opened.tokenizer.with_special_tokens([TEXT])[0]])
    more = {"decoder_input_ids": run_text(opened, TEXT).ids[None]} if opened.config.has_both else {}
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **more}
    reading = run_text(opened, TEXT)
    predictions = TextRunner(Text("", model=opened)).run(RunRequest(TEXT)).predictions["0"]
    with uwaga.watch(opened.model) as expected, torch.no_grad():
        opened.model(**inputs)
    assert set(reading.recording.maps) == set(expected.maps)
    for name, m in expected.maps.items():
        assert torch.equal(reading.recording.maps[name].to_dense(), m.to_dense()), name
    assert tiny_models.implementation_of(opened.model) == "eager"  # as it was
    with torch.no_grad():
        logits = opened.model(**inputs).logits[0]
        exact = tiny_models.oracle(opened.model)(**inputs).logits[0]
        assert_as_exact(predictions.logits(predictions.states), logits, lambda: exact)
    kind, last = ("masked", "encoder") if FAMILIES[family] is MASKED else ("next", "decoder")
    assert (predictions.kind, predictions.stack, len(predictions)) == (kind, last, len(logits))


@pytest.mark.parametrize(("family", "most"), [("gpt2", 64), ("roberta", 63), ("opt", 64), ("t5", None), ("bart", 64)])
def test_how_many_tokens_it_takes(family: str, most: int | None, reader: Callable[[str], Model]) -> None:
    opened = reader(family)
    assert opened.config.max_tokens == most
    if most is not None:
        ids = torch.tensor([[5] * most])
        opened.read(ids, torch.tensor([[1]]) if opened.config.has_both else None)
        with pytest.raises(TextTooLongError, match=f"takes {most}"):
            run_text(opened, "cat " * (most + 1), target="a" if opened.config.has_both else None)


def test_a_body_without_a_head_reads_what_its_decoder_is_given() -> None:
    body = uwaga.models.open(transformers.BartModel(make("bart").config).eval(), tokenizer=word_tokenizer())
    with pytest.raises(RecordError, match="BartModel generates nothing"):
        run_text(body, TEXT)
    assert run_text(body, TEXT, target="a cat").states.shape == (3, 32)


def test_what_was_given_is_not_changed(write: Callable[..., Path]) -> None:
    backend = word_tokenizer()
    backend.enable_truncation(4)
    module = uwaga.models.load(write("llama"))
    opened = uwaga.models.open(module, tokenizer=backend)
    assert backend.truncation is not None
    assert (module.tokenizer, module.title) == (None, "")
    assert opened.decoder is module.decoder
    assert opened.tokenizer is not None


# Directories: which library reads them, and which are rejected.


@factory
def write(tmp_path: Path, /, family: str = "gpt_neox", **config: object) -> Path:
    folder = tmp_path / family
    tiny_models.make(family, tiny_models.small(family), CAUSAL).save_pretrained(folder)
    word_tokenizer(family=family).save(str(folder / "tokenizer.json"))
    read_as_it_is(folder)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return folder


@pytest.mark.parametrize(
    ("family", "config", "made"),
    [
        ("gpt_neox", {}, "GPTNeoXForCausalLM"),
        ("llama", {}, Transformer.__name__),
        ("llama", {"mlp_bias": False, "hidden_act": "relu2"}, "LlamaForCausalLM"),  # this package has no such option
    ],
)
def test_a_directory_is_read_by_this_package_where_it_can_be(
    family: str, config: dict, made: str, write: Callable[..., Path]
) -> None:
    reader = uwaga.models.open(str(write(family, **config)), dtype="bfloat16")
    assert type(getattr(reader, "model", reader)).__name__ == made
    assert run_text(reader, TEXT).states.dtype is torch.bfloat16
    assert run_text(reader, TEXT).recording.model == reader.title == family
    assert not reader.training if made == "Transformer" else not reader.model.training


def test_a_weight_of_another_shape_is_rejected(write: Callable[..., Path]) -> None:
    file, name = write() / "model.safetensors", "gpt_neox.layers.0.attention.dense.weight"
    save_file(load_file(file) | {name: torch.zeros(3, 32)}, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=f"{name} has another shape in the files"):
        uwaga.models.open(str(file.parent), dtype="float32")


def test_code_of_a_directory_is_not_run(write: Callable[..., Path], tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    names = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    folder = write(auto_map=names, model_type="own", architectures=["Model"])
    (folder / "own.py").write_text(f"open({str(ran)!r}, 'w')\nclass Config: pass\nclass Model: pass\n")
    with pytest.raises(CheckpointError, match="cannot be read by transformers"):
        uwaga.models.open(str(folder), dtype="float32")
    assert not ran.exists()
