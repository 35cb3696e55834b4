"""A small corpus and model for the metrics of training."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from uwaga.train import Config
from uwaga.train.data.corpus import Corpus
from uwaga.train.model import model_config, new_model

Parts = tuple[Config, Corpus, nn.Module]


@pytest.fixture
def parts(
    make_config: Callable[..., Config], make_corpus: Callable[..., Corpus], verses: str, words: str, one_thread: None
) -> Callable[..., Parts]:
    """Makes the configuration, the corpus and a new model of an objective."""

    def make(objective: str, *overrides: str) -> Parts:
        pairs = objective == "encoder-decoder"
        given = (
            objective,
            [words if pairs else verses],
            *(["data.pair_format=cmudict"] if pairs else ["data.document=line"]),
            *overrides,
        )
        config, corpus = make_config(*given), make_corpus(*given)
        return config, corpus, new_model(model_config(config.model, objective, corpus.model_settings), 0)

    return make


@pytest.fixture
def alone() -> object:
    from uwaga.train.parallel import World

    return World(rank=0, size=1, device=torch.device("cpu"))
