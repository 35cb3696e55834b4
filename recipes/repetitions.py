"""Write text in which earlier passages return word by word: repetitions-256.txt, nearby, and repetitions.txt, up to 20,000
characters later.

    python recipes/repetitions.py TINYSHAKESPEARE PEPS.jsonl.gz FOLDER

A passage is a copy of what was written before, or new: of Shakespeare's plays, of the Python Enhancement Proposals, or of
their words in random order. Who predicts words in random order must have found their earlier occurrence. The last tenth is
made of the last tenths of the sources alone, for validation.
"""

import gzip
import json
import math
import random
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_WORD = re.compile(r"[A-Za-z]+")


@dataclass(frozen=True, kw_only=True)
class Style:
    """One of the files; lengths are in characters, and log-uniform.

    Attributes:
        characters: of the whole file.
        longest: of a passage.
        farthest: of the gap between a passage and its copy.
        copies, shuffled: the fractions of passages that are copies, and of new passages that are words in random order.
    """

    characters: int
    longest: int
    farthest: int
    copies: float
    shuffled: float


STYLES = {
    "repetitions-256.txt": Style(characters=12_000_000, longest=200, farthest=200, copies=0.6, shuffled=0.8),
    "repetitions.txt": Style(characters=24_000_000, longest=800, farthest=20_000, copies=0.5, shuffled=0.4),
}


def main() -> None:
    """The three arguments of the command line."""
    plays, peps, folder = map(Path, sys.argv[1:4])
    play = plays.read_text(encoding="utf-8")
    with gzip.open(peps, "rt", encoding="utf-8") as file:
        proposals = [json.loads(line)["text"] for line in file]
    for name, style in STYLES.items():
        write(folder / name, style, play, proposals)


def write(path: Path, style: Style, play: str, proposals: list[str]) -> None:
    """One file: nine tenths from the first nine tenths of the sources, one from the last."""
    draw = random.Random(1)
    edge, cut = len(play) * 9 // 10, len(proposals) * 9 // 10
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for sources, tenths in (([play[:edge], *proposals[:cut]], 9), ([play[edge:], *proposals[cut:]], 1)):
            file.write(repetitive_text(style, sources, style.characters * tenths // 10, draw))


def repetitive_text(style: Style, sources: list[str], characters: int, draw: random.Random) -> str:
    """`characters` characters, a passage per line."""
    fresh = _new_passages(style, sources, draw)
    parts: list[str] = []
    recent, length = "", 0
    while length < characters:
        size, gap = _log_uniform(30, style.longest, draw), _log_uniform(1, style.farthest, draw)
        is_copy = draw.random() < style.copies and size + gap <= len(recent)
        copied = recent[len(recent) - size - gap :][:size] if is_copy else ""
        # Whole words only: what is cut off at either end is left out.
        part = copied.partition(" ")[2].rpartition(" ")[0] or next(fresh)
        parts.append(part + "\n")
        length += len(part) + 1
        recent = (recent + part + "\n")[-style.farthest - style.longest :]
    return "".join(parts)[:characters]


def _new_passages(style: Style, sources: list[str], draw: random.Random) -> Iterator[str]:
    """Without end. Plays and proposals have equal parts."""
    words = sorted({word for source in sources for word in _WORD.findall(source)})
    while True:
        size = _log_uniform(30, style.longest, draw)
        source = sources[0] if draw.random() < 0.5 else draw.choice(sources[1:])
        start = draw.randrange(max(1, len(source) - size))
        is_shuffled = draw.random() < style.shuffled
        yield " ".join(draw.choices(words, k=1 + size // 7)) if is_shuffled else source[start : start + size].strip()


def _log_uniform(least: int, most: int, draw: random.Random) -> int:
    return round(math.exp(draw.uniform(math.log(least), math.log(most))))


if __name__ == "__main__":
    main()
