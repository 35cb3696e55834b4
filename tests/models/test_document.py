"""The tables of docs/models.md are those of the code."""

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

from uwaga import models
from uwaga.models import GPT2Config, T5Config, TransformerConfig, generate
from uwaga.models.bert.config import OUTPUTS, BertConfig
from uwaga.models.checkpoints import load_save

_DOCUMENT = Path(__file__).parents[2] / "docs" / "models.md"
# Of the table of names: a config of the kind, and what stands before the names of a layer there and here.
_KINDS = {
    "BERT, RoBERTa": (BertConfig(), "encoder.layer.0.", "encoder.layers.0."),
    "DistilBERT": (
        BertConfig(model_type="distilbert", type_vocab_size=0, outputs=()),
        "transformer.layer.0.",
        "encoder.layers.0.",
    ),
    "GPT-2": (GPT2Config(), "h.0.", "layers.0."),
    "T5": (T5Config(), "encoder.block.0.layer.", "encoder.layers.0."),
    "Marian": (
        TransformerConfig(sinusoid_layout="halves", lm_head_bias=True),
        "model.encoder.layers.0.",
        "encoder.layers.0.",
    ),
}


def _rows(heading: str) -> list[list[str]]:
    """The cells of the table under a first heading, that heading's row first."""
    lines = _DOCUMENT.read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    table = [line for line in lines[start:] if line.startswith("|") or not line]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[: table.index("")]]


def _names(cell: str) -> list[str]:
    return re.findall(r"`(\w+)[^`]*`", cell)


def test_the_families_are_those_that_load() -> None:
    listed = {row[0].strip("`"): row[1].strip("`") for row in _rows("model type")[2:]}
    assert listed == {name: load_save.family_of(name, "").build.__name__ for name in load_save.MODEL_TYPES}


def test_the_options_of_configs_are_there() -> None:
    for owner, cell in (row for row in _rows("class")[2:]):
        kind = getattr(models, owner.strip("`"))
        known = {field.name for field in fields(kind)} | {
            *OUTPUTS,
            "tied",
            "own",
            "none",
            "post",
            "pre",
            "sinusoidal",
            "alibi",
        }
        assert set(_names(cell)) <= known, owner


def test_the_options_of_generate_are_its_own() -> None:
    listed = {name for row in _rows("option")[2:] for name in _names(row[0])}
    parameters = inspect.signature(generate).parameters.values()
    assert listed == {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}


@pytest.mark.parametrize("kind", _KINDS)
def test_the_names_of_a_layer_are_those_of_its_table(kind: str) -> None:
    config, theirs, ours = _KINDS[kind]
    heading, _, *rows = _rows("ours")
    column = heading.index(kind)
    listed = {row[0].strip("`"): row[column].strip("`") for row in rows}
    table = load_save.family_of(config.model_type, "").table(config)
    results = {
        name.removeprefix(ours).removesuffix(".weight"): row.theirs.removeprefix(theirs).removesuffix(".weight")
        for row in table.rows()
        for name in row.ours
        if name.startswith(ours) and name.endswith(".weight")
    }
    assert listed == results
