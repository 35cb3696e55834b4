"""The thread of the lesson: what is wrong with crude attention, measured, and measured again after each remedy.

Letters: N tokens, M width of a token's vector.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from uwaga._base.languages import tr
from uwaga.lessons.compute import dense, layer_of, scale_of, scores, trace_layer
from uwaga.lessons.document import Matrix, Problem, Step, matrices, shown
from uwaga.lessons.example import Example
from uwaga.lessons.steps.blocks import spec_of
from uwaga.maps.attended import attend

_TIMES = 4.0  # that the longest vector is made longer


class _State(NamedTuple):
    """What was measured at a step, and whether the problem is gone from there on."""

    step: str
    text: str
    solved: bool = False


def with_ledger(example: Example, steps: Sequence[Step]) -> tuple[Step, ...]:
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
                listed.append(
                    Problem(id=id, title=title, text=last.text, solved=last.solved, here=last.step == step.id)
                )
        result.append(replace(step, ledger=listed))
    return tuple(result)


def _problems(example: Example, known: Mapping[str, Matrix]) -> list[tuple[str, str, list[_State]]]:
    n = len(example.tokens)
    variance, progress = known["variance"].numbers, known["learn_progress"].numbers
    crude, scored = known["crude_scores"].numbers, known["scores"].numbers
    parameters = example.wq_MD.numel() + example.wk_MD.numel() + example.wv_ME.numel()
    later = float(known["weights"].numbers.triu(1).sum() / n)
    heads = [known[f"head{h + 1}_weights"].numbers for h in range(example.heads)]
    between = max((float((each - heads[0]).abs().max()) for each in heads), default=0.0)
    first, last = variance[0].tolist(), variance[-1].tolist()
    return [
        (
            "learned",
            tr("Nothing is learned"),
            [
                _State("crude", tr("parameters: {count}", count=0)),
                _State("vectors", tr("parameters: {count}", count=parameters), True),
                _State(
                    "learning",
                    tr(
                        "{steps} gradient steps take the loss from {loss} to {loss2}",
                        steps=len(progress) - 1,
                        loss=shown(float(progress[0, 1])),
                        loss2=shown(float(progress[-1, 1])),
                    ),
                    True,
                ),
            ],
        ),
        ("long", tr("Long vectors win"), _long(example)),
        (
            "shares",
            tr("Scores are not shares"),
            [
                _State("crude", tr("rows sum to {sums}", sums=_sums(crude))),
                _State("scores", tr("rows sum to {sums}", sums=_sums(scored))),
                _State("softmax", tr("rows sum to {sums}", sums=_sums(known["weights"].numbers)), True),
            ],
        ),
        (
            "symmetric",
            tr("Who asks and who is asked are the same"),
            [
                _State("crude", _two_ways(crude)),
                _State("scores", _two_ways(scored), _asymmetry(scored) > 0),
            ],
        ),
        (
            "order",
            tr("Order is lost"),
            [
                _State("crude", _moved(_apart(known, "crude", example))),
                _State("sum", _moved(float(known["without_apart"].numbers.abs().max()))),
                *(
                    [_State("positions", _moved(float(known["with_apart"].numbers.abs().max())), True)]
                    if "with_apart" in known
                    else []
                ),
            ],
        ),
        (
            "wide",
            tr("Wide vectors have large scores"),
            [
                _State("scores", _variances(first[0], first[1], last[0], last[1])),
                _State("scale", _variances(first[0], first[2], last[0], last[2]), example.scaled),
            ],
        ),
        (
            "one",
            tr("One softmax looks for one thing"),
            [
                _State("softmax", tr("tables of weights: {count}", count=1)),
                _State(
                    "heads",
                    tr(
                        "tables of weights: {count}, which differ by up to {between}",
                        count=example.heads,
                        between=shown(between),
                    ),
                    between > 0,
                ),
            ],
        ),
        (
            "later",
            tr("A word sees what comes after it"),
            [
                _State("softmax", tr("weight on later words: {later} of a row on average", later=shown(later))),
                _State(
                    "masks",
                    tr(
                        "weight on later words: {later} of a row on average",
                        later=shown(float(known["causal_weights"].numbers.triu(1).sum() / n)),
                    ),
                    True,
                ),
            ],
        ),
        (
            "cost",
            tr("Pairs grow with the square of the length"),
            [
                _State("scores", tr("scores of {n} tokens: {pairs}", n=n, pairs=n * n)),
                _State("linear", tr("without softmax n² is avoided, and with it the shares are lost")),
                _State("length", tr("this one stays: the library uwaga computes n² scores, and stores none")),
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
    before, after = (weight(each) for each in normed)
    return [
        _State("crude", text(*map(share, both))),
        _State("softmax", text(*map(weight, both))),
        _State("encoder", text(before, after), abs(after - before) < 0.01),
    ]


def _sums(numbers_NN: Tensor) -> str:
    sums = numbers_NN.sum(-1)
    low, high = shown(float(sums.min())), shown(float(sums.max()))
    return low if low == high else tr("{low} to {high}", low=low, high=high)


def _asymmetry(scores_NN: Tensor) -> float:
    return float((scores_NN - scores_NN.T).abs().max())


def _two_ways(scores_NN: Tensor) -> str:
    return tr("s(i, j) and s(j, i) differ by up to {apart}", apart=shown(_asymmetry(scores_NN)))


def _apart(known: Mapping[str, Matrix], id: str, example: Example) -> float:
    return float((known[id].numbers[list(example.order)] - known[f"{id}_shuffled"].numbers).abs().max())


def _moved(apart: float) -> str:
    return tr("after a shuffle an output differs by up to {apart}", apart=shown(0.0 if apart < 1e-5 else apart))


def _variances(width: float, variance: float, width2: float, variance2: float) -> str:
    return tr(
        "variance at d_k = {width}: {variance}, at {width2}: {variance2}",
        width=f"{width:.0f}",
        variance=shown(variance),
        width2=f"{width2:.0f}",
        variance2=shown(variance2),
    )
