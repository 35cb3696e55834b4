"""Encoder and decoder: residuals, LayerNorm and the feed-forward layer around attention, two blocks, cross-attention, words.

All layers have the example's matrices, so that each of them can be edited in one place.

Letters: N tokens that the encoder reads, T tokens that the decoder has written, M width, F width of the feed-forward layer, V words.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from uwaga._base.languages import decimal, significant
from uwaga.lessons import ledger
from uwaga.lessons.compute import apart, layer_of, mapped
from uwaga.lessons.document import Illustration, LessonFinding, LessonStep, Section, shown
from uwaga.lessons.example import START, Example, numbered, vector
from uwaga.lessons.matrix import Matrix, by_columns, cell, made, rule, side_by_side, typed
from uwaga.lessons.page import Page
from uwaga.lessons.question import question
from uwaga.lessons.steps.heads import Head, multi_head
from uwaga.nn import Encoder, EncoderLayer, LayerSpec, MultiHeadAttention, SinusoidalPositions
from uwaga.ops.masks import Causal
from uwaga.ops.score_shape import ScoreShape

_EPS = 1e-5


class SublayerMatrices(NamedTuple):
    """The matrices of a sublayer with its residual and norm, in the order of computation; and its heads' matrices."""

    matrices: list[Matrix]
    heads: Sequence[Head] = ()
    joined: Matrix | None = None

    @property
    def output(self) -> Matrix:
        return self.matrices[-1]


def spec_of(example: Example) -> LayerSpec:
    """Return the options of all layers."""
    return LayerSpec(
        d_model=example.x_NM.shape[1],
        num_heads=example.heads,
        d_ff=example.w1_MF.shape[1],
        d_k=example.wq_MD.shape[1],
        d_v=example.wv_ME.shape[1],
        norm=example.norm,
        norm_eps=_EPS,
        activation="relu",
        bias=False,
        scale=None if example.scaled else 1.0,
    )


def filled(example: Example, layer: nn.Module) -> nn.Module:
    """Return a layer, or a stack of layers, whose matrices are all the example's."""
    for part in layer.modules():
        if isinstance(part, MultiHeadAttention):
            part.load_state_dict(layer_of(example, example.heads).state_dict())
    state = layer.state_dict()
    state |= {name: example.w1_MF.T.contiguous() for name in state if name.endswith("up.weight")}
    state |= {name: example.w2_FM.T.contiguous() for name in state if name.endswith("down.weight")}
    layer.load_state_dict(state)
    return layer.eval()


def _attention(
    page: Page, name: str, x: Matrix, key: str = "attended", *, memory: Matrix | None = None, bits: Matrix | None = None
) -> SublayerMatrices:
    """Return attention with its residual and norm. key: of the output's text; memory: by default what the queries come
    from."""
    normed = _norm(page, f"{name}_in", x) if page.example.norm == "pre" else []
    asks = normed[-1] if normed else x
    say = page.example.scale_text if page.example.scaled else shown(1.0)
    mask = None if bits is None else Causal()
    heads = multi_head(page, f"{name}_", asks, asks if memory is None else memory, "scaled", say, mask, bits)
    joined = page.matrix(f"{name}_joined", side_by_side([head[-1] for head in heads]), "joined")
    added = page.matrix(f"{name}_attended", joined @ page["wo"], key)
    return SublayerMatrices([*normed, *_residual(page, name, x, added)], heads, joined)


def _feed_forward(page: Page, name: str, x: Matrix) -> SublayerMatrices:
    normed = _norm(page, f"{name}_ff_in", x) if page.example.norm == "pre" else []
    hidden = page.matrix(f"{name}_hidden", (normed[-1] if normed else x) @ page["w1"], "hidden")
    active = page.matrix(f"{name}_active", hidden.relu(), "active")
    added = page.matrix(f"{name}_ff", active @ page["w2"], "feed_forward")
    return SublayerMatrices([*normed, hidden, active, *_residual(page, f"{name}_ff", x, added)])


