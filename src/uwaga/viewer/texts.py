"""Runs the texts that are typed into a page, and those that it opens with: their maps, and what the model predicts of them.

Letters: T tokens, M model width, V vocabulary.
"""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from uwaga._base.errors import CheckpointError
from uwaga.encode import sentence_config
from uwaga.encode.inference import pool
from uwaga.inspect.edits import Edits
from uwaga.inspect.heads.coreference import coreference_heads
from uwaga.inspect.heads.table import HeadTable
from uwaga.inspect.run_text import Reading, RecordError, Report, read_again, reporting_errors, run_text
from uwaga.models.transformer import Transformer
from uwaga.ops.ragged import Ragged
from uwaga.viewer.predictions import Predictions
from uwaga.viewer.shown import Maps, ScoreSource, Side, Text, View

if TYPE_CHECKING:
    from uwaga.models.model import Model

MAX_TOKENS = 50_000  # of each text, if the model takes more: a few seconds a layer, after which a run can be stopped
_MAX_VALUES_BYTES = 2 << 30  # of a text that is read again with values: 100,000 tokens of copyist take 0.3 GB

EXAMPLES = {
    "minilm": (
        "The animal didn't cross the street because it was too tired.",
        "The dog didn't drink the water because it was too tired.",
        "Freedom is freedom only where everyone's freedom is the same.",
        "The trophy doesn't fit into the suitcase because it is too small.",
    ),
    "bard": ("ROMEO:\nWhat light is", "To be, or not to", "KING:\nMy lord, I"),
    "copyist": (
        "seven green birds sing at dawn ; the old clock stopped ; seven green birds sing",
        "Mr and Mrs Dursley of Privet Drive were proud . Mr and Mrs Durs",
    ),
    "speller": ("attention", "transformer", "onomatopoeia"),
}
_OTHERS = EXAMPLES["minilm"]
# A word of an example, and another that changes what the pronoun means.
PAIRS = ((_OTHERS[0], "tired", "wide"), (_OTHERS[1], "tired", "cold"), (_OTHERS[3], "small", "big"))
_MOST_PARAMETERS = 200_000_000  # of a model whose heads are tried on other sentences


def first_line(text: str) -> str:
    """Return the first line of a text as it was given: a tokenizer may lower its case."""
    line = " ".join(text.strip().partition("\n")[0].split())
    return line if len(line) <= 60 else f"{line[:59]}…"


