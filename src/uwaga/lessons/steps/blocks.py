"""Encoder and decoder: residuals, LayerNorm and the feed-forward layer around attention, two blocks, cross-attention, words.

All layers have the example's matrices, so that each of them can be edited in one place.

Letters: N tokens that the encoder reads, T tokens that the decoder has written, M width, F width of the feed-forward layer, V words.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from uwaga._base.languages import decimal, significant, tr
from uwaga.lessons import provenance
from uwaga.lessons.compute import layer_of
from uwaga.lessons.document import Illustration, LessonFinding, LessonStep, Section, shown
from uwaga.lessons.example import START, Example, numbered, vector
from uwaga.lessons.matrix import Matrix
from uwaga.lessons.provenance import cell
from uwaga.lessons.steps.heads import Traced, Weights, traced_attention
from uwaga.nn import DecoderLayer, Encoder, EncoderLayer, LayerSpec, MultiHeadAttention, SinusoidalPositions
from uwaga.ops.linear.api import linear
from uwaga.ops.masks import Causal
from uwaga.ops.score_shape import ScoreShape

_EPS = 1e-5
_OWN = Weights("heads_wq", "heads_wk", "heads_wv", "wo")


class FeedForwardWeights(NamedTuple):
    """W_1 and W_2 of the feed-forward layer."""

    w1: Matrix
    w2: Matrix


class BlockPart(NamedTuple):
    """A sublayer with its residual and norm, in the order in which they are computed."""

    matrices: tuple[Matrix, ...]  # without those of `traced` that are folded
    output: Matrix
    traced: Traced | None = None


def spec_of(example: Example) -> LayerSpec:
    """The options of all layers."""
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
    """A layer, or a stack of layers, whose matrices are all the example's."""
    for part in layer.modules():
        if isinstance(part, MultiHeadAttention):
            part.load_state_dict(layer_of(example, example.heads).state_dict())
    state = layer.state_dict()
    state |= {name: example.w1_MF.T.contiguous() for name in state if name.endswith("up.weight")}
    state |= {name: example.w2_FM.T.contiguous() for name in state if name.endswith("down.weight")}
    layer.load_state_dict(state)
    return layer.eval()


def feed_forward_weights(example: Example) -> FeedForwardWeights:
    names = numbered("h", example.w1_MF.shape[1])
    made = []
    for id, title, rows, columns, numbers in (
        ("w1", "W_1", example.width_names, names, example.w1_MF),
        ("w2", "W_2", names, example.width_names, example.w2_FM),
    ):
        made.append(
            Matrix(
                id=id,
                title=title,
                formula=tr("chosen, not learned"),
                rows=rows,
                columns=columns,
                numbers=numbers,
                source=provenance.typed(),
            )
        )
    return FeedForwardWeights(*made)


def encoder_block(example: Example, number: int, x: Matrix, weights: FeedForwardWeights) -> tuple[BlockPart, BlockPart]:
    """Attention and the feed-forward layer of one encoder block."""
    layer = filled(example, EncoderLayer(spec_of(example)))
    assert isinstance(layer, EncoderLayer)
    name = f"block{number}"
    attended = _attention_sublayer(name, layer.attention, layer.attention_norm, x, is_pre=layer.is_pre)
    forward = _feed_forward_sublayer(name, layer, attended.output, weights)
    return attended, forward


def _attention_sublayer(
    name: str,
    layer: MultiHeadAttention,
    norm: nn.Module,
    x: Matrix,
    *,
    is_pre: bool,
    memory: Matrix | None = None,
    bits: Matrix | None = None,
    title: str = "",
) -> BlockPart:
    normed = tuple(_norm(f"{name}_in", norm, x)) if is_pre else ()
    traced = traced_attention(
        name,
        layer,
        normed[-1] if is_pre else x,
        _OWN,
        memory=memory,
        mask=None if bits is None else Causal(),
        bits=bits,
        title=title,
    )
    added = traced.output[1]
    summed = _residual(f"{name}_sum", x, added)
    after = () if is_pre else tuple(_norm(f"{name}_out", norm, summed))
    matrices = (*normed, added, summed, *after)
    return BlockPart(matrices, matrices[-1], traced)


