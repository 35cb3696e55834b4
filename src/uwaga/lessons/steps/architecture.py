"""The whole Transformer as a drawing whose parts open the steps, what BERT, GPT and T5 leave out, and any length of input.

Letters: N tokens, M width, D width of queries and keys, E of values.
"""

import itertools

import torch
from torch import Tensor

from uwaga._base.languages import significant, tr
from uwaga.lessons import provenance
from uwaga.lessons.compute import OneHead
from uwaga.lessons.document import Chart, Drawing, DrawingPart, Illustration, LessonFinding, LessonStep, Section
from uwaga.lessons.example import START, Example
from uwaga.lessons.matrix import Matrix
from uwaga.lessons.provenance import cell
from uwaga.lessons.steps.blocks import spec_of
from uwaga.nn import DecoderLayer
from uwaga.ops.attention.api import attention

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


def _models() -> tuple[tuple[str, tuple[str, ...], str], ...]:
    """Each model's name, the parts that it leaves out, and what else it does differently."""
    texts = {
        "Transformer": tr(
            "The first Transformer (Vaswani et al. 2017, “Attention Is All You Need”) has all parts: it reads one text and writes"
            " another."
        ),
        "BERT": tr(
            "BERT (Devlin et al. 2018) leaves out the decoder: no causal mask and no cross-attention. Words of its input are"
            " hidden, and it names them from both sides. Positions are learned, the activation is GELU."
        ),
        "GPT": tr(
            "GPT (Radford et al. 2018) leaves out the encoder, and with it cross-attention: what it reads and what it writes"
            " are one text, under one causal mask. Positions are learned; since GPT-2 LayerNorm comes first (pre-norm). GPT-3"
            " (Brown et al. 2020) has 96 such blocks, 12,288 wide, with 96 heads each."
        ),
        "T5": tr(
            "T5 (Raffel et al. 2019) keeps encoder and decoder, and leaves out position codes: a learned bias of the scores"
            " tells distances. It does not divide scores by √d_k, and its norm comes first and subtracts no mean."
        ),
    }
    return tuple((name, without, texts[name]) for name, without in _WITHOUT.items())


def step(example: Example) -> LessonStep:
    n, t, m = len(example.tokens), len(example.written) + 1, example.x_NM.shape[1]
    return LessonStep(
        id="architecture",
        title=tr("The whole Transformer"),
        text=(
            tr(
                "All parts together: the encoder reads, the decoder writes. Every part opens its step. Choose a model to see"
                " what it leaves out; “Send tokens through” lights up the parts in the order of the data."
            ),
        ),
        drawing=_drawing(example, n, t, m),
        sections=(
            Section(
                title=tr("What each model leaves out"), matrices=(_table(),), text=[text for _, _, text in _models()]
            ),
            _weights(example),
        ),
        code="decoder(target, encoder(source), mask=uwaga.Causal())     # uwaga.nn.Encoder and uwaga.nn.Decoder",
    )


def _drawing(example: Example, n: int, t: int, m: int) -> Drawing:
    read, written = f"{n} \u00d7 {m}", f"{t} \u00d7 {m}"
    words = len(dict.fromkeys((*example.tokens, *example.written)))
    left, right, width = 40, 310, 200
    column = (
        ("read", tr("Tokens read"), "crude", 620),
        ("in_embedding", tr("Embedding"), "crude", 564),
        ("in_positions", tr("+ positions"), "positions", 508),
        ("attention", tr("Self-attention"), "heads", 424),
        ("attention_norm", tr("Add, LayerNorm"), "encoder", 368),
        ("ff", tr("Feed-forward"), "encoder", 300),
        ("ff_norm", tr("Add, LayerNorm"), "stack", 244),
    )
    writing = (
        ("written", tr("Tokens written"), "decoder", 620),
        ("out_embedding", tr("Embedding"), "crude", 564),
        ("out_positions", tr("+ positions"), "positions", 508),
        ("own", tr("Causal self-attention"), "masks", 424),
        ("own_norm", tr("Add, LayerNorm"), "decoder", 368),
        ("cross", tr("Cross-attention"), "decoder", 300),
        ("cross_norm", tr("Add, LayerNorm"), "decoder", 244),
        ("out_ff", tr("Feed-forward"), "decoder", 176),
        ("out_norm", tr("Add, LayerNorm"), "decoder", 120),
        ("words", tr("Next word"), "copy", 20),
    )
    shapes = {"words": f"{t} \u00d7 {words}"}
    parts = [
        DrawingPart(id=id, label=label, step=step, x=x, y=y, width=width, height=42, shape=shapes.get(id, shape))
        for x, shape, listed in ((left, read, column), (right, written, writing))
        for id, label, step, y in listed
    ]
    ids = [[each[0] for each in listed] for listed in (column, writing)]
    arrows = [pair for listed in ids for pair in itertools.pairwise(listed)]
    arrows.append(("ff_norm", "cross"))
    bypasses = (
        ("in_positions", "attention_norm"),
        ("attention_norm", "ff_norm"),
        ("out_positions", "own_norm"),
        ("own_norm", "cross_norm"),
        ("cross_norm", "out_norm"),
    )
    title = tr("Encoder on the left, decoder on the right; “{start}” begins what is written", start=START)
    return Drawing(
        title=title,
        parts=parts,
        arrows=arrows,
        bypasses=bypasses,
        repeated=(("attention", "ff_norm"), ("own", "out_norm")),
        models=_models(),
    )


