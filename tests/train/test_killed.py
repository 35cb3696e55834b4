"""A training that is killed, before or after file-system calls or at random, ends with the same bits as one that is not
interrupted."""

import json
from pathlib import Path

import forked
import pytest
from trainings import write_config

pytestmark = pytest.mark.slow

KILLED = -9


def run(folder: Path, *names: str, **asked: object) -> dict:
    """The exit codes that killing.py prints for the runs of these names, and the folder of the runs."""
    config = write_config(
        folder, "model={family='transformer', num_decoder_layers=1, num_heads=2, d_model=16, d_ff=32, dropout=0.1, attention_dropout=0.1}",
        "batch.tokens_per_step=240", "optimizer.lr=1e-2", "optimizer.label_smoothing=0.1", "schedule.steps=9", "schedule.warmup_steps=2",
        "run.log_every=1", "run.eval_every=5", "run.save_every=3", "run.eval_tokens=400", "run.sample_every=5", "run.sample_tokens=5",
        "run.attention_every=4",
    )  # fmt: skip
    outs = {name: str(folder / name) for name in ("alone", *names)}
    asked |= {
        "arguments": ["train", config, "run.output_dir={out}", "--resume"],
        "outs": outs, "log": f"{folder}/log", "seed": 3, "first": 1, "period": 60,
    }  # fmt: skip
    said = forked.run(Path(__file__).parents[1] / "killing.py", json.dumps(asked))
    runs = json.loads(said.splitlines()[-1])
    return {"codes": {name: [code for code, _ in run] for name, run in runs.items()}, "folder": folder}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict:
    return run(tmp_path_factory.mktemp("killed"), "random", "every", kills=5)


def test_a_training_that_is_killed_twice_resumes_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    result = run(tmp_path, "chosen", calls=[40, 45.5])
    assert result["codes"]["chosen"] == [KILLED, KILLED, 0]
    assert_same(tmp_path / "alone", tmp_path / "chosen")


@pytest.mark.stress
@pytest.mark.parametrize("name", ["random", "every"])
def test_a_training_that_is_killed_many_times_ends_with_the_same_bits(killed: dict, name: str) -> None:
    codes = killed["codes"][name]
    assert codes[-1] == 0
    assert codes.count(KILLED) >= (2 if name == "random" else 10)
    assert_same(killed["folder"] / "alone", killed["folder"] / name)


def assert_same(alone: Path, other: Path) -> None:
    """Metrics are the same but for times, and the same checkpoints are kept, with no unfinished ones."""
    for which in ("last", "best"):
        expected, result = (out / (out / which).read_text().strip() for out in (alone, other))
        assert expected.name == result.name
        for file in ("model.safetensors", "optimizer.safetensors", "config.json", "tokenizer.json"):
            assert (expected / file).read_bytes() == (result / file).read_bytes(), file
    assert len(without_times(alone)) > 10
    assert without_times(alone) == without_times(other)
    names, results = ({path.name for path in out.iterdir()} for out in (alone, other))
    assert names == results
    assert not [name for name in results if "unfinished" in name or "going" in name]


def without_times(out: Path) -> list[str]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [json.dumps({key: value for key, value in line.items() if key != "wall"}) for line in lines]
