"""Requests for the lesson that are refused, from the page and from Python."""

import math

import torch

from uwaga.viewer.lesson import work_through
from uwaga.viewer.messages import Reply
from uwaga.viewer.service import ViewService
from uwaga.viewer.shown import View

ROW = [1.0, 0.0, 0.0, 0.0]
SERVICE = ViewService(View())


def asked(arguments: dict[str, object]) -> Reply:
    return SERVICE.answer({"request": "lesson", **arguments})


CALLS = {
    "lesson: the nearest key": lambda: asked({"token": ["a"]}),
    "lesson: language that is a list": lambda: asked({"language": []}),
    "lesson: language that is an object": lambda: asked({"language": {"en": 1}}),
    "lesson: no language": lambda: asked({"language": None}),
    "lesson: nested lists": lambda: asked({"x": [[[[]] * 9] * 9] * 9}),
    "lesson: settings that are a list": lambda: asked({"settings": []}),
    "lesson: unknown setting": lambda: asked({"settings": {"head": 2}}),
    "lesson: tokens that are a string": lambda: asked({"tokens": "a b"}),
    "lesson: text that is a number": lambda: asked({"text": 7}),
    "lesson: text too long": lambda: asked({"text": "a" * 781}),
    "lesson: text of spaces": lambda: asked({"text": " \u3000\n"}),
    "lesson: text of 13 words": lambda: asked({"text": "a b c d e f g h i j k l."}),
    "lesson: text with a long word": lambda: asked({"text": "a" * 65}),
    "lesson: text with a lone surrogate": lambda: asked({"text": "a \ud83d"}),
    "lesson: text and fewer rows": lambda: asked({"text": "a pen", "x": [ROW]}),
    "lesson: text, tokens and more rows": lambda: asked({"text": "a pen", "tokens": ["a"], "x": [ROW, ROW]}),
    "lesson: no tokens": lambda: asked({"tokens": []}),
    "lesson: 13 tokens": lambda: asked({"tokens": ["a"] * 13}),
    "lesson: an empty token": lambda: asked({"tokens": ["a", ""]}),
    "lesson: a token that is a number": lambda: asked({"tokens": [7]}),
    "lesson: a token too long": lambda: asked({"tokens": ["a" * 65]}),
    "lesson: a token that is a lone surrogate": lambda: asked({"tokens": ["\ud83d"]}),
    "lesson: x that is a number": lambda: asked({"x": 3}),
    "lesson: x of one row": lambda: asked({"x": [ROW]}),
    "lesson: x of more rows than tokens": lambda: asked({"tokens": ["a"], "x": [ROW, ROW]}),
    "lesson: x of rows of different widths": lambda: asked({"tokens": ["a", "b"], "x": [[1.0], [1.0, 2.0]]}),
    "lesson: x without columns": lambda: asked({"tokens": ["a"], "x": [[]]}),
    "lesson: x of nine columns": lambda: asked({"tokens": ["a"], "x": [[0.0] * 9]}),
    "lesson: x with a string": lambda: asked({"tokens": ["a"], "x": [["1"]]}),
    "lesson: x with a bool": lambda: asked({"tokens": ["a"], "x": [[True]]}),
    "lesson: x with NaN": lambda: asked({"tokens": ["a"], "x": [[math.nan]]}),
    "lesson: x with infinity": lambda: asked({"tokens": ["a"], "x": [[math.inf]]}),
    "lesson: x with a number too small": lambda: asked({"tokens": ["a"], "x": [[-1000.5]]}),
    "lesson: x with an integer of 5001 digits": lambda: asked({"tokens": ["a"], "x": [[10**5000]]}),
    "lesson: wv of one row": lambda: asked({"settings": {"wv": [ROW]}}),
    "lesson: wq with a row missing": lambda: asked({"settings": {"wq": [ROW, None, ROW, ROW]}}),
    "lesson: wk of one column": lambda: asked({"settings": {"wk": [[1.0]] * 4}}),
    "lesson: wo of one column": lambda: asked({"settings": {"wo": [[1.0]] * 3}}),
    "lesson: five heads": lambda: asked({"settings": {"heads": 5}}),
    "lesson: heads that are a bool": lambda: asked({"settings": {"heads": True}}),
    "lesson: wo of one head": lambda: asked({"settings": {"heads": 2, "wo": [ROW] * 4}}),
    "lesson: scaled that is a number": lambda: asked({"settings": {"scaled": 1}}),
    "lesson: window below 0": lambda: asked({"settings": {"window": -1}}),
    "lesson: length past the words": lambda: asked({"settings": {"length": 6}}),
    "lesson: length that is a float": lambda: asked({"settings": {"length": 1.0}}),
    "lesson: no sharpness": lambda: asked({"settings": {"sharpness": None}}),
    "lesson: payload of one row": lambda: asked({"settings": {"payload": [[1.0]]}}),
    "lesson: no sentences": lambda: asked({"settings": {"sentences": []}}),
    "lesson: an empty sentence": lambda: asked({"settings": {"sentences": [["a"], []]}}),
    "lesson: a sentence of 13 marks": lambda: asked({"settings": {"sentences": ["a", "!" * 13]}}),
    "lesson: limit 0": lambda: asked({"settings": {"limit": 0}}),
    "lesson: order with a repeat": lambda: asked({"settings": {"order": [0, 1, 2, 3, 3]}}),
    "lesson: order with a string": lambda: asked({"settings": {"order": [0, 1, 2, 3, "4"]}}),
    "lesson: seed of 32 bits": lambda: asked({"settings": {"seed": 2**31}}),
    "work_through: unknown language": lambda: work_through("a", language="de"),
    "work_through: words twice": lambda: work_through("a b", tokens="c d"),
    "work_through: a vector": lambda: work_through(torch.zeros(3)),
    "work_through: an empty list": lambda: work_through([]),
    "work_through: wq of rows of different widths": lambda: work_through("a", wq=[[1.0], [2.0, 3.0]]),
    "work_through: unknown argument": lambda: work_through("a", head=2),
    "work_through: no text": lambda: work_through(""),
    "work_through: fewer rows than words": lambda: work_through(torch.zeros(2, 2), tokens="a, b"),
}  # fmt: skip
