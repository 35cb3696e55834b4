"""The languages of the pages and of the lesson: tables that are whole and current, and texts that all come from them."""

import ast
import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from pages import replace_texts
from typer.testing import CliRunner

from uwaga._base import languages
from uwaga._base.languages import LANGUAGES, decimal, integer, percent, plural, significant, tr, tr_n, using
from uwaga.cli import app
from uwaga.lessons.build import STEPS
from uwaga.lessons.page import texts_of
from uwaga.viewer.lesson import work_through
from uwaga.viewer.page.html import served_html
from uwaga.viewer.service import ViewService
from uwaga.viewer.shown import View

babel = pytest.importorskip("babel.messages", reason="Babel, which extracts the messages, is not installed")

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "src" / "uwaga" / "_base" / "languages"
answer = ViewService(View()).answer
OTHERS = [code for code in LANGUAGES if code != "en"]
PLURALS = {"pl": 3, "pt": 2, "ja": 1, "zh": 1}
# What a table may leave as it is in English: names, formats, symbols, words that are the same in the language.
SAME = {
    *("PNG", "SVG", "CSV", "ReLU", "LayerNorm", "feed-forward", "Feed-forward", "Model", "Stop", "Zoom", "Token"),
    *("tokens", "Tokens", "linear", "Linear", "layer(Ragged)", "layer(padded, mask=KeyLengths)", "layer(X)", "layer(X + PE)", "unshuffle(layer(shuffle(X)))", "unshuffle(layer(shuffle(X) + PE))", "Residual", "residual"),
    *("{count} token", "{length} tokens", "1 token", "gradient", "loss, gradient", "softmax", "token", "Total {known}."),
    *("“{token}”, token {place}", "{title} - {rate} · gradient", "{token} ({place})", "{place} of {count}", "“{token}”", "Query {tokens}", "{first} {second}", "{token}: {number}. {why}", "Softmax", "Post-norm", "3. Feed-forward"),
}  # fmt: skip


@pytest.fixture(scope="module")
def messages(program: Callable[[str], ModuleType]) -> ModuleType:
    """The program that extracts the messages."""
    return program(".ci/messages.py")


@pytest.fixture(scope="module")
def template(messages: ModuleType) -> Any:
    """The messages that the sources have."""
    return messages.template()


@cache
def table_of(language: str) -> Any:
    from babel.messages.pofile import read_po

    with (TABLES / f"{language}.po").open("rb") as file:
        return read_po(file, locale=language)


def translated(language: str) -> Iterator[tuple[str, list[str]]]:
    """Every text of the pages and of the lesson in English, and its forms in a language."""
    for message in table_of(language):
        if message.id and message.pluralizable:
            yield message.id[0], list(message.string)
        elif message.id:
            yield message.id, [message.string]
    for _, english, text in lesson_texts(language):
        if isinstance(text, dict):
            yield english["one"], list(text.values())
        elif isinstance(text, list):
            yield from ((one, [other]) for one, other in zip(english, text, strict=True))
        else:
            yield english, [text]


def lesson_texts(language: str) -> Iterator[tuple[str, Any, Any]]:
    """Each text of the lesson: its place, and what stands there in English and in a language."""
    ours, theirs = texts_of("en"), texts_of(language)
    assert list(ours) == list(theirs)
    for step, texts in ours.items():
        assert list(texts) == list(theirs[step]), step
        for key, text in texts.items():
            yield f"{step}.{key}", text, theirs[step][key]


def test_every_text_of_the_lesson_is_shown_somewhere() -> None:
    """A step's texts are those that its function, or one that it calls, names; the ends of keys are added by what shows them."""
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/uwaga/lessons").rglob("*.py"))
    named = [re.sub(r"\\{.*?\\}", r"\\w+", re.escape(text)) for text in re.findall(r'"([\w{}+ ]+)"', sources)]
    shown = re.compile(f"(?:{'|'.join(named)})(?:_text)?")
    texts = texts_of("en")
    assert list(texts) == ["common", "problems", *STEPS, "worksheet"]
    assert not [(step, key) for step, keys in texts.items() for key in keys if not shown.fullmatch(key)]


def check_values(where: str, english: str, forms: Sequence[str], *, is_plural: bool) -> None:
    """A form has the values of the English text; one of a plural may leave the count out, as "one token" does."""
    expected = set(re.findall(r"\{\w+\}", english))
    for form in forms:
        assert form, where
        assert form == form.strip(), where
        names = set(re.findall(r"\{\w+\}", form))
        assert names <= expected, (where, form)
        assert expected - names <= ({"{count}"} if is_plural else set()), (where, form)


def english(message: Any) -> str:
    return str(message.id[0] if message.pluralizable else message.id)