class RunRequest(NamedTuple):
    """What a page, or who opens it, asks to run.

    text: the text.
    second: another, which is shown next to it.
    target: what the decoder of an encoder-decoder reads; None: it generates.
    edits: changes of the model: the text is shown as it is, and next to it as it is with the changes.
    long: how a text is read that is too long for the model: "first", as many of its tokens as fit; None: not at all.
    """

    text: str
    second: str | None = None
    target: str | None = None
    edits: Edits | None = None
    long: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the request as a page sends it."""
        values = self._asdict() | {"edits": None if self.edits is None else self.edits.to_dict()}
        return {name: value for name, value in values.items() if name != "long" or value is not None}


@dataclass(frozen=True)
class TextRunner:
    """Runs texts through the model of a view, or through two models side by side, one call at a time.

    Attributes:
        first: how texts are read; its model is an opened one.
        second: how the second text is read, or the first one where there is no second; None: as the first.
    """

    first: Text
    second: Text | None = None
    _tables: dict[str, HeadTable] = field(default_factory=dict, repr=False)  # by the name of the model
    _lock: Lock = field(default_factory=Lock, repr=False)

    @property
    def reader(self) -> "Model":
        """Return the model."""
        return cast("Model", self.first.model)

    def about(self) -> dict[str, Any]:
        """Return what a page needs to offer a text box, as JSON; see `service.about`."""
        # A saved page holds the command: it must not tell where the directories of this machine are.
        readers = [self.reader, *([] if self.second is None else [cast("Model", self.second.model)])]
        models = [reader.title if Path(reader.name).is_dir() else reader.name for reader in readers]
        options = " ".join(
            f"--{option} {shlex.quote(name)}" for option, name in zip(("model", "second-model"), models, strict=False)
        )
        in_memory = not all(reader.name for reader in readers)
        return {
            "boxes": ["text", "second", *(["target"] if self.reader.config.has_both else [])],
            "examples": list(EXAMPLES.get(self.reader.name, _OTHERS)),
            "pairs": [list(pair) for pair in PAIRS],
            "model": self.reader.title,
            "command": "uwaga.view(text, model=uwaga.models.open(model, tokenizer=tokenizer))"
            if in_memory
            else f"uwaga view TEXT {options}",
            "max_tokens": min(self.reader.config.max_tokens or MAX_TOKENS, MAX_TOKENS),
            "editable": self.second is None,
        }

    def run(
        self, request: RunRequest, report: Report = lambda fraction: None, *, max_tokens: int | None = MAX_TOKENS
    ) -> View:
        """Read the texts.

        Args:
            request: the texts.
            report: called with the completed fraction after each layer; what it raises ends the run.
            max_tokens: of each text, beside what the model takes; None: no limit.

        Raises:
            Exception: from `report`.
            RecordError: a text that the model cannot read, or edits that do not fit it.
        """
        edits, first = request.edits, self.first
        total = 2 if edits or request.second is not None or self.second is not None else 1
        readers: list[Model] = []
        readings: list[Reading] = []
        maps: list[Maps] = []

        def read(
            by: Text, text: str, title: str, target: str | Sequence[int] | None, edits: Edits | None = None
        ) -> None:
            done = len(readings)
            readers.append(cast("Model", by.model))
            reading = run_text(
                readers[-1],
                text,
                target=target,
                new_tokens=by.new_tokens,
                layers=by.layers,
                edits=edits,
                truncate=by.truncate or request.long == "first",
                max_tokens=max_tokens,
                report=lambda fraction: report((done + fraction) / total),
            )
            readings.append(reading)
            maps.append(Maps(reading.recording, title=title, model=reading.recording.model))

        read(first, request.text, first_line(request.text), request.target)
        if edits:
            # What it generated is read again, so that the tokens are the same.
            written = readings[0].written
            target = request.target if written is None else written
            read(first, request.text, "with the changes", target, edits)
        elif total == 2:
            text, by = request.text if request.second is None else request.second, self.second or first
            read(by, text, first_line(text), request.target if cast("Model", by.model).config.has_both else None)
        with reporting_errors():
            shown = View.of(*maps)
        sides: list[Side] = []
        predictions: dict[str, Predictions] = {}
        vectors: list[NDArray[np.float32]] = []
        for side, reader, reading in zip(shown.sides, readers, readings, strict=True):
            if not (edits and sides):
                side = replace(side, coreference=self._coreference_of(reader), scores=_scores_of(reader, reading))
            if (vector := _vector(reader, reading)) is not None:
                vectors.append(vector)
            if (predicted := Predictions.of(reader, reading)) is not None:
                predictions[str(len(sides))] = predicted
            sides.append(side)
        is_comparable = len(vectors) == 2 and vectors[0].shape == vectors[1].shape
        return replace(
            shown,
            sides=tuple(sides),
            predictions=predictions,
            vectors=vectors if is_comparable else (),
            python=edits.as_python() if edits else "",
        )

    def _coreference_of(self, reader: "Model") -> Callable[[], HeadTable] | None:
        """What 80 short sentences tell of the heads of an encoder; None for a model that would take long over them, and for decoders,
        whose pronouns do not see the words after them."""
        if reader.continues:
            return None
        if sum(parameter.numel() for parameter in reader.parameters()) > _MOST_PARAMETERS:
            return None

        def heads() -> HeadTable:
            with self._lock:
                if reader.name not in self._tables:
                    try:
                        self._tables[reader.name] = coreference_heads(reader)
                    except RecordError:  # a model of few tokens, or a tokenizer that does not know English letters
                        self._tables[reader.name] = HeadTable(columns={})
                return self._tables[reader.name]

        return heads


def _scores_of(reader: "Model", reading: Reading) -> ScoreSource:
    """Return what splits scores: it reads the text again, with values."""
    return ScoreSource(
        reader, lambda report: read_again(reader, reading.recording, max_bytes=_MAX_VALUES_BYTES, report=report)
    )


def _vector(reader: "Model", reading: Reading) -> NDArray[np.float32] | None:
    """Return the text's vector of length 1, pooled as its directory says; None if it has none."""
    if not isinstance(reader, Transformer) or reader.directory is None or reader.encoder is None or reader.predicts:
        return None
    try:
        config = sentence_config.read(reader.directory)
    except CheckpointError:
        return None
    if any(module.kind not in ("Normalize", "Dropout") for module in config.head):
        return None
    vector = pool(Ragged.from_list([reading.states]), config.pooling)[0]
    return (vector / vector.norm().clamp_min(1e-12)).numpy().astype(np.float32)
