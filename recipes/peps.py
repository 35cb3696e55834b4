"""Write peps.jsonl.gz from a checkout of https://github.com/python/peps: those PEPs that say "public domain" or "CC0".

    python recipes/peps.py CHECKOUT FILE.jsonl.gz

The texts are those of the checkout, so that its edition decides the file's checksum.
"""

import gzip
import json
import re
import sys
from pathlib import Path

_FREE = re.compile(r"public\s+domain|CC0", re.IGNORECASE)
_TITLE = re.compile(r"^Title: *(.*)$", re.MULTILINE)


def main() -> None:
    """The two arguments of the command line."""
    checkout, target = map(Path, sys.argv[1:3])
    found = sorted((checkout / "peps").glob("pep-[0-9][0-9][0-9][0-9].rst"))
    if not found:
        raise SystemExit(f"{checkout}: there are no peps/pep-*.rst")
    with gzip.open(target, "wt", encoding="utf-8") as file:
        for path in found:
            text = path.read_text(encoding="utf-8")
            if _FREE.search(text):
                title = _TITLE.search(text)
                row = {"id": path.stem, "title": title[1] if title else "", "text": text}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
