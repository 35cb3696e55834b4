"""The languages of the pages and of what `uwaga lesson` prints: gettext's message tables, one for each language but English.

English stands in the source, as the argument of `tr` and `tr_n`; a message that a table lacks is shown in English. The front end has the
same two functions (front/languages.js), and one table serves both. `make messages` extracts the messages into the tables of the
translators, *.po, and writes what is in them to messages.json.bz2, and the languages' rules of numbers and plurals to rules.json;
both are read here.
"""

import bz2
import functools
import gettext
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from decimal import ROUND_HALF_UP, Decimal
from importlib import resources
from typing import Any, NamedTuple, ParamSpec, TypeVar

# By the codes of BCP 47, each named in itself.
LANGUAGES = {"en": "English", "pl": "Polski", "pt": "Português", "ja": "日本語", "zh": "中文"}
_ENGLISH = "en"
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_current: ContextVar[str] = ContextVar("language", default=_ENGLISH)


_MINUS, _TIMES = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}"
_SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def tr(message: str, **values: object) -> str:
    """Return a message in the current language, with the values in its braces; integers among them as the language writes them.

    >>> tr("The sum is {sum}.", sum=1)
    'The sum is 1.'
    """
    return filled(table_of(_current.get()).forms.get(message, [message])[0], values)


def tr_n(one: str, other: str, count: int, **values: object) -> str:
    """Return a message in the form that the current language has for a count, which is `{count}` in it.

    >>> tr_n("{count} token", "{count} tokens", 1), tr_n("{count} token", "{count} tokens", 5)
    ('1 token', '5 tokens')
    """
    forms = table_of(_current.get()).forms.get(one)
    if forms:
        return plural(forms, count, **values)
    return filled(one if count == 1 else other, {"count": count, **values})


def plural(forms: Sequence[str], count: int, **values: object) -> str:
    """Return the form of a message for a count; `forms` are in the order of the current language's rule."""
    return filled(forms[table_of(_current.get()).form_of(count)], {"count": count, **values})


def filled(form: str, values: Mapping[str, object]) -> str:
    """Return a text in the current language with the values in its braces; integers among them as the language writes them."""
    return form.format(**{name: integer(value) if type(value) is int else value for name, value in values.items()})


def integer(number: float) -> str:
    """Return a whole number as the current language writes it.

    >>> integer(1024)
    '1,024'
    """
    return decimal(number, 0)


def decimal(number: float, digits: int) -> str:
    """Return a number with some decimals as the current language writes it; halves are rounded away from zero, as in the page.

    >>> decimal(0.625, 2), decimal(-0.001, 2), decimal(-12345.5, 1)
    ('0.63', '0.00', '\N{MINUS SIGN}12,345.5')
    """
    point, group, least_group = _numbers(_current.get())
    rounded = Decimal(number).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
    whole, _, part = f"{abs(rounded):f}".partition(".")
    if len(whole) >= 3 + least_group:
        whole = f"{int(whole):,}".replace(",", group)
    return (_MINUS if rounded < 0 else "") + whole + (point + part if part else "")


def significant(number: float, digits: int) -> str:
    """Return a number with some significant digits; as a power of ten if it is below 0.0001 or its last digit is above the units.

    >>> significant(0.00125, 2), significant(123456.0, 3), significant(-2e-7, 1), significant(0.0, 1)
    ('0.0013', '1.23\N{MULTIPLICATION SIGN}10⁵', '\N{MINUS SIGN}2\N{MULTIPLICATION SIGN}10⁻⁷', '0')
    """
    mantissa, power = f"{number:.{digits - 1}e}".split("e")
    if number == 0 or -4 <= int(power) < digits:
        return decimal(number, digits - 1 - int(power)) if number else "0"
    text = mantissa.replace("-", _MINUS).replace(".", _numbers(_current.get())[0])
    return f"{text}{_TIMES}10{str(int(power)).translate(_SUPERSCRIPTS)}"


def percent(share: float, digits: int = 0) -> str:
    """Return a share as percent, as the current language writes it.

    >>> percent(0.25)
    '25%'
    """
    return decimal(share * 100, digits) + "%"


