"""What is shown: the maps of one text and model, or of two side by side, the tokens along their axes, and what the model predicts.

Letters: R rows of a batch, H query heads, Q queries, K keys, T tokens of one text.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch

from uwaga._base.arguments import check
from uwaga._base.errors import DataError
from uwaga.inspect.heads.table import HeadTable
from uwaga.inspect.patches import PatchGrid, grid_of_tokens, luminance
from uwaga.inspect.recordings.recording import Recording
from uwaga.inspect.run_text import NEW_TOKENS, RecordError, Report
from uwaga.maps.base import WeightMap
from uwaga.maps.map import AttentionMap
from uwaga.models.checkpoints.directories import BUNDLED
from uwaga.models.tokenizers.token_text import SourceText, TokenText, join_tokens, token_text
from uwaga.nn.attention_id import KINDS
from uwaga.store.texts import COSINE_SCALE, encoder_of
from uwaga.store.token_database import TokenDatabase

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from uwaga.store import SoftDatabase
    from uwaga.viewer.predictions import Predictions

MAX_PIXELS = 1 << 24  # of a picture, as a page gets them
_ANSWERS = 20  # passages of an answer that are listed
# The stacks whose tokens are the queries and the keys of a kind of map.
AXES = {"encoder": ("encoder", "encoder"), "decoder": ("decoder", "decoder"), "cross": ("decoder", "encoder")}

MapName = tuple[str, int]  # kind ("encoder", "decoder", "cross") and layer
MapsLike = Recording | WeightMap | Mapping[MapName, WeightMap] | Mapping[int, WeightMap] | Sequence[WeightMap]
Tokens = Sequence[str] | Mapping[str, Sequence[str]]
AnyModel = str | os.PathLike[str] | torch.nn.Module


@dataclass(frozen=True)
class Maps:
    """Maps, or a recording, as `uwaga.view` shows them, with what is known of them.

    Attributes:
        maps: a recording; one map; several by (kind, layer), by layer, or in the order of their layers. Each is (R, H, Q, K), (H, Q, K),
            (Q, K) or ragged.
        tokens: a string per token, which replace those of the recording; a dict with the keys "encoder" and "decoder" for maps of both stacks.
        row: the row of a batch that is shown.
        title: the title of this side; None: of a recording its model, of maps the beginning of the text.
        picture: what the model saw, as `uwaga.plots.patch_attention` takes it: each patch's weights are shown over it.
        grid: where the patches are among the tokens, as `uwaga.inspect.patch_grid` gives it for an encoder, or by "encoder" and "decoder", whose
            grid `uwaga.inspect.image_grids` gives; None: as the tokens are named.
        model: the name of the model, None for that of the recording; or the model itself of a recording that has values, which then says why its
            heads look there (`uwaga.inspect.score_attribution`). None: the model of `uwaga.view`.
    """

    maps: MapsLike
    _: KW_ONLY
    tokens: Tokens | None = None
    row: int = 0
    title: str | None = None
    picture: object = None
    grid: PatchGrid | Mapping[str, PatchGrid] | None = None
    model: AnyModel | None = None


@dataclass(frozen=True)
class Text:
    """A text, as `uwaga.view` shows it, and how a model reads it.

    Attributes:
        text: what the model reads, or its encoder.
        target: what the decoder of an encoder-decoder reads; None: it generates.
        model: as of `uwaga.view`; None: the model of `uwaga.view`.
        new_tokens: the maximum number of tokens that an encoder-decoder generates without a target.
        truncate: shorten a text that exceeds the model's maximum.
        layers: record only these; None: all.
    """

    text: str
    _: KW_ONLY
    target: str | None = None
    model: AnyModel | None = None
    new_tokens: int = NEW_TOKENS
    truncate: bool = False
    layers: Sequence[int] | None = None


@dataclass(frozen=True)
class Question:
    """A question to a soft database, as `uwaga.view` shows it: how much attention each of its passages gets.

    Attributes:
        database: an open `uwaga.SoftDatabase`, with texts.
        text: the question.
        model: as `uwaga.store.encoder_of`; None: the model of `uwaga.view`, or that of the database.
    """

    database: "SoftDatabase | TokenDatabase"
    text: str
    _: KW_ONLY
    model: str | None = None


class ScoreSource(NamedTuple):
    """By what the scores of a side are split into what parts of the model contribute (`uwaga.inspect.score_attribution`).

    model: that has made its maps.
    recorded: gives a recording of it with values, which may take as long as its text took to read; it reports the completed fraction to
        a function, whose exceptions end it.
    row: of the recording.
    """

    model: torch.nn.Module
    recorded: Callable[[Report], Recording]
    row: int = 0


@dataclass(frozen=True, kw_only=True)
class Side:
    """The maps of one text in one model.

    maps: by kind and layer, each (H, Q, K) or (Q, K).
    sizes: tokens per stack, "encoder" and "decoder".
    tokens: a string per token, by stack; the tokens of a stack that is missing are shown as numbers.
    sources: what was written, by stack, where it is known.
    coreference: computes which of the model's heads follow what a pronoun means, as `uwaga.inspect.coreference_heads` describes them; it is
        asked again and again. None where nothing is known of the model.
    scores: by what scores are split; None without a model, or where it was changed.
    """

    title: str
    model: str
    maps: Mapping[MapName, WeightMap]
    sizes: Mapping[str, int]
    tokens: Mapping[str, Sequence[str]]
    sources: Mapping[str, SourceText] = field(default_factory=dict)
    coreference: Callable[[], HeadTable] | None = None
    scores: ScoreSource | None = None
    _token_text: dict[str, TokenText] = field(default_factory=dict, repr=False)

    @property
    def stacks(self) -> list[str]:
        """Return the stacks that its maps have."""
        return [stack for stack in ("encoder", "decoder") if stack in self.sizes]

    @property
    def writes(self) -> bool:
        """Return whether a decoder with cross-attention writes a token after each that it reads."""
        return {"decoder", "cross"} <= {kind for kind, _ in self.maps}

    def token_text(self, stack: str) -> TokenText:
        """Return the tokens of a stack as text to display."""
        if stack not in self._token_text:
            names = self.tokens.get(stack)
            strings = list(map(str, range(self.sizes[stack]))) if names is None else names
            self._token_text[stack] = token_text(strings, self.sources.get(stack))
        return self._token_text[stack]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a page shows: one side; two, which are compared; or none, for a page with the lesson alone.

    answer: what a page about a question to a database opens with, as JSON.
    pixels: (height, width), grey: the picture that a model saw.
    grids: where its patches are, by stack: of the encoder that saw it, or of a decoder that has a token for each patch.
    predictions: by side, "0" or "1"; no entry if the model predicts no tokens.
    vectors: of two sides, each of unit length, by which they are compared; empty if the models have none.
    python: the line of Python that makes the changes of the second side; "" without changes.
    """

    sides: tuple[Side, ...] = ()
    title: str = "lesson"
    answer: Mapping[str, Any] | None = None
    pixels: "NDArray[np.uint8] | None" = None
    grids: Mapping[str, PatchGrid] = field(default_factory=dict)
    predictions: "Mapping[str, Predictions]" = field(default_factory=dict)
    vectors: "Sequence[NDArray[np.float32]]" = ()
    python: str = ""

    @classmethod
    def of(cls, shown: Maps | MapsLike, beside: Maps | MapsLike | None = None) -> "View":
        """Return a view of maps, or of two to compare.

        Raises:
            ValueError: no maps; maps of different texts; a row out of range; a number of tokens that differs from the maps'; a model itself of
                maps that are no recording; a picture with a second side, or one whose patches are not known.
        """
        maps = [side if isinstance(side, Maps) else Maps(side) for side in (shown, beside) if side is not None]
        sides = tuple(map(_side, maps))
        first = maps[0]
        if len(sides) == 1 and first.title is None and isinstance(first.maps, Recording) and sides[0].model:
            title = sides[0].model
        else:
            title = " | ".join(dict.fromkeys(side.title for side in sides))
        result = cls(sides=sides, title=title)
        if all(side.picture is None for side in maps):
            has_grid = any(side.grid is not None for side in maps)
            check(not has_grid, "view: grid says where the patches of picture are: give picture too")
            return result
        check(len(sides) == 1, "view: a picture goes with one recording, not two: leave out the second")
        grids = _grids(sides[0], first.grid)
        pixels = np.rint(255 * luminance(first.picture, "view")).astype(np.uint8)
        rule = f"view: picture has {pixels.size:,} pixels; at most {MAX_PIXELS:,} are shown"
        check(pixels.size <= MAX_PIXELS, rule)
        return replace(result, pixels=pixels, grids=grids)

    @classmethod
    def of_question(cls, asked: Question) -> "View":
        """Return the attention of a question over all passages of a database, which are the keys.

        Raises DataError: there are no passages, or the database has vectors of tokens; otherwise as `encoder_of` and `SoftDatabase.map`.
        """
        db, question = asked.database, asked.text
        if isinstance(db, TokenDatabase):
            raise DataError(
                f"{db.path}: holds vectors of tokens, whose scores are no attention over its passages; uwaga store ask gives the passages, "
                "and the token that each token of the question found"
            )
        if not len(db):
            raise DataError(f"{db.path}: has no passages yet; uwaga store add adds them")
        vector = encoder_of(db, asked.model).encode([question], overflow="mean")
        records = list(db.records(db.ids().tolist()))
        passages = [str(record.get("text", "")) for record in records]
        made = (db.model or "").rpartition("@")[0]
        m = db.map(torch.from_numpy(vector), scale=COSINE_SCALE)
        side = _side(
            Maps(
                {("cross", 0): m},
                tokens={"encoder": passages, "decoder": [question]},
                title=question,
                model=BUNDLED[made].title if made in BUNDLED else _model_name(made),
            )
        )
        # Whole passages, with an empty line between them.
        ends = accumulate(len(passage) + 2 for passage in passages)
        places = [(end - 2 - len(passage), end - 2) for passage, end in zip(passages, ends, strict=True)]
        written = {
            "encoder": SourceText("\n\n".join(passages), places),
            "decoder": SourceText(question, [(0, len(question))]),
        }
        weights, positions = (cast("Tensor", column) for column in m.topk(min(_ANSWERS, len(records))))
        passages_shown = [
            {"key": key, "share": share, "text": passages[key], "origin": _origin(records[key])}
            for share, key in zip(weights.flatten().tolist(), positions.flatten().tolist(), strict=True)
        ]
        others = len(records) - len(passages_shown)
        unlisted = max(0.0, 1.0 - sum(cast(float, passage["share"]) for passage in passages_shown)) if others else 0.0
        answer = {"question": question, "passages": passages_shown, "others": others, "unlisted": unlisted}
        return cls(sides=(replace(side, sources=written),), title=question, answer=answer)

    def titled(self, title: str | None) -> "View":
        """Return the view with another title, also of its side if it has one; None: as it is."""
        if title is None:
            return self
        sides = tuple(replace(side, title=title) for side in self.sides) if len(self.sides) == 1 else self.sides
        return replace(self, title=title, sides=sides)


