"""Requests for the lesson are untrusted: what is computed from the largest numbers, and at which cost."""

import json
import math
from typing import Any

import pytest
from saved_pages import read_reply

from uwaga.lessons.example import parse_example, vector
from uwaga.viewer.service import ViewService
from uwaga.viewer.shown import View

ROW = [1.0, 0.0, 0.0, 0.0]
answer = ViewService(View()).answer


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_largest_numbers_stay_finite(norm: str) -> None:
    """Three matrix products in sequence of entries of 1000: the softmax has finite weights that sum to 1."""
    row = [1000.0] * 8
    weights = {name: [row] * 8 for name in ("wq", "wk", "wv", "wo", "w1", "w2")}
    reply = answer(
        {
            "request": "lesson",
            "tokens": ["a"] * 12,
            "x": [row] * 12,
            "settings": weights | {"sharpness": 1000.0, "norm": norm, "rate": 4.0, "steps": 240},
        }
    )
    hidden = {"repeats"}
    for name, facts in reply.meta["matrices"].items():
        if name not in hidden and facts["source"]["op"] != "masked":
            assert abs(reply.arrays[facts["array"]]).max() < math.inf, name
    assert reply.arrays[reply.meta["matrices"]["weights"]["array"]].sum(1) == pytest.approx(1)


def test_the_request_in_a_reply_gives_the_same_reply() -> None:
    x = [[0.1, 0.2, 0.3], None]
    for request in ({"tokens": ["x", "y"], "x": x}, {"text": "x: x", "tokens": ["x", "x"], "x": x}):
        assert_same_again({"request": "lesson", "settings": {"heads": 1}, **request})


def assert_same_again(request: dict[str, Any]) -> None:
    first = answer(request)
    again = answer(json.loads(json.dumps(first.meta["request"])))
    assert again.meta == first.meta
    assert again.to_bytes() == first.to_bytes()


def test_words_that_stay_keep_their_vectors() -> None:
    rows = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    request = {"request": "lesson", "tokens": ["a", "pen", "a"], "x": rows, "text": "the a pen a a"}
    question = parse_example(request).request()
    assert question["tokens"] == ["the", "a", "pen", "a", "a"]
    assert question["x"][1:] == [rows[0], rows[1], rows[2], rows[2]]
    assert question["x"][0] == list(vector("the", 2))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("this is a pen.", ["this", "is", "a", "pen", "."]),
        ("这是一支笔。", ["这", "是", "一", "支", "笔", "。"]),
        ("これはペンです。", ["こ", "れ", "は", "ペン", "で", "す", "。"]),
        ("هذا قلم!", ["هذا", "قلم", "!"]),
        ("to jest pióro, a nie 3,5\u00a0kredki", ["to", "jest", "pióro", ",", "a", "nie", "3,5", "kredki"]),
    ],
)
def test_a_text_is_split_as_unicode_says(text: str, words: list[str]) -> None:
    question = parse_example({"request": "lesson", "text": text, "settings": {"sentences": [text]}})
    assert (question.text, question.tokens, question.sentences) == (text, tuple(words), (tuple(words),))


def test_hostile_strings_are_returned_unchanged() -> None:
    tokens = ["<script>alert(1)</script>", '"><img onerror=alert(1)>', "\u202eevil", "a\x00\x1b[2J"]
    reply = read_reply(answer({"request": "lesson", "tokens": tokens}).to_bytes())
    assert reply.meta["matrices"]["weights"]["rows"] == tokens


def test_without_x_the_weights_determine_its_width() -> None:
    question = parse_example({"request": "lesson", "tokens": ["new"], "settings": {"wq": [[1.0, 2.0]] * 3}})
    assert question.x_NM.shape == (1, 3)


def test_the_largest_reply_is_small_and_fast_enough_for_every_keystroke() -> None:
    """The page sends a request after every keystroke; this is the largest example, with all settings."""
    row = [0.5] * 8
    question = {"request": "lesson", "tokens": ["word"] * 12, "x": [row] * 12}
    moments = 2 * 101 * (12 * 12 + 8 * 8) * 4  # float32 scores and weights, W_Q and W_K, of each recorded gradient step
    assert len(answer(question).to_bytes()) < 330_000 + moments