def _feed_forward_sublayer(
    name: str, layer: EncoderLayer | DecoderLayer, x: Matrix, weights: FeedForwardWeights
) -> BlockPart:
    norm, is_pre = layer.feed_forward_norm, layer.is_pre
    normed = tuple(_norm(f"{name}_ff_in", norm, x)) if is_pre else ()
    inner = normed[-1] if is_pre else x
    (m, f), columns = weights.w1.numbers.shape, weights.w1.columns
    hidden_NF = linear(inner.numbers, layer.feed_forward.up.weight)
    assert isinstance(hidden_NF, Tensor)
    hidden = Matrix(
        id=f"{name}_hidden",
        title=tr("Hidden"),
        formula="x W_1",
        rows=x.rows,
        columns=columns,
        numbers=hidden_NF,
        source=provenance.dot(cell(inner.id, "i", "m"), cell("w1", "m", "j"), m),
    )
    active = Matrix(
        id=f"{name}_active",
        title=tr("ReLU"),
        formula="max(0, x W_1)",
        rows=x.rows,
        columns=columns,
        numbers=hidden_NF.relu(),
        source=provenance.relu(cell(hidden.id, "i", "j")),
    )
    result = layer.feed_forward(inner.numbers)
    assert isinstance(result, Tensor)
    added = Matrix(
        id=f"{name}_ff",
        title=tr("Feed-forward"),
        formula="max(0, x W_1) W_2",
        rows=x.rows,
        columns=x.columns,
        numbers=result,
        source=provenance.dot(cell(active.id, "i", "m"), cell("w2", "m", "j"), f),
    )
    summed = _residual(f"{name}_ff_sum", x, added)
    after = () if is_pre else tuple(_norm(f"{name}_ff_out", norm, summed))
    matrices = (*normed, hidden, active, added, summed, *after)
    return BlockPart(matrices, matrices[-1])


def _residual(id: str, x: Matrix, added: Matrix) -> Matrix:
    return Matrix(
        id=id,
        title=tr("Residual"),
        formula=tr("x + what the sublayer adds"),
        rows=x.rows,
        columns=x.columns,
        numbers=x.numbers + added.numbers,
        source=provenance.plus(cell(x.id, "i", "j"), cell(added.id, "i", "j")),
    )


def _norm(name: str, norm: nn.Module, x: Matrix) -> Iterator[Matrix]:
    """Mean and variance of each row, and the row normalised (Ba et al., "Layer Normalization", 2016)."""
    numbers_NM, m = x.numbers, x.numbers.shape[1]
    mean_N1 = numbers_NM.mean(-1, keepdim=True)
    variance_N1 = (numbers_NM - mean_N1).square().mean(-1, keepdim=True)
    stats = f"{name}_stats"
    yield Matrix(
        id=stats,
        title=tr("Mean and variance of each row"),
        formula="μ = Σ x / M, Σ (x - μ)² / M",
        rows=x.rows,
        columns=(tr("mean"), tr("variance")),
        numbers=torch.cat((mean_N1, variance_N1), dim=-1),
        source=provenance.by_column(
            (
                provenance.mean(cell(x.id, "i", "m"), m),
                provenance.variance(cell(x.id, "i", "m"), cell(stats, "i", 0), m),
            )
        ),
        shade="none",
    )
    yield Matrix(
        id=f"{name}_norm",
        title=tr("LayerNorm"),
        formula=tr("(x - mean) / √(variance + {value})", value=decimal(_EPS, 5)),
        rows=x.rows,
        columns=x.columns,
        numbers=norm(numbers_NM),
        source=provenance.normalized(cell(x.id, "i", "j"), cell(stats, "i", 0), cell(stats, "i", 1), _EPS),
    )


def encoder_step(
    example: Example, x: Matrix, weights: FeedForwardWeights, block: tuple[BlockPart, BlockPart]
) -> LessonStep:
    attended, forward = block
    is_pre = example.norm == "pre"
    order = (
        tr(
            "Before attention and before the feed-forward layer each row is normalised (pre-norm), and the residual sum"
            " stays as it is: x + f(norm(x)). Most models since GPT-2 do this."
        )
        if is_pre
        else tr(
            "After each residual sum its rows are normalised (post-norm): norm(x + f(x)). The first Transformer and BERT do"
            " this."
        )
    )
    return LessonStep(
        id="encoder",
        title=tr("The encoder block"),
        text=(
            tr(
                "Attention moves information between tokens; a feed-forward layer then works on each token by itself. Both only"
                " add to what is there: x + f(x), the residual."
            ),
            order,
        ),
        told=(tr("LayerNorm gives each row mean 0 and variance 1, so that no row is longer than another."),),
        pictures=(_way(x, *attended.matrices, *forward.matrices),),
        sections=(
            Section(title=tr("What goes in"), matrices=(x,), text=_input_text(x), controls=("norm",)),
            *_traced_sections(attended, tr("Attention")),
            Section(
                title=tr("1. Attention, residual and LayerNorm"),
                matrices=attended.matrices,
                findings=_normal(attended),
            ),
            Section(title=tr("2. The feed-forward layer's matrices"), matrices=weights, folded=True),
            Section(
                title=tr("3. Feed-forward, residual and LayerNorm"),
                matrices=forward.matrices,
                text=(
                    tr("W_1 makes a row wider, ReLU sets what is negative to 0, and W_2 brings it back to its width."),
                ),
                findings=(_silent(forward), *_normal(forward), _whole_layer(example, x, forward)),
            ),
        ),
        code="encoder_layer(source)     # uwaga.nn.EncoderLayer with these weights",
    )


