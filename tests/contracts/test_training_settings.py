"""The page on the settings of training lists every key with its rule and its default."""

import dataclasses
import json
import re

import pytest
from documents import ROOT

from uwaga._base.options import field_rules, keys, words
from uwaga.train import Config, config

SECTIONS = {
    "tokenizer": config.TokenizerConfig,
    "tokenizer.target": config.TargetConfig,
    "data": config.DataConfig,
    "data.sources.NAME": config.SourceConfig,
    "batch": config.BatchConfig,
    "optimizer": config.OptimizerConfig,
    "schedule": config.ScheduleConfig,
    "parallel": config.ParallelConfig,
    "run": config.RunConfig,
}
PAGE = (ROOT / "docs/reference/training-settings.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("section", SECTIONS)
def test_the_table_of_a_section_has_its_keys_rules_and_defaults(section: str) -> None:
    part = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rules = field_rules(SECTIONS[section])
    assert [[cell.strip() for cell in row.split("|")[1:4]] for row in re.findall(r"^\| `.*", part, re.MULTILINE)] == [
        [f"`{key.name}`", words(rules[key.name]), _written(key.default)]
        for key in dataclasses.fields(SECTIONS[section])
        if f"{section}.{key.name}" not in ("tokenizer.target", "data.sources")  # sections of their own
    ]


def test_every_section_has_a_table() -> None:
    assert {path.rpartition(".")[0] for path in keys(Config)} == {"", *SECTIONS}


def _written(default: object) -> str:
    if default is dataclasses.MISSING:
        return "required"
    return "" if default is None else f"`{json.dumps(default)}`"
