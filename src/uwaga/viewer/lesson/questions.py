"""A question for each step, answered from the example's own numbers, to be guessed before the numbers are shown.

Letters: N tokens, M width of a token's vector, D width of queries and keys, E of values.
"""

import random
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from uwaga.viewer.lesson.document import Matrix, Question, Step, matrices, shown
from uwaga.viewer.lesson.example import START, Example

_Found = Mapping[str, Matrix]
_CLOSE = 1e-5  # numbers that differ by less, relative to the largest, are equal answers


def with_questions(example: Example, steps: Iterable[Step]) -> tuple[Step, ...]:
    """The steps, each with its question where the example allows one: a single token cannot be chosen among."""
    steps = tuple(steps)
    found = matrices(steps)
    return tuple(
        replace(step, question=question)
        if step.id in _QUESTIONS and (question := _QUESTIONS[step.id](example, found)) is not None
        else step
        for step in steps
    )


def _made(
    text: str,
    choices: Sequence[str],
    right: Iterable[int],
    why: str,
    covers: Sequence[str],
    cells: Sequence[tuple[str, int, int]] = (),
    *,
    ordered: bool = False,
) -> Question | None:
    """A question with its choices in an order that gives nothing away, or as they are where ordered; None where there is nothing to choose."""
    distinct = list(dict.fromkeys(choices))
    answers = {choices[place] for place in right}
    if len(distinct) < 2:
        return None
    if not ordered:
        random.Random(zlib.crc32("".join((text, *distinct)).encode("utf-8", "surrogatepass"))).shuffle(distinct)
    places = tuple(place for place, choice in enumerate(distinct) if choice in answers)
    return Question(text=text, choices=distinct, answers=places, why=why, covers=covers, cells=cells)


def _largest(row: Tensor) -> list[int]:
    """The places of the largest number and of those that equal it up to rounding."""
    most = float(row.max())
    slack = _CLOSE * max(1.0, abs(most))
    return [place for place, value in enumerate(row.tolist()) if value >= most - slack]


def _names(tokens: Sequence[str]) -> list[str]:
    """The tokens; with their place where a token is there twice."""
    return [
        f"“{token}”, token {place + 1}" if tokens.count(token) > 1 else f"“{token}”"
        for place, token in enumerate(tokens)
    ]


def _which_token(
    example: Example, matrix: Matrix, i: int, text: str, why: str, covers: Sequence[str]
) -> Question | None:
    """Which token has the largest number of row i; at most four to choose among, the largest and the smallest."""
    names, row = _names(example.tokens), matrix.numbers[i]
    order = sorted(range(len(names)), key=lambda place: -float(row[place]))
    some = order if len(order) <= 4 else [*order[:3], order[-1]]
    right = [some.index(place) for place in _largest(row) if place in some]
    j = order[0]
    return _made(
        text,
        [names[place] for place in some],
        right,
        f"{names[j]}: {shown(float(row[j]))}. {why}",
        covers,
        ((matrix.id, i, j),),
    )


def _bucket(value: float, low: float, high: float, shape: Callable[[float], str]) -> tuple[list[str], int]:
    choices = [f"under {shape(low)}", f"from {shape(low)} to {shape(high)}", f"over {shape(high)}"]
    return choices, 0 if value < low else 1 if value <= high else 2


def _crude(example: Example, found: _Found) -> Question | None:
    scores = found["crude_scores"]
    # A token that scores another higher than itself is the more surprising one.
    excess_NN = scores.numbers - scores.numbers.diagonal()[:, None]
    i = int(excess_NN.amax(-1).argmax())
    return _which_token(
        example,
        scores,
        i,
        f"With which token has “{example.tokens[i]}” the highest score?",
        "The score is the sum of the products of their numbers, so a long vector scores high with many.",
        ("crude_scores", "crude_sums", "crude", "crude_shuffled"),
    )


