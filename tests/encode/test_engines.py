"""`uwaga encode --ray`, and BatchEncoder on Ray Data and Spark: the bytes of one process. `make corpora` installs both."""

import importlib.util
import json
import logging
import os
import random
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml
from machines import block_of, two_machines
from typer.testing import CliRunner

from uwaga import TextEncoder
from uwaga.cli import app
from uwaga.encode import BatchEncoder, processes

pytestmark = [
    pytest.mark.stress,
    pytest.mark.timeout(900),
    # Of their own futures, and of files that they leave to the garbage collector.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

WORDS = ["the", "cat", "sat", "on", "the", "mat", "and", "then", "it", "ran", "away", "from", "a", "house"]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    chosen = random.Random(0)
    return [" ".join(chosen.choices(WORDS, k=1 + n % 37)) for n in range(3000)]


@pytest.fixture
def encode(texts: list[str], model: Path, tmp_path: Path, shard_size: Callable[[int, int], None]) -> Callable[..., Any]:
    shard_size(20, 2000)
    corpus = tmp_path / "docs.jsonl"
    lines = [json.dumps({"id": f"d{n}", "text": text}) for n, text in enumerate(texts)]
    lines[100] = json.dumps({"id": "d100", "text": ""})
    lines[200] = "no JSON"
    corpus.write_text("\n".join(lines) + "\n")

    def run(name: str, *options: str) -> Any:
        arguments = ["encode", str(corpus), "-o", str(tmp_path / name), "--model", str(model), "--overflow", "mean"]
        return CliRunner().invoke(app, [*arguments, "--skip-invalid", *options])

    return run


@pytest.fixture
def ray() -> Any:
    return pytest.importorskip("ray")


@pytest.fixture
def spark() -> Iterator[Any]:
    sql = pytest.importorskip("pyspark.sql")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    session = sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def _actors() -> list[int]:
    """The processes of this account that are our actors."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                name = (path / "cmdline").read_bytes()
            except OSError:
                continue
            if name.startswith(b"ray::_Actor"):
                found.append(int(path.name))
    return sorted(found)


@contextmanager
def meanwhile(act: Callable[[], None], *, every: float) -> Iterator[None]:
    """`act` again and again, so many seconds apart, in a thread of its own."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(every):
            act()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.usefixtures("ray")
def test_actors_are_killed_all_the_time(encode: Callable[..., Any], tmp_path: Path) -> None:
    killed = before = 0

    def kill() -> None:
        nonlocal killed, before
        shards = len(list(tmp_path.glob("ray.parquet.parts/*.sha256")))
        # One that is being started is left alone, or on a busy machine none would ever be up.
        if shards > before and (pids := _actors()):
            before = shards
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(random.choice(pids), signal.SIGKILL)
                killed += 1

    assert encode("one.parquet").exit_code == 0
    with meanwhile(kill, every=0.5):
        result = encode("ray.parquet", "--processes", "3", "--ray", "--timeout", "300")
    assert result.exit_code == 0, result.output
    assert killed
    for name in ("{}.parquet", "{}.parquet.skipped.jsonl"):
        assert (tmp_path / name.format("ray")).read_bytes() == (tmp_path / name.format("one")).read_bytes()


@pytest.mark.usefixtures("ray")
def test_an_actor_that_is_stopped_ends_the_command_with_what_it_had(encode: Callable[..., Any], tmp_path: Path) -> None:
    stopped: list[int] = []

    def stop() -> None:
        """Every actor, as soon as there are shards."""
        if len(list(tmp_path.glob("ray.parquet.parts/*.sha256"))) > 2:
            for pid in set(_actors()) - set(stopped):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
                    stopped.append(pid)

    try:
        with meanwhile(stop, every=0.02):
            result = encode("ray.parquet", "--processes", "2", "--ray", "--timeout", "20")
    finally:
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert result.exit_code == 1, result.output
    assert "Ray has given no result for 20 s: give a larger timeout, or see `ray status`; it has " in result.stderr
    assert "docs.jsonl:" in result.stderr
    assert not (tmp_path / "ray.parquet").exists()
    assert encode("ray.parquet").exit_code == 0
    assert encode("one.parquet").exit_code == 0
    assert (tmp_path / "ray.parquet").read_bytes() == (tmp_path / "one.parquet").read_bytes()


def test_a_program_keeps_its_settings_of_ray(ray: Any, texts: list[str], model: Path) -> None:
    """Its cluster is used and left running."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        before = logging.getLogger("ray").level
        batch = {"document": np.arange(40), "text": texts[:40]}
        encode = BatchEncoder(model, overflow="mean")
        results = processes.map_by_ray(encode.explained, [("all", batch)], address=None)
        (item, (choice, columns)), *more = results
        assert (item, more, ray.is_initialized()) == ("all", [], True)
        assert np.array_equal(columns["vector"], encode(batch)["vector"])
        assert choice == encode.load().explain()
        assert logging.getLogger("ray").level == before
    finally:
        ray.shutdown()


def test_ray_data_takes_the_callable(ray: Any, texts: list[str], model: Path) -> None:
    expected = TextEncoder.load(model).encode(texts[:300], overflow="mean")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        dataset = ray.data.from_items([{"n": n, "text": text} for n, text in enumerate(texts[:300])])
        encoded = dataset.map_batches(
            BatchEncoder,
            fn_constructor_args=[str(model)],
            fn_constructor_kwargs={"overflow": "mean"},
            batch_size=50,
            compute=ray.data.ActorPoolStrategy(size=2),
        )
        rows = sorted(encoded.take_all(), key=lambda row: row["n"])
    finally:
        ray.shutdown()
    assert [row["n"] for row in rows] == list(range(300))
    assert np.array_equal(np.stack([row["vector"] for row in rows]).astype(np.float32), expected)


@pytest.mark.usefixtures("ray")
def test_the_slurm_script_on_two_machines(encode: Callable[..., Any], model: Path, tmp_path: Path) -> None:
    assert encode("one.parquet").exit_code == 0
    script = block_of("guides/corpora.md", "bash").replace("/models/e5", f"{model} --overflow mean --skip-invalid")
    (tmp_path / "encode.sh").write_text(script)
    (tmp_path / "programs").mkdir()
    # Names without a name server.
    environment = {"GRPC_DNS_RESOLVER": "native", "HOME": str(tmp_path)}
    with two_machines(tmp_path / "programs") as machines:
        path = f"{Path(importlib.util.find_spec('ray').origin).parents[1] / 'bin'}:$PATH"
        command = f"cd {tmp_path} && PATH={path} bash encode.sh"
        ((code, output),) = machines.run([["bash", "-c", command]], seconds=800, **environment)
    assert code == 0, output
    # The script's process has shards of another size, which the file's metadata tell of.
    vectors, expected = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("vectors", "one"))
    assert vectors.equals(expected)


@pytest.mark.usefixtures("ray")
def test_the_cluster_file_is_one() -> None:
    """By Ray's own schema; as many workers as it names are started."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = prepare_config(yaml.safe_load(block_of("guides/corpora.md", "yaml")))
    validate_config(config)
    (node,) = config["available_node_types"].values()
    assert (node["min_workers"], node["max_workers"]) == (2, 2)
    assert "--autoscaling-config=~/ray_bootstrap_config.yaml" in config["head_start_ray_commands"][-1]


def test_spark_takes_the_callable(spark: Any, texts: list[str], model: Path) -> None:
    expected = TextEncoder.load(model).encode(texts[:300], overflow="mean")
    frame = spark.createDataFrame(pd.DataFrame({"n": range(300), "text": [*texts[:299], ""]}))
    schema = (
        "n long, start long, stop long, characters long, tokens long, windows long, vector array<float>, error string"
    )
    encoded = frame.repartition(4).mapInPandas(BatchEncoder(model, overflow="mean"), schema)
    rows = sorted(encoded.collect(), key=lambda row: row["n"])
    assert [row["n"] for row in rows] == list(range(300))
    assert (rows[299]["vector"], rows[299]["error"]) == (None, "is empty")
    assert np.array_equal(np.array([row["vector"] for row in rows[:299]], np.float32), expected[:299])
