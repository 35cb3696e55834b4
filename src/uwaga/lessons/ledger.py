"""The thread of the lesson: what is wrong with crude attention, measured, and measured again after each remedy.

Letters: N tokens, M width of a token's vector.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from uwaga._base.languages import tr
from uwaga.lessons.compute import dense, layer_of, scale_of, scores, trace_layer
from uwaga.lessons.document import LessonStep, Problem, matrices, shown
from uwaga.lessons.example import Example
from uwaga.lessons.matrix import Matrix
from uwaga.lessons.steps.blocks import spec_of
from uwaga.maps.attended import attend

_TIMES = 4.0  # that the longest vector is made longer


class _State(NamedTuple):
    """What was measured at a step, whether the problem is gone from there on, and the numbers of its drawing."""

    step: str
    text: str
    solved: bool = False
    numbers: Sequence[float] = ()


def with_ledger(example: Example, steps: Sequence[LessonStep]) -> tuple[LessonStep, ...]:
    """The steps, each with the problems that are known there, in the order in which they turned up."""
    known = matrices(steps)
    places = {step.id: place for place, step in enumerate(steps)}
    problems = [
        (id, title, [state for state in states if state.step in places])
        for id, title, states in _problems(example, known)
    ]
    result = []
    for place, step in enumerate(steps):
        listed = []
        for id, title, states in problems:
            past = [state for state in states if places[state.step] <= place]
            if past:
                last = past[-1]
                here = last.step == step.id
                listed.append(
                    Problem(id=id, title=title, text=last.text, solved=last.solved, here=here, numbers=last.numbers)
                )
        result.append(replace(step, ledger=listed))
    return tuple(result)


def _problems(example: Example, known: Mapping[str, Matrix]) -> list[tuple[str, str, list[_State]]]:
    n = len(example.tokens)
    variance, progress = known["variance"].numbers, known["learn_progress"].numbers
    crude, scored = known["crude_scores"].numbers, known["scores"].numbers
    parameters = example.wq_MD.numel() + example.wk_MD.numel() + example.wv_ME.numel()
    heads = [known[f"head{h + 1}_weights"].numbers for h in range(example.heads)]
    between = max((float((each - heads[0]).abs().max()) for each in heads), default=0.0)
    first, last = variance[0].tolist(), variance[-1].tolist()
    losses = progress[:: max(1, len(progress) // 20), 1].tolist()
    return [
        (
            "learned",
            tr("Nothing is learned"),
            [
                _State("crude", tr("parameters: {count}", count=0), numbers=losses[:1] * 2),
                _State("vectors", tr("parameters: {count}", count=parameters), numbers=losses[:1] * 2),
                _State(
                    "learning",
                    tr(
                        "{steps} gradient steps take the loss from {loss} to {loss2}",
                        steps=len(progress) - 1,
                        loss=shown(float(progress[0, 1])),
                        loss2=shown(float(progress[-1, 1])),
                    ),
                    True,
                    losses,
                ),
            ],
        ),
        ("long", tr("Long vectors win"), _long(example)),
        (
            "shares",
            tr("Scores are not shares"),
            [
                _row_sums("crude", crude),
                _row_sums("scores", scored),
                _row_sums("softmax", known["weights"].numbers, True),
            ],
        ),
        (
            "symmetric",
            tr("Who asks and who is asked are the same"),
            [
                _two_ways("crude", crude),
                _two_ways("scores", scored),
            ],
        ),
        (
            "order",
            tr("Order is lost"),
            [
                _moved("crude", _apart(known, "crude", example)),
                _moved("sum", float(known["without_apart"].numbers.abs().max())),
                *(
                    [_moved("positions", float(known["with_apart"].numbers.abs().max()), True)]
                    if "with_apart" in known
                    else []
                ),
            ],
        ),
        (
            "wide",
            tr("Wide vectors have large scores"),
            [
                _variances("scores", first[0], first[1], last[0], last[1]),
                _variances("scale", first[0], first[2], last[0], last[2], example.scaled),
            ],
        ),
        (
            "one",
            tr("One softmax looks for one thing"),
            [
                _State("softmax", tr("tables of weights: {count}", count=1), numbers=(1,)),
                _State(
                    "heads",
                    tr(
                        "tables of weights: {count}, which differ by up to {between}",
                        count=example.heads,
                        between=shown(between),
                    ),
                    between > 0,
                    (example.heads,),
                ),
            ],
        ),
        (
            "later",
            tr("A word sees what comes after it"),
            [
                _later("softmax", known["weights"].numbers),
                _later("masks", known["causal_weights"].numbers, True),
            ],
        ),
        (
            "cost",
            tr("Pairs grow with the square of the length"),
            [
                _State("scores", tr("scores of {n} tokens: {pairs}", n=n, pairs=n * n), numbers=(n,)),
                _State(
                    "linear",
                    tr("without softmax n² is avoided, and with it the shares are lost"),
                    numbers=(example.wk_MD.shape[1], example.wv_ME.shape[1]),
                ),
                _State(
                    "length", tr("this one stays: the library uwaga computes n² scores, and stores none"), numbers=(n,)
                ),
            ],
        ),
    ]


def _long(example: Example) -> list[_State]:
    """How much of a row the longest vector takes, as it is and made longer: by scores, by softmax, and behind LayerNorm."""
    x_NM = example.x_NM
    j = int(x_NM.norm(dim=-1).argmax())
    longer_NM = x_NM.clone()
    longer_NM[j] *= _TIMES
    norm = spec_of(example).new_norm()
    both = (x_NM, longer_NM)

    def text(before: float, after: float) -> str:
        return tr(
            "“{token}” takes {before} of a row on average; {times} times as long, {after}",
            token=example.tokens[j],
            before=shown(before),
            times=f"{_TIMES:.0f}",
            after=shown(after),
        )

    def share(each_NM: Tensor) -> float:
        sizes_NN = scores(each_NM, each_NM).abs()
        return float((sizes_NN[:, j] / sizes_NN.sum(-1).clamp(min=1e-30)).mean())

    def weight(each_NM: Tensor) -> float:
        layer = layer_of(example, heads=1)
        trace = trace_layer(layer, each_NM)
        attended = attend(trace.query_HND[0], trace.key_HND[0], trace.value_HNE[0], scale=scale_of(layer))
        return float(dense(attended.map)[:, j].mean())

    normed = [norm(each) for each in both]
    measured = [("crude", [share(each) for each in both]), ("softmax", [weight(each) for each in both])]
    before, after = (weight(each) for each in normed)
    return [
        *(_State(step, text(*pair), numbers=pair) for step, pair in measured),
        _State("encoder", text(before, after), abs(after - before) < 0.01, (before, after)),
    ]


def _row_sums(step: str, numbers_NN: Tensor, solved: bool = False) -> _State:
    sums = numbers_NN.sum(-1).tolist()
    low, high = shown(min(sums)), shown(max(sums))
    text = low if low == high else tr("{low} to {high}", low=low, high=high)
    return _State(step, tr("rows sum to {sums}", sums=text), solved, sums)


def _two_ways(step: str, scores_NN: Tensor) -> _State:
    apart_NN = (scores_NN - scores_NN.T).abs()
    i, j = divmod(int(apart_NN.argmax()), len(scores_NN))
    apart = float(apart_NN[i, j])
    text = tr("s(i, j) and s(j, i) differ by up to {apart}", apart=shown(apart))
    return _State(step, text, apart > 0, (float(scores_NN[i, j]), float(scores_NN[j, i])))


def _apart(known: Mapping[str, Matrix], id: str, example: Example) -> float:
    return float((known[id].numbers[list(example.order)] - known[f"{id}_shuffled"].numbers).abs().max())


def _moved(step: str, apart: float, solved: bool = False) -> _State:
    apart = 0.0 if apart < 1e-5 else apart
    return _State(step, tr("after a shuffle an output differs by up to {apart}", apart=shown(apart)), solved, (apart,))


def _variances(
    step: str, width: float, variance: float, width2: float, variance2: float, solved: bool = False
) -> _State:
    text = tr(
        "variance at d_k = {width}: {variance}, at {width2}: {variance2}",
        width=f"{width:.0f}",
        variance=shown(variance),
        width2=f"{width2:.0f}",
        variance2=shown(variance2),
    )
    return _State(step, text, solved, (variance, variance2))


def _later(step: str, weights_NN: Tensor, solved: bool = False) -> _State:
    later = float(weights_NN.triu(1).sum() / len(weights_NN))
    text = tr("weight on later words: {later} of a row on average", later=shown(later))
    return _State(step, text, solved, (later,))
