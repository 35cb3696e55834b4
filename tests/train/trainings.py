"""Training runs by several processes over gloo, and what must be the same in them as in one process."""

import json
from pathlib import Path

import forked
import pytest
import torch
from safetensors.torch import load_file

MODELS = {
    "transformer": "num_decoder_layers = 1\ndropout = 0.1\nattention_dropout = 0.1",
    "gpt2": "num_layers = 2\nmax_position_embeddings = 40",
    "bert": "num_layers = 1\nmax_position_embeddings = 40\ndropout = 0.0",
    "t5": "num_layers = 1\nnum_decoder_layers = 1\nd_k = 8",
    "pairs": "num_layers = 1\nnum_decoder_layers = 2",
}
OBJECTIVES = {"bert": "masked-language-model", "t5": "encoder-decoder", "pairs": "encoder-decoder"}
# Relative difference of losses after eight steps, from float32 sums in another order.
CLOSE = 2e-5


def config(folder: Path, family: str) -> Path:
    """Three micro-batches a step, which neither 2 nor 4 processes divide evenly; the last step of an epoch has fewer."""
    objective = OBJECTIVES.get(family, "language-model")
    (folder / "verses.txt").write_text("\n".join(f"Line {n} of {n % 7}, so it goes." for n in range(40)))
    (folder / "pairs.tsv").write_text("\n".join(f"word {n}\ts o {n % 7}" for n in range(60)))
    is_pairs = objective == "encoder-decoder"
    path = folder / f"{family}.toml"
    path.write_text(f"""
        objective = "{objective}"
        [model]
        family = "{family.replace("pairs", "transformer")}"
        num_heads = 2
        d_model = 16
        d_ff = 32
        {MODELS[family]}
        [data]
        kind = "{"pairs" if is_pairs else "text"}"
        train = ["{folder}/{"pairs.tsv" if is_pairs else "verses.txt"}"]
        document = "line"
        context_length = 40
        [batch]
        tokens_per_batch = 80
        tokens_per_step = 240
        [optimizer]
        lr = 1e-2
        [schedule]
        steps = 8
        warmup_steps = 2
        [run]
        output_dir = "nowhere"
        log_every = 1
        eval_every = 4
        sample_every = 4
        sample_tokens = 4
        attention_every = 4
        keep_last = 9
        threads = 1
        """)
    return path


class Trainings:
    """Collects training runs and runs them in one call of processes.py, which imports PyTorch once."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.jobs = folder, []

    def add(
        self,
        name: str,
        family: str,
        size: int,
        *more: str,
        copy: tuple[str, str] | None = None,
        fault: tuple[int, int, str, int] | None = None,
    ) -> None:
        """copy, fault: as processes.py has them."""
        out = str(self.folder / name)
        arguments = [str(config(self.folder, family)), f"run.output_dir={out}", *more]
        job = {"size": size, "arguments": arguments, "log": f"{out}.log"}
        if copy is not None:
            job |= {"copy": (str(self.folder / copy[0]), out, copy[1])}
            arguments.append("--resume")
        if fault is not None:
            job["fault"] = fault
        self.jobs.append(job)

    def run(self) -> None:
        said = forked.run(Path(__file__).with_name("processes.py"), json.dumps(self.jobs))
        for job, codes in zip(self.jobs, json.loads(said.splitlines()[-1]), strict=True):
            if "fault" in job:
                assert set(codes) == {1}
            else:
                assert set(codes) == {0}, Path(job["log"]).read_text()


def lines(out: Path, kind: str) -> list[dict]:
    results = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line for line in results if line["kind"] == kind]


def assert_same(one: Path, other: Path) -> None:
    for kind in ("train", "validation"):
        expected, result = lines(one, kind), lines(other, kind)
        assert [line["step"] for line in result] == [line["step"] for line in expected]
        for a, b in zip(expected, result, strict=True):
            assert b["loss"] == pytest.approx(a["loss"], rel=CLOSE)
            assert b.get("tokens") == a.get("tokens")
    for file in ("model.safetensors", "optimizer.safetensors"):
        expected, result = (load_file(out / "step-000008" / file) for out in (one, other))
        assert expected.keys() == result.keys()
        for name in expected:
            # A bias of the keys adds one number to all scores of a query: its gradient is rounding error, which Adam scales up.
            if "k_proj.bias" not in name and "key.bias" not in name and "c_attn.bias" not in name:
                torch.testing.assert_close(result[name], expected[name], rtol=1e-3, atol=2e-4)
