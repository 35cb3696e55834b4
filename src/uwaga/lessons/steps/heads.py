"""Heads: the matrices of each, attention, concatenation, W_O; and the same numbers for any layer.

Letters: N tokens, M width, H heads, D width of a head's queries and keys, E of values.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from uwaga._base.languages import tr
from uwaga.lessons import provenance
from uwaga.lessons.compute import CLEAR, LayerTrace, clearest, dense, layer_of, leads, scale_of, scores, trace_layer
from uwaga.lessons.document import Illustration, LessonFinding, LessonStep, Section, shown
from uwaga.lessons.example import Example, numbered
from uwaga.lessons.matrix import Matrix
from uwaga.lessons.provenance import cell
from uwaga.maps.attended import attend
from uwaga.nn import MultiHeadAttention
from uwaga.ops.masks import Mask


def step(example: Example, x: Matrix, output_weight: Matrix) -> LessonStep:
    layer = layer_of(example, example.heads)
    trace = trace_layer(layer, example.x_NM)
    weights = _weights_of_heads(example, layer)
    heads = [list(_head(example, trace, h, scale_of(layer))) for h in range(example.heads)]
    joined = _joined(example, heads)
    return LessonStep(
        id="heads",
        title=tr("Heads: several queries at once"),
        text=(
            tr(
                "With one softmax, a token looks for one thing at a time. So there are several heads: each has a W_Q, W_K and W_V"
                " of its own, and computes attention by itself. The outputs are concatenated and multiplied by W_O."
            ),
        ),
        pictures=[
            Illustration(kind="arcs", title=tr("Head {head}", head=h + 1), matrices=(matrices[5],))
            for h, matrices in enumerate(heads)
        ],
        sections=(
            Section(
                title=tr("Each head looks for something else"),
                controls=("heads",),
                matrices=[each for matrices in heads for each in matrices[5:]],
                findings=_findings(example, heads),
            ),
            Section(
                title=tr("Concatenated, times W_O"),
                matrices=(joined, output_weight, _output(example, trace)),
            ),
            Section(
                title=tr("The matrices of all heads, side by side"),
                text=(
                    tr(
                        "One product computes the queries of all heads, since their matrices can stand side by side; it is then"
                        " cut into the columns of each head. In the first Transformer the heads share the width of the model,"
                        " d_k = d_v = M / H."
                    ),
                ),
                matrices=(x, *weights),
                findings=(_parameters(example),),
                folded=True,
            ),
            *(
                Section(title=tr("Head {head}", head=h + 1), matrices=matrices[:5], folded=True)
                for h, matrices in enumerate(heads)
            ),
        ),
        code=f"layer(X)     # {_constructor(example)} with these weights",
        head={
            "statistic": "normalized_entropy",
            "sense": "largest",
            "why": tr("the head with the most uniform weights: nearly the same on all tokens"),
        },
    )


def _weights_of_heads(example: Example, layer: MultiHeadAttention) -> list[Matrix]:
    """W_Q, W_K and W_V of all heads side by side; the first columns are the lesson's own."""
    drawn = provenance.given(tr("Chosen for this head alone: every head has matrices of its own."))
    made = []
    for letter, linear in (("q", layer.query), ("k", layer.key), ("v", layer.value)):
        numbers_MC = linear.weight.detach().T.contiguous()
        count = numbers_MC.shape[1]
        own = provenance.copy(cell(f"w{letter}", "i", "j"))
        made.append(
            Matrix(
                id=f"heads_w{letter}",
                title=tr("{matrix} of all heads", matrix=f"W_{letter.upper()}"),
                formula=tr("chosen, not learned"),
                rows=example.width_names,
                columns=numbered(letter, count),
                numbers=numbers_MC,
                source=provenance.by_column([own if c < count // example.heads else drawn for c in range(count)]),
            )
        )
    return made


def _parameters(example: Example) -> LessonFinding:
    (m, d), e, count = example.wq_MD.shape, example.wv_ME.shape[1], example.heads
    return LessonFinding(
        text=tr(
            "Parameters of a head: 2 · {m} · {d} + 2 · {m} · {e} = {one}. Of the layer, with {count} times as many: {all}.",
            m=m,
            d=d,
            e=e,
            one=2 * m * (d + e),
            count=count,
            all=2 * m * (d + e) * count,
        )
    )


def _constructor(example: Example) -> str:
    (width, inner), values = example.wq_MD.shape, example.wv_ME.shape[1]
    return (
        f"uwaga.nn.MultiHeadAttention({width}, num_heads={example.heads}, d_k={inner}, d_v={values},"
        f" bias=False{example.scale_argument})"
    )


def _head(example: Example, trace: LayerTrace, h: int, scale: float) -> Iterator[Matrix]:
    """The q, k, v, scores, weights and output of one head."""
    tokens, n, name, m = example.tokens, len(example.tokens), f"head{h + 1}", example.x_NM.shape[1]
    operands = (("q", trace.query_HND[h]), ("k", trace.key_HND[h]), ("v", trace.value_HNE[h]))
    for letter, numbers in operands:
        first, width = h * numbers.shape[1], numbers.shape[1]
        yield Matrix(
            id=f"{name}_{letter}",
            title=tr("{upper} of head {h}", upper=letter.upper(), h=h + 1),
            formula=f"X W_{letter.upper()} [{first + 1}…{first + width}]",
            rows=tokens,
            columns=[f"{letter}{first + c + 1}" for c in range(width)],
            numbers=numbers,
            source=provenance.dot(
                cell("x", "i", "m"), cell(f"heads_w{letter}", "m", provenance.shifted(first, "j")), m
            ),
        )
    (_, q_ND), (_, k_ND), (_, v_NE) = operands
    output_NE, _, weights = attend(q_ND, k_ND, v_NE, scale=scale)
    assert isinstance(output_NE, Tensor)
    say = f"1/√{q_ND.shape[1]}" if example.scaled else "1"
    yield Matrix(
        id=f"{name}_raw",
        title=tr("Scores"),
        formula="qᵢ · kⱼ",
        rows=tokens,
        columns=tokens,
        numbers=scores(q_ND, k_ND),
        source=provenance.dot(cell(f"{name}_q", "i", "m"), cell(f"{name}_k", "j", "m"), q_ND.shape[1]),
    )
    yield Matrix(
        id=f"{name}_scores",
        title=tr("Scores, scaled"),
        formula=f"· {say}",
        rows=tokens,
        columns=tokens,
        numbers=scores(q_ND, k_ND) * scale,
        source=provenance.scaled(cell(f"{name}_raw", "i", "j"), scale, say),
    )
    yield Matrix(
        id=f"{name}_weights",
        title=tr("Weights of head {h}", h=h + 1),
        formula=tr("softmax of each row"),
        rows=tokens,
        columns=tokens,
        numbers=dense(weights),
        source=provenance.softmax(cell(f"{name}_scores", "i", "j"), cell(f"{name}_scores", "i", "m"), n),
        shade="share",
    )
    yield Matrix(
        id=f"{name}_output",
        title=tr("Output of head {h}", h=h + 1),
        formula="Σⱼ a(i, j) vⱼ",
        rows=tokens,
        columns=[f"v{h * v_NE.shape[1] + e + 1}" for e in range(v_NE.shape[1])],
        numbers=output_NE,
        source=provenance.dot(cell(f"{name}_weights", "i", "m"), cell(f"{name}_v", "m", "j"), n),
    )


def _joined(example: Example, heads: list[list[Matrix]]) -> Matrix:
    outputs = [matrices[-1] for matrices in heads]
    rules = [provenance.copy(cell(each.id, "i", e)) for each in outputs for e in range(len(each.columns))]
    return Matrix(
        id="joined",
        title=tr("All heads side by side"),
        formula=tr("[head 1 | head 2 | …]"),
        rows=example.tokens,
        columns=[name for each in outputs for name in each.columns],
        numbers=torch.cat([each.numbers for each in outputs], dim=-1),
        source=provenance.by_column(rules),
    )


def output_weight_of(example: Example) -> Matrix:
    """W_O."""
    return Matrix(
        id="wo",
        title="W_O",
        formula=tr("chosen, not learned"),
        rows=numbered("v", example.wo_EM.shape[0]),
        columns=example.width_names,
        numbers=example.wo_EM,
        source=provenance.typed(),
    )


def _output(example: Example, trace: LayerTrace) -> Matrix:
    """The output of the layer itself."""
    return Matrix(
        id="layer_output",
        title=tr("Output of the layer"),
        formula=tr("[heads] W_O"),
        rows=example.tokens,
        columns=example.width_names,
        numbers=trace.output_NM,
        source=provenance.dot(cell("joined", "i", "m"), cell("wo", "m", "j"), example.wo_EM.shape[0]),
    )


def _findings(example: Example, heads: list[list[Matrix]]) -> list[LessonFinding]:
    """The weight in which the first two heads differ most, of the token that the step asks about."""
    if len(heads) < 2:
        return [
            LessonFinding(
                text=tr("With one head this is the calculation of the steps from “Three roles” to “Sum”, and then W_O.")
            )
        ]
    first, second = heads[0][-2], heads[1][-2]
    apart_NN = (first.numbers - second.numbers).abs()
    i = most_apart(first.numbers, second.numbers)
    j = int(apart_NN[i].argmax())
    if float(apart_NN.max()) < 0.005:
        return [
            LessonFinding(
                text=tr("With these numbers heads 1 and 2 have the same weights: they look for the same thing.")
            )
        ]
    text = tr(
        "The heads look for different things: the weight of “{tokens}” on “{tokens2}” is {numbers} in head 1 and"
        " {numbers2} in head 2.",
        tokens=example.tokens[i],
        tokens2=example.tokens[j],
        numbers=shown(float(first.numbers[i, j])),
        numbers2=shown(float(second.numbers[i, j])),
    )
    return [LessonFinding(text=text, cells=[(first.id, i, j), (second.id, i, j)])]


def most_apart(first_NN: Tensor, second_NN: Tensor) -> int:
    """The token whose weights differ most between two heads, among those of which neither head has a near tie."""
    clear_N = torch.minimum(leads(first_NN), leads(second_NN)) >= CLEAR
    return clearest((first_NN - second_NN).abs().amax(-1), clear_N)


class Weights(NamedTuple):
    """The ids of the matrices that a layer's projections multiply by."""

    query: str
    key: str
    value: str
    output: str


class Traced(NamedTuple):
    """Attention of a layer, from its input to its output."""

    operands: tuple[Matrix, ...]  # queries, keys and values of all heads
    heads: tuple[Matrix, ...]  # scores, weights and output of each head
    output: tuple[Matrix, ...]  # the heads side by side, and the layer's output

    def sections(self, title: str) -> tuple[Section, Section]:
        """Two folded sections: queries, keys and values; the heads and the output."""
        return (
            Section(
                title=tr("{title}: queries, keys and values of each head", title=title),
                matrices=self.operands,
                folded=True,
            ),
            Section(
                title=tr("{title}: scores, weights and outputs", title=title),
                matrices=(*self.heads, self.output[0]),
                folded=True,
            ),
        )


def traced_attention(
    prefix: str,
    layer: MultiHeadAttention,
    x: Matrix,
    weights: Weights,
    *,
    memory: Matrix | None = None,
    mask: Mask | None = None,
    bits: Matrix | None = None,
    title: str = "",
) -> Traced:
    """The numbers of a layer's attention for a matrix of tokens.

    Args:
        prefix: of the ids of the matrices.
        layer: with the weights of the matrices that `weights` names.
        x: (N, M); with a memory the input of the queries alone.
        memory: (K, M) the input of keys and values; x by default.
        mask, bits: the mask, and the matrix (N, K) that shows it.
        title: of the output; by default “Attention”.
    """
    asked = x if memory is None else memory
    trace = trace_layer(layer, x.numbers, None if memory is None else memory.numbers, mask)
    scale, m = scale_of(layer), x.numbers.shape[1]
    say = f"1/√{layer.d_k}" if layer.scale is None else shown(scale)
    operands: list[Matrix] = []
    heads: list[Matrix] = []
    outputs: list[Matrix] = []
    for h in range(layer.num_heads):
        name, of_head = f"{prefix}_head{h + 1}", h + 1 if layer.num_heads > 1 else 0
        for letter, id, source, numbers in (
            ("q", weights.query, x, trace.query_HND[h]),
            ("k", weights.key, asked, trace.key_HND[h]),
            ("v", weights.value, asked, trace.value_HNE[h]),
        ):
            width = numbers.shape[1]
            operands.append(
                Matrix(
                    id=f"{name}_{letter}",
                    title=_of_head(letter.upper(), of_head),
                    formula=f"X W_{letter.upper()} [{h * width + 1}…{(h + 1) * width}]",
                    rows=source.rows,
                    columns=[f"{letter}{h * width + c + 1}" for c in range(width)],
                    numbers=numbers,
                    source=provenance.dot(
                        cell(source.id, "i", "m"), cell(id, "m", provenance.shifted(h * width, "j")), m
                    ),
                )
            )
        q_ND, k_KD, v_KE = trace.query_HND[h], trace.key_HND[h], trace.value_HNE[h]
        made = list(_one_head(name, of_head, x.rows, asked.rows, (q_ND, k_KD, v_KE), scale, say, mask, bits))
        heads += made
        outputs.append(made[-1])
    joined = Matrix(
        id=f"{prefix}_joined",
        title=tr("Heads side by side"),
        formula=tr("[head 1 | head 2 | …]"),
        rows=x.rows,
        columns=[name for each in outputs for name in each.columns],
        numbers=torch.cat([each.numbers for each in outputs], dim=-1),
        source=provenance.by_column(
            [provenance.copy(cell(each.id, "i", e)) for each in outputs for e in range(len(each.columns))]
        ),
    )
    output = Matrix(
        id=f"{prefix}_attended",
        title=title or tr("Attention"),
        formula=tr("[heads] W_O"),
        rows=x.rows,
        columns=x.columns,
        numbers=trace.output_NM,
        source=provenance.dot(cell(joined.id, "i", "m"), cell(weights.output, "m", "j"), layer.output.in_features),
    )
    return Traced(tuple(operands), tuple(heads), (joined, output))


def _of_head(title: str, head: int) -> str:
    """The title with the number of the head; 0: there is one."""
    return tr("{title}, head {head}", title=title, head=head) if head else title


def _one_head(
    name: str,
    of_head: int,
    rows: Sequence[str],
    columns: Sequence[str],
    operands: tuple[Tensor, Tensor, Tensor],
    scale: float,
    say: str,
    mask: Mask | None,
    bits: Matrix | None,
) -> Iterator[Matrix]:
    """Scores, scaled and masked scores, weights and output of one head."""
    q_ND, k_KD, v_KE = operands
    output_NE, _, result = attend(q_ND, k_KD, v_KE, mask=mask, scale=scale)
    assert isinstance(output_NE, Tensor)
    raw_NK = scores(q_ND, k_KD)

    def square(id: str, title: str, formula: str, numbers: Tensor, source: provenance.Rule, shade: str) -> Matrix:
        return Matrix(
            id=f"{name}_{id}",
            title=_of_head(title, of_head),
            formula=formula,
            rows=rows,
            columns=columns,
            numbers=numbers,
            source=source,
            shade=shade,
        )

    dot = provenance.dot(cell(f"{name}_q", "i", "m"), cell(f"{name}_k", "j", "m"), q_ND.shape[1])
    times = provenance.scaled(cell(f"{name}_raw", "i", "j"), scale, say)
    yield square("raw", tr("Scores"), "qᵢ · kⱼ", raw_NK, dot, "signed")
    yield square("scaled", tr("Scores, scaled"), f"· {say}", raw_NK * scale, times, "signed")
    last = f"{name}_scaled"
    if bits is not None:
        hidden_NK = torch.where(bits.numbers > 0, raw_NK * scale, torch.nan)
        rule = provenance.masked(cell(last, "i", "j"), cell(bits.id, "i", "j"))
        yield square("visible", tr("Scores that count"), tr("where visible"), hidden_NK, rule, "signed")
        last = f"{name}_visible"
    rule = provenance.softmax(cell(last, "i", "j"), cell(last, "i", "m"), len(columns))
    yield square("weights", tr("Weights"), tr("softmax of each row"), dense(result), rule, "share")
    yield Matrix(
        id=f"{name}_output",
        title=_of_head(tr("Output"), of_head),
        formula="Σⱼ a(i, j) vⱼ",
        rows=rows,
        columns=[f"v{e + 1}" for e in range(v_KE.shape[1])],
        numbers=output_NE,
        source=provenance.dot(cell(f"{name}_weights", "i", "m"), cell(f"{name}_v", "m", "j"), len(columns)),
    )
