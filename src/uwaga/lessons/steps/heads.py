"""Heads: the matrices of each, attention, concatenation, W_O; and the same numbers for any layer.

Letters: N tokens, K keys, M width, H heads, D width of a head's queries and keys, E of values.
"""

from torch import Tensor

from uwaga.lessons.compute import CLEAR, attended, clearest, layer_of, leads
from uwaga.lessons.document import LessonFinding, LessonStep, Question, shown
from uwaga.lessons.example import Example, numbered
from uwaga.lessons.matrix import Matrix, by_columns, made, rule, side_by_side, typed
from uwaga.lessons.page import Page
from uwaga.lessons.question import largest, names_of, question
from uwaga.ops.masks import Mask

Head = list[Matrix]  # queries, keys, values, scores, scaled and perhaps masked scores, weights, output


def heads(page: Page) -> LessonStep:
    example, x = page.example, page["x"]
    count, tokens = example.heads, len(example.tokens)
    weights = _weights_of_heads(page)
    wo = page.matrix("wo", typed(example.wo_EM, numbered("v", len(example.wo_EM)), x.columns))
    made_heads = multi_head(page, "", x, x, "scores", example.scale_text)
    joined = page.matrix("joined", side_by_side([head[-1] for head in made_heads]))
    output = page.matrix("layer_output", joined @ wo)
    shares = [head[5].numbers for head in made_heads]
    apart = max(float((share - shares[0]).abs().max()) for share in shares)
    return page.step(
        page.section(
            "each",
            *(matrix for head in made_heads for matrix in head[5:]),
            controls=("heads",),
            findings=(_finding(page),),
        ),
        page.section("concatenated", joined, wo, output),
        page.section("side_by_side", x, *weights, findings=(_parameters(page),), folded=True),
        *(page.section("head", *head[:5], values={"head": h + 1}, folded=True) for h, head in enumerate(made_heads)),
        pictures=[page.picture("arcs", "head", head[5], values={"head": h + 1}) for h, head in enumerate(made_heads)],
        question=_question(page) if count > 1 and tokens > 1 else None,
        ledger=(
            page.problem(
                "one", page.text("tables_differ", count=count, between=shown(apart)), (count,), solved=apart > 0
            ),
        ),
        code=f"layer(X)     # {_constructor(example)} with these weights",
        head={"statistic": "normalized_entropy", "sense": "largest", "why": page.text("why_head")},
    )


def _weights_of_heads(page: Page) -> list[Matrix]:
    """Return W_Q, W_K and W_V of all heads side by side; the first columns are the lesson's own."""
    example = page.example
    layer, drawn = layer_of(example, example.heads), page.stated("drawn")
    weights = []
    for letter, linear in (("q", layer.query), ("k", layer.key), ("v", layer.value)):
        drawn_weight = page[f"w{letter}"]
        numbers_MC = linear.weight.detach().T.contiguous()
        count = numbers_MC.shape[1]
        rules = [rule("copy", drawn_weight.at()) if c < len(drawn_weight.columns) else drawn for c in range(count)]
        matrix = made(numbers_MC, drawn_weight.rows, numbered(letter, count), by_columns(rules))
        weights.append(page.matrix(f"heads_w{letter}", matrix, "weight", matrix=f"W_{letter.upper()}"))
    return weights


