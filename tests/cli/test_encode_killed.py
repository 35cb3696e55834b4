"""`uwaga encode` killed at any moment, and started again, ends with the bytes of a run that was left alone."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="forks, so as to load PyTorch once for many runs"),
]

SHARDS = 8  # of the documents below


@pytest.fixture(scope="module")
def killed(write_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("killed")
    texts = ["the cat sat on the mat and then it ran " * (1 + number % 3) for number in range(24)]
    corpus = folder / "docs.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    paths = {name: str(folder / f"{name}.parquet") for name in ("alone", "random", "every")}
    asked = {
        **paths,
        "corpus": str(corpus),
        "model": str(write_model(folder / "model")),
        "seed": os.getpid(),
        "kills": 10,
    }
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("killing.py")), json.dumps(asked)],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return {"found": found, "asked": asked, "bytes": {name: Path(path).read_bytes() for name, path in paths.items()}}


def test_ten_kills_at_random_moments(killed: dict) -> None:
    *deaths, (last, _) = killed["found"]["random"]
    assert last == 0
    assert killed["bytes"]["random"] == killed["bytes"]["alone"], killed["asked"]["seed"]
    assert len(deaths) == 10


def test_a_kill_before_or_after_any_step_that_writes(killed: dict) -> None:
    *deaths, (last, _) = killed["found"]["every"]
    assert last == 0
    assert killed["bytes"]["every"] == killed["bytes"]["alone"]
    assert len(deaths) > SHARDS


def test_no_finished_shard_is_ever_lost(killed: dict) -> None:
    for runs in killed["found"].values():
        counts = [SHARDS + 1 if shards is None else shards for _, shards in runs]
        assert counts == sorted(counts)
        assert counts[-1] == SHARDS + 1
    assert len({shards for _, shards in killed["found"]["every"]}) > 2


def test_nothing_is_left_behind(killed: dict) -> None:
    folder = Path(killed["asked"]["corpus"]).parent
    expected = ["alone.parquet", "docs.jsonl", "every.parquet", "model", "random.parquet"]
    assert sorted(path.name for path in folder.iterdir()) == expected
