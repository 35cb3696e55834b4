"""The training configuration: defaults and overrides. The messages of its errors are in tests/messages/train.txt."""

import pytest

from uwaga.train.config import Config

_TEXT = """
objective = "language-model"
model = {family = "gpt2", num_layers = 2}
data = {train = ["a.txt"]}
schedule = {steps = 10}
run = {output_dir = "o"}
"""
_PAIRS = (
    'objective="encoder-decoder"', 'model.family="transformer"', 'data.kind="pairs"', 'tokenizer.kind="characters"',
)  # fmt: skip


@pytest.mark.parametrize(
    "overrides",
    [
        ("run.sample_prompts=['ROMEO:', \"a\\tb\\u0007\"]", "data.sources.x={sha256='" + 64 * "a" + "', url='https://example.org/x'}"),
        (*_PAIRS, "tokenizer.target={kind='words', shared=true}", "data.remove_characters='012'"),
    ],
)  # fmt: skip
def test_the_resolved_text_reads_back_equal(overrides: tuple[str, ...]) -> None:
    config = Config.parse(_TEXT, overrides)
    assert Config.parse(config.text()) == config


def test_overrides_are_toml_values_or_words_and_the_last_one_wins() -> None:
    overrides = ["optimizer.lr=3e-4", "optimizer.lr=1", "optimizer.betas=[0.9, 0.99]", "run.compile=true"]
    config = Config.parse(_TEXT, overrides)
    assert config.optimizer.lr == 1.0
    assert isinstance(config.optimizer.lr, float)
    assert config.optimizer.betas == (0.9, 0.99)
    assert config.run.compile
    for folder in ("runs/a", "2024-05-01", "a=b", "'quoted'"):
        assert Config.parse(_TEXT, [f"run.output_dir={folder}"]).run.output_dir == folder.strip("'")
