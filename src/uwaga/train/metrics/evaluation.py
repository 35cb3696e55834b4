"""Evaluation on the validation split: the loss, and for pairs the error rates of generated answers.

Letters: P pairs of a prediction and a reference, I and J the longest of each.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import nn

from uwaga.models.generation.generate import generate
from uwaga.nn.evaluation_mode import evaluation_mode
from uwaga.ops.ragged import Ragged
from uwaga.train.config import Config
from uwaga.train.data.batch import Batch
from uwaga.train.data.corpus import Corpus, Split
from uwaga.train.data.store import ReferencePair
from uwaga.train.parallel import World
from uwaga.train.step import objective_inputs, without_labels

# During training, error rates are of so many sources; those of the last step are of all.
_SAMPLED_SOURCES = 1000
# Sources that are answered in one call of generate.
_GENERATE_ROWS = 256
# Pairs of which edit distances are computed at once: a few megabytes of table rows.
_DISTANCE_PAIRS = 4096

# The loss.


def validation_loss(
    objective: nn.Module,
    data: Split,
    tokens: int | None,
    world: World,
    autocast: Callable[[], AbstractContextManager[None]],
) -> float:
    """The mean cross-entropy over all labels, in nats; each process computes a part, and all return the mean.

    Args:
        objective: the model with its loss, on the device.
        data: the validation split.
        tokens: evaluate on about so many; None: on all.
        world: all processes.
        autocast: makes a context for the forward passes.
    """
    total = torch.zeros(2, dtype=torch.float64, device=world.device)
    with evaluation_mode(objective):
        for batch in _batches_of_rank(data.evaluation_batches(tokens), world):
            inputs = objective_inputs(world.part(batch), world.device)
            with world.attention_of_parts(), autocast():
                result = objective(*inputs.arguments)
            total += torch.stack((result.double(), result.new_full((), inputs.scored, dtype=torch.float64)))
    result, labels = world.all_reduce_sum(total).tolist()
    return float(result / max(labels, 1))


def _batches_of_rank(batches: Iterator[Batch], world: World) -> Iterator[Batch]:
    """Every data_size-th batch, and one without labels where other processes have one more."""
    number = -1
    for number, batch in enumerate(batches):
        last = batch
        if number % world.data_size == world.data_rank:
            yield batch
    if number % world.data_size < world.data_rank and (number + 1) % world.data_size:
        yield without_labels(last)


# Error rates of a model's answers.


class ErrorRates(NamedTuple):
    """Fractions, not per cent. A phoneme error rate may exceed 1: too much may have been written."""

    phoneme: float  # insertions, deletions and substitutions, divided by the phonemes of the nearest references
    word: float  # predictions that equal none of their references


class ErrorRateResult(NamedTuple):
    """Error rates of greedy answers, and the number of sources that were answered."""

    rates: ErrorRates
    words: int


class ErrorRateEvaluator:
    """Answers the sources of the validation split greedily, and compares with all targets that the data lists for each.

    Args:
        config, corpus: of a training run on pairs.
    """

    def __init__(self, config: Config, corpus: Corpus) -> None:
        self._context_length, self._corpus = config.data.context_length, corpus
        self._target = corpus.target_tokenizer or corpus.tokenizer

    def evaluate(self, model: nn.Module, *, all: bool) -> ErrorRateResult:
        """Error rates of a model with all its weights; all: on every source, else on a thousand, evenly spaced."""
        asked = list(self._corpus.questions())
        if not all and len(asked) > _SAMPLED_SOURCES:
            asked = [asked[number * len(asked) // _SAMPLED_SOURCES] for number in range(_SAMPLED_SOURCES)]
        with evaluation_mode(model):
            predictions = [
                text
                for start in range(0, len(asked), _GENERATE_ROWS)
                for text in self._answers(model, asked[start : start + _GENERATE_ROWS])
            ]
        references = [[self._target.normalized(target) for target in question.targets] for question in asked]
        return ErrorRateResult(error_rates(predictions, references), len(asked))

    def _answers(self, model: nn.Module, asked: list[ReferencePair]) -> Iterator[str]:
        tokenizer, ends = self._corpus.tokenizer, {self._target.special.eos, self._target.special.pad}
        device = next(model.parameters()).device
        sources = tokenizer.encode([question.source for question in asked])
        prompts = [
            torch.tensor([*tokenizer.before, *ids.tolist(), *tokenizer.behind], device=device) for ids in sources
        ]
        longest = cast(Any, model).config.max_tokens
        tokens = self._context_length if longest is None else min(self._context_length, longest)
        written = generate(cast(Any, model), Ragged.from_list(prompts), max_new_tokens=tokens)
        for ids in cast(Ragged, written).to_list():
            # Unknown tokens stay, and count as errors.
            yield self._target.decode([number for number in ids.tolist() if number not in ends], all=True)


def error_rates(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> ErrorRates:
    """Phoneme and word error rates; phonemes are separated by spaces.

    Each prediction is compared with its nearest reference: the first one listed where two are equally near.

    Args:
        predictions: one for each word.
        references: all right answers for each word.

    Raises:
        ValueError: no words, another number of predictions, or a word without a reference.

    >>> error_rates(["AH T EH N SH AH N", "R EH D"], [["AH T EH N CH AH N"], ["R IY D", "R EH D"]])
    ErrorRates(phoneme=0.1, word=0.5)
    """
    if not predictions or len(predictions) != len(references):
        raise ValueError(
            f"error_rates: needs as many predictions as words, not {len(predictions)} for {len(references)}"
        )
    if missing := [number for number, answers in enumerate(references) if not any(map(str.split, answers))]:
        raise ValueError(f"error_rates: word {missing[0]} has no reference")
    counts = [len(answers) for answers in references]
    written = [prediction.split() for prediction, count in zip(predictions, counts, strict=True) for _ in range(count)]
    answers = [answer.split() for each in references for answer in each]
    distances, lengths = edit_distances(written, answers), [len(answer) for answer in answers]
    errors = wrong = total = 0
    for start, stop in pairwise(accumulate(counts, initial=0)):
        nearest = start + int(np.argmin(distances[start:stop]))
        errors += int(distances[nearest])
        wrong += int(distances[nearest] > 0)
        total += lengths[nearest]
    return ErrorRates(errors / total, wrong / len(predictions))


# Edit distances are not a library's: of sequences of words, all pairs at once, they are these 40 lines of NumPy, and a compiled
# package would be one more dependency of every installation.


def edit_distances(left: Sequence[Sequence[str]], right: Sequence[Sequence[str]]) -> np.ndarray:
    """(P,) int64: Levenshtein distances, in tokens, of each sequence on the left to its partner on the right.

    >>> edit_distances([["K", "AE", "T"], []], [["K", "AH", "T", "S"], ["A"]]).tolist()
    [2, 1]
    """
    assert len(left) == len(right)
    vocabulary: dict[str, int] = {}
    parts = []
    for start in range(0, len(left), _DISTANCE_PAIRS):
        some = slice(start, start + _DISTANCE_PAIRS)
        parts.append(_distances(_padded(left[some], vocabulary), _padded(right[some], vocabulary)))
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


class _Padded(NamedTuple):
    ids: np.ndarray  # (P, I), padded by -1
    lengths: np.ndarray  # (P,)


def _padded(rows: Sequence[Sequence[str]], vocabulary: dict[str, int]) -> _Padded:
    lengths = np.array([len(row) for row in rows], np.int64)
    ids = np.full((len(rows), int(lengths.max(initial=0))), -1, np.int64)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = [vocabulary.setdefault(token, len(vocabulary)) for token in row]
    return _Padded(ids, lengths)


def _distances(left: _Padded, right: _Padded) -> np.ndarray:
    """Wagner and Fischer's table (1974), row by row for all pairs at once."""
    steps = np.arange(right.ids.shape[1] + 1)
    row_PJ = np.tile(steps, (len(left.ids), 1))
    found_P = row_PJ[np.arange(len(row_PJ)), right.lengths]
    for i in range(left.ids.shape[1]):
        substituted = row_PJ[:, :-1] + (left.ids[:, i, None] != right.ids)
        below = np.minimum(substituted, row_PJ[:, 1:] + 1)
        reached = np.concatenate((np.full((len(below), 1), i + 1), below), axis=1)
        # Insertions along the row: the least of reached[k] + (j - k) over k <= j.
        row_PJ = np.minimum.accumulate(reached - steps, axis=1) + steps
        ends = left.lengths == i + 1
        found_P[ends] = row_PJ[ends, right.lengths[ends]]
    return found_P
