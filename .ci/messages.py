"""Extracts the messages of the pages and of the lesson, and merges them into the tables of all languages (src/uwaga/_base/languages).

`make messages` writes the tables; a test compares them with what `template` gives.
"""

import bz2
import json
import sys
from datetime import datetime
from pathlib import Path

from babel import Locale
from babel.messages import Catalog, Message
from babel.messages.extract import extract_from_file
from babel.messages.pofile import read_po, write_po

from uwaga._base.languages import LANGUAGES
from uwaga.viewer.queries import statistics

PACKAGE = Path(__file__).parents[1] / "src" / "uwaga"
TABLES = PACKAGE / "_base" / "languages"
MADE = datetime(2026, 11, 23)  # not the time of the run, which would change the tables
HEADER = "# Messages of uwaga's pages and lesson. `make messages` keeps the ids as the sources have them."
# CLDR's minimumGroupingDigits, where it is not 1; Babel leaves them out. A test of the page compares them with Intl.
LEAST_GROUP = {"pl": 2}
KEYWORDS = {"tr": None, "tr_n": (1, 2), "trN": (1, 2), "trParts": None}


def template() -> Catalog:
    """Every message, by source file."""
    catalog = Catalog(
        project="uwaga", version="1", copyright_holder="The uwaga authors", header_comment=HEADER, fuzzy=False
    )
    commands = (PACKAGE / "cli" / f"{name}.py" for name in ("lesson", "terminal", "view"))
    for path in (*sorted((PACKAGE / "viewer").rglob("*")), *sorted((PACKAGE / "lessons").rglob("*")), *commands):
        parts = path.relative_to(PACKAGE).parts
        if path.suffix not in (".py", ".js") or {"tests", "node_modules"} & set(parts):
            continue
        method = "python" if path.suffix == ".py" else "javascript"
        options = {"parse_template_string": True} if method == "javascript" else {}
        result = extract_from_file(method, path, keywords=KEYWORDS, comment_tags=("Translators:",), options=options)
        for _, message, comments, _ in result:
            catalog.add(message, locations=[("/".join(parts).removeprefix("viewer/"), 1)], auto_comments=comments)
    for title in statistics.titles():  # the page shows them by `tr` of what the service says
        for message in (title["title"], title["meaning"]):
            catalog.add(message, locations=[("front/table/grid.js", 1)])
    return catalog


def write(catalog: Catalog, path: Path) -> None:
    for message in catalog:
        message.locations = sorted({(name, 1) for name, _ in message.locations})
    with path.open("wb") as file:
        write_po(
            file, catalog, width=0, omit_header=False, sort_by_file=False, include_lineno=False, ignore_obsolete=True
        )


def compiled(tables: dict[str, Catalog]) -> dict[str, object]:
    """What the package reads: the messages, for each whether the front end has it, and for each language the forms of all; [] where
    there is none. A language's texts stand together, which compresses by an eighth better than a message's."""
    messages = {message.id[0] if message.pluralizable else message.id: message for message in template() if message.id}
    listed = [messages[english] for english in sorted(messages)]
    return {
        "languages": list(tables),
        "plural": [table.plural_expr for table in tables.values()],
        "numbers": {language: _numbers(language) for language in LANGUAGES},
        "messages": sorted(messages),
        "in_page": [int(any(name.endswith(".js") for name, _ in each.locations)) for each in listed],
        "forms": [[_forms(table.get(each.id)) for each in listed] for table in tables.values()],
    }


def _numbers(language: str) -> list[object]:
    signs = Locale(language).number_symbols["latn"]
    return [signs["decimal"], signs["group"], LEAST_GROUP.get(language, 1)]


def _forms(message: Message | None) -> list[str]:
    if message is None:
        return []
    forms = list(message.string) if message.pluralizable else [message.string]
    return forms if all(forms) else []


def main() -> None:
    fresh = template()
    fresh.creation_date = fresh.revision_date = MADE
    fresh.last_translator = fresh.language_team = fresh.msgid_bugs_address = "the uwaga authors"
    tables: dict[str, Catalog] = {}
    for language in LANGUAGES:
        path = TABLES / f"{language}.po"
        if language == "en":
            continue
        table = Catalog(
            locale=language,
            project="uwaga",
            version="1",
            header_comment=HEADER,
            creation_date=MADE,
            revision_date=MADE,
            fuzzy=False,
        )
        if path.exists():
            with path.open("rb") as file:
                table = read_po(file, locale=language)
        table.update(fresh, no_fuzzy_matching=True)
        table.creation_date = table.revision_date = MADE
        table.header_comment, table.project, table.version = HEADER, "uwaga", "1"
        table.last_translator = table.language_team = table.msgid_bugs_address = "the uwaga authors"
        write(table, path)
        missing = sum(
            1
            for message in table
            if message.id and not all(message.string if message.pluralizable else [message.string])
        )
        tables[language] = table
        sys.stdout.write(f"{path.name}: {len(table)} messages, {missing} without a translation\n")
    whole = compiled(tables)
    rules = {name: whole.pop(name) for name in ("languages", "plural", "numbers")}
    (TABLES / "rules.json").write_text(json.dumps(rules, ensure_ascii=False) + "\n", encoding="utf-8")
    text = json.dumps(whole, ensure_ascii=False, separators=(",", ":"))
    (TABLES / "messages.json.bz2").write_bytes(bz2.compress(text.encode()))


if __name__ == "__main__":
    main()
