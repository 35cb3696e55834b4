"""Attention as a look-up in a soft database, and in one of a token's own past. Letters: N tokens, D width of queries and keys, P of the payload."""

import torch
from torch import Tensor

from uwaga._base.languages import decimal
from uwaga.lessons.compute import CLEAR, ROUNDING, attended, attention
from uwaga.lessons.document import LessonFinding, LessonStep, Question, Section, shown
from uwaga.lessons.matrix import EVERY, Matrix, made, typed
from uwaga.lessons.page import Page
from uwaga.lessons.question import question
from uwaga.ops.masks import Causal, Mask


def database(page: Page) -> LessonStep:
    example, weights, k = page.example, page["weights"], page["k"]
    width = example.payload_NP.shape[1]
    fields = page.texts("fields") if width == 2 else [page.text("field", number=n + 1) for n in range(width)]
    payload = page.matrix("payload", typed(example.payload_NP, example.tokens, fields))
    sharpness = shown(example.sharpness)
    scores_NN = page["scores"].numbers * example.scale * example.sharpness
    sharper = page["scaled"].scaled(example.sharpness, sharpness).by_library(scores_NN)
    sharp_scores = page.matrix("sharp_scores", sharper, sharpness=sharpness)
    scale = example.scale * example.sharpness
    output_NP, weights_NN = _answers(page, payload, scale)
    sharp = page.matrix("sharp_weights", sharp_scores.softmax().by_library(weights_NN))
    sharp_output = page.matrix("sharp_output", (sharp @ payload).by_library(output_NP))
    i, j = _most_changed(weights.numbers, sharp.numbers)
    before, after = float(weights.numbers[i, j]), float(sharp.numbers[i, j])
    finding = page.finding(
        "now",
        [(sharp.id, i, j), (weights.id, i, j)],
        tokens=example.tokens[i],
        numbers=shown(after),
        tokens2=example.tokens[j],
        numbers2=shown(before),
    )
    by_keys, by_payload = (
        page.matrix(f"{name}_output", (weights @ values).by_library(_answers(page, values, example.scale)[0]))
        for name, values in (("keys", k), ("payload", payload))
    )
    return page.step(
        page.section("of_keys", k, by_keys),
        page.section("of_payload", weights, payload, by_payload),
        page.section(
            "sharper",
            sharp_scores,
            sharp,
            sharp_output,
            values={"sharpness": sharpness},
            controls=("sharpness",),
            findings=(finding,),
        ),
        pictures=(page.picture("arcs", "asked", weights),),
        question=_grows(page, example.tokens[i], before, after, ((sharp.id, i, j),)),
        code=f"uwaga.attention(q, k, k{example.scale_argument}); uwaga.attention(q, k, payload{example.scale_argument})",
    )


def _answers(page: Page, values: Matrix, scale: float, mask: Mask | None = None) -> tuple[Tensor, Tensor]:
    """Return the queries' outputs over some values, and the weights."""
    return attended(page["q"].numbers, page["k"].numbers, values.numbers, scale, mask)


def _most_changed(weights_NN: Tensor, sharp_NN: Tensor) -> tuple[int, int]:
    """Return the token whose largest weight changes most, and the token of that weight."""
    largest_N = weights_NN.argmax(-1)
    i = int((sharp_NN - weights_NN).gather(-1, largest_N[:, None]).abs().argmax())
    return i, int(largest_N[i])


def _grows(
    page: Page, token: str, before: float, after: float, cells: tuple[tuple[str, int, int], ...]
) -> Question | None:
    if ROUNDING < abs(after - before) < CLEAR:
        return None
    return question(
        page,
        ("sharp_scores", "sharp_weights", "sharp_output"),
        cells,
        right=[2 if abs(after - before) <= ROUNDING else int(after < before)],
        asks={"sharpness": shown(page.example.sharpness), "tokens": token, "before": shown(before)},
        why={"x": shown(after)},
    )


_STRICTLY_PAST = Causal(include_self=False)
_FACTORS = (1, 2, 4, 8, 16, 32, 64)


