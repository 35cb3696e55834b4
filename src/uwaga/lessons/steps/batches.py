"""Batches: the work that padding wastes, and packed batches without it.

Letters: R sentences, T tokens of the longest of them, N packed tokens, M width of a token's vector.
"""

from typing import Any

import torch
from torch import Tensor

from uwaga._base.languages import integer, significant, tr
from uwaga.lessons import provenance
from uwaga.lessons.compute import layer_of
from uwaga.lessons.document import Illustration, LessonFinding, LessonStep, Section, difference_shade
from uwaga.lessons.example import Example, vector
from uwaga.lessons.matrix import Matrix
from uwaga.lessons.provenance import cell
from uwaga.ops.masks import KeyLengths
from uwaga.ops.ragged import Ragged

_LONG = (512, 2048, 8192, 32_768, 100_000)


def step(example: Example) -> LessonStep:
    places, work, whole = _places(example), _work(example), _whole(example)
    packed, padded, apart = _both_ways(example)
    wasted, furthest = float(whole.numbers[0, -1]), float(apart.numbers.abs().max())
    return LessonStep(
        id="batches",
        title=tr("Batches: sentences of different lengths"),
        text=(
            tr(
                "Gradient descent does not take the mean of the loss over all texts of a corpus for one step, which would cost"
                " too much, nor that of one text, which varies too much, but over some at once: a mini-batch. They are computed"
                " together, as X of b × n × d."
            ),
            tr(
                "A rectangular tensor needs sentences of one length, so the short ones are padded; the padding is computed,"
                " hidden by a mask and discarded. Packed one after the other (Ragged), they need neither padding nor a mask."
            ),
        ),
        pictures=(
            Illustration(
                kind="layers",
                title=tr(
                    "X, {b} × {n} × {d}",
                    b=len(example.sentences),
                    n=len(places.columns),
                    d=example.x_NM.shape[1],
                ),
                description=tr("A layer for each sentence, a row for each token; pale rows are padding."),
                matrices=(places,),
                sizes=((len(places.columns), example.x_NM.shape[1]),),
            ),
        ),
        sections=(
            Section(
                title=tr("Padded to the longest"),
                matrices=(places,),
                controls=("sentences",),
            ),
            Section(
                title=tr("The work: pairs of a query and a key"),
                matrices=(work, whole),
                findings=(
                    LessonFinding(
                        text=tr("With padding, {wasted} of the computed pairs are wasted.", wasted=f"{wasted:.0%}"),
                        cells=[(whole.id, 0, 4)],
                    ),
                ),
            ),
            Section(
                title=tr("The same results, packed and padded"),
                matrices=(packed, padded, apart),
                folded=True,
                findings=(
                    LessonFinding(
                        text=tr("The largest difference is {furthest}.", furthest=significant(furthest, 1)),
                        cells=[(apart.id, 0, 0)],
                    ),
                ),
            ),
            _limit(example),
            _growth(),
        ),
        code="layer(uwaga.Ragged.from_list(sentences)); layer(padded, mask=uwaga.KeyLengths(lengths))",
    )


def _names(example: Example) -> list[str]:
    return [f"{place + 1}: {' '.join(sentence)}" for place, sentence in enumerate(example.sentences)]


def _lengths(example: Example) -> Tensor:
    return torch.tensor([len(sentence) for sentence in example.sentences])


def _places(example: Example) -> Matrix:
    lengths_R = _lengths(example)
    longest = int(lengths_R.max())
    rule = tr("1 for a word, 0 for padding")
    return Matrix(
        id="places",
        title=tr("Words and padding"),
        formula=rule,
        rows=_names(example),
        columns=[str(place + 1) for place in range(longest)],
        numbers=(torch.arange(longest) < lengths_R[:, None]).float(),
        source=provenance.given(rule),
        shade="bits",
        digits=0,
    )


def _work(example: Example) -> Matrix:
    lengths_R = _lengths(example).float()
    longest = lengths_R.max().expand_as(lengths_R)
    columns = (lengths_R, longest, lengths_R**2, longest**2, 1 - lengths_R**2 / longest**2)
    count = len(example.sentences)
    return Matrix(
        id="work",
        title=tr("Per sentence"),
        formula=tr("pairs = n²; wasted = 1 - pairs / padded pairs"),
        rows=_names(example),
        columns=(tr("tokens"), tr("padded"), tr("pairs"), tr("padded pairs"), tr("wasted")),
        numbers=torch.stack(columns, dim=-1),
        source=provenance.by_column(
            (
                provenance.total(cell("places", "i", "m"), int(longest[0])),
                # The padded length is that of the longest sentence.
                provenance.copy(cell("work", int(lengths_R.argmax()), 0)),
                provenance.product(cell("work", "i", 0), cell("work", "i", 0)),
                provenance.product(cell("work", "i", 1), cell("work", "i", 1)),
                provenance.rest(cell("work", "i", 2), cell("work", "i", 3)),
            )
        ),
        shade="none",
        note="" if count > 1 else tr("A single sentence needs no padding."),
    )