def _way(*matrices: Matrix, labels: Sequence[str] = ()) -> Illustration:
    """One word on its way: its row in each matrix of the width of the model."""
    shown_ = [each for each in matrices if len(each.columns) == len(matrices[0].columns)]
    return Illustration(
        kind="rows",
        title=tr("One word on its way through"),
        matrices=shown_,
        labels=labels or [each.title for each in shown_],
    )


def _input_text(x: Matrix) -> tuple[str, ...]:
    if x.id == "x":
        return (tr("X, without position codes, which need an even width."),)
    return (tr("X with the position codes of the step “Positions”."),)


def _traced_sections(sublayer: BlockPart, title: str) -> tuple[Section, ...]:
    return () if sublayer.traced is None else sublayer.traced.sections(title)


def _normal(sublayer: BlockPart) -> tuple[LessonFinding, ...]:
    """What the norm has done to the row with the largest variance."""
    at = next((n for n, each in enumerate(sublayer.matrices) if each.id.endswith("_norm")), None)
    if at is None:
        return ()
    stats, normed = sublayer.matrices[at - 1 : at + 1]
    i = int(stats.numbers[:, 1].argmax())
    before, row = stats.numbers[i].tolist(), normed.numbers[i]
    mean, spread = float(row.mean()), float((row - row.mean()).square().mean())
    text = tr(
        "“{rows}” had mean {before} and variance {before2}; after LayerNorm its mean is {mean} and its variance {spread}.",
        rows=stats.rows[i],
        before=shown(before[0]),
        before2=shown(before[1]),
        mean=_clean(mean),
        spread=_clean(spread),
    )
    if spread < 0.5:
        same = tr("A row whose numbers are all the same has nothing to be scaled up.")
        text = tr("{first} {second}", first=text, second=same)
    return (LessonFinding(text=text, cells=[(stats.id, i, 0), (stats.id, i, 1)]),)


def _clean(number: float) -> str:
    """Without the rounding of float32."""
    return shown(round(number, 4))


def _silent(forward: BlockPart) -> LessonFinding:
    active = next(each for each in forward.matrices if each.id.endswith("_active"))
    zeros, most = int((active.numbers == 0).sum()), active.numbers.numel()
    return LessonFinding(
        text=tr("ReLU sets {zeros} of {most} hidden numbers to 0.", zeros=zeros, most=most), cells=[(active.id, 0, 0)]
    )


def _whole_layer(example: Example, x: Matrix, forward: BlockPart) -> LessonFinding:
    layer = filled(example, EncoderLayer(spec_of(example)))
    apart = float((layer(x.numbers) - forward.output.numbers).abs().max())
    return LessonFinding(text=_agrees("uwaga.nn.EncoderLayer", apart), cells=[(forward.output.id, 0, 0)])


def _agrees(name: str, apart: float) -> str:
    if apart == 0:
        return tr("{name} gives the same numbers to the last bit.", name=name)
    return tr("{name} gives the same numbers, up to rounding: {apart}.", name=name, apart=significant(apart, 1))