def _table() -> Matrix:
    """1 where a model has a part. GPT's position codes are those of the decoder."""
    groups = {
        "attention": tr("encoder"),
        "own": tr("decoder"),
        "cross": tr("cross-attention"),
        "own_mask": tr("causal mask"),
        "in_positions": tr("position codes"),
    }
    rows = list(groups.values())
    numbers = []
    for part in groups:
        having = [part.removesuffix("_mask") not in without for without in _WITHOUT.values()]
        if part == "in_positions":
            having[list(_WITHOUT).index("GPT")] = True
        numbers.append([float(each) for each in having])
    return Matrix(
        id="models",
        title=tr("Parts and models"),
        formula=tr("1 where the model has the part"),
        rows=rows,
        columns=list(_WITHOUT),
        numbers=torch.tensor(numbers),
        source=provenance.given(
            tr("From the papers: Vaswani et al. 2017, Devlin et al. 2018, Radford et al. 2018, Raffel et al. 2019.")
        ),
        shade="bits",
        digits=0,
    )


def _weights(example: Example) -> Section:
    """The learned numbers of one encoder and one decoder block, counted in the layers themselves."""
    layer = DecoderLayer(spec_of(example))
    counts = {
        name: sum(each.numel() for each in part.parameters())
        for name, part in layer.named_children()
        if any(True for _ in part.parameters())
    }
    named = (
        (tr("self-attention"), ("attention",), True),
        (tr("cross-attention"), ("cross_attention",), False),
        (tr("feed-forward"), ("feed_forward",), True),
        ("LayerNorm", ("attention_norm", "feed_forward_norm"), True),
        (tr("LayerNorm of cross-attention"), ("cross_attention_norm",), False),
    )
    rows = [(float(sum(counts[part] for part in parts)), in_encoder) for _, parts, in_encoder in named]
    numbers = torch.tensor([[count if in_encoder else 0.0, count] for count, in_encoder in rows])
    m, d = example.wq_MD.shape
    e, f = example.wv_ME.shape[1], example.w1_MF.shape[1]
    say = tr(
        "Counted in uwaga.nn.DecoderLayer: with M = {m}, D = {d}, E = {e}, F = {f} and H = {h} heads, attention has"
        " H (2 M D + 2 M E), feed-forward 2 M F, LayerNorm M.",
        m=m,
        d=d,
        e=e,
        f=f,
        h=example.heads,
    )
    matrix = Matrix(
        id="parameters",
        title=tr("Parameters of a block"),
        formula=tr("without biases"),
        rows=[name for name, _, _ in named],
        columns=(tr("encoder block"), tr("decoder block")),
        numbers=numbers,
        source=provenance.given(say),
        shade="none",
        digits=0,
    )
    whole = Matrix(
        id="parameters_total",
        title=tr("Together"),
        formula=tr("sums"),
        rows=(tr("all"),),
        columns=(tr("encoder block"), tr("decoder block")),
        numbers=numbers.sum(0, keepdim=True),
        source=provenance.total(cell("parameters", "m", "j"), len(named)),
        shade="none",
        digits=0,
    )
    return Section(title=tr("What is learned"), matrices=(matrix, whole))


_COMPARED = (10, 100, 1_000, 10_000, 100_000)


def length_step(example: Example, head: OneHead, known: dict[str, Matrix]) -> LessonStep:
    """The same weights for any number of tokens."""
    n, d = head.q_ND.shape
    e = head.v_NE.shape[1]
    twice = _twice(example, head, known)
    return LessonStep(
        id="length",
        title=tr("Any length"),
        text=(
            tr(
                "No learned matrix knows the number of tokens: W_Q, W_K, W_V and W_O have the sizes of vectors. The same parameters"
                " compute a sentence of five words and a book."
            ),
            tr(
                "Every token's output can be computed at the same time, since none waits for another's. A recurrent network"
                " reads token after token: each of its states waits for the one before."
            ),
        ),
        pictures=(Illustration(kind="arcs", title=twice.title, matrices=(twice.matrices[1],)),),
        sections=(twice, _growing(n, d, e, example)),
        code="uwaga.attention(q, torch.cat((k, k)), torch.cat((v, v))" + example.scale_argument + ")",
    )


