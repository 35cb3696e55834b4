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
from uwaga.viewer.page.bundle import join
from uwaga.viewer.page.snapshot import exact_requests, make_snapshot, save_snapshot
from uwaga.viewer.server.server import Server
from uwaga.viewer.service import ViewService
from uwaga.viewer.shown import Maps, Question, Text, View
from uwaga.viewer.texts import RunRequest, TextRunner

WORDS = ["[CLS]", "un", "##seen", "the", "cat", "sat", "on", "the", "mat", ".", "[SEP]"]
HEAD = {"side": "0", "kind": "encoder", "layer": 0, "head": 0, "merge": "tokens", "specials": "show"}
TILE = {"request": "tile", **HEAD, "pooling": "sum", "level": 0, "row": 0, "column": 0}
GRID = PatchGrid(rows=5, columns=7, special=("[CLS]", "[REG 0]"))
# Statements that a module of the page may not have.
JAVASCRIPT = (
    *('import all from "./b.js";', 'import * as b from "./b.js";', 'import "./b.js";', 'import { a } from "d3";'),
    *("export default 1;", 'export { a } from "./b.js";', "export let a = 1;"),
)
OFF = {"kind": "encoder", "layer": 0, "head": 0, "value": 0.0}


def maps(tokens: int, heads: int = 3) -> dict[tuple[str, int], AttentionMap]:
    x = torch.ones(1, heads, tokens, 8)
    return {("encoder", layer): AttentionMap(x, x) for layer in (0, 1)}


SERVICE = ViewService(View.of(Maps(maps(11), tokens=WORDS)))
LONG = ViewService(View.of(maps(9000, 1)))
MANY = ViewService(View.of({("encoder", 1): AttentionMap(*[torch.ones(1, 9, 1).expand(2**21, 9, 1)] * 2)}))
BOTH = ViewService(View.of(maps(6), maps(6)))
LESSON = ViewService(View())


def asked(request: object = None, service: ViewService = SERVICE, **rest: object) -> Reply:
    return service.answer({"request": request, **rest})


def row(**changes: object) -> Reply:
    return asked("row", **{**HEAD, "query": 0} | changes)


def nested(depth: int) -> list[object]:
    return [nested(depth - 1)] if depth else []


def exact(folder: Path, *where: object) -> object:
    try:
        return save_snapshot(SERVICE, folder / "page.html", exact=[where])
    finally:
        assert not list(folder.iterdir())


def exact_of_many() -> object:
    about = {**SERVICE.answer({"request": "about"}).meta}
    about["sides"][0]["stacks"]["encoder"]["tokens"] = 5000
    return exact_requests(about, ("encoder", 0, 0))


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
    link = {"kind": "decoder", "layer": 1, "head": 0, "query": 3, "key": 2, "than": None, "by": "pairs"}
    request = {"request": "why", "side": "0", "merge": "tokens", "specials": "show", **link}
    return read_by_bard().answer(request | changes)


def predictions(**changes: object) -> Reply:
    return read_by_bard().answer({"request": "predictions", "side": "0", "first": 0, "count": 1} | changes)


def joined(folder: Path, **files: str) -> object:
    """Files of a front end, by their names without the dot."""
    for name, text in {"main_js": "const a = 1;\n", **files}.items():
        (folder / ".".join(name.rsplit("_", 1))).write_text(text)
    return join(folder)


def closed() -> object:
    service = ViewService(View.of(maps(4)))
    service.close()
    return make_snapshot(service.answer)


def in_language(language: str) -> object:
    with using(language):
        return tr_n("{count} token", "{count} tokens", 1)


