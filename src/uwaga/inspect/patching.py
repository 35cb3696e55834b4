"""Activation patching: find the heads and positions that carry the difference between two texts.

Letters: B batch, H query heads, Q tokens, E value width, L layers, P positions or spans of these.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any, Literal

import torch
from torch import Tensor, nn

from uwaga._base.arguments import check, integer
from uwaga._base.options import Count, ListOf, Real, options, read
from uwaga.inspect.editing import edit
from uwaga.inspect.edits import Patch
from uwaga.inspect.heads.activations import activations
from uwaga.inspect.recordings.passes import heads_of
from uwaga.ops.ragged import Ragged

Span = int | Sequence[int]  # one position, or several that are patched together
_SETTINGS = ("kind", "layers", "heads", "spans", "clean", "corrupted")  # the fields of a result except its values


@options
class _DescribedResult:
    kind: Literal["encoder", "decoder", "cross"]
    layers: ListOf[Count]
    heads: ListOf[Count] | None
    spans: ListOf[ListOf[Count]] | None
    clean: Real
    corrupted: Real
    values: ListOf[ListOf[ListOf[Real | None]]]


@dataclass(slots=True, kw_only=True, eq=False)
class PatchingResult:
    """Hold the metric of the corrupted text with one activation at a time from the clean text.

    Values are NaN until they are computed. `activation_patching(..., resume=result)` goes on where it stopped.
    """

    kind: str
    layers: list[int]
    heads: list[int] | None  # None: all heads of a layer together
    spans: list[list[int]] | None  # None: all positions together
    clean: float  # the metric of the clean text
    corrupted: float
    values: Tensor  # (L, H or 1, P or 1) float64

    @property
    def is_complete(self) -> bool:
        return not bool(self.values.isnan().any())

    def effects(self) -> Tensor:
        """Return effects (L, H or 1, P or 1): 0 if a patch changed nothing, 1 if it restored the clean metric, NaN if unknown.

        Raises:
            ValueError: the metrics of both texts are equal, so that there is nothing to restore.
        """
        check(
            self.clean != self.corrupted,
            f"PatchingResult: the metric of both texts is {self.clean}: there is nothing to restore",
        )
        return (self.values - self.corrupted) / (self.clean - self.corrupted)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that json can write and `from_dict` reads."""
        values = [[[None if x != x else x for x in row] for row in rows] for rows in self.values.tolist()]
        return {name: getattr(self, name) for name in _SETTINGS} | {"values": values}

    @staticmethod
    def from_dict(described: object) -> "PatchingResult":
        """Read a result that `to_dict` made. Raises ValueError: a description of another form."""
        table = read(_DescribedResult, described, path="PatchingResult", noun="dict")
        values = [[[nan if x is None else x for x in row] for row in rows] for rows in table.values]
        result = _new_result(table.kind, table.layers, table.heads, table.spans, table.clean, table.corrupted)
        layers, heads, spans = result.values.shape
        if len(values) != layers or any([len(row) for row in rows] != [spans] * heads for rows in values):
            raise ValueError(f"PatchingResult: values must be lists of the shape {(layers, heads, spans)}")
        result.values[:] = torch.tensor(values, dtype=torch.float64).reshape(result.values.shape)
        return result

    def __repr__(self) -> str:
        done = int((~self.values.isnan()).sum())
        return f"PatchingResult({self.kind}, {tuple(self.values.shape)}, {done} of {self.values.numel()} patched)"


