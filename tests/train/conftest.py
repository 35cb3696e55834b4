"""Small data files, and configurations and corpora of them."""

import gzip
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from factories import factory
from trainings import config_in

from uwaga.models import Transformer
from uwaga.train import Result, fit
from uwaga.train.config import Config
from uwaga.train.corpus import Corpus
from uwaga.train.model import model_config, new_model

Make = Callable[..., Config]


@pytest.fixture
def make_config(tmp_path: Path) -> Make:
    """Makes a configuration from an objective, names of files in tmp_path, and overrides."""
    return partial(config_in, tmp_path)


@factory
def make_corpus(tmp_path: Path, make_config: Make, /, *arguments: object) -> Corpus:
    """Makes the prepared corpus of such a configuration."""
    return Corpus.prepare(make_config(*arguments), tmp_path / "prepared")


@pytest.fixture
def words(tmp_path: Path) -> str:
    """Writes pairs.gz, 300 words in the format of CMUdict, every tenth with a second pronunciation; returns the file's name."""
    lines = []
    for number in range(300):
        word = "".join(chr(65 + (number * prime) % 26) for prime in (1, 3, 7, 11)[: 2 + number % 3]) + str(number)
        lines.append(f"{word} 1 K AE1 T{number % 5}")
        if number % 10 == 0:
            lines.append(f"{word} 2 K AH0 T{number % 5} S")
    with gzip.open(tmp_path / "pairs.gz", "wt") as file:
        file.write("\n".join(lines) + "\n")
    return "pairs.gz"


@pytest.fixture
def verses(tmp_path: Path) -> str:
    """Writes verses.txt, 60 paragraphs of one to six lines; returns the file's name."""
    return write_verses(tmp_path)


def write_verses(folder: Path) -> str:
    paragraphs = (
        "\n".join(f"Line {line} of {number}, so it goes." for line in range(1 + number % 6)) for number in range(60)
    )
    (folder / "verses.txt").write_text("\n\n".join(paragraphs) + "\n")
    return "verses.txt"


# Six steps of verses; a run of it is over once a session, for tests that need one that has ended.
SHORT = ("schedule.steps=6", "run.eval_every=2", "run.log_every=1", "run.keep_last=2")


@pytest.fixture
def make(make_config: Make, verses: str) -> Make:
    """A short training of verses, with overrides."""
    return lambda *overrides: make_config("language-model", [verses], "data.document=line", *SHORT, *overrides)


@pytest.fixture(scope="session")
def run_that_ended(tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp("ended")
    config = config_in(folder, "language-model", [write_verses(folder)], "data.document=line", *SHORT)
    return fit(config, progress=False)


@pytest.fixture
def ended(run_that_ended: Result, make: Make, tmp_path: Path) -> Result:
    """Of a copy of that run in tmp_path, resumed at its end."""
    shutil.copytree(run_that_ended.checkpoint.parent, tmp_path / "run")
    return fit(make(), resume=True, progress=False)


@factory
def parts(
    make_config: Make, make_corpus: Callable[..., Corpus], verses: str, words: str, /, objective: str, *overrides: str
) -> tuple[Config, Corpus, Transformer]:
    """Makes the configuration, the corpus and a new model of an objective."""
    pairs = objective == "encoder-decoder"
    how = "data.pair_format=cmudict" if pairs else "data.document=line"
    arguments = (objective, [words if pairs else verses], how, *overrides)
    config, corpus = make_config(*arguments), make_corpus(*arguments)
    return config, corpus, new_model(model_config(config.model, objective, corpus.model_settings), 0)
