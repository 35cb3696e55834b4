"""Attention as a look-up in a soft database, and in one of a token's own past. Letters: N tokens, D width of queries and keys, P of the payload."""

from collections.abc import Sequence

import torch
from torch import Tensor

from uwaga._base.languages import tr, tr_n
from uwaga.lessons import provenance
from uwaga.lessons.compute import OneHead, dense
from uwaga.lessons.document import Chart, Illustration, LessonFinding, LessonStep, Section, shown
from uwaga.lessons.example import Example, numbered
from uwaga.lessons.matrix import Matrix
from uwaga.lessons.provenance import cell
from uwaga.maps.attended import attend
from uwaga.ops.attention.api import attention
from uwaga.ops.masks import Causal


def step(example: Example, head: OneHead, known: dict[str, Matrix], payload: Matrix) -> LessonStep:
    scale, weights = example.scale_argument, known["weights"]
    sharp_scores, sharp = _sharpened(example, head)
    i, j = most_changed(weights.numbers, sharp.numbers)
    return LessonStep(
        id="database",
        title=tr("A soft database"),
        text=(
            tr(
                "Keys and values are the records of a database. A query does not have to equal a key: every record contributes,"
                " the more the better its key fits, and the output is the weighted sum of the records' values."
            ),
            tr("The values need not come from the tokens: here they are a payload that you can edit."),
        ),
        told=(tr("The larger the scores, the more of a query's weight is on one record, as in a hard look-up."),),
        pictures=(Illustration(kind="arcs", title=tr("The records that a word asks"), matrices=(weights,)),),
        sections=(
            Section(
                title=tr("The values are the keys"), matrices=(known["k"], _looked_up(example, head, "keys_output"))
            ),
            Section(
                title=tr("The values are any payload"),
                matrices=(weights, payload, _looked_up(example, head, "payload_output")),
            ),
            Section(
                title=tr("Sharper: scores times {sharpness}", sharpness=shown(example.sharpness)),
                matrices=(sharp_scores, sharp, _sharp_output(example, head, sharp)),
                controls=("sharpness",),
                findings=(
                    LessonFinding(
                        text=tr(
                            "The weight of “{tokens}” is now {numbers} on “{tokens2}”; before, {numbers2}.",
                            tokens=example.tokens[i],
                            numbers=shown(float(sharp.numbers[i, j])),
                            tokens2=example.tokens[j],
                            numbers2=shown(float(weights.numbers[i, j])),
                        ),
                        cells=[(sharp.id, i, j), (weights.id, i, j)],
                    ),
                ),
            ),
        ),
        code=f"uwaga.attention(q, k, k{scale}); uwaga.attention(q, k, payload{scale})",
    )


def most_changed(weights_NN: Tensor, sharp_NN: Tensor) -> tuple[int, int]:
    """The token whose largest weight changes most, and the token of that weight."""
    largest_N = weights_NN.argmax(-1)
    i = int((sharp_NN - weights_NN).gather(-1, largest_N[:, None]).abs().argmax())
    return i, int(largest_N[i])


def payload_of(example: Example) -> Matrix:
    """The values of the soft database, which need not come from the tokens."""
    columns = example.payload_NP.shape[1]
    names = _payload_names(columns)
    return Matrix(
        id="payload",
        title=tr("Payload"),
        formula=tr("what each record holds"),
        rows=example.tokens,
        columns=names,
        numbers=example.payload_NP,
        source=provenance.typed(),
    )


def _looked_up(example: Example, head: OneHead, id: str) -> Matrix:
    of, values, title = {
        "keys_output": ("k", head.k_ND, tr("Output: a weighted sum of keys")),
        "payload_output": ("payload", example.payload_NP, tr("Output: a weighted sum of the payload")),
    }[id]
    return _output(example, id, title, "weights", of, values, _attended(head, values, head.scale))


def _sharpened(example: Example, head: OneHead) -> tuple[Matrix, Matrix]:
    tokens, n = example.tokens, len(example.tokens)
    scale = head.scale * example.sharpness
    _, _, weights = attend(head.q_ND, head.k_ND, head.v_NE, scale=scale)
    scores = Matrix(
        id="sharp_scores",
        title=tr("Sharper scores"),
        formula=f"s(i, j) · {shown(example.sharpness)}",
        rows=tokens,
        columns=tokens,
        numbers=head.scores_NN * head.scale * example.sharpness,
        source=provenance.scaled(cell("scaled", "i", "j"), example.sharpness, shown(example.sharpness)),
    )
    shares = Matrix(
        id="sharp_weights",
        title=tr("Sharper weights"),
        formula=tr("softmax of each row"),
        rows=tokens,
        columns=tokens,
        numbers=dense(weights),
        source=provenance.softmax(cell("sharp_scores", "i", "j"), cell("sharp_scores", "i", "m"), n),
        shade="share",
    )
    return scores, shares


