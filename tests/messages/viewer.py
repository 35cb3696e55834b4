"""Requests of a page, and calls of uwaga.view, that are refused."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tiny_transformer import tiny

import uwaga
from uwaga import AttentionMap
from uwaga._base.languages import tr_n, using
from uwaga.inspect import Edits, PatchGrid
from uwaga.viewer.messages import Reply
from uwaga.viewer.page.snapshot import make_snapshot
from uwaga.viewer.server.server import ServedView
from uwaga.viewer.service import ViewService
from uwaga.viewer.shown import Maps, Question, Text, View
from uwaga.viewer.texts import RunRequest, TextRunner

WORDS = ["[CLS]", "un", "##seen", "the", "cat", "sat", "on", "the", "mat", ".", "[SEP]"]
HEAD = {"side": "0", "kind": "encoder", "layer": 0, "head": 0, "merge": "tokens", "specials": "show"}
TILE = {"request": "tile", **HEAD, "pooling": "sum", "level": 0, "row": 0, "column": 0}
GRID = PatchGrid(rows=5, columns=7, special=("[CLS]", "[REG 0]"))
OFF = {"kind": "encoder", "layer": 0, "head": 0, "value": 0.0}


def maps(tokens: int, heads: int = 3) -> dict[tuple[str, int], AttentionMap]:
    x = torch.ones(1, heads, tokens, 8)
    return {("encoder", layer): AttentionMap(x, x) for layer in (0, 1)}


SERVICE = ViewService(View.of(Maps(maps(11), tokens=WORDS)))
MANY = ViewService(View.of({("encoder", 1): AttentionMap(*[torch.ones(1, 9, 1).expand(2**21, 9, 1)] * 2)}))
BOTH = ViewService(View.of(maps(6), maps(6)))
LESSON = ViewService(View())


def asked(request: object = None, service: ViewService = SERVICE, **rest: object) -> Reply:
    return service.answer({"request": request, **rest})


def row(**changes: object) -> Reply:
    return asked("row", **{**HEAD, "query": 0} | changes)


def nested(depth: int) -> list[object]:
    return [nested(depth - 1)] if depth else []


def view(shown: Any, beside: Any = None, **options: Any) -> object:
    return uwaga.view(shown, beside, browser=False, block=False, **options)


def pictured(**changes: Any) -> object:
    return view(Maps(maps(37), **{"picture": np.zeros((4, 4))} | changes))


def opened_at(head: str, pick: str | None = None) -> object:
    with view(maps(4)) as opened:
        return opened.open_at(head, pick)


def photo(folder: Path) -> Path:
    Image.new("RGB", (2, 2)).save(folder / "photo.png")
    return folder / "photo.png"


def run(bert: TextRunner, **changes: object) -> Reply:
    """A text that a page asks the model to read."""
    service = ViewService(bert.run(RunRequest("the cat")), runner=bert)
    return service.answer({"request": "run", "text": "the", "second": None, "target": None, "edits": None} | changes)


def edited(bert: TextRunner, **edits: object) -> object:
    return bert.run(RunRequest("the", edits=Edits.from_dict(edits)))


@cache
def bard() -> TextRunner:
    return TextRunner(Text("", model=uwaga.models.open("bard", dtype="float32")))


@cache
def speller() -> TextRunner:
    return TextRunner(Text("", model=uwaga.models.open("speller", dtype="float32")))


@cache
def read_by_bard() -> ViewService:
    return ViewService(bard().run(RunRequest("To be")), runner=bard())


def why(**changes: object) -> Reply:
    link = {"kind": "decoder", "layer": 1, "head": 0, "query": 3, "key": 2, "than": None}
    request = {"request": "why", "side": "0", "merge": "tokens", "specials": "show", **link}
    return read_by_bard().answer(request | changes)


def predictions(**changes: object) -> Reply:
    return read_by_bard().answer({"request": "predictions", "side": "0", "first": 0, "count": 1} | changes)


def closed() -> object:
    service = ViewService(View.of(maps(4)))
    service.close()
    return make_snapshot(service.answer)


def in_language(language: str) -> object:
    with using(language):
        return tr_n("{count} token", "{count} tokens", 1)
