"""A question for each step, answered from the example's own numbers, to be guessed before the numbers are shown.

Letters: N tokens, M width of a token's vector, D width of queries and keys, E of values.
"""

import random
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from uwaga._base.languages import percent, tr
from uwaga.lessons.compute import CLEAR, ROUNDING, leads
from uwaga.lessons.document import LessonStep, Question, matrices, shown
from uwaga.lessons.example import START, Example
from uwaga.lessons.matrix import Matrix
from uwaga.lessons.steps.trained import POINT

_Results = Mapping[str, Matrix]


def with_questions(example: Example, steps: Iterable[LessonStep]) -> tuple[LessonStep, ...]:
    """The steps, each with its question where the example allows one: a single token cannot be chosen among, nor can near ties."""
    steps = tuple(steps)
    result = matrices(steps)
    return tuple(
        replace(step, question=replace(question, token=_token(example, result, question)))
        if step.id in _QUESTIONS and (question := _QUESTIONS[step.id](example, result)) is not None
        else step
        for step in steps
    )


def _token(example: Example, results: _Results, question: Question) -> int:
    """The token whose row the answer is in; 0 if it is in no row of tokens."""
    of, row, _ = question.cells[0] if question.cells else ("x", 0, 0)
    return row if tuple(results[of].rows) == example.tokens else 0


def _made(
    text: str,
    choices: Sequence[str],
    right: Iterable[int],
    why: str,
    covers: Sequence[str],
    cells: Sequence[tuple[str, int, int]] = (),
    *,
    ordered: bool = False,
    about_sizes: bool = False,
    tap: str = "",
) -> Question | None:
    """A question with its choices in an order that gives nothing away, or as they are where ordered; None where there is nothing to choose."""
    distinct = list(dict.fromkeys(choices))
    answers = {choices[place] for place in right}
    if len(answers) == len(distinct):
        return None
    if not ordered:
        random.Random(zlib.crc32("".join((text, *distinct)).encode("utf-8", "surrogatepass"))).shuffle(distinct)
    places = tuple(place for place, choice in enumerate(distinct) if choice in answers)
    return Question(
        text=text,
        choices=distinct,
        answers=places,
        why=why,
        covers=covers,
        cells=cells,
        about_sizes=about_sizes,
        tap=tap,
    )


def _largest(row: Tensor) -> list[int]:
    """The places of the largest number and of those that equal it up to rounding."""
    most = float(row.max())
    slack = ROUNDING * max(1.0, abs(most))
    return [place for place, value in enumerate(row.tolist()) if value >= most - slack]


def _names(tokens: Sequence[str]) -> list[str]:
    """The tokens; with their place where a token is there twice."""
    return [
        tr("“{token}”, token {place}", token=token, place=place + 1)
        if tokens.count(token) > 1
        else tr("“{token}”", token=token)
        for place, token in enumerate(tokens)
    ]


def _which_token(
    example: Example, matrix: Matrix, i: int, text: str, why: str, covers: Sequence[str], *, tapped: bool = False
) -> Question | None:
    """Which token has the largest number of row i; at most four to choose among, the largest and the smallest.

    tapped: whether the choices are all words of a picture of the matrix.
    """
    if leads(matrix.numbers)[i] < CLEAR:
        return None
    names, row = _names(example.tokens), matrix.numbers[i]
    order = sorted(range(len(names)), key=lambda place: -float(row[place]))
    some = range(len(names)) if tapped else order if len(order) <= 4 else [*order[:3], order[-1]]
    right = [some.index(place) for place in _largest(row) if place in some]
    j = order[0]
    return _made(
        text,
        [names[place] for place in some],
        right,
        tr("{token}: {number}. {why}", token=names[j], number=shown(float(row[j])), why=why),
        covers,
        ((matrix.id, i, j),),
        ordered=tapped,
        tap=matrix.id if tapped else "",
    )


