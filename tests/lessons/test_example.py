"""Requests for the lesson are untrusted: the full message for each rule that is broken."""

import json
import math
from typing import Any

import pytest

from uwaga.lessons.example import vector
from uwaga.viewer.messages import Reply, RequestError
from uwaga.viewer.service import ViewService
from uwaga.viewer.view_model import ViewModel

ROW = [1.0, 0.0, 0.0, 0.0]
RANGE = "a number from -1,000 to 1,000"

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"token": ["a"]}, "there is no key token; the nearest is tokens"),
    ({"language": []}, "language must be one of en, pl, pt, ja, zh, not []"),
    ({"language": {"en": 1}}, "language must be one of en, pl, pt, ja, zh, not {'en': 1}"),
    ({"language": None}, "language must be one of en, pl, pt, ja, zh, not None"),
    ({"x": [[[[]] * 9] * 9] * 9}, "x must be a list of 5 rows, not 9 rows"),
    ({"settings": []}, "settings must be an object, not []"),
    ({"settings": {"head": 2}}, "unknown argument 'head'"),
    ({"tokens": "a b"}, "tokens must be a list of 1 to 12 words, not 'a b'"),
    ({"text": 7}, "text must be a text of at most 780 characters, not 7"),
    ({"text": "a" * 781}, f"text must be a text of at most 780 characters, not '{'a' * 56}..."),
    ({"text": " \u3000\n"}, "text must have 1 to 12 words and punctuation marks, not 0"),
    ({"text": "a b c d e f g h i j k l."}, "text must have 1 to 12 words and punctuation marks, not 13"),
    ({"text": "a" * 65}, f"text has a word of more than 64 characters: '{'a' * 56}..."),
    ({"text": "a \ud83d"}, "text has a lone surrogate, which is not a character"),
    ({"text": "a pen", "x": [ROW]}, "x must be a list of 2 rows, not 1 row"),
    ({"text": "a pen", "tokens": ["a"], "x": [ROW, ROW]}, "x must be a list of 1 row, not 2 rows"),
    ({"tokens": []}, "tokens must be a list of 1 to 12 words, not of 0"),
    ({"tokens": ["a"] * 13}, "tokens must be a list of 1 to 12 words, not of 13"),
    ({"tokens": ["a", ""]}, "tokens[1] must be a word of 1 to 64 characters, not ''"),
    ({"tokens": [7]}, "tokens[0] must be a word of 1 to 64 characters, not 7"),
    ({"tokens": ["a" * 65]}, f"tokens[0] must be a word of 1 to 64 characters, not '{'a' * 56}..."),
    ({"tokens": ["\ud83d"]}, "tokens[0] has a lone surrogate, which is not a character"),
    ({"x": 3}, "x must be a list of 5 rows, not 3"),
    ({"x": [ROW]}, "x must be a list of 5 rows, not 1 row"),
    ({"tokens": ["a"], "x": [ROW, ROW]}, "x must be a list of 1 row, not 2 rows"),
    ({"tokens": ["a", "b"], "x": [[1.0], [1.0, 2.0]]}, "x must have rows of equal width, not of 1 and 2"),
    ({"tokens": ["a"], "x": [[]]}, "x[0] must be a list of 1 to 8 numbers, not of 0"),
    ({"tokens": ["a"], "x": [[0.0] * 9]}, "x[0] must be a list of 1 to 8 numbers, not of 9"),
    ({"tokens": ["a"], "x": [["1"]]}, f"x[0][0] must be {RANGE}, not '1'"),
    ({"tokens": ["a"], "x": [[True]]}, f"x[0][0] must be {RANGE}, not True"),
    ({"tokens": ["a"], "x": [[math.nan]]}, f"x[0][0] must be {RANGE}, not nan"),
    ({"tokens": ["a"], "x": [[math.inf]]}, f"x[0][0] must be {RANGE}, not inf"),
    ({"tokens": ["a"], "x": [[-1000.5]]}, f"x[0][0] must be {RANGE}, not -1000.5"),
    ({"tokens": ["a"], "x": [[10**5000]]}, f"x[0][0] must be {RANGE}, not an integer of more than 20 digits"),
    ({"settings": {"wv": [ROW]}}, "wv must be a list of 4 rows, not 1 row"),
    ({"settings": {"wq": [ROW, None, ROW, ROW]}}, "wq[1] is missing"),
    ({"settings": {"wk": [[1.0]] * 4}}, "wk must have 2 columns, not 1"),
    ({"settings": {"wo": [[1.0]] * 3}}, "wo must have 4 columns, not 1"),
    ({"settings": {"heads": 5}}, "heads must be a whole number from 1 to 4, not 5"),
    ({"settings": {"heads": True}}, "heads must be a whole number from 1 to 4, not True"),
    (
        {"settings": {"heads": 2, "wo": [ROW] * 4}},
        "wo must be a list of 3 rows, not 4 rows",
    ),
    ({"settings": {"scaled": 1}}, "scaled must be true or false, not 1"),
    ({"settings": {"window": -1}}, "window must be a whole number from 0 to 12, not -1"),
    ({"settings": {"length": 6}}, "length must be a whole number from 0 to 5, not 6"),
    ({"settings": {"length": 1.0}}, "length must be a whole number from 0 to 5, not 1.0"),
    ({"settings": {"sharpness": None}}, f"sharpness must be {RANGE}, not None"),
    ({"settings": {"payload": [[1.0]]}}, "payload must be a list of 5 rows, not 1 row"),
    ({"settings": {"sentences": []}}, "sentences must be a list of 1 to 6 sentences, not []"),
    ({"settings": {"sentences": [["a"], []]}}, "sentences[1] must be a list of 1 to 12 words, not of 0"),
    (
        {"settings": {"sentences": ["a", "!" * 13]}},
        "sentences[1] must have 1 to 12 words and punctuation marks, not 13",
    ),
    ({"settings": {"limit": 0}}, "limit must be a whole number from 1 to 12, not 0"),
    ({"settings": {"order": [0, 1, 2, 3, 3]}}, "order must be a permutation of 0 to 4, not [0, 1, 2, 3, 3]"),
    ({"settings": {"order": [0, 1, 2, 3, "4"]}}, "order must be a permutation of 0 to 4, not [0, 1, 2, 3, '4']"),
    ({"settings": {"seed": 2**31}}, "seed must be a whole number from 0 to 2,147,483,647, not 2147483648"),
]