def _alike(example: Example, found: _Found) -> Question | None:
    n, m = example.x_NM.shape
    return _made(
        f"X has {n} rows and {m} columns. How many numbers has Xᵀ X?",
        [str(m * m), str(n * n), str(n * m)],
        [0],
        f"One for each pair of features: {m} · {m} = {m * m}. X Xᵀ has one for each pair of tokens: {n} · {n} = {n * n}.",
        ("feature_products",),
        (("feature_products", 0, 0),),
    )


def _vectors(example: Example, found: _Found) -> Question | None:
    first = example.tokens[0]
    return _made(
        f"If all numbers in the row of “{first}” in X double, what becomes of its query?",
        ("It doubles.", "It grows fourfold.", "It stays."),
        [0],
        "Each number of the query is a sum of the row's numbers, each times a weight: all of them double, and so does the sum.",
        ("q", "q_products"),
        (("q", 0, 0),),
    )


def _scores(example: Example, found: _Found) -> Question | None:
    scores = found["scores"]
    i = int(scores.numbers.amax(-1).argmax())
    return _which_token(
        example,
        scores,
        i,
        f"Which token's key fits the query of “{example.tokens[i]}” best?",
        "The score is the sum of the products of the query's and the key's numbers.",
        ("scores", "score_products", "score_sums", "x_form", "form_scores"),
    )


def _scale(example: Example, found: _Found) -> Question | None:
    scores, scaled = found["scores"].numbers, found["scaled"].numbers
    d = example.wq_MD.shape[1]
    i, j = divmod(int(scores.abs().argmax()), len(scores))
    value, after = float(scores[i, j]), float(scaled[i, j])
    by = f"divided by √{d}" if example.scaled else "not scaled"
    return _made(
        f"The score of “{example.tokens[i]}” with “{example.tokens[j]}” is {shown(value)}, and d_k is {d}. What is it after this step?",
        [shown(after), shown(value), shown(value / d), shown(value / d**0.5)],
        [0],
        f"It is {by}: {shown(after)}.",
        ("scaled",),
        (("scaled", i, j),),
    )


def _softmax(example: Example, found: _Found) -> Question | None:
    weights = found["weights"].numbers
    i = int(weights.amax(-1).argmax())
    j = int(weights[i].argmax())
    choices, right = _bucket(float(weights[i, j]), 0.4, 0.7, "{:.1f}".format)
    return _made(
        f"Of all shares, the largest is that of “{example.tokens[j]}” in the row of “{example.tokens[i]}”. How large is it?",
        choices,
        [right],
        f"It is {shown(float(weights[i, j]))}: its exponential, divided by the sum of its row's.",
        ("exponentials", "weights"),
        (("weights", i, j),),
        ordered=True,
    )


def _weighted(example: Example, found: _Found) -> Question | None:
    return _which_token(
        example,
        found["weights"],
        0,
        f"Whose value counts most in the output of “{example.tokens[0]}”?",
        "That of the token with the largest weight in its row.",
        ("weights", "weighted"),
    )


def _sum(example: Example, found: _Found) -> Question | None:
    return _made(
        "Compare one column of the output with the same column of V. Where do its numbers lie?",
        (
            "Between the smallest and the largest value.",
            "Some above the largest value.",
            "Some below the smallest value.",
        ),
        [0],
        "Each output is a mean of the values, weighted by shares that sum to 1: a mean lies among what it is the mean of.",
        ("output", "output_token"),
        (("output", 0, 0),),
    )


def _linear(example: Example, found: _Found) -> Question | None:
    counts = found["multiplications"].numbers[0].tolist()
    n = len(example.tokens)
    orders = ("(Q Kᵀ) V", "Q (Kᵀ V)", "Both need the same.")
    right = 2 if counts[1] == counts[2] else int(counts[2] < counts[1])
    return _made(
        f"Which order needs fewer multiplications for {n} token{'s' if n > 1 else ''}?",
        orders,
        [right],
        f"{counts[1]:,.0f} for {orders[0]} and {counts[2]:,.0f} for {orders[1]}. The more tokens, the more the second order saves.",
        ("multiplications",),
        (("multiplications", 0, 1), ("multiplications", 0, 2)),
    )


