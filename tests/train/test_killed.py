"""A training that is killed, before or after file-system calls or at random, ends with the same bits as one that is not
interrupted."""

import json
from pathlib import Path

import forked
import pytest

pytestmark = pytest.mark.slow

KILLED = -9


def run(folder: Path, *names: str, **asked: object) -> dict:
    """The exit codes that killing.py prints for the runs of these names, and the folder of the runs."""
    (folder / "verses.txt").write_text("\n".join(f"Line {n} of {n % 7}, so it goes." for n in range(300)))
    (folder / "config.toml").write_text(f"""
        objective = "language-model"
        [model]
        family = "transformer"
        num_decoder_layers = 2
        num_heads = 2
        d_model = 16
        d_ff = 32
        dropout = 0.1
        attention_dropout = 0.1
        [data]
        train = ["{folder}/verses.txt"]
        document = "line"
        context_length = 40
        [batch]
        tokens_per_batch = 80
        tokens_per_step = 240
        [optimizer]
        lr = 1e-2
        label_smoothing = 0.1
        [schedule]
        steps = 15
        warmup_steps = 3
        [run]
        output_dir = "nowhere"
        log_every = 1
        eval_every = 5
        save_every = 3
        eval_tokens = 400
        sample_every = 5
        sample_tokens = 5
        attention_every = 4
        threads = 1
        """)
    outs = {name: str(folder / name) for name in ("alone", *names)}
    asked |= {
        "arguments": ["train", f"{folder}/config.toml", "run.output_dir={out}", "--resume"],
        "outs": outs, "log": f"{folder}/log", "seed": 3, "first": 30, "period": 31,
    }  # fmt: skip
    said = forked.run(Path(__file__).parents[1] / "killing.py", json.dumps(asked))
    runs = json.loads(said.splitlines()[-1])
    return {"codes": {name: [code for code, _ in run] for name, run in runs.items()}, "folder": folder}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict:
    return run(tmp_path_factory.mktemp("killed"), "random", "every", kills=5)


def test_a_training_that_is_killed_twice_resumes_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    result = run(tmp_path, "chosen", calls=[("before", 40), ("after", 45)])
    assert result["codes"]["chosen"] == [KILLED, KILLED, 0]
    assert_same_weights(tmp_path, "chosen")
    assert without_times(tmp_path / "alone") == without_times(tmp_path / "chosen")


@pytest.mark.stress
def test_killed_runs_finish_in_the_end(killed: dict) -> None:
    for name in ("random", "every"):
        codes = killed["codes"][name]
        assert codes[-1] == 0
        assert codes.count(KILLED) >= 2
    assert len(killed["codes"]["every"]) > 10


@pytest.mark.stress
@pytest.mark.parametrize("name", ["random", "every"])
def test_weights_and_optimizer_states_are_bit_identical(killed: dict, name: str) -> None:
    assert_same_weights(killed["folder"], name)


def assert_same_weights(folder: Path, name: str) -> None:
    for which in ("last", "best"):
        alone, other = (checkpoint(folder / each, which) for each in ("alone", name))
        assert alone.name == other.name
        for file in ("model.safetensors", "optimizer.safetensors", "config.json", "tokenizer.json"):
            assert (alone / file).read_bytes() == (other / file).read_bytes(), file


@pytest.mark.stress
@pytest.mark.parametrize("name", ["random", "every"])
def test_metrics_are_identical_except_for_times(killed: dict, name: str) -> None:
    alone, other = (without_times(killed["folder"] / each) for each in ("alone", name))
    assert alone == other
    assert len(alone) > 20


@pytest.mark.stress
@pytest.mark.parametrize("name", ["random", "every"])
def test_the_same_checkpoints_are_kept_and_no_unfinished_ones(killed: dict, name: str) -> None:
    alone, other = ({path.name for path in (killed["folder"] / each).iterdir()} for each in ("alone", name))
    assert alone == other
    assert not [each for each in other if "unfinished" in each or "going" in each]


def checkpoint(out: Path, which: str) -> Path:
    return out / (out / which).read_text().strip()


def without_times(out: Path) -> list[str]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [json.dumps({key: value for key, value in line.items() if key != "wall"}) for line in lines]