CALLS = {
    "request: none": lambda: SERVICE.answer({}),
    "request: a number": lambda: asked(3),
    "request: unknown": lambda: asked("nothing"),
    "about: unknown key": lambda: asked("about", more=1),
    "about: a list in place of a run": lambda: asked("about", run=[]),
    "about: a bool in place of a run": lambda: asked("about", run=True),
    "about: an object in place of a run": lambda: asked("about", run={}),
    "about: a list with a number in place of a run": lambda: asked("about", run=[0]),
    "about: a string in place of a run": lambda: asked("about", run="0"),
    "about: a run that is not kept": lambda: asked("about", run=1),
    "stop: a string in place of a run": lambda: asked("stop", run="0"),
    "row: no query": lambda: asked("row", **HEAD),
    "row: a list in place of a kind": lambda: row(kind=[]),
    "row: unknown kind": lambda: row(kind="middle"),
    "row: an object in place of a side": lambda: row(side={}),
    "row: no such side": lambda: row(side="1"),
    "row: a difference of one side": lambda: row(side="difference"),
    "row: no such layer": lambda: row(layer=2),
    "row: no such head": lambda: row(head=3),
    "row: a query past the end": lambda: row(query=11),
    "row: a query before the first": lambda: row(query=-1),
    "row: a query that is a bool": lambda: row(query=True),
    "row: half a query": lambda: row(query=1.5),
    "row: no maps": lambda: asked("row", LESSON, **HEAD, query=0),
    "tile: a row past the end": lambda: SERVICE.answer(TILE | {"row": 1}),
    "tile: no such level": lambda: SERVICE.answer(TILE | {"level": 99}),
    "tile: unknown pooling": lambda: SERVICE.answer(TILE | {"pooling": "mean"}),
    "weights: a number in place of rows": lambda: asked("weights", **HEAD, rows=3, columns=[0, 1]),
    "weights: rows that fall": lambda: asked("weights", **HEAD, rows=[3, 2], columns=[0, 1]),
    "weights: too many": lambda: asked("weights", LONG, **HEAD, rows=[0, 9000], columns=[0, 9000]),
    "heads: no such token": lambda: asked("heads", side="0", kind="encoder", layer=1, axis="row", item=37),
    "heads: unknown axis": lambda: asked("heads", side="0", kind="encoder", layer=1, axis="both", item=0),
    "heads: no such layer": lambda: asked("heads", side="0", kind="encoder", layer=5, axis="row", item=0),
    "heads: too many": lambda: asked("heads", MANY, side="0", kind="encoder", layer=1, axis="row", item=0),
    "picture: none": lambda: asked("picture"),
    "labels: of a difference": lambda: asked("labels", BOTH, side="difference", kind="encoder", layer=0, merge="tokens", specials="show"),
    "items: the axis of cross-attention": lambda: asked("items", side="0", stack="written", merge="tokens", specials="show", first=0, count=9),
    "lesson: nested too deeply": lambda: asked("lesson", x=nested(100)),
    "lesson: unknown language": lambda: asked("lesson", language="de"),
    "page: a request that no page stores": lambda: asked("page", exact=[{"request": "about"}]),
    "page: a request without a query": lambda: asked("page", exact=[{"request": "row", **HEAD}]),
    "page: a list in place of a language": lambda: asked("page", exact=[], language=[]),
    "page: a string in place of exact": lambda: asked("page", exact="all of it, please, with everything that there is in the world"),
    "predictions: no such side": lambda: predictions(side="1"),
    "predictions: first past the end": lambda: predictions(first=5),
    "predictions: first below 0": lambda: predictions(first=-1),
    "predictions: no tokens": lambda: predictions(count=0),
    "predictions: too many tokens": lambda: predictions(count=257),
    "run: no text": lambda bert: run(bert, text=None),
    "run: a list in place of a text": lambda bert: run(bert, text=["a"]),
    "run: text too long": lambda bert: run(bert, text="x" * 60_001),
    "run: second text too long": lambda bert: run(bert, second="x" * 60_001),
    "run: a number in place of a second text": lambda bert: run(bert, second=7),
    "run: a bool in place of a target": lambda bert: run(bert, target=True),
    "run: edits that are a string": lambda bert: run(bert, edits="off"),
    "run: unknown edits": lambda bert: run(bert, edits={"patch": []}),
    "run: edits without a layer": lambda bert: run(bert, edits={"scores": [{"kind": []}]}),
    "run: an edit with an integer of 401 digits": lambda bert: run(bert, edits={"heads": [OFF | {"value": 10**400}]}),
    "run: an edit with a long string": lambda bert: run(bert, edits={"heads": [OFF | {"value": "x" * 60_000}]}),
    "run: edits and a second text": lambda bert: run(bert, edits={}, second="b"),
    "run: a model": lambda bert: run(bert, model="/etc/passwd"),
    "run: unknown way for a long text": lambda bert: run(bert, long="bard"),
    "run: no model": lambda: asked("run", text="abc", second=None, target=None, edits=None),
    "a text to run: empty": lambda bert: bert.run(RunRequest("")),
    "a text to run: a lone surrogate": lambda bert: bert.run(RunRequest("\ud800")),
    "a text to run: too long": lambda bert: bert.run(RunRequest("the cat " * 20)),
    "a text to run: longer than a page may": lambda: bard().run(RunRequest("x" * 20), max_tokens=10),
    "a text to run: longer than one is written from": lambda: speller().run(RunRequest("a" * 100_000), max_tokens=None),
    "a text to run: a target of an encoder": lambda bert: bert.run(RunRequest("the", target="cat")),
    "a text to run: an edit of no layer": lambda bert: edited(bert, heads=[OFF | {"layer": 9}]),
    "a text to run: an edit of no head": lambda bert: edited(bert, heads=[OFF | {"head": 9}]),
    "a text to run: an edit of no token": lambda bert: edited(bert, scores=[{"kind": "encoder", "layer": 0, "head": 0, "queries": [99], "keys": None}]),
    "why: a query past the end": lambda: why(query=5),
    "why: a query before the first": lambda: why(query=-1),
    "why: a key of 31 digits": lambda: why(key=10**30),
    "why: half a key": lambda: why(key=2.0),
    "why: a query that is a bool": lambda: why(query=True),
    "why: a list in place of a query": lambda: why(query=[1, 2]),
    "why: a string in place of another key": lambda: why(than="1"),
    "why: another key past the end": lambda: why(than=5),
    "why: than the key itself": lambda: why(than=2),
    "why: by something else": lambda: why(by="rows"),
    "why: no such layer": lambda: why(layer=9),
    "why: no such head": lambda: why(head=99),
    "why: no such side": lambda: why(side="1"),
    "why: unknown key": lambda: why(most=3),
    "why: a run that is not kept": lambda: why(run=7),
    "exact: no cross-attention": lambda folder: exact(folder, "cross", 0, 0),
    "exact: no such head": lambda folder: exact(folder, "encoder", 0, 3),
    "exact: queries past the end": lambda folder: exact(folder, "encoder", 0, 0, (0, 21), (0, 1)),
    "exact: no keys": lambda folder: exact(folder, "encoder", 0, 0, (0, 1), (5, 5)),
    "exact: no head": lambda folder: exact(folder, "encoder", 0),
    "exact: too many weights": exact_of_many,
    "view: no maps": lambda: view({}),
    "view: a number in place of maps": lambda: view(5),
    "view: a tensor in place of a map": lambda: view([torch.ones(3, 3)]),
    "view: an unknown kind of maps": lambda: view({("middle", 0): maps(4)["encoder", 0]}),
    "view: no such row of maps": lambda: view(Maps(maps(4), row=1)),
    "view: maps of different texts": lambda: view({("encoder", 0): maps(4)["encoder", 0], ("encoder", 1): maps(5)["encoder", 0]}),
    "view: tokens of one of two stacks": lambda: view(Maps({("cross", 0): AttentionMap(torch.ones(3, 5, 8), torch.ones(3, 4, 8))}, tokens=["a"])),
    "view: tokens of an unknown stack": lambda: view(Maps(maps(4), tokens={"decoder": ["a"]})),
    "view: fewer tokens than the maps have": lambda: view(Maps(maps(4), tokens=["a"])),
    "view: unknown language": lambda: view({}, language="de"),
    "view: empty text": lambda model: view("", model=model),
    "view: a lone surrogate": lambda model: view("the \ud800 cat", model=model),
    "view: text too long": lambda model: view("cat " * 10_000, model=model),
    "view: a target of an encoder": lambda model: view(Text("the cat", target="dog"), model=model),
    "view: empty second text": lambda model: view("the cat", "", model=model),
    "view: a model of maps": lambda: view(maps(4), model=torch.nn.Linear(2, 2)),
    "view: a number in place of a model": lambda: view("the cat", model=5),
    "view: a function in place of a model": lambda: view("the cat", model=maps),
    "view: a module that is no model": lambda: view("the cat", model=torch.nn.Linear(2, 2)),
    "view: a picture without a model": lambda folder: view(photo(folder)),
    "view: a grid of maps without a picture": lambda: pictured(picture=None, grid=GRID),
    "view: tokens that are no patches": lambda: pictured(tokens=list(map(str, range(37)))),
    "view: a grid of other patches": lambda: pictured(grid=PatchGrid(rows=5, columns=8)),
    "view: a grid of another stack": lambda: pictured(grid={"decoder": GRID}),
    "view: a picture of numbers above 1": lambda: pictured(grid=GRID, picture=np.full((3, 3), 2.0)),
    "view: a picture of too many pixels": lambda: pictured(grid=GRID, picture=np.zeros((4097, 4097), np.uint8)),
    "view: a picture beside a second recording": lambda: view(Maps(maps(37), picture=np.zeros((4, 4))), maps(37)),
    "view: a grid of cross-attention alone": lambda: view(Maps({("cross", 0): AttentionMap(torch.ones(3, 5, 8), torch.ones(3, 37, 8))}, picture=np.zeros((4, 4)), grid={"encoder": GRID})),
    "view: two targets": lambda model: view(Text("the cat", target="k"), Text("the dog", target="d"), model=model),
    "view: a module without a tokenizer": lambda: view("the cat", model=tiny("gpt2")),
    "view: a question beside a text": lambda: view("the cat", Question(None, "a question")),
    "view: a question to a model itself": lambda: view(Question(None, "a question"), model=torch.nn.Linear(2, 2)),
    "view: no such file": lambda: view(Path("novel.txt")),
    "view: a head with a comma": lambda: opened_at("3,1"),
    "view: no such head to open": lambda: opened_at("7.0"),
    "view: no such word to pick": lambda: opened_at("0.0", "dog"),
    "view: a page of a view that is closed": closed,
    "view: a port past the last": lambda: Server(SERVICE, title="a text", port=70000),
    **{f"front end: {line}": (lambda folder, line=line: joined(folder, main_js=f"const a = 1;\n{line}\n")) for line in JAVASCRIPT},
    "front end: the end of a script": lambda folder: joined(folder, main_js="// </script>\nconst a = '</script>'; // </script>\n"),
    "front end: the beginning of a comment": lambda folder: joined(folder, main_js='\nconst a = "<!--";\n'),
    "front end: no such module": lambda folder: joined(folder, main_js='import { a } from "./gone.js";\n'),
    "front end: a module outside": lambda folder: joined(folder, main_js='import { a } from "../up.js";\n'),
    "front end: no such export": lambda folder: joined(folder, main_js='import { a } from "./b.js";\n', b_js="const a = 1;\n"),
    "front end: a circle": lambda folder: joined(folder, main_js='import { b } from "./b.js";\n', b_js='\nimport { c } from "./c.js";\nexport const b = 1;\n', c_js='import { b } from "./b.js";\nexport const c = 1;\n'),
    "front end: an imported style sheet": lambda folder: joined(folder, a_css="\n@import 'b.css';"),
    "front end: an image of a style sheet": lambda folder: joined(folder, a_css=".uwaga { background: url(x.png); }"),
    "front end: the end of a style sheet": lambda folder: joined(folder, a_css="/* </style> */"),
    "languages: unknown": lambda: in_language("de"),
}  # fmt: skip
