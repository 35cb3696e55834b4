"""`uwaga encode` killed at any moment, and started again, ends with the bytes of a run that was left alone."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import forked
import pytest

from uwaga._base import durable
from uwaga.encode.vector_files import VectorFile

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="forks, so as to load PyTorch once for many runs"),
]

SHARDS = 8  # of the documents below


@pytest.fixture(scope="module", params=["every", "random"])
def killed(
    request: pytest.FixtureRequest, write_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> dict:
    """Killed around every step that writes, or at random moments."""
    folder = tmp_path_factory.mktemp("killed")
    texts = ["the cat sat on the mat and then it ran " * (1 + number % 3) for number in range(24)]
    corpus = folder / "docs.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    paths = {name: str(folder / f"{name}.parquet") for name in ("alone", request.param)}
    asked = {
        "arguments": ["encode", corpus, "-o", "{out}", "--model", write_model(folder / "model"), "--overflow", "mean"],
        "outs": paths, "log": f"{folder}.log", "seed": os.getpid(), "kills": 10, "first": 0, "period": 7,
        "finished": "*.parquet.parts/*.sha256",
        "prepare": "from uwaga.encode.shards import groups; groups.__kwdefaults__['max_documents'] = 3",
    }  # fmt: skip
    said = forked.run(Path(__file__).parents[1] / "killing.py", json.dumps(asked, default=str))
    parsed = json.loads(said.splitlines()[-1])
    (runs,) = parsed.values()
    return {
        "runs": runs,
        "folder": folder,
        "way": request.param,
        "seed": asked["seed"],
        "bytes": [Path(path).read_bytes() for path in paths.values()],
    }


@pytest.mark.gate(only=lambda killed: killed == "every")
def test_the_last_run_ends_with_the_bytes_of_one_that_was_left_alone(killed: dict) -> None:
    *deaths, (last, _) = killed["runs"]
    assert last == 0
    alone, other = killed["bytes"]
    assert other == alone, killed["seed"]
    assert len(deaths) == 10 if killed["way"] == "random" else len(deaths) > SHARDS


@pytest.mark.gate(only=lambda killed: killed == "every")
def test_no_finished_shard_is_ever_lost(killed: dict) -> None:
    counts = [SHARDS + 1 if shards is None else shards for _, shards in killed["runs"]]
    assert counts == sorted(counts)
    assert counts[-1] == SHARDS + 1
    if killed["way"] == "every":
        assert len({shards for _, shards in killed["runs"]}) > 2


@pytest.mark.gate(only=lambda killed: killed == "every")
def test_nothing_is_left_behind(killed: dict) -> None:
    names = ["alone.parquet", "docs.jsonl", f"{killed['way']}.parquet", "model"]
    assert sorted(path.name for path in killed["folder"].iterdir()) == sorted(names)


def test_a_removal_that_was_interrupted_at_its_last_step_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a lock: where that is all that a folder without a mark holds, after a second kill, it is a stranger's for ever."""
    monkeypatch.setattr(durable, "file_lock", None)
    folder = tmp_path / "v.parquet.parts"
    folder.mkdir()
    VectorFile(tmp_path / "v.parquet", {}).clear()
    assert not folder.exists()