def _bucket(value: float, low: float, high: float, shape: Callable[[float], str]) -> tuple[list[str], int]:
    """Three ranges, and which of them has the value; with lower ends where the value is next to one of these."""
    if min(abs(value - low), abs(value - high)) < CLEAR:
        low, high = low - 0.1, high - 0.1
    ends = {"low": shape(low), "high": shape(high)}
    choices = [tr("under {low}", **ends), tr("from {low} to {high}", **ends), tr("over {high}", **ends)]
    return choices, 0 if value < low else 1 if value <= high else 2


def _learning(example: Example, results: _Results) -> Question | None:
    matrix = [each for name, each in results.items() if name.startswith("learn_weights_")][-1]
    i = len(example.tokens) - 1
    return _which_token(
        example,
        matrix,
        i,
        tr(
            "The task is to name the word before. After gradient step {step}, which token will “{token}” look at most?",
            step=matrix.id.rpartition("_")[2],
            token=example.tokens[i],
        ),
        tr("Where it looks was never said; the gradient of the loss found it."),
        (matrix.id, "learn_progress", "learn_forms", "learn_shares"),
    )


def _batches(example: Example, results: _Results) -> Question | None:
    wasted = float(results["work_total"].numbers[0, 4])
    choices, right = _bucket(wasted, 0.25, 0.5, percent)
    return _made(
        tr("How much of the work is wasted, if all sentences are padded to the longest?"),
        choices,
        [right],
        tr(
            "{wasted}: pairs grow with the square of the length, so that padding costs more than its share of the tokens.",
            wasted=percent(wasted),
        ),
        ("work", "work_total"),
        (("work_total", 0, 4),),
        ordered=True,
    )


def _copy(example: Example, results: _Results) -> Question | None:
    i = min(2, len(example.tokens) - 1)
    return _which_token(
        example,
        results["copy_weights"],
        i,
        tr(
            "It has written “{before}”. Which word of what it has read will it look at, to write the next?",
            before=" ".join((START, *(row.partition(": ")[2] for row in results["copy_weights"].rows[1 : i + 1]))),
        ),
        tr("The one that is to be written next."),
        ("copy_scores", "copy_weights", "copy_logits", "copy_next"),
        tapped=True,
    )


def _architecture(example: Example, results: _Results) -> Question | None:
    return _made(
        tr("GPT only continues texts. What does it leave out?"),
        (tr("The encoder."), tr("The decoder."), tr("The causal mask.")),
        [0],
        tr("What it reads and what it writes are one text, so the decoder's self-attention sees both."),
        ("models",),
        (("models", 0, 2),),
    )


def _length(example: Example, results: _Results) -> Question | None:
    return _made(
        tr(
            "The sentence is written twice in a row, with the same keys. What becomes of the weight on each copy of a token?"
        ),
        (tr("It halves."), tr("It stays."), tr("It doubles.")),
        [0],
        tr("Both copies have the same score, and all weights together still sum to 1."),
        ("twice_weights", "twice_output"),
        (("twice_weights", 0, 0),),
    )


def _model(example: Example, results: _Results) -> Question | None:
    matrix, tokens = results["real_weights"], list(results["real_weights"].rows)
    head, asks = POINT
    row, names = matrix.numbers[head, asks], _names(tokens)
    right = _largest(row)
    return _made(
        tr("In head {head}, which word does “{token}” look at most?", head=head, token=tokens[asks]),
        names,
        right,
        tr(
            "{token}: {number}. In this sentence it is the word that “it” stands for.",
            token=names[right[0]],
            number=shown(float(row[right[0]])),
        ),
        ("real_weights",),
        (("real_weights", asks, right[0]),),
        ordered=True,
        tap="real_weights",
    )


_QUESTIONS: Mapping[str, Callable[[Example, _Results], Question | None]] = {
    "learning": _learning,
    "batches": _batches,
    "copy": _copy,
    "architecture": _architecture,
    "length": _length,
    "model": _model,
}