def _sharp_output(example: Example, head: OneHead, sharp: Matrix) -> Matrix:
    result = _attended(head, example.payload_NP, head.scale * example.sharpness)
    return _output(
        example, "sharp_output", tr("Output: almost one record"), sharp.id, "payload", example.payload_NP, result
    )


def _attended(head: OneHead, values: Tensor, scale: float) -> Tensor:
    output = attention(head.q_ND, head.k_ND, values, scale=scale)
    assert isinstance(output, Tensor)
    return output


def _payload_names(columns: int) -> tuple[str, ...]:
    if columns == 2:
        return tr("place"), tr("letters")
    return tuple(tr("field {number}", number=number + 1) for number in range(columns))


def _output(
    example: Example, id: str, title: str, weights: str, values: str, numbers: Tensor, result: Tensor
) -> Matrix:
    width = numbers.shape[1]
    return Matrix(
        id=id,
        title=title,
        formula="Σⱼ a(i, j) vⱼ",
        rows=example.tokens,
        columns=numbered("k", width) if values == "k" else _payload_names(width),
        numbers=result,
        source=provenance.dot(cell(weights, "i", "m"), cell(values, "m", "j"), len(example.tokens)),
    )


_STRICTLY_PAST = Causal(include_self=False)
_FACTORS = (1, 2, 4, 8, 16, 32, 64)


def past_step(example: Example, head: OneHead, known: dict[str, Matrix], payload: Matrix) -> LessonStep:
    """Strictly past, unscaled: each token asks the records of the tokens before it."""
    tokens, n = example.tokens, len(example.tokens)
    past_bits = known["past_bits"]
    visible_NN = past_bits.numbers > 0
    asked = Matrix(
        id="own_scores",
        title=tr("Scores of the past, unscaled"),
        formula=tr("qᵢ · kⱼ for j before i"),
        rows=tokens,
        columns=tokens,
        numbers=torch.where(visible_NN, head.scores_NN, torch.nan),
        source=provenance.masked(cell("scores", "i", "j"), cell("past_bits", "i", "j")),
    )
    _, _, result = attend(head.q_ND, head.k_ND, head.v_NE, mask=_STRICTLY_PAST, scale=1.0)
    weights = Matrix(
        id="own_weights",
        title=tr("Weights"),
        formula=tr("softmax over the past"),
        rows=tokens,
        columns=tokens,
        numbers=dense(result),
        source=provenance.softmax(cell("own_scores", "i", "j"), cell("own_scores", "i", "m"), n),
        shade="share",
    )
    return LessonStep(
        id="past",
        title=tr("A database of one's own past"),
        text=(
            tr(
                "Each token asks the tokens before it, and only them: when it is read, its own record is not yet in the"
                " database. The scores are not scaled."
            ),
            tr(
                "This is the strictly past mask with scale=1.0. What one stores is free: the keys themselves, or a payload."
            ),
        ),
        pictures=(Illustration(kind="arcs", title=tr("The records that a word asks"), matrices=(weights,)),),
        sections=(
            Section(
                title=tr("Who is asked"),
                matrices=(past_bits, asked, weights),
                findings=(_first_token(example, weights),),
            ),
            Section(
                title=tr("The values are the keys"),
                matrices=(known["k"], _of_the_past(example, head, "own_keys", "k", known["k"].columns, head.k_ND)),
            ),
            Section(
                title=tr("The values are a payload"),
                matrices=(
                    payload,
                    _of_the_past(example, head, "own_payload", "payload", payload.columns, example.payload_NP),
                ),
            ),
            *_last_query(example, head, payload),
            _hardened(example, head, visible_NN, payload),
        ),
        told=(
            tr(
                "To a token that comes j-th, only the j - 1 keys before it are known: Kᵀ is then {d}×(j-1), and the payload is"
                " (j-1)×{p}.",
                d=head.k_ND.shape[1],
                p=example.payload_NP.shape[1],
            ),
        ),
        code="uwaga.attention(q, k, payload, mask=uwaga.Causal(include_self=False), scale=1.0)",
    )


def _of_the_past(
    example: Example, head: OneHead, id: str, of: str, columns: Sequence[str], values: Tensor, factor: float = 1.0
) -> Matrix:
    output = attention(head.q_ND, head.k_ND, values, mask=_STRICTLY_PAST, scale=factor)
    assert isinstance(output, Tensor)
    return Matrix(
        id=id,
        title=tr("Output"),
        formula=tr("Σⱼ a(i, j) vⱼ over the past"),
        rows=example.tokens,
        columns=columns,
        numbers=output,
        source=provenance.dot(cell("own_weights", "i", "m"), cell(of, "m", "j"), len(example.tokens)),
    )