def _whole(example: Example) -> Matrix:
    lengths_R = _lengths(example).float()
    count, longest = len(lengths_R), float(lengths_R.max())
    needed, computed = float((lengths_R**2).sum()), count * longest**2
    numbers = torch.tensor([[float(lengths_R.sum()), count * longest, needed, computed, 1 - needed / computed]])
    sums = [provenance.total(cell("work", "m", column), count) for column in range(4)]
    return Matrix(
        id="work_total",
        title=tr("The whole batch"),
        formula=tr("sums; wasted = 1 - pairs / padded pairs"),
        rows=(tr("all"),),
        columns=(tr("tokens"), tr("padded"), tr("pairs"), tr("padded pairs"), tr("wasted")),
        numbers=numbers,
        source=provenance.by_column((*sums, provenance.rest(cell("work_total", 0, 2), cell("work_total", 0, 3)))),
        shade="none",
    )


def _both_ways(example: Example) -> tuple[Matrix, Matrix, Matrix]:
    """The layer's output for the packed batch, for the padded batch, and the difference."""
    layer, width = layer_of(example, example.heads), example.x_NM.shape[1]
    vectors = [torch.tensor([vector(word, width) for word in sentence]) for sentence in example.sentences]
    batch = Ragged.from_list(vectors)
    packed = layer(batch)
    padded_RTM = layer(batch.to_padded(), mask=KeyLengths(batch.lengths))
    assert isinstance(packed, Ragged)
    kept_NM = Ragged.from_padded(padded_RTM, batch.lengths).values
    rows = [f"{r + 1}: {word}" for r, sentence in enumerate(example.sentences) for word in sentence]
    shared: dict[str, Any] = {"rows": rows, "columns": example.width_names}
    say = tr(
        "The layer of the step “Heads” over the words' own vectors: the same calculation for each sentence by itself."
    )
    return (
        Matrix(
            id="packed",
            title=tr("Layer over the packed batch"),
            formula=tr("layer(Ragged)"),
            numbers=packed.values,
            source=provenance.given(say),
            **shared,
        ),
        Matrix(
            id="padded",
            title=tr("Layer over the padded batch"),
            formula=tr("layer(padded, mask=KeyLengths)"),
            numbers=kept_NM,
            source=provenance.given(say),
            **shared,
        ),
        Matrix(
            id="packed_apart",
            title=tr("Difference"),
            formula=tr("packed - padded"),
            numbers=packed.values - kept_NM,
            source=provenance.minus(cell("packed", "i", "j"), cell("padded", "i", "j")),
            shade=difference_shade(packed.values - kept_NM, packed.values),
            **shared,
        ),
    )


def _limit(example: Example) -> Section:
    lengths_R = _lengths(example)
    kept_R = lengths_R.clamp(max=example.limit)
    cut = Matrix(
        id="cut",
        title=tr("A model with a limit of {limit} tokens", limit=example.limit),
        formula=tr("read = the smaller of tokens and limit"),
        rows=_names(example),
        columns=(tr("tokens"), tr("read"), tr("lost")),
        numbers=torch.stack((lengths_R, kept_R, lengths_R - kept_R), dim=-1).float(),
        source=provenance.by_column(
            (
                provenance.copy(cell("work", "i", 0)),
                provenance.given(
                    tr("The number of tokens, or the limit of {limit} where there are more.", limit=example.limit)
                ),
                provenance.minus(cell("cut", "i", 0), cell("cut", "i", 1)),
            )
        ),
        shade="none",
        digits=0,
    )
    lost = int((lengths_R - kept_R).sum())
    text = tr(
        "Learned positions exist up to the length of training: BERT reads 512 tokens, GPT-2 {gpt2}. Longer texts are"
        " truncated, or read in windows. Sinusoidal positions have no limit, but the model was not trained on larger ones.",
        gpt2=1024,
    )
    finding = LessonFinding(
        text=tr(
            "With a limit of {limit}, the model does not read {lost} of {sum} tokens.",
            limit=example.limit,
            lost=lost,
            sum=int(lengths_R.sum()),
        )
    )
    return Section(
        title=tr("The length of a text"), text=(text,), matrices=(cut,), controls=("limit",), findings=(finding,)
    )


def _growth() -> Section:
    tokens = torch.tensor(_LONG, dtype=torch.float64)
    pairs, megabytes = tokens**2, tokens**2 * 4 / 1e6
    matrix = Matrix(
        id="growth",
        title=tr("Scores of one head, stored"),
        formula=tr("pairs = tokens²; MB = pairs · 4 bytes"),
        rows=[integer(n) for n in _LONG],
        columns=(tr("tokens"), tr("pairs"), "MB"),
        numbers=torch.stack((tokens, pairs, megabytes), dim=-1).float(),
        source=provenance.by_column(
            (
                provenance.given(tr("A length to compare.")),
                provenance.product(cell("growth", "i", 0), cell("growth", "i", 0)),
                provenance.scaled(cell("growth", "i", 1), 4e-6, tr("4 bytes, in millions")),
            )
        ),
        shade="none",
        digits=0,
    )
    text = tr(
        "Twice the length has four times the pairs. To store the weights of b sentences of length n₀ takes O(b n₀²) memory;"
        " the library uwaga computes all of them and stores none."
    )
    return Section(title=tr("The cost"), text=(text,), matrices=(matrix,), folded=True)