def _root(example: Example, found: _Found) -> Question | None:
    measured = found["saturation"].numbers
    last = len(measured) - 1
    choices, right = _bucket(float(measured[last, 3]), 0.2, 0.6, "{:.1f}".format)
    return _made(
        f"32 random keys, d_k = {measured[last, 0]:.0f}, scores not scaled: how large is the largest weight on average?",
        choices,
        [right],
        f"It is {shown(float(measured[last, 3]))}: the scores differ by tens, and exp makes almost all of that one of them.",
        ("saturation",),
        (("saturation", last, 3),),
        ordered=True,
    )


def _masks(example: Example, found: _Found) -> Question | None:
    return _made(
        f"Strictly past: “{example.tokens[0]}” has no token before it. What is its output?",
        ("Zeros.", "Its own value.", "The mean of all values."),
        [0],
        "It sees no key, so there is nothing to sum: zeros, and no division by zero.",
        ("past_weights", "past_output"),
        (("past_output", 0, 0),),
    )


def _database(example: Example, found: _Found) -> Question | None:
    weights, sharp = found["weights"].numbers, found["sharp_weights"].numbers
    i = int(weights.amax(-1).argmax())
    j = int(weights[i].argmax())
    before, after = float(weights[i, j]), float(sharp[i, j])
    right = 2 if abs(after - before) <= _CLOSE else int(after < before)
    return _made(
        f"All scores are multiplied by {shown(example.sharpness)}. What becomes of the largest weight of “{example.tokens[i]}”, now {shown(before)}?",
        ("It grows.", "It shrinks.", "It stays."),
        [right],
        f"It is {shown(after)} then.",
        ("sharp_scores", "sharp_weights", "sharp_output"),
        (("sharp_weights", i, j),),
    )


def _past(example: Example, found: _Found) -> Question | None:
    if len(example.tokens) == 1:
        return None
    first, second = example.tokens[:2]
    return _made(
        f"“{second}” asks its past, which is “{first}” alone. How much weight does “{first}” get?",
        ("1", "It depends on their score.", "0.5"),
        [0],
        "Softmax over a single score gives 1, whatever the score is.",
        ("own_weights", "own_keys", "own_payload"),
        (("own_weights", 1, 0),),
    )


def _learning(example: Example, found: _Found) -> Question | None:
    matrix = [each for name, each in found.items() if name.startswith("learn_weights_")][-1]
    i = len(example.tokens) - 1
    return _which_token(
        example,
        matrix,
        i,
        f"The task is to name the word before. {matrix.title.removeprefix('Weights ').capitalize()}, which token will “{example.tokens[i]}” look at most?",
        "Where it looks was never said; the gradient of the loss found it.",
        (matrix.id, "learn_progress"),
    )


def _heads(example: Example, found: _Found) -> Question | None:
    if example.heads < 2 or len(example.tokens) == 1:
        return None
    first, second = (found[f"head{h}_weights"].numbers for h in (1, 2))
    apart_N = (first - second).abs().amax(-1)
    i = int(apart_N.argmax())
    ones, others = _largest(first[i]), _largest(second[i])
    names = _names(example.tokens)
    same = bool(set(ones) & set(others))
    return _made(
        f"Do heads 1 and 2 give their largest weight of “{example.tokens[i]}” to the same token?",
        ("Yes.", "No."),
        [0 if same else 1],
        f"Head 1 gives {shown(float(first[i, ones[0]]))} to {names[ones[0]]}, head 2 {shown(float(second[i, others[0]]))} to {names[others[0]]}.",
        tuple(f"head{h + 1}_{name}" for h in range(example.heads) for name in ("raw", "scores", "weights", "output")),
        (("head1_weights", i, ones[0]), ("head2_weights", i, others[0])),
    )


