"""Batches: the work that padding wastes, and packed batches without it.

Letters: R sentences, T tokens of the longest of them, N packed tokens, M width of a token's vector.
"""

import torch

from uwaga._base.languages import integer, percent, significant
from uwaga.lessons.compute import layer_of
from uwaga.lessons.document import LessonStep, Section, difference_shade
from uwaga.lessons.example import vector
from uwaga.lessons.matrix import Matrix, by_columns, cell, made, rule
from uwaga.lessons.page import Page
from uwaga.lessons.question import question, ranges
from uwaga.ops.masks import KeyLengths
from uwaga.ops.ragged import Ragged

_LONG = (512, 2048, 8192, 32_768, 100_000)


def batches(page: Page) -> LessonStep:
    sentences, width = page.example.sentences, page.example.x_NM.shape[1]
    names = [f"{place + 1}: {' '.join(sentence)}" for place, sentence in enumerate(sentences)]
    lengths = [len(sentence) for sentence in sentences]
    longest = max(lengths)
    bits_RT = torch.tensor([[float(place < length) for place in range(longest)] for length in lengths])
    columns = [str(place + 1) for place in range(longest)]
    is_word = page.stated("is_word")
    places = page.matrix("places", made(bits_RT, names, columns, is_word, shade="bits", digits=0))
    work, whole = _work(page, names, lengths)
    packed, padded, apart = _both_ways(page)
    wasted, furthest = float(whole.numbers[0, -1]), float(apart.numbers.abs().max())
    choices, right = ranges(page, wasted, 0.25, 0.5, percent)
    return page.step(
        page.section("longest", places, controls=("sentences",)),
        page.section(
            "pairs_of", work, whole, findings=(page.finding("wasted_of", [(whole.id, 0, 4)], wasted=f"{wasted:.0%}"),)
        ),
        page.section(
            "same_results",
            packed,
            padded,
            apart,
            folded=True,
            findings=(page.finding("furthest", [(apart.id, 0, 0)], furthest=significant(furthest, 1)),),
        ),
        _limit(page, names, lengths),
        _growth(page),
        pictures=(
            page.picture(
                "layers",
                "sizes",
                places,
                values={"b": len(sentences), "n": longest, "d": width},
                description=page.text("pale"),
                sizes=((longest, width),),
            ),
        ),
        question=question(
            page,
            ("work", "work_total"),
            (("work_total", 0, 4),),
            choices,
            right,
            why={"wasted": percent(wasted)},
            ordered=True,
        ),
        code="layer(uwaga.Ragged.from_list(sentences)); layer(padded, mask=uwaga.KeyLengths(lengths))",
    )


def _work(page: Page, names: list[str], lengths: list[int]) -> tuple[Matrix, Matrix]:
    """Return the pairs of a query and a key, of each sentence and of all."""
    columns = page.texts("columns_of_work")
    lengths_R, longest, count = torch.tensor(lengths).float(), max(lengths), len(lengths)
    longest_R = torch.full_like(lengths_R, longest)
    numbers = (lengths_R, longest_R, lengths_R**2, longest_R**2, 1 - lengths_R**2 / longest_R**2)
    rules = (
        rule("total", cell("places", "i", "m"), over=longest),
        # The padded length is the longest sentence's.
        rule("copy", cell("work", lengths.index(longest), 0)),
        rule("product", cell("work", "i", 0), cell("work", "i", 0)),
        rule("product", cell("work", "i", 1), cell("work", "i", 1)),
        rule("rest", cell("work", "i", 2), cell("work", "i", 3)),
    )
    note = page.text("one_sentence") if count == 1 else ""
    work = made(torch.stack(numbers, dim=-1), names, columns, by_columns(rules), shade="none")
    needed, computed = sum(length * length for length in lengths), count * longest * longest
    sums = torch.tensor([[sum(lengths), count * longest, needed, computed, 1 - needed / computed]])
    totals = [rule("total", cell("work", "m", column), over=count) for column in range(4)]
    rest = rule("rest", cell("work_total", 0, 2), cell("work_total", 0, 3))
    whole = made(sums, (page.text("all"),), columns, by_columns((*totals, rest)), shade="none")
    return page.matrix("work", work, note=note), page.matrix("work_total", whole)


def _both_ways(page: Page) -> tuple[Matrix, Matrix, Matrix]:
    """Return the layer's output for the packed batch, for the padded batch, and the difference."""
    example = page.example
    layer, width = layer_of(example, example.heads), example.x_NM.shape[1]
    batch = Ragged.from_list(
        [torch.tensor([vector(word, width) for word in sentence]) for sentence in example.sentences]
    )
    packed = layer(batch)
    padded_RTM = layer(batch.to_padded(), mask=KeyLengths(batch.lengths))
    assert isinstance(packed, Ragged)
    rows = [f"{r + 1}: {word}" for r, sentence in enumerate(example.sentences) for word in sentence]
    numbers = {"packed": packed.values, "padded": Ragged.from_padded(padded_RTM, batch.lengths).values}
    both = [
        page.matrix(id, made(numbers_NM, rows, example.width_names, page.stated("by_layer")))
        for id, numbers_NM in numbers.items()
    ]
    apart = both[0] - both[1]
    shade = difference_shade(apart.numbers, packed.values)
    return both[0], both[1], page.matrix("packed_apart", apart.styled(shade=shade))


def _limit(page: Page, names: list[str], lengths: list[int]) -> Section:
    """Return the section on tokens that a model with learned positions does not read."""
    limit = page.example.limit
    lengths_R = torch.tensor(lengths)
    kept_R = lengths_R.clamp(max=limit)
    rules = (
        rule("copy", cell("work", "i", 0)),
        page.stated("read_of", limit=limit),
        rule("minus", cell("cut", "i", 0), cell("cut", "i", 1)),
    )
    numbers = torch.stack((lengths_R, kept_R, lengths_R - kept_R), dim=-1).float()
    cut = made(numbers, names, page.texts("columns_of_cut"), by_columns(rules), shade="none", digits=0)
    lost = page.finding("lost", limit=limit, lost=int((lengths_R - kept_R).sum()), sum=sum(lengths))
    return page.section(
        "limit", page.matrix("cut", cut, limit=limit), values={"most": 1024}, controls=("limit",), findings=(lost,)
    )


def _growth(page: Page) -> Section:
    tokens = torch.tensor(_LONG, dtype=torch.float64)
    numbers = torch.stack((tokens, tokens**2, tokens**2 * 4 / 1e6), dim=-1).float()
    rules = (
        page.stated("compared"),
        rule("product", cell("growth", "i", 0), cell("growth", "i", 0)),
        rule("scaled", cell("growth", "i", 1), times=4e-6, say=page.text("bytes")),
    )
    rows = [integer(length) for length in _LONG]
    growth = made(numbers, rows, page.texts("columns_of_growth"), by_columns(rules), shade="none", digits=0)
    return page.section("cost", page.matrix("growth", growth), folded=True)