def stack_step(
    example: Example,
    source: Matrix,
    x: Matrix,
    block: tuple[BlockPart, BlockPart],
    memory: Matrix,
    final: Sequence[Matrix],
) -> LessonStep:
    attended, forward = block
    entering, first = tr("The output of block 1 goes in"), tr("Output of block {block}", block=1)
    return LessonStep(
        id="stack",
        title=tr("Two blocks: an encoder"),
        text=(
            tr(
                "Blocks can be stacked: the second block attends to what the first has mixed, and through it a token reaches"
                " what others have found. The first Transformer has six, N = 6; GPT-3 has 96."
            ),
            tr(
                "Here both blocks have the same matrices, so that there is one set to edit. Most models learn a set for each"
                " block."
            ),
        ),
        told=(tr("What leaves a block has the shape of what went in."),),
        pictures=(
            _way(source, x, labels=(source.title, first)),
            _way(x, forward.output, labels=(first, tr("Output of block {block}", block=2))),
        ),
        sections=(
            Section(title=entering, matrices=(x,), controls=("norm",)),
            *_traced_sections(attended, tr("Attention of block 2")),
            Section(title=tr("Block 2: attention"), matrices=attended.matrices, folded=True),
            Section(
                title=tr("Block 2: feed-forward"),
                matrices=forward.matrices,
                findings=(_silent(forward),),
            ),
            *((Section(title=tr("The final LayerNorm of a pre-norm encoder"), matrices=final),) if final else ()),
            Section(
                title=tr("What the blocks have changed"),
                findings=(_changed(x, forward.output), _whole_stack(example, source, memory)),
            ),
        ),
        code="encoder(source)     # uwaga.nn.Encoder of two layers with these weights",
    )


def _whole_stack(example: Example, source: Matrix, memory: Matrix) -> LessonFinding:
    stack = filled(example, Encoder(spec_of(example), 2))
    apart = float((stack(source.numbers) - memory.numbers).abs().max())
    return LessonFinding(text=_agrees(tr("uwaga.nn.Encoder of two layers"), apart), cells=[(memory.id, 0, 0)])


def _changed(x: Matrix, output: Matrix) -> LessonFinding:
    """The token that block 2 has changed the most."""
    moved_N = (output.numbers - x.numbers).norm(dim=-1)
    i = int(moved_N.argmax())
    text = tr(
        "Block 2 has moved “{rows}” the most, by a distance of {moved}.", rows=x.rows[i], moved=shown(float(moved_N[i]))
    )
    return LessonFinding(text=text, cells=[(output.id, i, c) for c in range(len(output.columns))])


def final_norm(example: Example, x: Matrix, name: str) -> tuple[Matrix, ...]:
    """The norm after the last layer of a pre-norm stack; nothing in a post-norm stack."""
    return tuple(_norm(name, spec_of(example).new_norm(), x)) if example.norm == "pre" else ()


class Decoded(NamedTuple):
    """The decoder's numbers."""

    x: Matrix
    bits: Matrix
    sublayers: tuple[BlockPart, BlockPart, BlockPart]
    final: tuple[Matrix, ...]
    words: Matrix
    logits: Matrix
    chances: Matrix


def decode(example: Example, memory: Matrix, weights: FeedForwardWeights) -> Decoded:
    """One decoder block over what has been written so far, and the words that could follow."""
    tokens, m = (START, *example.written), example.x_NM.shape[1]
    x_TM = torch.tensor([vector(token, m) for token in tokens])
    codes = SinusoidalPositions(m)(x_TM) if m % 2 == 0 else x_TM
    assert isinstance(codes, Tensor)
    x = Matrix(
        id="written",
        title=tr("What has been written"),
        formula=tr("the words' vectors, with position codes") if m % 2 == 0 else tr("the words' vectors"),
        rows=tokens,
        columns=example.width_names,
        numbers=codes,
        source=provenance.given(
            tr("The vector of the word, with the code of its place added where the width is even.")
        ),
    )
    t = len(tokens)
    bits = Matrix(
        id="written_bits",
        title=tr("Visible"),
        formula=tr("1 where the key's place is at most the query's own"),
        rows=tokens,
        columns=tokens,
        numbers=Causal().dense(ScoreShape(queries=t, keys=t))[0, 0].expand(t, t).float(),
        source=provenance.given(tr("1 where the key's place is at most the query's own.")),
        shade="bits",
        digits=0,
    )
    layer = filled(example, DecoderLayer(spec_of(example)))
    assert isinstance(layer, DecoderLayer)
    own = _attention_sublayer(
        "decoder_own",
        layer.attention,
        layer.attention_norm,
        x,
        is_pre=layer.is_pre,
        bits=bits,
        title=tr("Self-attention"),
    )
    cross = _attention_sublayer(
        "decoder_cross",
        layer.cross_attention,
        layer.cross_attention_norm,
        own.output,
        is_pre=layer.is_pre,
        memory=memory,
        title=tr("Cross-attention"),
    )
    forward = _feed_forward_sublayer("decoder", layer, cross.output, weights)
    final = final_norm(example, forward.output, "decoder_final")
    return Decoded(x, bits, (own, cross, forward), final, *_next_word(example, final[-1] if final else forward.output))


