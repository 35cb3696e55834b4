"""Masks: which keys each query can see. Letters: N tokens, E width of values."""

from typing import Any

import torch
from torch import Tensor

from uwaga._base.languages import percent
from uwaga.lessons import ledger
from uwaga.lessons.compute import attended
from uwaga.lessons.document import LessonFinding, LessonStep, Section, shown
from uwaga.lessons.matrix import Matrix, made
from uwaga.lessons.page import Page
from uwaga.lessons.question import question
from uwaga.ops.masks import Causal, KeyLengths, Mask, Window
from uwaga.ops.score_shape import ScoreShape


def masks(page: Page) -> LessonStep:
    example = page.example
    causal = _section(page, "causal", Causal())
    window = page.counted("window", example.window) if example.window else page.text("window_of_none")
    return page.step(
        causal,
        _section(page, "past", Causal(include_self=False)),
        _section(
            page,
            "window",
            Window(example.window, 0),
            {"window": example.window},
            title=window,
            controls=("window",),
            folded=True,
        ),
        _section(
            page,
            "lengths",
            KeyLengths(torch.tensor(example.length)),
            {"length": example.length},
            controls=("length",),
            folded=True,
        ),
        pictures=(page.picture("arcs", "causal", causal.matrices[2]),),
        question=question(
            page, ("past_weights", "past_output"), (("past_output", 0, 0),), asks={"tokens": example.tokens[0]}
        ),
        ledger=(ledger.later(page, causal.matrices[2].numbers, solved=True),),
        code=f"uwaga.attention(q, k, v, mask=uwaga.Causal(include_self=False){example.scale_argument})",
        head={"statistic": "previous_token", "sense": "largest", "why": page.text("head")},
    )


def _section(page: Page, id: str, mask: Mask, values: dict[str, Any] | None = None, **more: Any) -> Section:
    """Return attention under a mask. values: in the rule of the mask."""
    tokens, n, v = page.example.tokens, len(page.example.tokens), page["v"]
    says = page.stated(f"{id}_rule", **values or {})
    bits_NN = mask.dense(ScoreShape(queries=n, keys=n))[0, 0].expand(n, n)
    output_NE, weights_NN = attended(page["q"].numbers, page["k"].numbers, v.numbers, page.example.scale, mask)
    visible = made(bits_NN.float(), tokens, tokens, says, shade="bits", digits=0)
    bits = page.matrix(f"{id}_bits", visible, "bits", rule=says["say"])
    scores = page.matrix(f"{id}_scores", page["scaled"].where(bits), "scores")
    weights = page.matrix(f"{id}_weights", scores.softmax().by_library(weights_NN), "weights")
    output = page.matrix(f"{id}_output", (weights @ v).by_library(output_NE), "output")
    finding = _finding(page, bits_NN, weights)
    return page.section(id, bits, scores, weights, output, values=values, findings=(finding,), **more)


def _finding(page: Page, bits_NN: Tensor, weights: Matrix) -> LessonFinding:
    tokens = page.example.tokens
    blind = [i for i, row in enumerate(bits_NN) if not bool(row.any())]
    if blind:
        named = ", ".join(page.text("token", token=tokens[i]) for i in blind[:3])
        text = page.counted("blind" if len(blind) <= 3 else "many_blind", len(blind), named=named)
        return LessonFinding(text=text, cells=[(weights.id, i, j) for i in blind for j in range(len(tokens))])
    hidden, pairs = int((~bits_NN).sum()), bits_NN.numel()
    # A row with hidden keys and visible ones: where either are missing there is nothing to see.
    row = int((bits_NN.sum(-1) * (~bits_NN).sum(-1)).argmax())
    return page.finding(
        "hidden",
        [(weights.id, row, j) for j in range(len(tokens))],
        hidden=hidden,
        pairs=pairs,
        hidden2=percent(hidden / pairs),
        tokens=tokens[row],
        sum=shown(weights.numbers[row].sum()),
    )