answer = ViewService(ViewModel.empty()).answer


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=[message[:50] for _, message in WRONG])
def test_an_invalid_request_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        answer({"request": "lesson", **arguments})
    assert str(caught.value) == f"lesson: {message}"


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
    question = answer(request).meta["request"]
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
    question = answer({"request": "lesson", "text": text, "settings": {"sentences": [text]}}).meta["request"]
    assert (question["text"], question["tokens"], question["settings"]["sentences"]) == (text, words, [words])


def test_hostile_strings_are_returned_unchanged() -> None:
    tokens = ["<script>alert(1)</script>", '"><img onerror=alert(1)>', "\u202eevil", "a\x00\x1b[2J"]
    reply = Reply.from_bytes(answer({"request": "lesson", "tokens": tokens}).to_bytes())
    assert reply.meta["matrices"]["weights"]["rows"] == tokens


def test_without_x_the_weights_determine_its_width() -> None:
    reply = answer({"request": "lesson", "tokens": ["new"], "settings": {"wq": [[1.0, 2.0]] * 3}})
    assert len(reply.meta["request"]["x"][0]) == 3


def test_the_view_service_passes_the_request_on() -> None:
    service = ViewService(ViewModel.empty())
    assert service.answer({"request": "lesson", "tokens": ["one"]}).meta["request"]["tokens"] == ["one"]
    about = service.answer({"request": "about"}).meta
    assert (about["lesson"], about["sides"], about["start"]) == (True, [], None)


def test_the_largest_reply_is_small_and_fast_enough_for_every_keystroke() -> None:
    """The page sends a request after every keystroke; this is the largest example, with all settings."""
    row = [0.5] * 8
    question = {"request": "lesson", "tokens": ["word"] * 12, "x": [row] * 12}
    moments = 2 * 101 * (12 * 12 + 8 * 8) * 4  # float32 scores and weights, W_Q and W_K, of each recorded gradient step
    assert len(answer(question).to_bytes()) < 330_000 + moments