def past(page: Page) -> LessonStep:
    """Return the step on the strictly past, unscaled: each token asks the records of the tokens before it."""
    bits, k, payload = page["past_bits"], page["k"], page["payload"]
    asked = page.matrix("own_scores", page["scores"].where(bits))
    weights_NN = _answers(page, k, 1.0, _STRICTLY_PAST)[1]
    weights = page.matrix("own_weights", asked.softmax().by_library(weights_NN))
    by_keys, by_payload = (
        page.matrix(id, (weights @ values).by_library(_answers(page, values, 1.0, _STRICTLY_PAST)[0]), "output")
        for id, values in (("own_keys", k), ("own_payload", payload))
    )
    return page.step(
        page.section("who", bits, asked, weights, findings=(_first_token(page),)),
        page.section("of_keys", k, by_keys),
        page.section("of_payload", payload, by_payload),
        *_last_query(page),
        _hardened(page),
        values={"d": len(k.columns), "p": len(payload.columns)},
        pictures=(page.picture("arcs", "asked", weights),),
        question=_single_record(page),
        code="uwaga.attention(q, k, payload, mask=uwaga.Causal(include_self=False), scale=1.0)",
    )


def _first_token(page: Page) -> LessonFinding:
    tokens = page.example.tokens
    text = page.text("no_past", first=tokens[0])
    if len(tokens) > 1:
        text = page.text("and", first=text, second=page.text("one_record", tokens=tokens[1]))
    return LessonFinding(text=text, cells=[("own_weights", i, 0) for i in range(min(2, len(tokens)))])


def _single_record(page: Page) -> Question | None:
    if len(page.example.tokens) == 1:
        return None
    first, second = page.example.tokens[:2]
    return question(
        page,
        ("own_weights", "own_keys", "own_payload"),
        (("own_weights", 1, 0),),
        ("1", page.text("depends"), decimal(0.5, 1)),
        asks={"second": second, "first": first},
    )


def _last_query(page: Page) -> tuple[Section, ...]:
    """Return the section on the last token alone, against the records before it; nothing for one token."""
    payload, n = page["payload"], len(page.example.tokens)
    if n == 1:
        return ()
    query, keys = page["q"].numbers[-1:], page["k"].numbers[:-1]
    output = attention(query, keys, payload.numbers[:-1], scale=1.0)
    product = page["own_weights"][n - 1, : n - 1] @ payload[: n - 1, EVERY]
    last = page.matrix("own_last", product.by_library(output), tokens=page.example.tokens[-1])
    return (Section(title=page.text("one_query"), text=(page.counted("last", n - 1),), matrices=(last,)),)


def _hardened(page: Page) -> Section:
    """Return the section on the hard look-up, which takes the best record alone."""
    tokens, n, payload = page.example.tokens, len(page.example.tokens), page["payload"]
    visible_NN = page["past_bits"].numbers > 0
    scores_NN = torch.where(visible_NN, page["scores"].numbers, -torch.inf)
    bits_NN = torch.nn.functional.one_hot(scores_NN.argmax(-1), n) * visible_NN.any(-1, keepdim=True)
    best = made(bits_NN.float(), tokens, tokens, page.stated("best"), shade="bits", digits=0)
    hard = page.matrix("hard_weights", best)
    output = page.matrix("hard_output", (hard @ payload).by_library(hard.numbers @ payload.numbers))
    soft = [_answers(page, payload, float(factor), _STRICTLY_PAST)[0] for factor in _FACTORS]
    apart = [float((output_NP - output.numbers).abs().max()) for output_NP in soft]
    limit = page.matrix(
        "hardening",
        made(
            torch.tensor(list(zip(_FACTORS, apart, strict=True)), dtype=torch.float32),
            [page.text("times", factor=factor) for factor in _FACTORS],
            (page.text("factor"), page.text("difference")),
            page.stated("compared"),
            shade="none",
            digits=4,
        ),
    )
    text = page.text("nearly_hard", factors=_FACTORS[-1], apart=shown(apart[-1]))
    ties = [tokens[i] for i in range(1, n) if int((scores_NN[i] == scores_NN[i].max()).sum()) > 1]
    if ties:
        named = ", ".join(page.text("token", token=token) for token in ties[:3])
        text = page.text("and", first=text, second=page.text("ties", named=named))
    finding = LessonFinding(text=text, cells=[(limit.id, len(_FACTORS) - 1, 1)])
    axes = (page.text("factor_of_scores"), page.text("difference"))
    chart = page.chart("difference_from_hard", limit.id, (1,), finding, *axes, log_x=True)
    return page.section("limit", hard, output, limit, charts=(chart,), findings=(finding,))
