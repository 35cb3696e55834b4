"""Error rates of what a model answers, on the sources of pairs that are held out."""

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from uwaga.models.generation.generate import generate
from uwaga.nn.evaluation_mode import evaluation_mode
from uwaga.ops.ragged import Ragged
from uwaga.train.config import Config
from uwaga.train.data.answers import Question
from uwaga.train.data.corpus import Corpus
from uwaga.train.scoring import ErrorRates, score

# Sources that are asked while training goes on; at its end all are.
_SOME = 1000
# Sources that are answered at once.
_ROWS = 256


class Rates(NamedTuple):
    """Of greedy answers, beside all that the data lists for their sources."""

    rates: ErrorRates
    questions: int


class Questioner:
    """Asks the held-out sources.

    Args:
        config, corpus: of the training; of pairs.
    """

    def __init__(self, config: Config, corpus: Corpus) -> None:
        self._most, self._corpus = config.data.context_length, corpus
        self._target = corpus.target_tokenizer or corpus.tokenizer

    def rates(self, model: nn.Module, *, all: bool) -> Rates:
        """Of a whole model; all: of every source, else of some from all over them."""
        asked = list(self._corpus.questions())
        if not all and len(asked) > _SOME:
            asked = [asked[number * len(asked) // _SOME] for number in range(_SOME)]
        with evaluation_mode(model):
            written = [
                text
                for start in range(0, len(asked), _ROWS)
                for text in self._answers(model, asked[start : start + _ROWS])
            ]
        answers = [[self._target.normalized(target) for target in question.targets] for question in asked]
        return Rates(score(written, answers), len(asked))

    def _answers(self, model: nn.Module, asked: list[Question]) -> Iterator[str]:
        own, ends = self._corpus.tokenizer, {self._target.special.end, self._target.special.padding}
        device = next(model.parameters()).device
        sources = own.encode([question.source for question in asked])
        prompts = [torch.tensor([*own.before, *ids.tolist(), *own.behind], device=device) for ids in sources]
        most = cast(Any, model).config.max_tokens
        tokens = self._most if most is None else min(self._most, most)
        written = generate(cast(Any, model), Ragged.from_list(prompts), max_new_tokens=tokens)
        for ids in cast(Ragged, written).to_list():
            # What is unknown counts: a token too many, or the wrong one.
            yield self._target.decode([number for number in ids.tolist() if number not in ends], all=True)