def _residual(page: Page, name: str, x: Matrix, added: Matrix) -> list[Matrix]:
    """Return the output of a sublayer, its sum with the residual, and the norm of post-norm."""
    total = page.matrix(f"{name}_sum", x + added, "residual")
    return [added, total, *(_norm(page, f"{name}_out", total) if page.example.norm == "post" else [])]


def _norm(page: Page, name: str, x: Matrix) -> list[Matrix]:
    """Return mean and variance of each row, and the normalised row. After Ba et al., "Layer Normalization", 2016."""
    mean_N1, m, id = x.numbers.mean(-1, keepdim=True), len(x.columns), f"{name}_stats"
    numbers = torch.cat((mean_N1, (x.numbers - mean_N1).square().mean(-1, keepdim=True)), dim=-1)
    row = x.at("i", "m")
    rules = by_columns((rule("mean", row, over=m), rule("variance", row, cell(id, "i", 0), over=m)))
    columns = (page.text("mean"), page.text("variance"))
    stats = page.matrix(id, made(numbers, x.rows, columns, rules, shade="none"), "row_statistics")
    source = rule("normalized", x.at(), stats.at("i", 0), stats.at("i", 1), eps=_EPS)
    normed = made(spec_of(page.example).new_norm()(x.numbers), x.rows, x.columns, source)
    return [stats, page.matrix(f"{name}_norm", normed, "layer_norm", value=decimal(_EPS, 5))]


def encoder(page: Page) -> LessonStep:
    example = page.example
    is_pre, is_placed = example.norm == "pre", example.x_NM.shape[1] % 2 == 0
    x = _source(page)
    names = numbered("h", example.w1_MF.shape[1])
    w1 = page.matrix("w1", typed(example.w1_MF, example.width_names, names))
    w2 = page.matrix("w2", typed(example.w2_FM, names, example.width_names))
    attended = _attention(page, "block1", x)
    forward = _feed_forward(page, "block1", attended.output)
    normed = [matrix.id for matrix in (*attended.matrices, *forward.matrices) if matrix.id.endswith("_norm")]
    whole = filled(example, EncoderLayer(spec_of(example)))(x.numbers)
    return page.step(
        page.section("input_placed" if is_placed else "input", x, title=page.text("input"), controls=("norm",)),
        *_of_heads(page, attended, "attention"),
        page.section("first", *attended.matrices, findings=_normal(page, attended)),
        page.section("second", w1, w2, folded=True),
        page.section(
            "third",
            *forward.matrices,
            findings=(
                _silent(page, forward),
                *_normal(page, forward),
                _agrees(page, "uwaga.nn.EncoderLayer", whole, forward.output),
            ),
        ),
        text=(*page.texts("text"), page.text("pre" if is_pre else "post")),
        pictures=(_way(page, [x, *attended.matrices, *forward.matrices]),),
        question=question(page, normed, ((normed[0], 0, 0),), ("0", "1", page.text("depends"))),
        ledger=(ledger.long_by_weights(page, spec_of(example).new_norm()),),
        code="encoder_layer(source)     # uwaga.nn.EncoderLayer with these weights",
    )


def _source(page: Page) -> Matrix:
    """Return the encoder's input: X with position codes, which need an even width."""
    return page["x" if page.example.x_NM.shape[1] % 2 else "x_placed"]


def _way(page: Page, matrices: Sequence[Matrix], labels: Sequence[str] = ()) -> Illustration:
    """Return one word on its way: its row in each matrix of the width of the model."""
    wide = [matrix for matrix in matrices if len(matrix.columns) == len(matrices[0].columns)]
    return page.picture("rows", "one_word", *wide, labels=labels or [matrix.title for matrix in wide])


def _of_heads(page: Page, sublayer: SublayerMatrices, key: str) -> tuple[Section, Section]:
    """Return two folded sections: queries, keys and values; scores, weights and outputs."""
    operands = [matrix for head in sublayer.heads for matrix in head[:3]]
    shares = [matrix for head in sublayer.heads for matrix in head[3:]]
    assert sublayer.joined is not None
    values = {"title": page.text(key)}
    return (
        page.section("operands_of", *operands, values=values, folded=True),
        page.section("shares_of", *shares, sublayer.joined, values=values, folded=True),
    )


