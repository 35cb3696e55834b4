"""The whole Transformer as a drawing whose parts open the steps, what BERT, GPT and T5 leave out, and any length of input.

Letters: N tokens, M width, D width of queries and keys, E of values.
"""

import itertools

import torch

from uwaga._base.languages import significant
from uwaga.lessons.compute import attended
from uwaga.lessons.document import Drawing, DrawingPart, LessonStep, Section
from uwaga.lessons.example import START
from uwaga.lessons.matrix import EVERY, Matrix, by_columns, cell, made, rule
from uwaga.lessons.page import Page
from uwaga.lessons.question import question
from uwaga.lessons.steps.blocks import spec_of
from uwaga.nn import DecoderLayer

# What each leaves out of the first Transformer, by the parts of the drawing.
_WITHOUT_DECODER = (
    "written",
    "out_embedding",
    "out_positions",
    "own",
    "own_norm",
    "cross",
    "cross_norm",
    "out_ff",
    "out_norm",
)
_WITHOUT_ENCODER = (
    "read",
    "in_embedding",
    "in_positions",
    "attention",
    "attention_norm",
    "ff",
    "ff_norm",
    "cross",
    "cross_norm",
)
_WITHOUT = {
    "Transformer": (),
    "BERT": _WITHOUT_DECODER,
    "GPT": _WITHOUT_ENCODER,
    "T5": ("in_positions", "out_positions"),
}

# Id, text and step of each part, from below, and its place from above.
_READING = (
    ("read", "read", "crude", 620),
    ("in_embedding", "embedding", "crude", 564),
    ("in_positions", "positions", "positions", 508),
    ("attention", "self_attention", "heads", 424),
    ("attention_norm", "add_norm", "encoder", 368),
    ("ff", "feed_forward", "encoder", 300),
    ("ff_norm", "add_norm", "stack", 244),
)
_WRITING = (
    ("written", "written", "decoder", 620),
    ("out_embedding", "embedding", "crude", 564),
    ("out_positions", "positions", "positions", 508),
    ("own", "causal_self_attention", "masks", 424),
    ("own_norm", "add_norm", "decoder", 368),
    ("cross", "cross_attention", "decoder", 300),
    ("cross_norm", "add_norm", "decoder", 244),
    ("out_ff", "feed_forward", "decoder", 176),
    ("out_norm", "add_norm", "decoder", 120),
    ("words", "next_word", "copy", 20),
)
_BYPASSES = (
    ("in_positions", "attention_norm"),
    ("attention_norm", "ff_norm"),
    ("out_positions", "own_norm"),
    ("own_norm", "cross_norm"),
    ("cross_norm", "out_norm"),
)


def architecture(page: Page) -> LessonStep:
    return page.step(
        page.section("left_out", _parts_of_models(page)),
        _parameters(page),
        drawing=_drawing(page),
        question=question(page, ("models",), (("models", 0, 2),)),
        code="decoder(target, encoder(source), mask=uwaga.Causal())     # uwaga.nn.Encoder and uwaga.nn.Decoder",
    )


def _drawing(page: Page) -> Drawing:
    example, m = page.example, page.example.x_NM.shape[1]
    n, t, words = len(example.tokens), len(example.written) + 1, len({*example.tokens, *example.written})
    parts = [
        DrawingPart(
            id=id,
            label=page.text(f"part_{label}"),
            step=step,
            x=x,
            y=y,
            width=200,
            height=42,
            shape=f"{count} \u00d7 {words if id == 'words' else m}",
        )
        for x, count, steps in ((40, n, _READING), (310, t, _WRITING))
        for id, label, step, y in steps
    ]
    arrows = [pair for steps in (_READING, _WRITING) for pair in itertools.pairwise(id for id, *_ in steps)]
    texts = page.texts("left_out_text")
    return Drawing(
        title=page.text("drawing", start=START),
        parts=parts,
        arrows=[*arrows, ("ff_norm", "cross")],
        bypasses=_BYPASSES,
        repeated=(("attention", "ff_norm"), ("own", "out_norm")),
        models=[
            {"name": name, "without": without, "text": text}
            for (name, without), text in zip(_WITHOUT.items(), texts, strict=True)
        ],
    )


def _parts_of_models(page: Page) -> Matrix:
    """Return 1 where a model has a part. GPT has the position codes of the decoder."""
    groups = ("attention", "own", "cross", "own", "in_positions")
    numbers = [[float(part not in without) for without in _WITHOUT.values()] for part in groups]
    numbers[-1][list(_WITHOUT).index("GPT")] = 1.0
    papers, columns = page.stated("papers"), list(_WITHOUT)
    return page.matrix(
        "models", made(torch.tensor(numbers), page.texts("groups"), columns, papers, shade="bits", digits=0)
    )


# The parts of a decoder block that learn, and whether an encoder block has them, in the order of the text.
_LEARNED = (
    (("attention",), True),
    (("cross_attention",), False),
    (("feed_forward",), True),
    (("attention_norm", "feed_forward_norm"), True),
    (("cross_attention_norm",), False),
)