def _twice(example: Example, head: OneHead, known: dict[str, Matrix]) -> Section:
    """Attention to the sentence written twice: the weights are halves, the output is the same."""
    tokens, n = example.tokens, len(example.tokens)
    key_2ND, value_2NE = torch.cat((head.k_ND, head.k_ND)), torch.cat((head.v_NE, head.v_NE))
    weights_N2N = attention(head.q_ND, key_2ND, torch.eye(2 * n), scale=head.scale)
    result = attention(head.q_ND, key_2ND, value_2NE, scale=head.scale)
    assert isinstance(result, Tensor)
    assert isinstance(weights_N2N, Tensor)
    weights = Matrix(
        id="twice_weights",
        title=tr("Weights on the sentence, written twice"),
        formula=tr("softmax over both copies"),
        rows=tokens,
        columns=[*tokens, *tokens],
        numbers=weights_N2N,
        source=provenance.by_column(
            [provenance.scaled(cell("weights", "i", column % n), 0.5, "1/2") for column in range(2 * n)]
        ),
        shade="share",
    )
    output = Matrix(
        id="twice_output",
        title=tr("Output"),
        formula=tr("Σⱼ a(i, j) vⱼ over both copies"),
        rows=tokens,
        columns=known["v"].columns,
        numbers=result,
        source=provenance.by_column(
            [
                provenance.dot(
                    cell("twice_weights", "i", "m"), cell("v", provenance.picked([*range(n), *range(n)], "m"), c), 2 * n
                )
                for c in range(len(known["v"].columns))
            ]
        ),
    )
    apart = float((result - head.output_NE).abs().max())
    text = (
        tr(
            "Twice as many keys, the same parameters W: each token shares its attention among {many} keys instead of {n}, and since both"
            " copies say the same, its output is that of the step “Sum”, to the last bit.",
            many=2 * n,
            n=n,
        )
        if apart == 0
        else tr(
            "Twice as many keys, the same parameters W: each token shares its attention among {many} keys instead of {n}, and since both"
            " copies say the same, its output is that of the step “Sum”, up to rounding: {apart}.",
            many=2 * n,
            n=n,
            apart=significant(apart, 1),
        )
    )
    finding = LessonFinding(text=text, cells=[(output.id, i, c) for i in range(n) for c in range(len(output.columns))])
    return Section(
        title=tr("The sentence, written twice"), matrices=(known["weights"], weights, output), findings=(finding,)
    )


def _growing(n: int, d: int, e: int, example: Example) -> Section:
    m = example.x_NM.shape[1]
    weights = 2 * m * d + 2 * m * e
    lengths = (n, *_COMPARED)
    rows = [(length, weights, length * length, length * length * (d + e), 1, length) for length in lengths]
    matrix = Matrix(
        id="by_length",
        title=tr("By the number of tokens"),
        formula=tr("n² scores, n² ({d} + {e}) multiplications", d=d, e=e),
        rows=[tr("{length} tokens", length=length) if length > 1 else tr("1 token") for length in lengths],
        columns=(
            tr("tokens"),
            tr("parameters"),
            tr("scores"),
            tr("multiplications"),
            tr("waits"),
            tr("waits, recurrent"),
        ),
        numbers=torch.tensor(rows, dtype=torch.float64).float(),
        source=provenance.by_column(
            (
                provenance.given(tr("The tokens of the lesson, and lengths to compare.")),
                provenance.given(
                    tr(
                        "The numbers in W_Q, W_K, W_V and W_O: 2 · {m} · {d} + 2 · {m} · {e}, for any length.",
                        m=m,
                        d=d,
                        e=e,
                    )
                ),
                provenance.product(cell("by_length", "i", 0), cell("by_length", "i", 0)),
                provenance.scaled(cell("by_length", "i", 2), d + e, str(d + e)),
                provenance.given(tr("One layer is one step: no token waits for another's output.")),
                provenance.copy(cell("by_length", "i", 0)),
            )
        ),
        shade="none",
        digits=0,
    )
    text = tr(
        "From {compared} to {compared2} tokens there are {weights} parameters, and the scores grow from {compared3}"
        " to {compared4}. A recurrent network needs only n steps of work, but one after another.",
        compared=_COMPARED[0],
        compared2=_COMPARED[-1],
        weights=weights,
        compared3=_COMPARED[0] ** 2,
        compared4=_COMPARED[-1] ** 2,
    )
    last = len(lengths) - 1
    return Section(
        title=tr("What grows, and what waits"),
        matrices=(matrix,),
        findings=(LessonFinding(text=text, cells=[(matrix.id, last, c) for c in (1, 2, 5)]),),
        charts=(
            Chart(
                title=tr("What grows, and what waits"),
                matrix=matrix.id,
                lines=(1, 2, 4, 5),
                description=text,
                x_title=tr("tokens"),
                y_title=tr("number"),
                log_x=True,
                log_y=True,
            ),
        ),
    )
