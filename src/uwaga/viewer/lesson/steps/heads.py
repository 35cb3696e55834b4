"""Heads: splitting, attention, concatenation, W_O.

Letters: N tokens, M width, H heads, D width of a head's queries and keys, E of values.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from uwaga.maps.attended import attend
from uwaga.viewer.lesson import provenance
from uwaga.viewer.lesson.compute import LayerTrace, dense, layer_of, scale_of, scores, trace_layer
from uwaga.viewer.lesson.document import Finding, Matrix, Section, Step, shown
from uwaga.viewer.lesson.example import Example, numbered
from uwaga.viewer.lesson.provenance import cell
from uwaga.viewer.lesson.steps.calculation import Projected


def step(example: Example, projected: Projected) -> Step:
    layer = layer_of(example, example.heads)
    trace = trace_layer(layer, example.x_NM)
    heads = [list(_head(example, trace, h, scale_of(layer))) for h in range(example.heads)]
    joined = _joined(example, heads)
    return Step(
        id="heads",
        title="Heads: several queries at once",
        text=(
            "With one softmax, a token looks for one thing at a time. So Q, K and V are split into heads of a few columns each;"
            " each head computes attention by itself, with its own weights. The outputs are concatenated and multiplied by W_O.",
        ),
        sections=(
            Section(title="Q, K and V", matrices=(projected.q, projected.k, projected.v), controls=("heads",)),
            *(
                Section(title=f"Head {h + 1}: columns {_columns(trace, h)} of Q and K", matrices=matrices)
                for h, matrices in enumerate(heads)
            ),
            Section(
                title="Concatenated, times W_O",
                matrices=(joined, _output_weight(example), _output(example, trace)),
                findings=_findings(example, heads),
            ),
        ),
        code=f"layer(X)     # {_constructor(example)} with these weights",
        head={
            "statistic": "normalized_entropy",
            "sense": "largest",
            "why": "the head with the most uniform weights: nearly the same on all tokens",
        },
    )


def _constructor(example: Example) -> str:
    (width, inner), values = example.wq_MD.shape, example.wv_ME.shape[1]
    widths = "" if inner == values == width else f", d_k={inner // example.heads}, d_v={values // example.heads}"
    return (
        f"uwaga.nn.MultiHeadAttention({width}, num_heads={example.heads}{widths}, bias=False{example.scale_argument})"
    )


def _head(example: Example, trace: LayerTrace, h: int, scale: float) -> Iterator[Matrix]:
    """The q, k, v, scores, weights and output of one head."""
    tokens, n, name = example.tokens, len(example.tokens), f"head{h + 1}"
    operands = (("q", trace.query_HND[h]), ("k", trace.key_HND[h]), ("v", trace.value_HNE[h]))
    for letter, numbers in operands:
        first, width = h * numbers.shape[1], numbers.shape[1]
        yield Matrix(
            id=f"{name}_{letter}",
            title=f"{letter.upper()} of head {h + 1}",
            formula=f"columns {first + 1} to {first + width} of {letter.upper()}",
            rows=tokens,
            columns=[f"{letter}{first + c + 1}" for c in range(width)],
            numbers=numbers,
            source=provenance.copy(cell(letter, "i", provenance.shifted(first, "j"))),
        )
    (_, q_ND), (_, k_ND), (_, v_NE) = operands
    output_NE, _, weights = attend(q_ND, k_ND, v_NE, scale=scale)
    assert isinstance(output_NE, Tensor)
    say = f"1/√{q_ND.shape[1]}" if example.scaled else "1"
    yield Matrix(
        id=f"{name}_raw",
        title="Scores",
        formula="qᵢ · kⱼ",
        rows=tokens,
        columns=tokens,
        numbers=scores(q_ND, k_ND),
        source=provenance.dot(cell(f"{name}_q", "i", "m"), cell(f"{name}_k", "j", "m"), q_ND.shape[1]),
    )
    yield Matrix(
        id=f"{name}_scores",
        title="Scores, scaled",
        formula=f"· {say}",
        rows=tokens,
        columns=tokens,
        numbers=scores(q_ND, k_ND) * scale,
        source=provenance.scaled(cell(f"{name}_raw", "i", "j"), scale, say),
    )
    yield Matrix(
        id=f"{name}_weights",
        title=f"Weights of head {h + 1}",
        formula="softmax of each row",
        rows=tokens,
        columns=tokens,
        numbers=dense(weights),
        source=provenance.softmax(cell(f"{name}_scores", "i", "j"), cell(f"{name}_scores", "i", "m"), n),
        shade="share",
    )
    yield Matrix(
        id=f"{name}_output",
        title=f"Output of head {h + 1}",
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
        title="All heads side by side",
        formula="[head 1 | head 2 | …]",
        rows=example.tokens,
        columns=[name for each in outputs for name in each.columns],
        numbers=torch.cat([each.numbers for each in outputs], dim=-1),
        source=provenance.by_column(rules),
    )


def _output_weight(example: Example) -> Matrix:
    return Matrix(
        id="wo",
        title="W_O",
        formula="learned",
        rows=numbered("v", example.wo_EM.shape[0]),
        columns=example.width_names,
        numbers=example.wo_EM,
        source=provenance.typed(),
        field="wo",
    )


def _output(example: Example, trace: LayerTrace) -> Matrix:
    """The output of the layer itself."""
    return Matrix(
        id="layer_output",
        title="Output of the layer",
        formula="[heads] W_O",
        rows=example.tokens,
        columns=example.width_names,
        numbers=trace.output_NM,
        source=provenance.dot(cell("joined", "i", "m"), cell("wo", "m", "j"), example.wo_EM.shape[0]),
    )


def _findings(example: Example, heads: list[list[Matrix]]) -> list[Finding]:
    """The weight in which the first two heads differ most."""
    if len(heads) < 2:
        return [Finding(text="With one head this is the calculation of the six steps, and then W_O.")]
    first, second = heads[0][-2], heads[1][-2]
    apart_NN = (first.numbers - second.numbers).abs()
    i, j = divmod(int(apart_NN.argmax()), len(example.tokens))
    text = (
        f"The heads look for different things: the weight of “{example.tokens[i]}” on “{example.tokens[j]}” is "
        f"{shown(float(first.numbers[i, j]))} in head 1 and {shown(float(second.numbers[i, j]))} in head 2."
    )
    return [Finding(text=text, cells=[(first.id, i, j), (second.id, i, j)])]


def _columns(trace: LayerTrace, h: int) -> str:
    width = trace.query_HND.shape[-1]
    return f"{h * width + 1} to {(h + 1) * width}" if width > 1 else str(h + 1)
