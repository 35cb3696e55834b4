"""`uwaga train`: what it says and how it ends."""

import json
from pathlib import Path

import commands
import pytest
from trainings import config_in, write_config
from typer.testing import CliRunner

import uwaga
from uwaga.cli import app
from uwaga.cli.train import RECIPES
from uwaga.inspect import run_text
from uwaga.train import Config


@pytest.fixture
def config(tmp_path: Path) -> str:
    return write_config(tmp_path, "run.eval_every=2", "run.log_every=1")


def train(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["train", *arguments])
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.slow
def test_it_trains_and_says_where_the_model_is(config: str, tmp_path: Path) -> None:
    code, said, told = train(config, "optimizer.lr=0.01", "run.keep_last=5")
    assert code == 0, told
    last = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()][-1]
    assert said.splitlines() == [
        f"{tmp_path}/run/step-000004: validation loss {last['loss']:.4f} at step 4 of 4",
        "Next:",
        f"  uwaga generate 'a text' --model {tmp_path}/run",
        f"  uwaga view 'a text' --model {tmp_path}/run",
    ]
    assert "step 2: validation loss " in told
    said = commands.run("generate", "--model", f"{tmp_path}/run", "Line", "--max-new-tokens", 3, "--json")
    assert len(json.loads(said)["tokens"]) == 3


def test_the_configuration_is_shown_with_its_overrides(config: str) -> None:
    code, said, _ = train(config, "--print-config", "optimizer.lr=0.5", "run.compile=true")
    assert code == 0
    shown = Config.parse(said)
    assert (shown.optimizer.lr, shown.run.compile, shown.schedule.steps) == (0.5, True, 4)


@pytest.mark.slow
def test_a_run_is_not_written_over_but_gone_on_with(config: str, tmp_path: Path) -> None:
    assert train(config)[0] == 0
    code, said, told = train(config)
    assert (code, said) == (1, "")
    assert told == (
        f"uwaga train: {tmp_path}/run holds a run already (its last checkpoint is step-000004): "
        "--resume continues it, run.output_dir=... starts another\n"
    )
    assert train(config, "--resume")[0] == 0


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("optimizer.rate=1", "there is no key optimizer.rate"),
        ("data.train=['nowhere.txt']", "nowhere.txt: there is no such file"),
    ],
)
def test_what_is_wrong_is_told_in_words(config: str, argument: str, said: str) -> None:
    code, shown, told = train(config, argument)
    assert (code, shown) == (1, "")
    assert f"uwaga train: {said}" in told.replace(f"{config}: ", "")


def test_processes_of_torchrun_speak_with_one_voice(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    assert train(config, "optimizer.rate=1") == (1, "", "")


def test_stopped_by_hand_it_says_how_to_go_on(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("uwaga.train.api.Loop.run", stop)
    code, said, told = train(config)
    assert (code, said) == (130, "")
    assert "stopped before the first step" in told.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.gate(only=lambda shared: shared == "false")
@pytest.mark.parametrize("shared", ["true", "false"])
def test_a_model_of_pairs_answers_by_its_decoders_tokenizer(tmp_path: Path, shared: str) -> None:
    (tmp_path / "pairs.tsv").write_text("\n".join(f"w{n}\tS{n % 3} T" for n in range(60)))
    made = config_in(
        tmp_path, "encoder-decoder", ["pairs.tsv"], f"tokenizer.target={{kind='words', shared={shared}}}",
        "batch.tokens_per_batch=200", "optimizer.lr=1e-2", "schedule.steps=40", "run.eval_every=40", "run.sample_tokens=4",
    )  # fmt: skip
    (tmp_path / "config.toml").write_text(made.text())
    assert train(str(tmp_path / "config.toml"))[0] == 0
    said = json.loads(commands.run("generate", "--model", f"{tmp_path}/run/step-000040", "w7", "--json"))["text"]
    assert "T" in said
    assert set(said.split()) <= {"S0", "S1", "S2", "T"}
    reader = uwaga.models.open(f"{tmp_path}/run/step-000040", dtype="float32")
    seen = run_text.record_text(reader, "w7", target="S1 T", new_tokens=0)
    assert seen.tokens["encoder"][0][:2] == ["w", "7"]
    assert seen.tokens["decoder"][0][1:] == ["S1", "T"]


def test_a_recipe_runs_by_its_name_and_the_help_lists_all() -> None:
    shown = " ".join(train("--help")[1].replace("│", " ").split())
    assert f"A TOML file, or a recipe: {', '.join(RECIPES)}." in shown
    assert "bard" in RECIPES
    for name, path in RECIPES.items():
        code, said, told = train(name, "--print-config")
        assert (code, Config.parse(said)) == (0, Config.read(path)), told
