"""A short run of each recipe with a tiny model on data of its kind: losses, validation, samples and checkpoints.

test_recipes.py reads the real data.
"""

import json
import random
import runpy
import string
from pathlib import Path

import pytest

from uwaga.models import load
from uwaga.train import Config, fit

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "src" / "uwaga" / "train" / "recipes"
RECIPES = sorted(path.stem for path in FOLDER.glob("*.toml"))
SMALL = (
    "schedule.steps=6", "schedule.warmup_steps=2", "run.eval_every=3", "run.eval_tokens=500", "run.log_every=1",
    "run.sample_every=6", "run.sample_tokens=6", "run.attention_every=6", "run.threads=1", "run.device=cpu",
    "model.num_heads=2", "model.d_model=16", "model.d_ff=32", "batch.tokens_per_batch=600",
)  # fmt: skip
LAYERS = {"transformer": ("num_layers", "num_decoder_layers"), "gpt2": ("num_layers",), "bert": ("num_layers",)}


@pytest.mark.gate(only=lambda name: name == "speller")
@pytest.mark.parametrize("name", RECIPES)
def test_a_short_run_of_a_recipe(name: str, tmp_path: Path) -> None:
    """A tiny model and six steps."""
    overrides = (f"run.output_dir={tmp_path}/run", *SMALL, f"data.train=[{_own_data(name, tmp_path)!r}]")
    config = Config.read(FOLDER / f"{name}.toml")
    layers = [key for key in LAYERS[config.model["family"]] if config.model.get(key)]
    more = [f"model.{key}=1" for key in layers]
    if "alibi_slopes" in config.model:
        more += ["model.alibi_slopes=[0.5, 0.0]"]  # one slope for each of the two heads
    if config.objective == "encoder-decoder":
        more += ["data.validation_fraction=0.05"]
    if name == "peps-mlm":
        more += ["tokenizer.vocab_size=400"]
    if name.startswith("copyist"):
        more += ["data.context_length=256"]
    if name == "copyist":  # its tokenizer and its first weights are those of the recipe before
        first = [*overrides, *more, f"run.output_dir={tmp_path}/first"]
        folder = fit(Config.read(FOLDER / "copyist-256.toml", first), progress=False).checkpoint
        more += [f"tokenizer.path={folder}", f"run.init_from={folder}"]
    result = fit(Config.read(FOLDER / f"{name}.toml", [*overrides, *more]), progress=False)
    assert list(result.losses) == list(range(1, 7))
    assert list(result.validation_losses) == [3, 6]
    assert load(result.checkpoint) is not None
    kinds = {json.loads(line)["kind"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()}
    is_pairs, is_masked = config.objective == "encoder-decoder", config.objective == "masked-language-model"
    assert kinds == {"train", "validation", "attention"} | ({"error_rates"} if is_pairs else set()) | (
        set() if is_masked else {"sample"}
    )


def _own_data(name: str, folder: Path) -> str:
    """A small file for the recipe, in the format of its own data: made-up words, or this project's pages."""
    chosen = random.Random(1)
    pages = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*/*.md"))]
    path = folder / ("own.jsonl" if name == "peps-mlm" else "own.txt")
    if name.startswith("speller"):
        words = ["".join(chosen.choices(string.ascii_uppercase, k=chosen.randint(2, 9))) for _ in range(1000)]
        path.write_text("".join(f"{word} 1 {' '.join(f'{letter}H0' for letter in word)}\n" for word in words))
    elif name == "peps-mlm":
        path.write_text("".join(json.dumps({"id": str(n), "text": page}) + "\n" for n, page in enumerate(pages)))
    elif name.startswith("copyist"):
        program = runpy.run_path(str(ROOT / "recipes" / "repetitions.py"))
        text = "\n".join(pages)
        style = program["STYLES"]["repetitions-256.txt"]
        path.write_text(program["repetitive_text"](style, [text[:50_000], text[50_000:100_000]], 20_000, chosen))
    else:
        path.write_text("".join(pages)[:100_000])
    return str(path)