def _grids(side: Side, grid_of: PatchGrid | Mapping[str, PatchGrid] | None) -> dict[str, PatchGrid]:
    """Return where a picture's patches are, by stack. Raises ValueError: none, or too many."""
    if grid_of is None:
        named = {stack: grid_of_tokens(side.tokens.get(stack, ())) for stack in side.stacks}
        grids = {stack: grid for stack, grid in named.items() if grid is not None}
        check(grids, "view: the tokens are not named as patches: give grid=uwaga.inspect.patch_grid(...)")
    else:
        grids = {side.stacks[0]: grid_of} if isinstance(grid_of, PatchGrid) else dict(grid_of)
    for stack, grid in grids.items():
        check(stack in side.sizes, f"view: grid has an unknown stack {stack!r}; the maps have {', '.join(side.sizes)}")
        has_map = stack in {kind for kind, _ in side.maps}
        check(has_map, f"view: grid is of the {stack}, of which there is no map but cross-attention")
        rule = f"{grid.rows} by {grid.columns} patches from position {grid.first} on"
        tokens = side.sizes[stack]
        check(grid.span[1] <= tokens, f"view: grid has {rule}, and the {stack} has {tokens} tokens")
    return grids


def _origin(record: Mapping[str, Any]) -> str:
    """Return the name of the file and of the document, without the folder of this machine."""
    names = [Path(str(record["source"])).name] if "source" in record else []
    return " ".join([*names, *([str(record["document"])] if "document" in record else [])])