@torch.no_grad()
def activation_patching(
    model: nn.Module,
    clean: Mapping[str, Any] | Tensor | Ragged,
    corrupted: Mapping[str, Any] | Tensor | Ragged,
    metric: Callable[[Any], Tensor | float],
    *,
    kind: str,
    heads: bool | Collection[int] = True,
    positions: Iterable[Span] | None = None,
    layers: Collection[int] | None = None,
    progress: Callable[[int, int], None] | None = None,
    resume: PatchingResult | None = None,
    limit: int | None = None,
) -> PatchingResult:
    """Patch each head, or layer, of a corrupted text with its output in the clean text.

    Each run patches one head or layer, at one position or at all (Meng et al. 2022; Wang et al. 2022; Heimersheim and
    Nanda, "How to Use and Interpret Activation Patching", 2024).

    The heads' outputs of the clean text are kept, L tensors (B, H, Q, E); no run keeps more than a forward pass does.

    Args:
        model: of this package or of transformers, in evaluation mode.
        clean, corrupted: the arguments of the model, as a dict or as ids; texts of the same lengths.
        metric: a function from the model's output to a number, such as the difference of two logits.
        kind: "encoder", "decoder" or "cross".
        heads: True patches every head by itself, False all heads of a layer together; or a list of heads.
        positions: positions of queries, or lists of positions, that are patched one at a time; None: all positions together.
        layers: the patched layers; None for all.
        progress: called as progress(done, total) after every run.
        resume: an earlier result; its runs are not repeated, and it is completed in place and returned.
        limit: the most runs; None: all.

    Raises:
        ValueError: texts of different shapes; a metric that is not finite; a `resume` of other patches or metrics; unknown layers,
            heads and positions, as in `uwaga.edit` and `uwaga.watch`.
    """
    check(
        not model.training,
        "activation_patching: the model is in training mode, where runs may differ; call model.eval()",
    )
    with activations(model, kinds=[kind], layers=layers) as kept:
        clean_value = _number(metric(_run(model, clean)), "clean")
    outputs = {layer: kept[kind, layer].output for _, layer in sorted(kept)}
    corrupted_value = _number(metric(_run(model, corrupted)), "corrupted")
    count = heads_of(next(iter(outputs.values())))
    head_list = list(range(count)) if heads is True else None if heads is False else list(heads)
    spans = None if positions is None else [[span] if isinstance(span, int) else list(span) for span in positions]
    result = _new_result(kind, list(outputs), head_list, spans, clean_value, corrupted_value)
    if resume is not None:
        for name in _SETTINGS:
            before, now = getattr(resume, name), getattr(result, name)
            check(before == now, f"activation_patching: resume has {name} {before!r}, and this call {now!r}")
        result = resume
    todo = result.values.isnan().nonzero().tolist()
    total, done = result.values.numel(), result.values.numel() - len(todo)
    for n, h, p in todo[:limit]:
        layer, span = result.layers[n], None if spans is None else spans[p]
        patch = _patches(outputs[layer], kind, layer, None if head_list is None else head_list[h], span)
        with edit(model, patch=patch):
            result.values[n, h, p] = _number(metric(_run(model, corrupted)), "patched")
        done += 1
        if progress is not None:
            progress(done, total)
    return result


def _run(model: nn.Module, inputs: Mapping[str, Any] | Tensor | Ragged) -> Any:
    return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)


def _patches(
    output: Tensor | Ragged, kind: str, layer: int, head: int | None, span: list[int] | None
) -> dict[tuple[str, int, int | None], Patch]:
    """Return the patches of one run: of one head, or of all heads of a layer."""
    if isinstance(output, Ragged):
        raise ValueError("activation_patching: texts must be a padded batch of one length, not ragged")
    heads = range(output.shape[-3]) if head is None else (head,)
    for number in heads:
        integer(number, "activation_patching: a head", 0, output.shape[-3] - 1)
    for position in span or ():
        integer(position, "activation_patching: a position", 0, output.shape[-2] - 1)
    chosen = output if span is None else output[..., span, :]
    return {(kind, layer, h): Patch("output", chosen[..., h, :, :], span) for h in heads}


def _number(value: Tensor | float, name: str) -> float:
    if isinstance(value, Tensor) and value.numel() != 1:
        raise ValueError(f"activation_patching: the metric must be one number, not a tensor {tuple(value.shape)}")
    result = float(value)
    check(isfinite(result), f"activation_patching: the metric of the {name} run is {result}")
    return result


def _new_result(
    kind: str, layers: list[int], heads: list[int] | None, spans: list[list[int]] | None, clean: float, corrupted: float
) -> PatchingResult:
    shape = (len(layers), 1 if heads is None else len(heads), 1 if spans is None else len(spans))
    values = torch.full(shape, nan, dtype=torch.float64)
    return PatchingResult(
        kind=kind, layers=layers, heads=heads, spans=spans, clean=clean, corrupted=corrupted, values=values
    )  # fmt: skip
