"""docs/reference/limits.md has the limits of the code, and the files that SECURITY.md names are there."""

import re
from pathlib import Path

from uwaga._base import connections, untrusted
from uwaga.inspect import editing, edits, run_text
from uwaga.models.checkpoints import weight_files
from uwaga.models.tokenizers import tokenizer
from uwaga.serve.requests import MAX_CHARACTERS, Limits
from uwaga.serve.scheduler import ITEM_TOKENS
from uwaga.viewer import service, texts
from uwaga.viewer.server import app

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
LIMITS = (ROOT / "docs" / "reference" / "limits.md").read_text(encoding="utf-8")


def _limits(heading: str) -> dict[str, int]:
    """The numbers of the table under a heading, by what they limit."""
    section = LIMITS.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return {
        name: int(number.replace(",", ""))
        for name, number in re.findall(r"^\| (.+?) \| ([\d,]+) \|", section, re.MULTILINE)
    }


def test_the_limits_of_reading_are_those_of_the_code() -> None:
    assert _limits("Files that uwaga reads") == {
        "JSON file, safetensors header, pickle of `pytorch_model.bin`: bytes": untrusted.JSON_BYTES,
        "JSON: objects and lists": untrusted.JSON_CONTAINERS,
        "JSON: depth of nesting": untrusted.JSON_DEPTH,
        "JSON: values and keys": untrusted.JSON_VALUES,
        "`tokenizer.json`: bytes": untrusted.TOKENIZER_BYTES,
        "`tokenizer.json`: objects and lists": untrusted.TOKENIZER_CONTAINERS,
        "`tokenizer.json`: values and keys": untrusted.TOKENIZER_VALUES,
        "tokenizer: length of a normalized text, relative to the text": tokenizer.MAX_GROWTH,
        "tokenizer: steps of one part": tokenizer.MAX_STEPS,
        "tokenizer: characters of a token": tokenizer.MAX_CHARACTERS,
        "tokenizer: characters of a word for WordPiece": tokenizer.MAX_WORD,
        "configuration of training: bytes": untrusted.TOML_BYTES,
        "configuration of training: parts of a dotted key": untrusted.TOML_KEY_PARTS,
        "line of text: bytes": untrusted.LINE_BYTES,
        "gzip and Parquet: bytes from one compressed byte, beyond one line": untrusted.DECOMPRESSION_RATIO,
        "`pytorch_model.bin`: bytes of all views, relative to the file": weight_files.MOST_VIEWS,
        "`pytorch_model.bin`: bytes of all views in addition": weight_files.MOST_BESIDE,
    }


def test_the_limits_of_the_page_are_those_of_the_code() -> None:
    assert _limits("The page of `uwaga view`") == {
        "page: connections, within half of the process's open files": connections.MAX_CONNECTIONS,
        "page: bytes of a request's body": app.MAX_BODY_BYTES,
        "page: depth of nesting in a field of a request": untrusted.JSON_DEPTH,
        "page: changes of a model in a request": edits.MAX_CHANGES,
        "page: bytes of a layer's masks for blocked links": editing.MAX_MASK_BYTES,
        "page: characters of a text": service.MAX_CHARACTERS,
        "page: tokens of a text": texts.MAX_TOKENS,
        "page: seconds of a run": service.MAX_SECONDS,
        "page: tokens of an encoder-decoder's text": run_text.MAX_GENERATED_FROM,
        "page: seconds without a complete request, or without reading the response": connections.IDLE_SECONDS,
        "page: seconds until a body is complete": connections.BODY_SECONDS,
    }


def test_the_limits_of_serve_are_those_of_the_code() -> None:
    most = Limits()
    assert _limits("Requests to `uwaga serve`") == {
        "serve: bytes of a request's body": most.body_bytes,
        "serve: bytes of all unanswered bodies": most.all_bodies_bytes,
        "serve: texts of a request": most.items,
        "serve: characters of a text": MAX_CHARACTERS,
        "serve: tokens of a request": most.tokens,
        f"serve: tokens in the queue, with {ITEM_TOKENS} more for each text": most.queue_tokens,
        "serve: seconds until a body is complete": connections.BODY_SECONDS,
        "serve: seconds until the answer": most.seconds,
    }


def test_what_it_points_at_is_there() -> None:
    places = [place for place in re.findall(r"`([\w./]+)`", TEXT) if "/" in place]
    assert places
    assert [place for place in places if not (ROOT / place).exists()] == []