def _side(shown: Maps) -> Side:
    by_name = _by_name(shown.maps)
    names_in_order = sorted(by_name, key=lambda name: (KINDS.index(name[0]), name[1]))
    maps = {name: _select_row(by_name[name], name, shown.row) for name in names_in_order}
    check(maps, "view: there are no maps to show")
    sizes = _sizes(maps)
    names = _token_strings(shown, sizes)
    recording = shown.maps if isinstance(shown.maps, Recording) else None
    written = {} if recording is None or shown.tokens is not None else recording.written
    sources = {
        stack: SourceText(*rows[shown.row])
        for stack, rows in written.items()
        if shown.row < len(rows) and len(rows[shown.row][1]) == sizes.get(stack)
    }
    model, scores = "", None
    if isinstance(shown.model, str | os.PathLike):
        model = os.fspath(shown.model)
    elif shown.model is not None:
        if recording is None:
            raise ValueError("view: model is a model, which reads a text; maps are given, with the name of a model")
        scores = ScoreSource(shown.model, lambda _: _with_values(recording), shown.row)
    if not model and recording is not None:
        model = _model_name(recording.model)
    side = Side(title="", model=model, maps=maps, sizes=sizes, tokens=names, sources=sources, scores=scores)
    return replace(side, title=_title(side) if shown.title is None else shown.title)


