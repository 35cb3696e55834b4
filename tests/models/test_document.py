"""The tables of docs/reference/models.md and docs/formats/model.md are those of the code, and so are the lists in docstrings."""

import inspect
import re
from pathlib import Path

import pytest
import torch
from documents import table_rows

from uwaga.models import Config, Transformer, config, families

_DOCS = Path(__file__).parents[2] / "docs"
_TYPES, _NAMES = _DOCS / "reference" / "models.md", _DOCS / "formats" / "model.md"
# Of the table of names: a model type of the kind, and what stands before the names of a layer there and here.
_KINDS = {
    "BERT, RoBERTa": ("bert", "encoder.layer.0.", "encoder.layers.0."),
    "DistilBERT": ("distilbert", "transformer.layer.0.", "encoder.layers.0."),
    "GPT-2": ("gpt2", "h.0.", "decoder.layers.0."),
    "T5": ("t5", "encoder.block.0.layer.", "encoder.layers.0."),
    "Marian": ("marian", "model.encoder.layers.0.", "encoder.layers.0."),
}


def test_the_model_types_are_those_that_load() -> None:
    documented = {row[0].strip("`"): row[1] for row in table_rows(_TYPES, "model type")[2:]}
    made = {kind: config(kind) for kind in families.model_types()}
    kinds = {
        kind: "both" if spec.has_both else "decoder" if spec.is_causal else "encoder" for kind, spec in made.items()
    }
    assert documented.items() <= kinds.items()  # a table is all that a new type needs


def test_the_settings_are_those_of_the_tables() -> None:
    items = re.findall(r"^- [^:]+: (.*)$", inspect.getdoc(Config) or "", re.MULTILINE)
    documented = [name for item in items for name in re.findall(r"`(\w+)`", item)]
    settings = [families.family_of(kind, "").settings for kind in families.model_types()]
    assert sorted(documented) == sorted(set().union(*settings))


@pytest.mark.parametrize("kind", _KINDS)
def test_the_names_of_a_layer_are_those_of_its_table(kind: str) -> None:
    model_type, theirs, ours = _KINDS[kind]
    heading, _, *rows = table_rows(_NAMES, "uwaga")
    column = heading.index(kind)
    documented = {row[0].strip("`"): row[column].strip("`") for row in rows}
    made = config(model_type)
    with torch.device("meta"):
        table = families.family_of(model_type, "").table(made, Transformer(made).state_dict())
    results = {
        name.removeprefix(ours).removesuffix(".weight"): row.theirs.removeprefix(theirs).removesuffix(".weight")
        for row in table.rows()
        for name in row.ours
        if name.startswith(ours) and name.endswith(".weight")
    }
    assert documented == results
