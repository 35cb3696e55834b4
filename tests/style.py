"""The measurable half of how the project writes: `python tests/style.py PAGE...` prints what breaks a rule, all pages without arguments.

Code, tables and headings are no prose. The patterns are constructions that read as translated; they were chosen from this project's
former pages, next to those of uv, polars, sentence-transformers, LanceDB and einops (0.9 to 3.4 per 1,000 words).
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from documents import DOCS, DOCUMENTS, name_of

PATTERNS = (
    r"(?<!\w)where(?! the (?:files|place))\b",  # "if" or "when"
    r"\b(?:that|those) of\b",
    r"(?:^|(?<=[.:;] ))Of (?!course)",
    r"\bbesides?\b",
    r"\bbut for\b",
    r"\balone\b",
    r"\b(?:is|are|has|have|in|of) none\b|\bnone is\b|\bnone of\b",
    r"\b(?:as|so) many\b|\blikewise\b|\bas (?:wide|long|often|far)\b",
    r"\b(?:is|are|was|were) (?:told|said|named|asked|given)\b",
    r"\b[Ww]hat (?!is new|if)\b",
    r"\bmend(?:s|ed)?\b",
    r", (?:of|by|in|from|to) which\b|\bwhose\b",
)
INSTRUCTION = (
    r"(?:You|We|Use|Set|Call|Pass|Run|See|Install|Add|Create|Load|Read|Write|Note|If you|To|Open|Start|Choose|Give|Keep|Move|Pick|Save|Send|"
    r"Type|Click|Point|Press|Wait|Stop|Check|Compare|Encode|Record|Change|Train|Ask|Search|Import|Print|Look|Try|Make|Put|Let|Remove|Delete)\b"
)
_WORD = re.compile(r"[A-Za-z0-9][\w'\-]*")
_FIGURE = re.compile(r"\b\d[\d.,]* ?(?:ms|µs|GFLOP/s|(?:times|x) (?:as fast|faster))\b")
_REPORT = re.compile(r"\]\([^)]*(?:performance\.md|benchmarks/results)")


class Measures(NamedTuple):
    """Of prose: its words, the 90th percentile of words in a sentence, "you" and patterns per 1,000 words, sentences that instruct in percent."""

    words: int
    p90: int
    you: float
    instructs: float
    patterns: float


def sections(text: str) -> Iterator[tuple[str, str]]:
    """The parts of a page between blank lines, each with its kind: heading, table, code, picture or prose; an item of a list is prose."""
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    for part in re.split(r"(^ *```.*?^ *```$)", text, flags=re.MULTILINE | re.DOTALL):
        if part.lstrip().startswith("```"):
            yield "code", part.lstrip()
            continue
        for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )|(?<=\n)(?=#)", part):
            if not paragraph.strip():
                continue
            first = paragraph.strip("\n")
            kinds = {"#": "heading", "|": "table", "!": "picture", "<": "picture", "    ": "indented"}
            item = re.match(r"\s*(?:[-*]|\d+\.) ", first)
            kind = next((kind for start, kind in kinds.items() if first.startswith(start) and not item), "prose")
            yield kind, first


def plain(paragraph: str) -> str:
    """A paragraph in one line without markup; code becomes the word Code."""
    text = re.sub(r"^\s*(?:[-*]|\d+\.) ", "", " ".join(paragraph.split()))
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`([^`]*)`", "Code", text)
    return re.sub(r"\*\*|__|[*_](?=\w)|(?<=\w)[*_]", "", text)


def sentences(paragraph: str) -> list[str]:
    return [part for part in re.split(r"(?<=[.!?])[\"')]*\s+(?=[A-Z\"(`])", paragraph) if len(part.split()) >= 2]


def measure(texts: list[str]) -> Measures:
    prose = [plain(part) for text in texts for kind, part in sections(text) if kind == "prose"]
    found = [sentence for paragraph in prose if len(paragraph.split()) >= 4 for sentence in sentences(paragraph)]
    joined = " ".join(found)
    words = len(re.findall(r"[A-Za-z][A-Za-z'\-]*", joined)) or 1
    lengths = sorted(len(_WORD.findall(sentence)) for sentence in found) or [0]
    return Measures(
        words,
        lengths[int(0.9 * len(lengths))],
        1000 * len(re.findall(r"\byou(?:r|rs)?\b|\byou're\b", joined, re.IGNORECASE)) / words,
        100 * sum(bool(re.match(INSTRUCTION, sentence)) for sentence in found) / max(len(found), 1),
        1000 * sum(len(re.findall(pattern, joined, re.MULTILINE)) for pattern in PATTERNS) / words,
    )


def faults(page: Path) -> list[str]:
    """What breaks a rule on a page, a line for each."""
    text = page.read_text(encoding="utf-8")
    found: list[str] = []
    for kind, part in sections(text):
        first = " ".join(part.split())[:60]
        if kind == "heading":
            title = part.splitlines()[0].lstrip("# ")
            if len(title.split()) > 6 or re.match(r"(?:What|Why|Where|Rather)\b", title):
                found.append(f"a heading names its subject in at most six words: {title}")
        elif kind == "table":
            cells = (plain(cell) for line in part.splitlines() for cell in line.strip("|").split(" | "))
            found += [
                f"a cell of a table has at most 12 words: {cell[:60]}" for cell in cells if len(cell.split()) > 12
            ]
        elif kind == "code":
            if not re.match(r"```[\w{]", part):
                found.append(f"a block of code names its language: {first}")
        elif kind == "indented":
            found.append(f"a block of code is fenced: {first}")
        elif kind == "prose":
            found += _faults_of_prose(part, first, needs_report=page.name != "log.md")
        if kind in ("prose", "indented"):
            found += [
                f"a line has at most 100 columns: {line[:60]}"
                for line in part.splitlines()
                if len(line) > 100 and " " in line.strip()[:99]
            ]
    folder, measures = page.parent.name, measure([text])
    if folder in ("guides", "tutorials", "start"):
        if measures.you < 8:
            found.append(f"a guide says you at least 8 times in 1,000 words, not {measures.you:.1f}")
        if measures.instructs < 10:
            found.append(f"a guide instructs in at least 10 % of its sentences, not {measures.instructs:.0f} %")
    if folder == "guides" and not re.search(r"^## Next$", text, re.MULTILINE):
        found.append("a guide ends with the heading Next")
    if measures.patterns > 4 and len(_patterns_in(text)) > 2:
        found.append(
            f"at most 4 constructions of the list PATTERNS in 1,000 words, not {measures.patterns:.1f}: {_patterns_in(text)}"
        )
    if measures.p90 > 30:
        found.append(f"nine of ten sentences have at most 30 words, not {measures.p90}")
    return found


def _faults_of_prose(part: str, first: str, *, needs_report: bool) -> Iterator[str]:
    paragraph = plain(part)
    if len(paragraph.split()) > 90:
        yield f"a paragraph has at most 90 words, not {len(paragraph.split())}: {first}"
    for sentence in sentences(paragraph):
        if len(_WORD.findall(sentence)) > 40:
            yield f"a sentence has at most 40 words, not {len(_WORD.findall(sentence))}: {sentence[:60]}"
    if re.match(r"[a-z]", part) and not paragraph.startswith("uwaga"):
        yield f"a paragraph begins with a capital: {first}"
    if re.search(r"\b[Ww]e\b", paragraph):
        yield f"nobody says we: {first}"
    if needs_report and _FIGURE.search(paragraph) and not _REPORT.search(part):
        yield f"a figure links to its report or to the page on performance: {first}"


def _patterns_in(text: str) -> list[str]:
    prose = " ".join(plain(part) for kind, part in sections(text) if kind == "prose")
    return [found[0] for pattern in PATTERNS for found in re.finditer(pattern, prose, re.MULTILINE)]


def main(arguments: list[str]) -> int:
    pages = [Path(argument).resolve() for argument in arguments] or DOCUMENTS
    broken = [(page, fault) for page in pages for fault in faults(page)]
    for page, fault in broken:
        sys.stdout.write(f"{name_of(page) if DOCS in page.parents or page in DOCUMENTS else page}: {fault}\n")
    for page in pages if arguments else ():
        sys.stdout.write(f"{page.name}: {measure([page.read_text(encoding='utf-8')])}\n")
    sys.stdout.write(f"{len(broken)} faults on {len(pages)} pages\n")
    return min(len(broken), 1)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
