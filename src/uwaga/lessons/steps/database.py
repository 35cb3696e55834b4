"""Attention as a look-up in a soft database, and in one of a token's own past. Letters: N tokens, D width of queries and keys, P of the payload."""

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from uwaga._base.languages import decimal
from uwaga.lessons.compute import CLEAR, ROUNDING, attended
from uwaga.lessons.document import Chart, LessonFinding, LessonStep, Question, Section, shown
from uwaga.lessons.matrix import EVERY, Matrix, given, made, typed
from uwaga.lessons.page import Page
from uwaga.lessons.question import question
from uwaga.ops.masks import Causal, Mask

_STRICTLY_PAST = Causal(include_self=False)
_FACTORS = (1, 2, 4, 8, 16, 32, 64)


def database(page: Page) -> LessonStep:
    example, tokens, weights = page.example, page.example.tokens, page["weights"]
    scale, sharpness = example.scale_argument, shown(example.sharpness)
    payload = page.matrix("payload", typed(example.payload_NP, tokens, _payload_names(page)))
    sharp_scores = page["scaled"].scaled(example.sharpness, sharpness)
    sharp_scores = page.matrix("sharp_scores", sharp_scores, sharpness=sharpness)
    _, sharp_NN = _asked(page, page["v"].numbers, example.scale * example.sharpness)
    sharp = page.matrix("sharp_weights", sharp_scores.softmax().by_library(sharp_NN))
    i, j = _most_changed(weights.numbers, sharp_NN)
    return page.step(
        page.section("keys", page["k"], _output(page, "keys_output", weights, page["k"], example.scale)),
        page.section("any_payload", weights, payload, _output(page, "payload_output", weights, payload, example.scale)),
        page.section(
            "sharper",
            sharp_scores,
            sharp,
            _output(page, "sharp_output", sharp, payload, example.scale * example.sharpness),
            values={"sharpness": sharpness},
            controls=("sharpness",),
            findings=(
                page.finding(
                    "now",
                    [(sharp.id, i, j), (weights.id, i, j)],
                    tokens=tokens[i],
                    numbers=shown(float(sharp_NN[i, j])),
                    tokens2=tokens[j],
                    numbers2=shown(float(weights.numbers[i, j])),
                ),
            ),
        ),
        pictures=(page.picture("arcs", "records", weights),),
        question=_question(page, i, j),
        code=f"uwaga.attention(q, k, k{scale}); uwaga.attention(q, k, payload{scale})",
    )


def _payload_names(page: Page) -> tuple[str, ...]:
    columns = page.example.payload_NP.shape[1]
    if columns == 2:
        return page.text("place_of"), page.text("letters")
    return tuple(page.text("field", number=number + 1) for number in range(columns))


def _asked(page: Page, values: Tensor, scale: float, mask: Mask | None = None) -> tuple[Tensor, Tensor]:
    """The output for all queries, with values of any kind, and the weights."""
    return attended(page["q"].numbers, page["k"].numbers, values, scale, mask)


def _output(page: Page, id: str, weights: Matrix, values: Matrix, scale: float, mask: Mask | None = None) -> Matrix:
    output, _ = _asked(page, values.numbers, scale, mask)
    return page.matrix(id, (weights @ values).by_library(output), "past_output" if mask else id)


def _most_changed(weights_NN: Tensor, sharp_NN: Tensor) -> tuple[int, int]:
    """The token whose largest weight changes most, and the token of that weight."""
    largest_N = weights_NN.argmax(-1)
    i = int((sharp_NN - weights_NN).gather(-1, largest_N[:, None]).abs().argmax())
    return i, int(largest_N[i])


def _question(page: Page, i: int, j: int) -> Question | None:
    before, after = (float(page[id].numbers[i, j]) for id in ("weights", "sharp_weights"))
    if ROUNDING < abs(after - before) < CLEAR:
        return None
    return question(
        page,
        page.text(
            "question",
            sharpness=shown(page.example.sharpness),
            tokens=page.example.tokens[i],
            before=shown(before),
        ),
        page.texts("choices"),
        [2 if abs(after - before) <= ROUNDING else int(after < before)],
        page.text("why", x=shown(after)),
        ("sharp_scores", "sharp_weights", "sharp_output"),
        (("sharp_weights", i, j),),
    )


