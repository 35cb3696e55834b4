"""Models of transformers as they read texts: their maps, predictions and changes are those of the model itself."""

from collections.abc import Callable
from typing import Any

import pytest
import tiny_models
import torch
import transformers
from tiny_tokenizer import word_tokenizer

import uwaga
from uwaga.inspect.run_text import RecordError, TextTooLongError, run_text
from uwaga.models import Model
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
    known: dict[str, Model] = {}

    def get(family: str) -> Model:
        if family not in known:
            known[family] = uwaga.models.open(make(family), tokenizer=word_tokenizer(family=family))
        return known[family]

    return get


def given(reader: Model) -> dict[str, torch.Tensor]:
    ids = torch.tensor([reader.tokenizer.with_special_tokens([TEXT])[0]])
    more = {"decoder_input_ids": run_text(reader, TEXT).ids[None]} if reader.config.has_both else {}
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **more}


IN_GATE = ("bert", "modernbert", "gpt2", "gpt_oss", "llama", "bart", "t5")


@pytest.mark.gate(only=lambda family: family in IN_GATE)
@pytest.mark.parametrize("family", FAMILIES)
def test_its_maps_are_those_of_the_whole_model(family: str, reader: Callable[[str], Model]) -> None:
    own = reader(family)
    reading, inputs = run_text(own, TEXT), given(own)
    with uwaga.watch(own.model) as expected, torch.no_grad():
        own.model(**inputs)
    assert set(reading.recording.maps) == set(expected.maps)
    for name, m in expected.maps.items():
        assert torch.equal(reading.recording.maps[name].to_dense(), m.to_dense()), name
    assert tiny_models.implementation_of(own.model) == "eager"  # as it was


@pytest.mark.gate(only=lambda family: family in IN_GATE)
@pytest.mark.parametrize("family", FAMILIES)
def test_its_predictions_are_those_of_its_head(
    family: str, reader: Callable[[str], Model], assert_as_exact: Callable[..., None]
) -> None:
    own = reader(family)
    inputs = given(own)
    predictions = TextRunner(Text("", model=own)).run(RunRequest(TEXT)).predictions["0"]
    with torch.no_grad():
        logits = own.model(**inputs).logits[0]
        exact = tiny_models.oracle(own.model)(**inputs).logits[0]
        assert_as_exact(predictions.logits(predictions.states), logits, lambda: exact)
    kind, last = ("masked", "encoder") if FAMILIES[family] is MASKED else ("next", "decoder")
    assert (predictions.kind, predictions.stack, len(predictions)) == (kind, last, len(logits))


@pytest.mark.parametrize(
    ("family", "most"), [("gpt2", 64), ("roberta", 63), ("opt", 64), ("llama", 64), ("t5", None), ("bart", 64)]
)
def test_how_many_tokens_it_takes(family: str, most: int | None, reader: Callable[[str], Model]) -> None:
    own = reader(family)
    assert own.config.max_tokens == most
    if most is not None:
        ids = torch.tensor([[5] * most])
        own.read(ids, torch.tensor([[1]]) if own.config.has_both else None)
        with pytest.raises(TextTooLongError, match=f"takes {most}"):
            run_text(own, "cat " * (most + 1), target="a" if own.config.has_both else None)


def test_a_run_ends_when_progress_raises(reader: Callable[[str], Model]) -> None:
    class StoppedError(Exception):
        pass

    def check(_: float) -> None:
        if len(calls) == 2:
            raise StoppedError
        calls.append(1)

    calls: list[int] = []
    own = reader("bart")
    with pytest.raises(StoppedError):
        TextRunner(Text("", model=own)).run(RunRequest(TEXT), check)
    calls.clear()
    with torch.no_grad():
        own.model(**given(own))
    assert not calls  # no hook of the run is left


def test_a_body_without_a_head_reads_what_its_decoder_is_given() -> None:
    body = uwaga.models.open(transformers.BartModel(make("bart").config).eval(), tokenizer=word_tokenizer())
    with pytest.raises(RecordError, match="BartModel generates nothing"):
        run_text(body, TEXT)
    assert run_text(body, TEXT, target="a cat").states.shape == (3, 32)


def test_a_tokenizer_that_was_given_is_not_changed() -> None:
    backend = word_tokenizer()
    backend.enable_truncation(4)
    uwaga.models.open(make("gpt2"), tokenizer=backend)
    assert backend.truncation is not None