def test_what_is_read_is_what_the_tables_say(messages: ModuleType) -> None:
    """`make messages` writes it."""
    compiled = messages.compiled({language: table_of(language) for language in OTHERS})
    assert languages.tables() == json.loads(json.dumps(compiled))


def test_no_text_in_the_sources_is_missed_by_the_extraction(template: Any) -> None:
    """It does not read calls inside of a call's own arguments or of a template: such a text would stay English."""
    extracted = {english(message) for message in template if message.id}
    missed = []
    for path in sorted((ROOT / "src" / "uwaga" / "viewer" / "front").rglob("*.js")):
        if not {"tests", "node_modules"} & set(path.parts):
            for match in re.finditer(r'\btr(?:N|Parts)?\(\s*("(?:[^"\\\n]|\\.)*")', path.read_text(encoding="utf-8")):
                if json.loads(match[1]) not in extracted:
                    missed.append((path.name, match[1]))
    for path in sorted((ROOT / "src" / "uwaga").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if re.search(r"\btr(_n)?\(", text) else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("tr", "tr_n"):
                first = node.args[0]
                if isinstance(first, ast.Constant) and first.value not in extracted:
                    missed.append((path.name, first.value))
    assert not missed


@pytest.mark.parametrize("language", OTHERS)
def test_a_table_has_every_message_and_no_other(language: str, template: Any) -> None:
    table = table_of(language)
    expected = {message.id for message in template if message.id}
    assert {message.id for message in table if message.id} == expected
    for message in table:
        if not message.id:
            continue
        forms = message.string if message.pluralizable else [message.string]
        assert len(forms) == (PLURALS[language] if message.pluralizable else 1), message.id
        assert not message.fuzzy, message.id
        ids = " ".join(message.id) if message.pluralizable else message.id
        check_values(ids, ids, forms, is_plural=message.pluralizable)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_texts_of_the_lesson_say_the_same_in_every_language(language: str) -> None:
    """Steps, keys, paragraphs and values; and the plural forms of the language."""
    for where, ours, theirs in lesson_texts(language):
        assert type(ours) is type(theirs), where
        if isinstance(ours, dict):
            assert len(theirs) == ({"en": 2} | PLURALS)[language], where
            check_values(where, " ".join(ours.values()), list(theirs.values()), is_plural=True)
        elif isinstance(ours, list):
            for one, other in zip(ours, theirs, strict=True):
                check_values(where, one, [other] if one else [], is_plural=False)
        else:
            check_values(where, ours, [theirs], is_plural=False)


@pytest.mark.parametrize("language", OTHERS)
def test_no_message_is_left_in_english(language: str) -> None:
    left = [
        text
        for text, forms in translated(language)
        if text == forms[0] and re.search(r"[a-z]{4}", re.sub(r"\{\w+\}|E\[.*|Zeros\.", "", text)) and text not in SAME
    ]
    assert not left


def glossary(language: str) -> list[tuple[str, str, str]]:
    """Of each concept: the pattern of its English words, that of the language's, and what others call it."""
    rows = (ROOT / "docs" / language / "glossary.md").read_text(encoding="utf-8").splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows if row.startswith("|")]
    result = []
    for english_words, _, forms, others in cells[2:]:
        named = "|".join(re.escape(word.strip()) for word in english_words.split(","))
        found = "|".join(
            r"\w*".join(map(re.escape, re.split(r"(?<=\w)-(?=\s|$)", form.strip()))) for form in forms.split(",")
        )
        result.append((rf"\b(?:{named})\b", found, others))
    return result


# English words of the glossary that mean something else: keys of a keyboard, code, a title.
_ELSEWHERE = r"Scores\[|“Attention Is All You Need”|arrow keys|Single keys|What one sees, and the keys|In place of|\{\w+\}|uwaga\.[\w.]+|\w+\([^)]*\)"


@pytest.mark.parametrize("language", OTHERS)
def test_a_concept_has_one_word(language: str) -> None:
    texts = [
        (text, re.sub(_ELSEWHERE, "", text), [re.sub(r"\{\w+\}", "", form) for form in forms])
        for text, forms in translated(language)
    ]
    wrong = [
        (concept, text, form)
        for concept, word, _ in glossary(language)
        for text, shown, forms in texts
        if re.search(concept, shown, re.IGNORECASE)
        for form in forms
        if not re.search(word, form, re.IGNORECASE)
    ]
    assert not wrong


@pytest.mark.parametrize("language", OTHERS)
def test_what_others_call_a_concept_stands_beside_our_word(language: str) -> None:
    """Once at least, so that a reader of another explanation finds it."""
    forms = [form for _, translations in translated(language) for form in translations]
    for _, word, others in glossary(language):
        assert not others or any(others in form.lower() and re.search(word, form, re.IGNORECASE) for form in forms)