def _normal(page: Page, sublayer: SublayerMatrices) -> tuple[LessonFinding, ...]:
    """Return the effect of the norm on the row with the largest variance."""
    at = next((n for n, matrix in enumerate(sublayer.matrices) if matrix.id.endswith("_norm")), None)
    if at is None:
        return ()
    stats, normed = sublayer.matrices[at - 1 : at + 1]
    i = int(stats.numbers[:, 1].argmax())
    before, row = stats.numbers[i].tolist(), normed.numbers[i]
    mean, spread = float(row.mean()), float((row - row.mean()).square().mean())
    text = page.text(
        "normed",
        rows=stats.rows[i],
        before=shown(before[0]),
        before2=shown(before[1]),
        mean=_clean(mean),
        spread=_clean(spread),
    )
    if spread < 0.5:
        text = page.text("and", first=text, second=page.text("normed_same"))
    return (LessonFinding(text=text, cells=[(stats.id, i, 0), (stats.id, i, 1)]),)


def _clean(number: float) -> str:
    """Return a number as text without the rounding of float32."""
    return shown(round(number, 4))


def _silent(page: Page, forward: SublayerMatrices) -> LessonFinding:
    active = next(matrix for matrix in forward.matrices if matrix.id.endswith("_active"))
    zeros, most = int((active.numbers == 0).sum()), active.numbers.numel()
    return page.finding("silent", [(active.id, 0, 0)], zeros=zeros, most=most)


def _agrees(page: Page, name: str, whole: Tensor, output: Matrix) -> LessonFinding:
    """Return the finding that a layer of the library has the output of its parts."""
    difference = apart(whole, output.numbers)
    key = "agrees" if difference else "agrees_exactly"
    return page.finding(key, [(output.id, 0, 0)], name=name, apart=significant(difference, 1))


def stack(page: Page) -> LessonStep:
    example, source, m = page.example, _source(page), page.example.x_NM.shape[1]
    is_pre = example.norm == "pre"
    x = page["block1_ff_sum" if is_pre else "block1_ff_out_norm"]
    attended = _attention(page, "block2", x)
    forward = _feed_forward(page, "block2", attended.output)
    final = _norm(page, "encoder_final", forward.output) if is_pre else []
    memory = final[-1] if final else forward.output
    whole = filled(example, Encoder(spec_of(example), 2))(source.numbers)
    first, second = (page.text("output", block=block) for block in (1, 2))
    block = [
        *_of_heads(page, attended, "attention"),
        page.section("first", *attended.matrices, folded=True),
        page.section("second", *forward.matrices, findings=(_silent(page, forward),)),
        *((page.section("final", *final),) if final else ()),
    ]
    return page.step(
        page.section("entering", x, controls=("norm",)),
        *block,
        page.section(
            "changed", findings=(_moved(page, x, forward.output), _agrees(page, page.text("encoder"), whole, memory))
        ),
        pictures=(_way(page, [source, x], (source.title, first)), _way(page, [x, forward.output], (first, second))),
        question=question(
            page,
            [matrix.id for section in block for matrix in section.matrices],
            (("block2_ff_sum", 0, 0),),
            (str(m), str(2 * m), str(4 * m)),
            asks={"m": m},
            about_sizes=True,
        ),
        code="encoder(source)     # uwaga.nn.Encoder of two layers with these weights",
    )


def _moved(page: Page, x: Matrix, output: Matrix) -> LessonFinding:
    """Return the token that block 2 has changed the most."""
    moved_N = (output.numbers - x.numbers).norm(dim=-1)
    i = int(moved_N.argmax())
    cells = [(output.id, i, c) for c in range(len(output.columns))]
    return page.finding("moved", cells, rows=x.rows[i], moved=shown(moved_N[i]))