def cached(maxsize: int) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Cache results as functools.lru_cache does, one for each language."""

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        @functools.lru_cache(maxsize=maxsize * len(LANGUAGES))
        def compute(table: int, *args: Any) -> _Result:
            return function(*args)  # type: ignore[call-arg]

        @functools.wraps(function)
        def call(*args: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
            return compute(id(table_of(_current.get())), *args, **options)  # type: ignore[arg-type]

        return call

    return decorate


def current() -> str:
    """Return the code of the language that messages are in."""
    return _current.get()


@contextmanager
def using(language: str) -> Iterator[None]:
    """Open a context in which messages are in a language. Raises ValueError for one that is not in LANGUAGES."""
    if language not in LANGUAGES:
        raise ValueError(f"language must be one of {', '.join(LANGUAGES)}, not {language!r}")
    token = _current.set(language)
    try:
        yield
    finally:
        _current.reset(token)


def preferred(tags: Sequence[str]) -> str:
    """Return the first of some codes that is among LANGUAGES, without its region; else English.

    >>> preferred(["de", "pt-BR", "en"]), preferred(["zh_CN.UTF-8"]), preferred([])
    ('pt', 'zh', 'en')
    """
    codes = (code.replace("_", "-").partition("-")[0].partition(".")[0].strip().lower() for code in tags)
    return next((code for code in codes if code in LANGUAGES), _ENGLISH)


def of_header(accept_language: str) -> str:
    """Return the language of a request by its Accept-Language header (RFC 9110, section 12.5.4).

    >>> of_header("de;q=0.9, ja;q=0.8, en;q=0.1"), of_header("*"), of_header("pl, en;q=nonsense")
    ('ja', 'en', 'pl')
    """
    weighted = []
    for part in accept_language[:1000].split(","):
        code, _, parameter = part.partition(";")
        try:
            weight = float(parameter.partition("=")[2]) if parameter.strip() else 1.0
        except ValueError:
            weight = 0.0
        if weight > 0:
            weighted.append((weight, code))
    return preferred([code for _, code in sorted(weighted, key=lambda match: -match[0])])


def page_table(language: str, *, can_change: bool = False) -> dict[str, Any]:
    """Return what a page needs to show its messages in a language: {"language": code, "messages": {English: [forms]}}.

    can_change: whether the reader can choose another language; then "names" has the names of all languages."""
    messages = table_of(language).of_page() if language != _ENGLISH else {}
    return {"language": language, "messages": messages} | ({"names": LANGUAGES} if can_change else {})


class Table(NamedTuple):
    """The messages of a language: the forms by the English message."""

    forms: Mapping[str, list[str]]
    in_page: frozenset[str]  # those that the front end has
    form_of: Callable[[int], int]

    def of_page(self) -> dict[str, list[str]]:
        return {message: forms for message, forms in self.forms.items() if message in self.in_page}


@functools.cache
def table_of(language: str) -> Table:
    if language == _ENGLISH:
        return Table({}, frozenset(), lambda count: int(count != 1))
    whole = tables()
    number = whole["languages"].index(language)
    forms = {message: value for message, value in zip(whole["messages"], whole["forms"][number], strict=True) if value}
    in_page = frozenset(itertools.compress(whole["messages"], whole["in_page"]))
    return Table(forms, in_page, gettext.c2py(whole["plural"][number]))


@functools.cache
def _numbers(language: str) -> tuple[str, str, int]:
    """Return the decimal separator of a language, its separator of groups of three digits, and the least number of digits before the
    rightmost group (CLDR's minimumGroupingDigits: Polish writes 1024, but 10 240)."""
    point, group, least_group = tables()["numbers"][language]
    return point, group, least_group


@functools.cache
def tables() -> dict[str, Any]:
    # As bz2: of these texts xz leaves a twentieth more, and a wheel's own compression a fifth.
    folder = resources.files(__name__)
    rules: dict[str, Any] = json.loads(folder.joinpath("rules.json").read_text(encoding="utf-8"))
    messages: dict[str, Any] = json.loads(bz2.decompress(folder.joinpath("messages.json.bz2").read_bytes()))
    return rules | messages