def test_plural_forms_are_those_of_the_language() -> None:
    def tokens(language: str, *counts: int) -> list[str]:
        forms = texts_of(language)["linear"]["of_tokens"]
        assert isinstance(forms, dict)
        with using(language):
            return [plural(list(forms.values()), count) for count in counts]

    expected = ["1 token", "2 tokeny", "5 tokenów", "12 tokenów", "22 tokeny", "25 tokenów"]
    assert tokens("pl", 1, 2, 5, 12, 22, 25) == expected
    assert tokens("ja", 1) == ["1 トークン"]
    assert tokens("en", 1, 5) == ["1 token", "5 tokens"]
    assert tr_n("{count} head", "{count} heads", 1) == "1 head"
    with using("pl"):
        assert [tr_n("{count} head", "{count} heads", count) for count in (1, 2, 5)] == ["1 głowa", "2 głowy", "5 głów"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_numbers_are_written_as_the_language_writes_them(language: str) -> None:
    """As Babel does, which has the symbols of CLDR; a test of the page compares them with the browser's own."""
    from babel import Locale
    from babel.numbers import format_decimal, format_percent

    with using(language):
        for number in (0.0, 0.375, 2.0, 999.5, 12345.678, 1234567.0):
            assert decimal(number, 2) == format_decimal(number, format="#,##0.00", locale=language)
        four = {"en": "1,024", "pl": "1024", "pt": "1.024", "ja": "1,024", "zh": "1,024"}[language]
        assert integer(1024) == four
        assert four in tr("{count} MB", count=1024)
        comma = Locale(language).number_symbols["latn"]["decimal"]
        assert significant(1.234e-9, 3) == f"1{comma}23\N{MULTIPLICATION SIGN}10⁻⁹"
        assert percent(0.5) == format_percent(0.5, locale=language)


@pytest.mark.parametrize("language", ["pl", "pt"])
def test_every_number_of_the_lesson_is_written_as_the_language_writes_it(language: str) -> None:
    """A decimal point where the language has a comma is left over from a format of Python."""
    pattern = r"(?<![\d.,])\d+\.\d+(?!\d*[.,]\d)" if language == "pl" else r"(?<![\d.,])\d+\.(?!\d{3}(?!\d))\d+"
    reply = answer({"request": "lesson", "language": language})
    texts = [*strings(reply.meta["steps"]), *strings(list(reply.meta["matrices"].values()))]
    assert not [text for text in texts if re.search(pattern, re.sub(r"scale=1\.0|q\.\w+|10000\^", "", text))]
    assert sum(bool(re.search(r"\d,\d", text)) for text in texts) > 20


@pytest.mark.parametrize("language", OTHERS)
def test_zero_takes_the_form_that_the_browser_gives_it(language: str) -> None:
    """By CLDR: in Portuguese 0 is singular."""
    from babel import Locale

    rule = Locale(language).plural_form
    names = [name for name in ("one", "few", "many", "other") if name in {rule(n) for n in range(1000)}]
    form_of = languages.table_of(language).form_of
    assert [form_of(n) for n in range(201)] == [min(names.index(rule(n)), PLURALS[language] - 1) for n in range(201)]


def test_the_numbers_of_the_lesson_are_the_same_in_every_language() -> None:
    settings = {"sentences": [["a", "b"], ["c"]], "written": ["a"]}  # whose defaults are the language's own
    fields = {"tokens": ["a", "b", "c"], "x": [[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], "settings": settings}
    ours, *others = (answer({"request": "lesson", **fields, "language": language}) for language in LANGUAGES)
    for theirs in others:
        assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(ours.arrays, theirs.arrays, strict=True))
        assert ours.meta["request"] == theirs.meta["request"]
        assert [step["code"] for step in ours.meta["steps"]] == [step["code"] for step in theirs.meta["steps"]]
        titles = zip(ours.meta["steps"], theirs.meta["steps"], strict=True)
        assert not any(a["title"] == b["title"] for a, b in titles)


def test_each_language_has_an_example_of_its_own_and_a_worksheet(tmp_path: Path) -> None:
    """What points at the thing looks at the thing the most, in every language."""
    examples = set()
    for language, thing in {"en": "thing", "pl": "rzecz", "pt": "coisa", "ja": "物", "zh": "事物"}.items():
        worked = work_through(language=language)
        assert worked["weights"][0].argmax() == worked["x"][:, 2].argmax(), language
        assert worked.matrices["x"].columns[2] == thing
        examples.add(tuple(worked.request["tokens"]))
        worked.save_worksheet(tmp_path / "sheet.html")
        sheet = (tmp_path / "sheet.html").read_text(encoding="utf-8")
        assert f'<html lang="{language}">' in sheet
        assert ("Three roles" in sheet) == (language == "en")
    assert {len(tokens) for tokens in examples} == {5}
    assert len(examples) == len(LANGUAGES)


# What no page shows: ids, code, tokens and rules.
_NOT_SHOWN = {
    *("id", "code", "field", "shade", "form", "matrix", "matrices", "controls", "covers", "tap", "cells", "arrows", "kind"),
    *("bypasses", "repeated", "step", "statistic", "sense", "without", "shape", "name"),
}  # fmt: skip


def strings(value: Any) -> Iterator[str]:
    """Yield what a page shows of a part of the lesson."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for part in value:
            yield from strings(part)
    elif isinstance(value, dict):
        for name, part in value.items():
            if name == "source":
                yield from [part["say"]] if "say" in part else []
            elif name not in _NOT_SHOWN:
                yield from strings(part)


# What no language translates: names of functions and of code, of models, and letters of sizes.
_NO_WORDS = {
    *("softmax", "exp", "log", "cos", "sin", "max", "sqrt", "Var", "ReLU", "GELU", "LayerNorm", "norm", "uwaga", "torch", "attention"),
    *("layer", "shuffle", "unshuffle", "PE", "BERT", "GPT", "T5", "Transformer", "MB"),
}  # fmt: skip


# Names in Python and of a model, words that it read, an error of the library, and gradients.
_READ = "|".join(
    re.escape(word) for name in work_through("a").matrices["real_words"].columns for word in name.split(" / ")
)
_QUOTED = (
    rf"uwaga\.[\w.]+|all-MiniLM-L6-v2|attention: key and query disagree on head width D|“(?:{_READ})”|<start>|\bd[A-Z]"
)


def test_no_english_is_left_in_the_lesson(monkeypatch: pytest.MonkeyPatch) -> None:
    """With tables whose messages have other letters, every Latin word that is left did not come from a table: values inside
    messages, formulas and heads of columns too."""

    def disguised(text: str) -> str:
        parts = re.split(r"(\{\w+\})", text)
        return "".join(
            part if part[:1] == "{" else re.sub("[A-Za-z]", "\N{CYRILLIC SMALL LETTER ZHE}", part) for part in parts
        )

    replace_texts(monkeypatch, disguised)
    cyrillic = {"sentences": [["\u0436", "\u0436\u0436"]], "written": ["\u0436"]}
    for settings in (
        {},
        {"heads": 1, "scaled": False, "window": 0, "norm": "pre", "steps": 3},
        {"heads": 1, "wq": [[0.0]] * 4, "wk": [[0.0]] * 4, "length": 0, "limit": 12},
    ):
        reply = answer(
            {
                "request": "lesson",
                "language": "pl",
                "tokens": ["\u0436", "\u0436\u0436", "\u0436."],
                "settings": cyrillic | settings,
            }
        )
        # The sentence of a real model is English in every language.
        matrices = [matrix for matrix in reply.meta["matrices"].values() if "[CLS]" not in matrix["columns"]]
        texts = [*strings(reply.meta["steps"]), *strings(matrices)]
        assert len(texts) > 400
        words = {word: text for text in texts for word in re.findall(r"[A-Za-z]{2,}", re.sub(_QUOTED, "", text))}
        assert {word: text for word, text in words.items() if word not in _NO_WORDS} == {}


def test_the_terminal_follows_its_own_language_or_the_option() -> None:
    def first_line(*arguments: str, **env: str) -> str:
        unset = {"LC_ALL": None, "LC_MESSAGES": None, "LANG": None}
        result = CliRunner().invoke(app, ["lesson", "--plain", *arguments], env={"COLUMNS": "150", **unset, **env})
        return str(result.stdout.splitlines()[0])

    assert "Três papéis: Q, K e V" in first_line(LC_ALL="pt_BR.UTF-8", LANG="pl_PL.UTF-8")
    assert "三つの役割" in first_line("--language", "ja", LANG="pl_PL.UTF-8")
    assert "Three roles" in first_line(LANG="de_DE.UTF-8")


def test_a_page_holds_its_messages_as_data() -> None:
    page = served_html("</script><b>", "pl")
    assert '<html lang="pl">' in page
    (data,) = re.findall(r'<script type="application/json" data-uwaga-language>(.*?)</script>', page)
    table = json.loads(data)
    assert table["messages"]["Lesson"] == ["Lekcja"]
    assert table["names"] == LANGUAGES
    assert "Learned positions" not in data  # a text of the lesson, which the program formats
    assert "Ta strona wymaga JavaScriptu." in page
    assert '"messages":{}' in served_html("a", "en")