def _first_token(example: Example, weights: Matrix) -> LessonFinding:
    first = example.tokens[0]
    text = tr("“{first}” comes first and has no past: its weights are 0 and it gets zeros.", first=first)
    if len(example.tokens) > 1:
        second = tr(
            "“{tokens}” has one record to ask, which gets the whole weight of 1, however bad the match.",
            tokens=example.tokens[1],
        )
        text = tr("{first} {second}", first=text, second=second)
    return LessonFinding(text=text, cells=[(weights.id, i, 0) for i in range(min(2, len(example.tokens)))])


def _last_query(example: Example, head: OneHead, payload: Matrix) -> tuple[Section, ...]:
    """The last token alone, against the records before it."""
    n = len(example.tokens)
    if n == 1:
        return ()
    output = attention(head.q_ND[-1:], head.k_ND[:-1], example.payload_NP[:-1], scale=1.0)
    assert isinstance(output, Tensor)
    last = Matrix(
        id="own_last",
        title=tr("“{tokens}” alone", tokens=example.tokens[-1]),
        formula=tr("attention(q, keys so far, payload so far)"),
        rows=example.tokens[-1:],
        columns=payload.columns,
        numbers=output,
        source=provenance.dot(cell("own_weights", n - 1, "m"), cell("payload", "m", "j"), n - 1),
    )
    text = tr_n(
        "The last token is one query against {count} record: no mask is needed, since nothing later is stored. A model that"
        " generates does this for each new token, and keeps the keys and values in a cache.",
        "The last token is one query against {count} records: no mask is needed, since nothing later is stored. A model that"
        " generates does this for each new token, and keeps the keys and values in a cache.",
        n - 1,
    )
    return (Section(title=tr("One query against all that came before"), text=(text,), matrices=(last,)),)


def _hardened(example: Example, head: OneHead, visible_NN: Tensor, payload: Matrix) -> Section:
    """The hard look-up: the best record alone."""
    tokens, n = example.tokens, len(example.tokens)
    scores_NN = torch.where(visible_NN, head.scores_NN, -torch.inf)
    best_N = scores_NN.argmax(-1)
    bits_NN = torch.nn.functional.one_hot(best_N, n) * visible_NN.any(-1, keepdim=True)
    hard = Matrix(
        id="hard_weights",
        title=tr("Hard look-up"),
        formula=tr("1 at the largest score of the past"),
        rows=tokens,
        columns=tokens,
        numbers=bits_NN.float(),
        source=provenance.given(tr("1 at the largest visible score of the row, the first of equal ones; else 0.")),
        shade="bits",
        digits=0,
    )
    output = Matrix(
        id="hard_output",
        title=tr("Its output"),
        formula=tr("the payload of one record"),
        rows=tokens,
        columns=payload.columns,
        numbers=bits_NN.float() @ example.payload_NP,
        source=provenance.dot(cell("hard_weights", "i", "m"), cell("payload", "m", "j"), n),
    )
    soft = [
        _of_the_past(
            example, head, "own_payload", "payload", payload.columns, example.payload_NP, float(factor)
        ).numbers
        for factor in _FACTORS
    ]
    apart = [float((each - output.numbers).abs().max()) for each in soft]
    limit = Matrix(
        id="hardening",
        title=tr("From soft to hard"),
        formula=tr("the largest difference of an output from the hard look-up"),
        rows=[tr("scores · {factor}", factor=factor) for factor in _FACTORS],
        columns=(tr("factor"), tr("difference")),
        numbers=torch.tensor(list(zip(_FACTORS, apart, strict=True)), dtype=torch.float32),
        source=provenance.given(tr("uwaga.attention with this factor as the scale, compared with the hard look-up.")),
        shade="none",
        digits=4,
    )
    ties = [i for i in range(1, n) if int((scores_NN[i] == scores_NN[i].max()).sum()) > 1]
    text = tr(
        "With the scores times {factors}, the outputs differ from the hard look-up by at most {apart}.",
        factors=_FACTORS[-1],
        apart=shown(apart[-1]),
    )
    if ties:
        named = ", ".join(tr("“{token}”", token=tokens[i]) for i in ties[:3])
        tie = tr(
            "{named} has equal best scores: softmax divides its weight between them at any factor, and a hard look-up takes"
            " one.",
            named=named,
        )
        text = tr("{first} {second}", first=text, second=tie)
    chart = Chart(
        title=tr("Difference from the hard look-up"),
        matrix=limit.id,
        lines=(1,),
        description=text,
        x_title=tr("factor of the scores"),
        y_title=tr("difference"),
        log_x=True,
    )
    return Section(
        title=tr("The limit: a hard look-up"),
        text=(
            tr("Multiply the scores by more and more: the largest takes all the weight, and one record is looked up."),
        ),
        matrices=(hard, output, limit),
        charts=(chart,),
        findings=(LessonFinding(text=text, cells=[(limit.id, len(_FACTORS) - 1, 1)]),),
    )