def _with_values(recording: Recording) -> Recording:
    """Return the recording, with its values: what else the model had read is not known."""
    if not recording.values:
        raise RecordError("the recording has no values: record it with uwaga.watch(model, values=True)")
    return recording


def _by_name(maps: MapsLike) -> dict[MapName, WeightMap]:
    if isinstance(maps, Recording):
        return dict(maps.maps)
    if isinstance(maps, WeightMap):
        maps = [maps]
    if not isinstance(maps, Mapping) and not (isinstance(maps, Sequence) and not isinstance(maps, str)):
        raise ValueError(f"view: maps must be a recording, a map, or several maps, not {type(maps).__name__}")
    by_name = maps if isinstance(maps, Mapping) else dict(enumerate(maps))
    results: dict[MapName, WeightMap] = {}
    for name, m in by_name.items():
        if not isinstance(m, WeightMap):
            raise ValueError(f"view: maps[{name!r}] must be a map such as uwaga.AttentionMap, not {type(m).__name__}")
        key = (_guess_kind(m), name) if isinstance(name, int) else name
        is_name = isinstance(key, tuple) and len(key) == 2 and key[0] in KINDS and isinstance(key[1], int)
        check(is_name, f"view: the keys of maps are layers or (kind, layer), such as ('encoder', 0), not {name!r}")
        results[key] = m
    return results


def _guess_kind(m: WeightMap) -> str:
    """Return the kind of a map that was given without one."""
    shape = m.shapes[0]
    if shape[-2] != shape[-1]:
        return "cross"
    return "decoder" if "Causal(" in m.describe() else "encoder"


def _select_row(m: WeightMap, name: MapName, row: int) -> WeightMap:
    """Return the map (H, Q, K) of one row of a batch."""
    parts = m.parts()
    rows = m.shape[0] if parts is not None or len(m.shape) > 3 else 1
    if len(m.shape) > 4 or not 0 <= row < rows:
        raise ValueError(f"view: row {row} is out of range: {' '.join(map(str, name))} has shape {m.shape}")
    if parts is not None:
        return parts[row]
    if len(m.shape) < 4:
        return m
    if isinstance(m, AttentionMap):
        return m.select(row)
    raise ValueError(f"view: a {m.kind} must have shape (H, Q, K) or (Q, K), not {m.shape}")


def _sizes(maps: Mapping[MapName, WeightMap]) -> dict[str, int]:
    """Return the tokens per stack."""
    results: dict[str, int] = {}
    for (kind, layer), m in maps.items():
        for stack, size in zip(AXES[kind], m.shape[-2:], strict=True):
            if results.setdefault(stack, size) != size:
                rule = f"{kind} {layer} has {size} {stack} tokens, another map {results[stack]}"
                raise ValueError(f"view: the maps are of different texts: {rule}")
    return results


def _token_strings(shown: Maps, sizes: Mapping[str, int]) -> dict[str, list[str]]:
    """Return the token strings, by stack, as far as they are known."""
    tokens = shown.tokens
    if tokens is None:
        recorded: Mapping[str, Any] = shown.maps.tokens if isinstance(shown.maps, Recording) else {}
        strings = {stack: rows[shown.row] for stack, rows in recorded.items() if stack in sizes}
    elif isinstance(tokens, Mapping):
        strings = {stack: list(names) for stack, names in tokens.items()}
    elif len(sizes) == 1:
        strings = {next(iter(sizes)): list(tokens)}
    else:
        raise ValueError('view: the maps have two stacks: give tokens as {"encoder": ..., "decoder": ...}')
    for stack, names in strings.items():
        check(stack in sizes, f"view: tokens has an unknown stack {stack!r}; the maps have {', '.join(sizes)}")
        size = sizes[stack]
        check(len(names) == size, f"view: tokens has {len(names)} strings, but the {stack} has {size} tokens")
    return {stack: [str(name) for name in names] for stack, names in strings.items()}


def _model_name(recorded: str) -> str:
    """Return the name of a recording's model, without its directory, which no page may tell."""
    path = Path(recorded)
    return path.name if path.is_absolute() else recorded


def _title(side: Side) -> str:
    """Return the beginning of the text."""
    tokens = side.token_text(side.stacks[0])
    words = [at for at, is_special in enumerate(tokens.special) if not is_special]
    text = join_tokens(tokens, words[0], min(words[-1] + 1, words[0] + 40)) if words else ""
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:59] + "…"
