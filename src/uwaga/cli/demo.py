"""`uwaga demo`: the operation, first on five tokens step by step, then on a batch of documents."""

from typing import TYPE_CHECKING, Annotated, cast

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table
    from torch import Tensor

    from uwaga import Ragged

_TOKENS = ("this", "is", "a", "pen", ".")
# Two widths that one can picture: the first for words that point, the second for things. Nothing is learned here.
_VECTORS = ((1.0, 0.5), (0.5, 0.0), (0.5, 1.0), (0.0, 2.0), (0.0, 0.0))
_WIDTHS = ("pointing", "thing")
_HEADS, _WIDTH, _DOCUMENTS, _MEDIAN = 12, 64, 24, 96


def demo(seconds: Annotated[float, typer.Option(help="How long to time the documents.")] = 4.0) -> None:
    """Show attention at work: five tokens step by step, then a batch of documents beside padding."""
    from rich.console import Console

    console = Console()
    _five_tokens(console)
    _documents(console, seconds)


def _five_tokens(console: "Console") -> None:
    import torch
    from rich.columns import Columns

    import uwaga

    x_ND = torch.tensor(_VECTORS)
    one_hot_NN = torch.eye(len(_TOKENS))  # as values they make the output show the weights
    crude = uwaga.attention(x_ND, x_ND, x_ND, scale=1.0, normalize=None)
    weights = uwaga.attention(x_ND, x_ND, one_hot_NN)
    past = uwaga.attention(x_ND, x_ND, one_hot_NN, mask=uwaga.Causal(include_self=False))

    console.rule("[bold]1. this is a pen .")
    console.print("Five tokens X, two numbers each. Every token asks every other: how alike are we?")
    console.print(Columns([_matrix("X", x_ND, _WIDTHS), _matrix("scores: X Xᵀ", x_ND @ x_ND.T, _TOKENS, heat=True)]))
    console.print("The crude form mixes the vectors by these scores; softmax first makes each row sum to 1.")
    console.print("  [bold]attention(X, X, X, scale=1.0, normalize=None)     attention(X, X, X)")
    console.print(Columns([_matrix("X Xᵀ X", crude, _WIDTHS), _matrix("weights", weights, _TOKENS, heat=True)]))
    console.print("Strictly past: a token asks those before it alone, and the first has nobody to ask.")
    console.print("  [bold]attention(X, X, X, mask=Causal(include_self=False))")
    console.print(_matrix("weights", past, _TOKENS, heat=True))


def _documents(console: "Console", seconds: float) -> None:
    import torch

    import uwaga
    from uwaga.cli import contests
    from uwaga.cli.timing import race

    lengths = contests.document_lengths(_DOCUMENTS, _MEDIAN)
    console.rule("[bold]2. A batch of documents")
    console.print(
        f"{len(lengths)} documents of {min(lengths)} to {max(lengths)} tokens, spread as real ones are, "
        f"{_HEADS} heads of width {_WIDTH}, float32. One square per 10 tokens:"
    )
    for length in sorted(lengths, reverse=True)[:: max(1, len(lengths) // 8)]:
        words, padding = max(1, length // 10), (max(lengths) - length) // 10
        console.print(f"  [green]{'■' * words}[/][dim]{'·' * padding}[/] {length}")
    console.print(f"Padded to the longest, [bold red]{contests.wasted(lengths):.0%}[/] of the work is for nothing.\n")

    contest = contests.ragged(lengths, _HEADS, _WIDTH, torch.float32)
    with console.status("timing, in turn"):
        contest.check()
        measured = race(contest.sides, seconds=seconds)
    console.print(_timings(*(measured.seconds(side) for side in (contests.OURS, "alone", contests.THEIRS))))
    packed = uwaga.Ragged.from_list([torch.randn(length, _HEADS, _WIDTH) for length in lengths])
    choice = uwaga.explain(packed, packed, packed)
    console.print(f"[bold]uwaga.explain[/] says who did it: engine [bold]{choice.engine}[/], {choice.reason}.")
    for engine, why in choice.refused.items():
        console.print(f"  not {engine}: {why}")


def _timings(ours: float, alone: float, padded: float) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(title="One pass over the batch, medians", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("how")
    table.add_column("ms", justify="right")
    table.add_column("times as long", justify="right")
    for how, took in (
        ("uwaga, ragged: one call", ours),
        ("uwaga, each document alone", alone),
        ("PyTorch, padded with a mask", padded),
    ):
        table.add_row(how, f"{took * 1e3:.1f}", f"{took / ours:.2f}x")
    return table


def _matrix(title: str, matrix: "Tensor | Ragged", columns: "Sequence[str]", *, heat: bool = False) -> "Table":
    """Rows are the five tokens. With `heat`, the larger a number the warmer its ground."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right", min_width=5)
    rows = cast("Tensor", matrix).tolist()
    largest = max(abs(number) for row in rows for number in row)
    for token, row in zip(_TOKENS, rows, strict=True):
        table.add_row(token, *(_cell(number, number / largest if heat else 0.0) for number in row))
    return table


def _cell(number: float, warmth: float) -> str:
    if warmth <= 0:
        return f"{number:.2f}"
    red, green, blue = (round(30 + warmth * (high - 30)) for high in (230, 120, 40))
    return f"[white on rgb({red},{green},{blue})]{number:.2f}[/]"
