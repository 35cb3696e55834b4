"""`uwaga encode` killed at any moment, and started again, ends with the bytes of a run that was left alone."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import commands
import forked
import pytest

SHARDS = 4  # of the documents below


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks, so as to load PyTorch once for many runs")
@pytest.mark.gate(only=lambda way: way == "every")
@pytest.mark.parametrize("way", ["every", "random"])
def test_the_last_run_ends_with_the_bytes_of_one_that_was_left_alone(
    way: str, write_model: Callable[..., Path], tmp_path: Path
) -> None:
    """Killed around every step that writes, or at random moments. No finished shard is ever lost, and nothing is left behind."""
    texts = ["the cat sat on the mat and then it ran " * (1 + number % 3) for number in range(3 * SHARDS)]
    corpus = tmp_path / "docs.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    paths = {name: tmp_path / f"{name}.parquet" for name in ("alone", way)}
    asked = {
        "arguments": ["encode", corpus, "-o", "{out}", "--model", write_model(tmp_path / "model"), "--overflow", "mean"],
        "outs": paths, "log": f"{tmp_path}.log", "seed": os.getpid(), "kills": 10, "first": 0, "period": 7,
        "finished": "*.parquet.parts/*.sha256",
        "prepare": "from uwaga.encode.shards import groups; groups.__kwdefaults__['max_documents'] = 3",
    }  # fmt: skip
    said = forked.run(Path(__file__).parents[1] / "killing.py", json.dumps(asked, default=str))
    (runs,) = json.loads(said.splitlines()[-1]).values()
    *deaths, (last, _) = runs
    assert last == 0
    assert paths[way].read_bytes() == paths["alone"].read_bytes(), asked["seed"]
    counts = [SHARDS + 1 if shards is None else shards for _, shards in runs]
    assert counts == sorted(counts)
    assert counts[-1] == SHARDS + 1
    if way == "every":
        assert len(deaths) > SHARDS
        assert len(set(counts)) > 2
    else:
        assert len(deaths) == 10
    names = ["alone.parquet", "docs.jsonl", f"{way}.parquet", "model"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_a_removal_that_was_interrupted_at_its_last_step_is_ended(
    write_model: Callable[..., Path], tmp_path: Path
) -> None:
    """Without a lock: if a lock is all that a folder without a mark holds after a second kill, the folder is a stranger's for ever."""
    (tmp_path / "docs.txt").write_text("the cat")
    asked = ["encode", tmp_path / "docs.txt", "-o", tmp_path / "v.parquet", "--model", write_model(tmp_path / "model")]
    commands.run(*asked)
    (tmp_path / "v.parquet.parts").mkdir()
    assert "finished already" in commands.run(*asked)
    assert not (tmp_path / "v.parquet.parts").exists()