def decoder(page: Page) -> LessonStep:
    """Return one decoder block over what has been written so far, and the words that could follow."""
    is_pre = page.example.norm == "pre"
    memory = page["encoder_final_norm" if is_pre else "block2_ff_out_norm"]
    x, bits = _written(page)
    attended = _attention(page, "decoder_own", x, "self_attended", bits=bits)
    cross = _attention(page, "decoder_cross", attended.output, "cross_attended", memory=memory)
    forward = _feed_forward(page, "decoder", cross.output)
    final = _norm(page, "decoder_final", forward.output) if is_pre else []
    words, logits, chances = _next_word(page, final[-1] if final else forward.output)
    weights, of_cross = page["decoder_cross_head1_weights"], _of_heads(page, cross, "cross")
    t, n = len(weights.rows), len(weights.columns)
    right = f"{t} × {n}"
    asked, follows = int(weights.numbers[-1].argmax()), int(chances.numbers[-1].argmax())
    return page.step(
        page.section("input", x, bits, controls=("written",)),
        *_of_heads(page, attended, "own"),
        page.section("first", *attended.matrices, folded=True),
        page.section(
            "second",
            memory,
            *cross.matrices,
            findings=(
                page.finding(
                    "asked",
                    [(weights.id, t - 1, asked)],
                    rows=t,
                    columns=n,
                    rows2=weights.rows[-1],
                    numbers=shown(weights.numbers[-1, asked]),
                    columns2=weights.columns[asked],
                ),
            ),
        ),
        *of_cross,
        page.section("third", *forward.matrices, *final, folded=True),
        page.section(
            "fourth",
            words,
            logits,
            chances,
            findings=(
                page.finding(
                    "likeliest",
                    [(chances.id, t - 1, follows)],
                    rows=chances.rows[-1],
                    columns=chances.columns[follows],
                    numbers=shown(chances.numbers[-1, follows]),
                ),
            ),
        ),
        pictures=(page.picture("ribbons", "asks", weights),),
        question=question(
            page,
            [matrix.id for section in of_cross for matrix in section.matrices if matrix is not cross.joined],
            ((weights.id, 0, 0),),
            (right, f"{n} × {t}", f"{t} × {t}", f"{n} × {n}"),
            asks={"start": START, "t": t, "n": n},
            why={"right": right},
            about_sizes=True,
        ),
        code="decoder_layer(target, memory, mask=uwaga.Causal())     # uwaga.nn.DecoderLayer with these weights",
    )


def _written(page: Page) -> tuple[Matrix, Matrix]:
    """Return the words that the decoder has written, and which of them each sees."""
    example = page.example
    words, m = (START, *example.written), example.x_NM.shape[1]
    t, numbers = len(words), torch.tensor([vector(word, m) for word in words])
    is_placed = m % 2 == 0
    x_TM = SinusoidalPositions(m)(numbers) if is_placed else numbers
    assert isinstance(x_TM, Tensor)
    x = made(x_TM, words, example.width_names, page.stated("written_given"))
    visible_TT = Causal().dense(ScoreShape(queries=t, keys=t))[0, 0].expand(t, t).float()
    bits = made(visible_TT, words, words, page.stated("causal_given"), shade="bits", digits=0)
    return page.matrix("written", x, "written_placed" if is_placed else ""), page.matrix("written_bits", bits)


def _next_word(page: Page, output: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """Return the vocabulary, the scores of its words after each token, and their probabilities."""
    example = page.example
    vocabulary = tuple(dict.fromkeys((*example.tokens, *example.written)))
    vectors = torch.tensor([vector(word, example.x_NM.shape[1]) for word in vocabulary])
    words = made(vectors, vocabulary, example.width_names, page.stated("vocabulary_given"))
    words = page.matrix("vocabulary", words)
    logits = page.matrix("logits", (output @ words.T).by_library(mapped(output.numbers, words.numbers)))
    return words, logits, page.matrix("next_word", logits.softmax())