def _parameters(page: Page) -> Section:
    """Return the learned numbers of one encoder and one decoder block, counted in the layers themselves."""
    example = page.example
    layer = DecoderLayer(spec_of(example))
    counts = [
        float(sum(parameter.numel() for name in names for parameter in layer.get_submodule(name).parameters()))
        for names, _ in _LEARNED
    ]
    numbers = torch.tensor(
        [[count if in_encoder else 0.0, count] for count, (_, in_encoder) in zip(counts, _LEARNED, strict=True)]
    )
    (m, d), e, f = example.wq_MD.shape, example.wv_ME.shape[1], example.w1_MF.shape[1]
    counted = page.stated("counted", m=m, d=d, e=e, f=f, h=example.heads)
    columns = page.texts("of_blocks")
    learned = made(numbers, page.texts("learned_parts"), columns, counted, shade="none", digits=0)
    sums = rule("total", cell("parameters", "m", "j"), over=len(_LEARNED))
    total = made(numbers.sum(0, keepdim=True), (page.text("all"),), columns, sums, shade="none", digits=0)
    return page.section("learned", page.matrix("parameters", learned), page.matrix("parameters_total", total))


_COMPARED = (10, 100, 1_000, 10_000, 100_000)


def length(page: Page) -> LessonStep:
    """Return the step on the same weights for any number of tokens."""
    twice = _twice(page)
    return page.step(
        twice,
        _growing(page),
        pictures=(page.picture("arcs", "twice", page["twice_weights"]),),
        question=question(page, ("twice_weights", "twice_output"), (("twice_weights", 0, 0),)),
        ledger=(page.problem("cost", page.text("stays"), (len(page.example.tokens),)),),
        code="uwaga.attention(q, torch.cat((k, k)), torch.cat((v, v))" + page.example.scale_argument + ")",
    )


def _twice(page: Page) -> Section:
    """Return the section on the sentence written twice: the weights are halves, the output is the same."""
    example, (q, k, v) = page.example, (page[letter] for letter in "qkv")
    tokens, n = example.tokens, len(example.tokens)
    key_2ND, value_2NE = (torch.cat((operand.numbers, operand.numbers)) for operand in (k, v))
    weights_N2N = attended(q.numbers, key_2ND, torch.eye(2 * n), example.scale)[0]
    output_NE = attended(q.numbers, key_2ND, value_2NE, example.scale)[0]
    halves = [rule("scaled", cell("weights", "i", column % n), times=0.5, say="1/2") for column in range(2 * n)]
    shares = made(weights_N2N, tokens, [*tokens, *tokens], by_columns(halves), shade="share")
    weights = page.matrix("twice_weights", shares)
    both = v[[*range(n), *range(n)], EVERY]
    sums = [rule("dot", weights.at("i", "m"), both.at("m", c), over=2 * n) for c in range(len(v.columns))]
    output = page.matrix("twice_output", made(output_NE, tokens, v.columns, by_columns(sums)))
    apart = float((output_NE - page["output"].numbers).abs().max())
    finding = page.finding(
        "same_to_the_bit" if apart == 0 else "same_up_to_rounding",
        [(output.id, i, c) for i in range(n) for c in range(len(output.columns))],
        many=2 * n,
        n=n,
        apart=significant(apart, 1) if apart else "",
    )
    return page.section("twice", page["weights"], weights, output, findings=(finding,))


def _growing(page: Page) -> Section:
    (m, d), e = page.example.wq_MD.shape, page.example.wv_ME.shape[1]
    weights, lengths = 2 * m * d + 2 * m * e, (len(page.example.tokens), *_COMPARED)
    counts = [(tokens, weights, tokens * tokens, tokens * tokens * (d + e), 1, tokens) for tokens in lengths]
    rules = (
        page.stated("compared"),
        page.stated("numbers_in", m=m, d=d, e=e),
        rule("product", cell("by_length", "i", 0), cell("by_length", "i", 0)),
        rule("scaled", cell("by_length", "i", 2), times=d + e, say=str(d + e)),
        page.stated("one_step"),
        rule("copy", cell("by_length", "i", 0)),
    )
    rows = [page.text("tokens_of", length=tokens) if tokens > 1 else page.text("one_token") for tokens in lengths]
    numbers, columns = torch.tensor(counts, dtype=torch.float64).float(), page.texts("columns")
    matrix = page.matrix("by_length", made(numbers, rows, columns, by_columns(rules), shade="none", digits=0), d=d, e=e)
    finding = page.finding(
        "grow",
        [(matrix.id, len(lengths) - 1, c) for c in (1, 2, 5)],
        compared=_COMPARED[0],
        compared2=_COMPARED[-1],
        weights=weights,
        compared3=_COMPARED[0] ** 2,
        compared4=_COMPARED[-1] ** 2,
    )
    axes = (columns[0], page.text("number"))
    chart = page.chart("grows", matrix.id, (1, 2, 4, 5), finding, *axes, log_x=True, log_y=True)
    return page.section("grows", matrix, findings=(finding,), charts=(chart,))
