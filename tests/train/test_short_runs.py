"""A short run of each recipe on its real data with a tiny model: losses, validation, samples and checkpoints."""

import gzip
import json
import random
import runpy
from itertools import islice
from pathlib import Path

import pytest

from uwaga.models import load
from uwaga.train import Config, fit

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
RECIPES = sorted(path.stem for path in (ROOT / "recipes").glob("*.toml"))
DATA = ROOT.parent / "shared" / "data"
SMALL = (
    "schedule.steps=6", "schedule.warmup_steps=2", "run.eval_every=3", "run.eval_tokens=500", "run.log_every=1",
    "run.sample_every=6", "run.sample_tokens=6", "run.attention_every=6", "run.threads=1", "run.device=cpu",
    "model.num_heads=2", "model.d_model=16", "model.d_ff=32", "batch.tokens_per_batch=600",
)  # fmt: skip
LAYERS = {"transformer": ("num_layers", "num_decoder_layers"), "gpt2": ("num_layers",), "bert": ("num_layers",)}


@pytest.fixture
def overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Settings of a tiny model and six steps."""
    if not DATA.is_dir():
        pytest.skip("there is no folder shared/data beside the repository")
    monkeypatch.setenv("UWAGA_DATA", str(DATA))
    return (f"run.output_dir={tmp_path}/run", *SMALL)


@pytest.mark.parametrize("name", RECIPES)
def test_a_short_run_of_a_recipe(name: str, overrides: tuple[str, ...], tmp_path: Path) -> None:
    config = Config.read(ROOT / "recipes" / f"{name}.toml")
    layers = [key for key in LAYERS[config.model["family"]] if config.model.get(key)]
    more = [f"model.{key}=1" for key in layers]
    if "alibi_slopes" in config.model:
        more += ["model.alibi_slopes=[0.5, 0.0]"]  # one slope for each of the two heads
    if config.objective == "encoder-decoder":
        more += [f"data.train=[{_few_words(tmp_path)!r}]", "data.validation_fraction=0.05"]
    if name == "peps-mlm":
        more += [f"data.train=[{_few_peps(tmp_path)!r}]", "tokenizer.vocab_size=400"]
    if name.startswith("copyist"):
        more += [f"data.train=[{_few_repetitions(tmp_path)!r}]", "data.context_length=256"]
    if name == "copyist":  # its tokenizer and its first weights are those of the recipe before
        first = [*overrides, *more, f"run.output_dir={tmp_path}/first"]
        folder = fit(Config.read(ROOT / "recipes" / "copyist-256.toml", first), progress=False).checkpoint
        more += [f"tokenizer.path={folder}", f"run.init_from={folder}"]
    result = fit(Config.read(ROOT / "recipes" / f"{name}.toml", [*overrides, *more]), progress=False)
    assert list(result.losses) == list(range(1, 7))
    assert list(result.validation_losses) == [3, 6]
    assert load(result.checkpoint) is not None
    kinds = {json.loads(line)["kind"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()}
    is_pairs, is_masked = config.objective == "encoder-decoder", config.objective == "masked-language-model"
    assert kinds == {"train", "validation", "attention"} | ({"error_rates"} if is_pairs else set()) | (
        set() if is_masked else {"sample"}
    )


def _few_words(folder: Path) -> str:
    """Every fiftieth line of CMUdict; test_recipes.py prepares all of them, which takes half a minute."""
    path = folder / "cmudict"
    source = next(each for each in (DATA / "cmudict", DATA / "cmudict.gz") if each.is_file())
    with (gzip.open if source.suffix else open)(source, "rt", encoding="utf-8") as file:
        path.write_text("".join(islice(file, 0, None, 50)))
    return str(path)


def _few_repetitions(folder: Path) -> str:
    """20,000 characters in the style of repetitions-256.txt; writing all of them takes half a minute."""
    program = runpy.run_path(str(ROOT / "recipes" / "repetitions.py"))
    play = (DATA / "tinyshakespeare.txt").read_text()
    style = program["STYLES"]["repetitions-256.txt"]
    path = folder / "repetitions.txt"
    path.write_text(program["repetitive_text"](style, [play[:50_000], play[50_000:100_000]], 20_000, random.Random(1)))
    return str(path)


def _few_peps(folder: Path) -> str:
    """The first 40 PEPs; training byte pairs on all of them takes half a minute."""
    path = folder / "peps.jsonl"
    with gzip.open(DATA / "peps.jsonl.gz", "rt", encoding="utf-8") as file:
        path.write_text("".join(islice(file, 40)))
    return str(path)