def _batches(example: Example, found: _Found) -> Question | None:
    wasted = float(found["work_total"].numbers[0, 4])
    choices, right = _bucket(wasted, 0.25, 0.5, "{:.0%}".format)
    return _made(
        "How much of the work is wasted, if all sentences are padded to the longest?",
        choices,
        [right],
        f"{wasted:.0%}: pairs grow with the square of the length, so that padding costs more than its share of the tokens.",
        ("work", "work_total"),
        (("work_total", 0, 4),),
        ordered=True,
    )


def _positions(example: Example, found: _Found) -> Question | None:
    return _made(
        "The tokens are shuffled, and there are no position codes. What happens to the output of each token?",
        ("It stays.", "It changes.", "It becomes zeros."),
        [0],
        "Its weights go with the keys, wherever these are: the same numbers are summed in another order.",
        ("without_shuffled", "without_apart"),
        (("without_apart", 0, 0),),
    )


def _encoder(example: Example, found: _Found) -> Question | None:
    normed = next(name for name in found if name.startswith("block1_") and name.endswith("_norm"))
    return _made(
        "LayerNorm is applied to a row. What is the sum of its numbers then?",
        ("0", "1", "It depends on the row."),
        [0],
        "The mean is subtracted from each number, so that their sum is 0; the division only changes their size.",
        (normed,),
        ((normed, 0, 0),),
    )


def _stack(example: Example, found: _Found) -> Question | None:
    m = example.x_NM.shape[1]
    return _made(
        f"A token enters with {m} number{'s' if m > 1 else ''}. How many leave the second block?",
        (str(m), str(2 * m), str(4 * m)),
        [0],
        "Every block adds to the row that it gets, so that the row keeps its width.",
        ("block2_sum", "block2_ff", "block2_ff_sum"),
        (("block2_ff_sum", 0, 0),),
    )


def _decoder(example: Example, found: _Found) -> Question | None:
    t, n = len(example.written) + 1, len(example.tokens)
    rows = f"{t} rows, {n} columns"
    return _made(
        f"“{START}” and the words written are {t}, and the words read {n}. How large is a table of cross-attention's weights?",
        (rows, f"{n} rows, {t} columns", f"{t} rows, {t} columns", f"{n} rows, {n} columns"),
        [0],
        f"A row for each query, which comes from what is written, and a column for each key, which comes from what was read: {rows}.",
        tuple(f"decoder_cross_head{h + 1}_weights" for h in range(example.heads)),
        (("decoder_cross_head1_weights", 0, 0),),
    )


def _architecture(example: Example, found: _Found) -> Question | None:
    return _made(
        "GPT only continues texts. What does it leave out?",
        ("The encoder.", "The decoder.", "The causal mask."),
        [0],
        "What it reads and what it writes are one text, so the decoder's self-attention sees both.",
        ("models",),
        (("models", 0, 2),),
    )


def _length(example: Example, found: _Found) -> Question | None:
    return _made(
        "The sentence is written twice in a row, with the same keys. What becomes of the weight on each copy of a token?",
        ("It halves.", "It stays.", "It doubles."),
        [0],
        "Both copies have the same score, and all weights together still sum to 1.",
        ("twice_weights", "twice_output"),
        (("twice_weights", 0, 0),),
    )


_QUESTIONS: Mapping[str, Callable[[Example, _Found], Question | None]] = {
    "crude": _crude,
    "alike": _alike,
    "vectors": _vectors,
    "scores": _scores,
    "scale": _scale,
    "softmax": _softmax,
    "weighted": _weighted,
    "sum": _sum,
    "linear": _linear,
    "root": _root,
    "masks": _masks,
    "database": _database,
    "past": _past,
    "learning": _learning,
    "heads": _heads,
    "batches": _batches,
    "positions": _positions,
    "encoder": _encoder,
    "stack": _stack,
    "decoder": _decoder,
    "architecture": _architecture,
    "length": _length,
}
