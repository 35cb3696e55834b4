"""The recipes: their configurations, short runs with tiny models, their data and checksums, and the bundled models' figures."""

import gzip
import json
import random
import re
import string
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from uwaga._base import env
from uwaga.models import Transformer, load
from uwaga.models.checkpoints import directories
from uwaga.train import Config, fit, sources
from uwaga.train.corpus import Corpus
from uwaga.train.evaluation import model_error_rates
from uwaga.train.model import model_config
from uwaga.train.parallel import World
from uwaga.train.step import TrainableModel

_ROOT = Path(__file__).parents[2]
_PROGRAMS = _ROOT / "recipes"
_FOLDER = Path(sources.__file__).parent / "recipes"
_RECIPES = sorted(path.name for path in _FOLDER.glob("*.toml"))
_LARGEST_BUNDLED = 8_000_000  # bytes


def _data() -> Path:
    """The folder of the recipes' data: UWAGA_DATA, or shared/data beside the repository."""
    for folder in (env.data(), Path(__file__).parents[3] / "shared" / "data"):
        if (folder / "tinyshakespeare.txt").is_file():
            return folder
    pytest.skip("the data of the recipes is not in UWAGA_DATA: recipes/README.md says where it is from")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Config, Corpus]]:
    """The configuration and prepared corpus of a recipe; recipes of the same data share the corpus."""
    data = _data()
    folder = tmp_path_factory.mktemp("prepared")

    def prepare(name: str) -> tuple[Config, Corpus]:
        config = Config.read(_FOLDER / name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("UWAGA_DATA", str(data))
            return config, Corpus.prepare(config, folder)

    return prepare


def test_every_recipe_is_in_the_readme() -> None:
    text = (_PROGRAMS / "README.md").read_text()
    assert sorted(re.findall(r"`uwaga train ([a-z0-9-]+)`", text)) == sorted(
        recipe.removesuffix(".toml") for recipe in _RECIPES
    )


@pytest.mark.parametrize("name", _RECIPES)
def test_the_text_of_a_recipe_reads_back_equal(name: str) -> None:
    config = Config.read(_FOLDER / name)
    assert Config.parse(config.text()) == config
    assert config.run.output_dir == f"runs/{name.removesuffix('.toml')}"
    for source in config.data.sources.values():
        assert source.url.startswith("https://")


def test_recipes_agree_on_the_sources_that_they_share() -> None:
    shared: dict[str, object] = {}
    for name in _RECIPES:
        for key, source in Config.read(_FOLDER / name).data.sources.items():
            assert shared.setdefault(key, source) == source


@pytest.mark.stress
@pytest.mark.parametrize("name", [name for name in _RECIPES if not name.startswith("copyist")])
def test_a_recipe_with_its_real_data(name: str, prepared: Callable[[str], tuple[Config, Corpus]]) -> None:
    config, corpus = prepared(name)
    with torch.device("meta"):
        model = Transformer(model_config(config.model, config.objective, corpus.model_settings))
    size = 4 * sum(weight.numel() for weight in model.parameters())
    if name in ("bard.toml", "speller.toml"):
        assert size < _LARGEST_BUNDLED - 100_000  # the tokenizer and config.json
    batch = corpus.train.batch(corpus.train.micro_batches(0)[0])
    assert (
        config.batch.tokens_per_batch - 2 * config.data.context_length < batch.tokens <= config.batch.tokens_per_batch
    )


@pytest.mark.stress
def test_the_held_out_words_are_as_many_as_the_readme_says(prepared: Callable[[str], tuple[Config, Corpus]]) -> None:
    _, corpus = prepared("speller.toml")
    questions = list(corpus.questions())
    assert f"has {len(questions):,} of " in (_PROGRAMS / "README.md").read_text()
    assert [source for source, _ in questions[:3]] == ["AACHEN", "ABANDONMENTS", "ABBE"]
    assert corpus.tokenizer.special.unk not in {
        int(x) for batch in corpus.validation.evaluation_batches() for x in (*batch.ids.values, *batch.labels)
    }


@pytest.mark.stress
def test_the_error_rates_of_the_bundled_speller(prepared: Callable[[str], tuple[Config, Corpus]]) -> None:
    """On 1,000 of the held-out words; the model card has the error rates on all of them."""
    config, corpus = prepared("speller.toml")
    result = model_error_rates(load("speller"), config, corpus, all=False)
    assert result.words == 1000
    assert result.phoneme <= 0.07
    assert result.word <= 0.30


@pytest.mark.stress
def test_the_bundled_bards_loss_is_that_of_its_card(prepared: Callable[[str], tuple[Config, Corpus]]) -> None:
    config, corpus = prepared("bard.toml")
    card = (directories.bundled_folder("bard") / "README.md").read_text()
    stated = re.search(r"(\d\.\d+) nats", card)
    assert stated is not None
    world = World(rank=0, size=1, device=torch.device("cpu"))
    loss = TrainableModel(load("bard"), config, world).validation_loss(corpus.validation)
    assert loss == pytest.approx(float(stated[1]), abs=0.002)


@pytest.mark.slow
def test_peps_py_writes_the_public_domain_peps_of_a_checkout(tmp_path: Path) -> None:
    (tmp_path / "peps").mkdir()
    free = "PEP: 1\nTitle: On naïve é\n\nThis document is placed in the public\ndomain or under the CC0-1.0-Universal license.\n"
    (tmp_path / "peps" / "pep-0001.rst").write_text(free)
    (tmp_path / "peps" / "pep-0002.rst").write_text("PEP: 2\nTitle: Other\n\nOpen Publication License.\n")
    target = tmp_path / "peps.jsonl.gz"
    subprocess.run([sys.executable, _PROGRAMS / "peps.py", tmp_path, target], check=True)
    with gzip.open(target, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    assert rows == [{"id": "pep-0001", "title": "On naïve é", "text": free}]


@pytest.mark.stress
def test_repetitions_py_writes_the_data_of_the_copyist_recipes(tmp_path: Path) -> None:
    """Byte by byte."""
    files = (_data() / file for file in ("tinyshakespeare.txt", "peps.jsonl.gz"))
    subprocess.run([sys.executable, _PROGRAMS / "repetitions.py", *files, tmp_path], check=True)
    for recipe in ("copyist.toml", "copyist-256.toml"):
        ((name, source),) = Config.read(_FOLDER / recipe).data.sources.items()
        assert sources.sha256(tmp_path / f"{name}.txt") == source.sha256


# Short runs: losses, validation, samples and checkpoints.


_SMALL = (
    "schedule.steps=6", "schedule.warmup_steps=2", "run.eval_every=3", "run.eval_tokens=500", "run.log_every=1",
    "run.sample_every=6", "run.sample_tokens=6", "run.attention_every=6", "run.threads=1", "run.device=cpu",
    "model.num_heads=2", "model.d_model=16", "model.d_ff=32", "batch.tokens_per_batch=600",
)  # fmt: skip
_LAYERS = {"transformer": ("num_layers", "num_decoder_layers"), "gpt2": ("num_layers",), "bert": ("num_layers",)}


@pytest.mark.slow
@pytest.mark.gate(only=lambda name: name == "speller")
@pytest.mark.parametrize("name", [name.removesuffix(".toml") for name in _RECIPES])
def test_a_short_run_of_a_recipe(name: str, tmp_path: Path) -> None:
    """A tiny model and six steps."""
    overrides = (f"run.output_dir={tmp_path}/run", *_SMALL, f"data.train=[{_own_data(name, tmp_path)!r}]")
    config = Config.read(_FOLDER / f"{name}.toml")
    layers = [key for key in _LAYERS[config.model["family"]] if config.model.get(key)]
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
        folder = fit(Config.read(_FOLDER / "copyist-256.toml", first), progress=False).checkpoint
        more += [f"tokenizer.path={folder}", f"run.init_from={folder}"]
    result = fit(Config.read(_FOLDER / f"{name}.toml", [*overrides, *more]), progress=False)
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
    pages = [path.read_text(encoding="utf-8") for path in sorted((_ROOT / "docs").glob("*/*.md"))]
    path = folder / ("own.jsonl" if name == "peps-mlm" else "own.txt")
    if name.startswith("speller"):
        words = ["".join(chosen.choices(string.ascii_uppercase, k=chosen.randint(2, 9))) for _ in range(1000)]
        path.write_text("".join(f"{word} 1 {' '.join(f'{letter}H0' for letter in word)}\n" for word in words))
    elif name == "peps-mlm":
        path.write_text("".join(json.dumps({"id": str(n), "text": page}) + "\n" for n, page in enumerate(pages)))
    else:
        path.write_text("".join(pages)[:100_000])
    return str(path)