def _next_word(example: Example, output: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """The vocabulary, the scores of its words after each token, and their probabilities."""
    m = example.x_NM.shape[1]
    listed = tuple(dict.fromkeys((*example.tokens, *example.written)))
    words = Matrix(
        id="vocabulary",
        title=tr("The vocabulary"),
        formula=tr("a vector per word"),
        rows=listed,
        columns=example.width_names,
        numbers=torch.tensor([vector(word, m) for word in listed]),
        source=provenance.given(tr("The vector of the word, as the lesson draws it.")),
    )
    logits_TV = linear(output.numbers, words.numbers)
    assert isinstance(logits_TV, Tensor)
    logits = Matrix(
        id="logits",
        title=tr("Scores of the words"),
        formula=tr("output · the word's vector"),
        rows=output.rows,
        columns=listed,
        numbers=logits_TV,
        source=provenance.dot(cell(output.id, "i", "m"), cell("vocabulary", "j", "m"), m),
    )
    chances = Matrix(
        id="next_word",
        title=tr("Probability of each word"),
        formula=tr("softmax of each row"),
        rows=output.rows,
        columns=listed,
        numbers=logits_TV.softmax(-1),
        source=provenance.softmax(cell("logits", "i", "j"), cell("logits", "i", "m"), len(listed)),
        shade="share",
    )
    return words, logits, chances


def decoder_step(example: Example, memory: Matrix, decoded: Decoded) -> LessonStep:
    own, cross, forward = decoded.sublayers
    return LessonStep(
        id="decoder",
        title=tr("The decoder: self-attention and cross-attention"),
        text=(
            tr(
                "A decoder writes a text word by word. Its self-attention is causal: a word sees what was written before. Its"
                " cross-attention asks the encoder: queries come from what is written, keys and values from what was read."
            ),
            tr("Here one block has the lesson's matrices for both; a trained model learns each by itself."),
        ),
        pictures=(
            Illustration(
                kind="ribbons",
                title=tr("What each word written asks of the words read, in head 1"),
                matrices=(_cross_weights(decoded),),
            ),
        ),
        sections=(
            Section(
                title=tr("What has been written so far"), matrices=(decoded.x, decoded.bits), controls=("written",)
            ),
            *_traced_sections(own, tr("Causal self-attention")),
            Section(title=tr("1. Causal self-attention"), matrices=own.matrices, folded=True),
            Section(
                title=tr("2. Cross-attention: the encoder is asked"),
                matrices=(memory, *cross.matrices),
                findings=(_asked(example, decoded),),
            ),
            *_traced_sections(cross, tr("Cross-attention")),
            Section(title=tr("3. Feed-forward"), matrices=(*forward.matrices, *decoded.final), folded=True),
            Section(
                title=tr("4. The next word"),
                text=(
                    tr(
                        "The output is compared with the vector of each word; softmax makes probabilities of the scores."
                    ),
                ),
                matrices=(decoded.words, decoded.logits, decoded.chances),
                findings=(_likeliest(decoded),),
            ),
        ),
        code="decoder_layer(target, memory, mask=uwaga.Causal())     # uwaga.nn.DecoderLayer with these weights",
    )


def _cross_weights(decoded: Decoded) -> Matrix:
    traced = decoded.sublayers[1].traced
    assert traced is not None
    return next(each for each in traced.heads if each.id == "decoder_cross_head1_weights")


def _asked(example: Example, decoded: Decoded) -> LessonFinding:
    weights = _cross_weights(decoded)
    i = len(weights.rows) - 1
    j = int(weights.numbers[i].argmax())
    text = tr(
        "These weights are {rows} × {columns}: one row per written word, one column per word read. In head 1 “{rows2}” gives"
        " {numbers} to “{columns2}”.",
        rows=len(weights.rows),
        columns=len(weights.columns),
        rows2=weights.rows[i],
        numbers=shown(float(weights.numbers[i, j])),
        columns2=weights.columns[j],
    )
    return LessonFinding(text=text, cells=[(weights.id, i, j)])


def _likeliest(decoded: Decoded) -> LessonFinding:
    chances = decoded.chances
    i = len(chances.rows) - 1
    j = int(chances.numbers[i].argmax())
    text = tr(
        "After “{rows}”, “{columns}” would follow with a probability of {numbers}. Nothing is trained here, so it means"
        " nothing yet. The next step has a decoder that was trained.",
        rows=chances.rows[i],
        columns=chances.columns[j],
        numbers=shown(float(chances.numbers[i, j])),
    )
    return LessonFinding(text=text, cells=[(chances.id, i, j)])
