"""`uwaga demo`: the operation, first on five tokens step by step, then on a batch of documents."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_HEADS, _WIDTH, _DOCUMENTS, _MEDIAN = 12, 64, 24, 96


def demo(seconds: Annotated[float, typer.Option(help="How long to time the documents.")] = 4.0) -> None:
    """Show attention at work: five tokens step by step, then a batch of documents beside padding."""
    from rich.console import Console

    console = Console()
    _five_tokens(console)
    _documents(console, seconds)


def _five_tokens(console: "Console") -> None:
    from rich.columns import Columns

    from uwaga.cli.tables import table
    from uwaga.viewer.lesson import work_through

    worked = work_through()
    tokens, matrices = worked.request["tokens"], worked.matrices

    def show(*names: str) -> None:
        console.print(Columns([table(matrices[name], tokens, 0) for name in names], padding=(0, 2)))

    console.rule(f"[bold]1. {' '.join(tokens)}")
    console.print("Five tokens X, four numbers each. A score is the dot product of two tokens: how similar they are.")
    show("x", "crude_scores")
    console.print("The simplest form averages the vectors with these scores as weights, without softmax.")
    console.print("  [bold]attention(X, X, X, scale=1.0, normalize=None)")
    show("crude")
    console.print("With queries, keys and values of their own, and softmax, each row of weights sums to 1.")
    console.print("  [bold]attention(q, k, v)")
    show("weights", "output")
    console.print("Strictly past: a token attends only to those before it, and the first attends to none.")
    console.print("  [bold]attention(q, k, v, mask=Causal(include_self=False))")
    show("past_weights", "past_output")
    console.print("[bold]uwaga lesson[/] goes through it step by step, on numbers that can be changed.\n")


def _documents(console: "Console", seconds: float) -> None:
    import torch

    import uwaga
    from uwaga.cli import cases
    from uwaga.cli.timing import compare

    lengths = cases.document_lengths(_DOCUMENTS, _MEDIAN)
    console.rule("[bold]2. A batch of documents")
    console.print(
        f"{len(lengths)} documents of {min(lengths)} to {max(lengths)} tokens, spread as real ones are, "
        f"{_HEADS} heads of width {_WIDTH}, float32. One square per 10 tokens:"
    )
    for length in sorted(lengths, reverse=True)[:: max(1, len(lengths) // 8)]:
        words, padding = max(1, length // 10), (max(lengths) - length) // 10
        console.print(f"  [green]{'■' * words}[/][dim]{'·' * padding}[/] {length}")
    console.print(f"Padded to the longest, [bold red]{cases.wasted(lengths):.0%}[/] of the work is padding.\n")

    case = cases.ragged(lengths, _HEADS, _WIDTH, torch.float32)
    with console.status("timing, in turn"):
        case.check()
        measured = compare(case.sides, seconds=seconds)
    console.print(_timings(*(measured.seconds(side) for side in (cases.OURS, "alone", cases.THEIRS))))
    packed = uwaga.Ragged.from_list([torch.randn(length, _HEADS, _WIDTH) for length in lengths])
    choice = uwaga.explain(packed, packed, packed)
    console.print(
        f"[bold]uwaga.explain[/] says which engine computed it: engine [bold]{choice.engine}[/], {choice.reason}."
    )
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