def multi_head(
    page: Page,
    prefix: str,
    x: Matrix,
    memory: Matrix,
    scaled: str,
    say: str,
    mask: Mask | None = None,
    bits: Matrix | None = None,
) -> list[Head]:
    """Return attention of each head, with the lesson's matrices.

    Args:
        prefix: of the ids of the matrices.
        x: (N, M) the input of the queries.
        memory: (K, M) the input of keys and values.
        scaled: what the id of the scaled scores ends with.
        say: the text of the scale.
        mask, bits: the mask, and the matrix (N, K) that shows it.
    """
    count = page.example.heads

    def head_of(h: int) -> Head:
        name, number = f"{prefix}head{h + 1}", h + 1 if count > 1 else 0

        def operand(letter: str, source: Matrix) -> Matrix:
            weight = page[f"heads_w{letter}"]
            width = len(weight.columns) // count
            first, last = h * width, (h + 1) * width
            id, product, upper = f"{name}_{letter}", source @ weight[:, first:last], letter.upper()
            return page.matrix(
                id, product, "head_operand", head=number, upper=upper, h=h + 1, first=first + 1, last=last
            )

        q, k, v = operand("q", x), operand("k", memory), operand("v", memory)
        output_NE, weights_NK = attended(q.numbers, k.numbers, v.numbers, page.example.scale, mask)
        raw = page.matrix(f"{name}_raw", q @ k.T, "head_raw", head=number)
        times = raw.scaled(page.example.scale, say)
        head = [q, k, v, raw, page.matrix(f"{name}_{scaled}", times, "head_scaled", head=number, say=say)]
        if bits is not None:
            head.append(page.matrix(f"{name}_visible", head[-1].where(bits), "head_visible", head=number))
        shares = head[-1].softmax().by_library(weights_NK)
        weights = page.matrix(f"{name}_weights", shares, "head_weights", head=number, h=h + 1)
        output = (weights @ v).by_library(output_NE)
        return [*head, weights, page.matrix(f"{name}_output", output, "head_output", head=number, h=h + 1)]

    return [head_of(h) for h in range(count)]


def _parameters(page: Page) -> LessonFinding:
    (m, d), e, count = page.example.wq_MD.shape, page.example.wv_ME.shape[1], page.example.heads
    one = 2 * m * (d + e)
    return page.finding("parameters", m=m, d=d, e=e, one=one, count=count, all=one * count)


def _constructor(example: Example) -> str:
    (width, inner), values = example.wq_MD.shape, example.wv_ME.shape[1]
    return (
        f"uwaga.nn.MultiHeadAttention({width}, num_heads={example.heads}, d_k={inner}, d_v={values},"
        f" bias=False{example.scale_argument})"
    )


def _finding(page: Page) -> LessonFinding:
    """Return the weight in which the first two heads differ most, of the token that the step asks about."""
    tokens = page.example.tokens
    if page.example.heads < 2:
        return page.finding("one_head")
    first_NN, second_NN = (page[f"head{h}_weights"].numbers for h in (1, 2))
    apart_NN = (first_NN - second_NN).abs()
    i = _most_apart(first_NN, second_NN)
    j = int(apart_NN[i].argmax())
    if float(apart_NN.max()) < 0.005:
        return page.finding("same_weights")
    return page.finding(
        "apart",
        [("head1_weights", i, j), ("head2_weights", i, j)],
        tokens=tokens[i],
        tokens2=tokens[j],
        numbers=shown(first_NN[i, j]),
        numbers2=shown(second_NN[i, j]),
    )


def _most_apart(first_NN: Tensor, second_NN: Tensor) -> int:
    """Return the token whose weights differ most between two heads. Tokens for which a head has a near tie are left
    out."""
    clear_N = leads(first_NN).minimum(leads(second_NN)) >= CLEAR
    return clearest((first_NN - second_NN).abs().amax(-1), clear_N)


def _question(page: Page) -> Question | None:
    first, second = (page[f"head{h}_weights"].numbers for h in (1, 2))
    names = names_of(page, page.example.tokens)
    i = _most_apart(first, second)
    if min(leads(first)[i], leads(second)[i]) < CLEAR:
        return None
    ones, others = largest(first[i]), largest(second[i])
    matrices = ("raw", "scores", "weights", "output")
    return question(
        page,
        (*(f"head{h + 1}_{name}" for h in range(page.example.heads) for name in matrices), "joined", "layer_output"),
        (("head1_weights", i, ones[0]), ("head2_weights", i, others[0])),
        (page.text("yes"), page.text("no")),
        [0 if set(ones) & set(others) else 1],
        asks={"tokens": page.example.tokens[i]},
        why={
            "first": shown(first[i, ones[0]]),
            "names": ", ".join(names[place] for place in ones),
            "second": shown(second[i, others[0]]),
            "names2": ", ".join(names[place] for place in others),
        },
    )