def past(page: Page) -> LessonStep:
    """Strictly past, unscaled: each token asks the records of the tokens before it."""
    tokens, bits, payload, k = page.example.tokens, page["past_bits"], page["payload"], page["k"]
    scores = page.matrix("own_scores", page["scores"].where(bits))
    _, weights_NN = _asked(page, page["v"].numbers, 1.0, _STRICTLY_PAST)
    weights = page.matrix("own_weights", scores.softmax().by_library(weights_NN))
    own_keys = _output(page, "own_keys", weights, k, 1.0, _STRICTLY_PAST)
    own_payload = _output(page, "own_payload", weights, payload, 1.0, _STRICTLY_PAST)
    return page.step(
        page.section("who", bits, scores, weights, findings=(_first_token(page),)),
        page.section("keys", k, own_keys),
        page.section("a_payload", payload, own_payload),
        *_last_query(page),
        _hardened(page),
        values={"d": len(k.columns), "p": len(payload.columns)},
        pictures=(page.picture("arcs", "records", weights),),
        question=question(
            page,
            page.text("question", second=tokens[1], first=tokens[0]),
            ("1", page.text("depends"), decimal(0.5, 1)),
            [0],
            page.text("why"),
            ("own_weights", "own_keys", "own_payload"),
            (("own_weights", 1, 0),),
        )
        if len(tokens) > 1
        else None,
        code="uwaga.attention(q, k, payload, mask=uwaga.Causal(include_self=False), scale=1.0)",
    )


def _first_token(page: Page) -> LessonFinding:
    tokens = page.example.tokens
    text = page.text("first_token", first=tokens[0])
    if len(tokens) > 1:
        text = page.text("and", first=text, second=page.text("second_token", tokens=tokens[1]))
    return LessonFinding(text=text, cells=[("own_weights", i, 0) for i in range(min(2, len(tokens)))])


def _last_query(page: Page) -> tuple[Section, ...]:
    """The last token alone, against the records before it."""
    tokens, payload = page.example.tokens, page["payload"]
    n = len(tokens)
    if n == 1:
        return ()
    earlier = payload[: n - 1, EVERY]
    output, _ = attended(page["q"].numbers[-1:], page["k"].numbers[:-1], earlier.numbers, 1.0)
    last = (page["own_weights"][n - 1, : n - 1] @ earlier).by_library(output)
    text = (page.counted("last_query", n - 1),)
    return (page.section("one_query", page.matrix("own_last", last, tokens=tokens[-1]), text=text),)


def _hardened(page: Page) -> Section:
    """The hard look-up: the best record alone."""
    tokens, n, payload = page.example.tokens, len(page.example.tokens), page["payload"]
    visible_NN = page["past_bits"].numbers > 0
    scores_NN = torch.where(visible_NN, page["scores"].numbers, -torch.inf)
    bits_NN = one_hot(scores_NN.argmax(-1), n) * visible_NN.any(-1, keepdim=True)
    hard = made(bits_NN.float(), tokens, tokens, given(page.text("hard_given")), shade="bits", digits=0)
    hard = page.matrix("hard_weights", hard)
    output = page.matrix("hard_output", (hard @ payload).by_library(hard.numbers @ payload.numbers))
    soft = (_asked(page, payload.numbers, float(factor), _STRICTLY_PAST)[0] for factor in _FACTORS)
    apart = [float((each - output.numbers).abs().max()) for each in soft]
    limit = made(
        torch.tensor(list(zip(_FACTORS, apart, strict=True)), dtype=torch.float32),
        [page.text("scores_times", factor=factor) for factor in _FACTORS],
        page.texts("hardening_columns"),
        given(page.text("hardening_given")),
        shade="none",
        digits=4,
    )
    text = page.text("differ", factors=_FACTORS[-1], apart=shown(apart[-1]))
    ties = [i for i in range(1, n) if int((scores_NN[i] == scores_NN[i].max()).sum()) > 1]
    if ties:
        named = ", ".join(page.text("token", token=tokens[i]) for i in ties[:3])
        text = page.text("and", first=text, second=page.text("ties", named=named))
    chart = Chart(
        title=page.text("hardening_chart"),
        matrix="hardening",
        lines=(1,),
        description=text,
        x_title=page.text("factor"),
        y_title=page.text("difference"),
        log_x=True,
    )
    return page.section(
        "limit",
        hard,
        output,
        page.matrix("hardening", limit),
        charts=(chart,),
        findings=(LessonFinding(text=text, cells=[("hardening", len(_FACTORS) - 1, 1)]),),
    )
