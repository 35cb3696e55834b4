"""Attention as a look-up in a soft database. Letters: N tokens, D width of queries and keys, P of the payload."""

from torch import Tensor

from uwaga.maps.attended import attend
from uwaga.ops.attention.api import attention
from uwaga.viewer.lesson import provenance
from uwaga.viewer.lesson.compute import OneHead, dense
from uwaga.viewer.lesson.document import Finding, Matrix, Section, Step, shown
from uwaga.viewer.lesson.example import Example
from uwaga.viewer.lesson.provenance import cell
from uwaga.viewer.lesson.steps.calculation import Projected


def step(example: Example, head: OneHead, weights: Matrix, projected: Projected) -> Step:
    payload, scale = _payload(example), example.scale_argument
    sharp_scores, sharp = _sharpened(example, head)
    i = int(sharp.numbers.amax(-1).argmax())
    j = int(sharp.numbers[i].argmax())
    return Step(
        id="database",
        title="A soft database",
        text=(
            "Keys and values are the records of a database. A query does not have to equal a key: every record contributes, the"
            " more the better its key fits, and the output is the weighted sum of the records' values.",
            "The values need not come from the tokens: here they are a payload that you can edit.",
        ),
        sections=(
            Section(title="The values are the keys", matrices=(projected.k, _looked_up(example, head, "keys_output"))),
            Section(
                title="The values are any payload",
                matrices=(weights, payload, _looked_up(example, head, "payload_output")),
            ),
            Section(
                title=f"Sharper: scores times {shown(example.sharpness)}",
                text=("The larger the scores, the more of a query's weight is on one record, as in a hard look-up.",),
                matrices=(sharp_scores, sharp, _sharp_output(example, head, sharp)),
                controls=("sharpness",),
                findings=(
                    Finding(
                        text=f"The weight of “{example.tokens[i]}” is now {shown(float(sharp.numbers[i, j]))} on "
                        f"“{example.tokens[j]}”; before, {shown(float(weights.numbers[i, j]))}.",
                        cells=[(sharp.id, i, j), (weights.id, i, j)],
                    ),
                ),
            ),
        ),
        code=f"uwaga.attention(q, k, k{scale}); uwaga.attention(q, k, payload{scale})",
    )


def _payload(example: Example) -> Matrix:
    columns = example.payload_NP.shape[1]
    names = ("place", "letters") if columns == 2 else tuple(f"field {p + 1}" for p in range(columns))
    return Matrix(
        id="payload",
        title="Payload",
        formula="what each record holds",
        rows=example.tokens,
        columns=names,
        numbers=example.payload_NP,
        source=provenance.typed(),
        field="payload",
    )


def _looked_up(example: Example, head: OneHead, id: str) -> Matrix:
    of, values, title = {
        "keys_output": ("k", head.k_ND, "Output: a weighted sum of keys"),
        "payload_output": ("payload", example.payload_NP, "Output: a weighted sum of the payload"),
    }[id]
    return _output(example, id, title, "weights", of, values, _attended(head, values, head.scale))


def _sharpened(example: Example, head: OneHead) -> tuple[Matrix, Matrix]:
    tokens, n = example.tokens, len(example.tokens)
    scale = head.scale * example.sharpness
    _, _, weights = attend(head.q_ND, head.k_ND, head.v_NE, scale=scale)
    scores = Matrix(
        id="sharp_scores",
        title="Sharper scores",
        formula=f"s(i, j) · {shown(example.sharpness)}",
        rows=tokens,
        columns=tokens,
        numbers=head.scores_NN * head.scale * example.sharpness,
        source=provenance.scaled(cell("scaled", "i", "j"), example.sharpness, shown(example.sharpness)),
    )
    shares = Matrix(
        id="sharp_weights",
        title="Sharper weights",
        formula="softmax of each row",
        rows=tokens,
        columns=tokens,
        numbers=dense(weights),
        source=provenance.softmax(cell("sharp_scores", "i", "j"), cell("sharp_scores", "i", "m"), n),
        shade="share",
    )
    return scores, shares


def _sharp_output(example: Example, head: OneHead, sharp: Matrix) -> Matrix:
    found = _attended(head, example.payload_NP, head.scale * example.sharpness)
    return _output(example, "sharp_output", "Output: almost one record", sharp.id, "payload", example.payload_NP, found)


def _attended(head: OneHead, values: Tensor, scale: float) -> Tensor:
    found = attention(head.q_ND, head.k_ND, values, scale=scale)
    assert isinstance(found, Tensor)
    return found


def _output(example: Example, id: str, title: str, weights: str, values: str, numbers: Tensor, found: Tensor) -> Matrix:
    columns = ("place", "letters") if values == "payload" and numbers.shape[1] == 2 else None
    letter = "k" if values == "k" else "field "
    return Matrix(
        id=id,
        title=title,
        formula="Σⱼ a(i, j) valueⱼ",
        rows=example.tokens,
        columns=columns or [f"{letter}{c + 1}" for c in range(numbers.shape[1])],
        numbers=found,
        source=provenance.dot(cell(weights, "i", "m"), cell(values, "m", "j"), len(example.tokens)),
    )
