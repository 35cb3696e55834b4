"""SECURITY.md names the limits that the code has, and the files that it speaks of are there."""

import re
from pathlib import Path

from uwaga._base import connections, untrusted
from uwaga.inspect import editing, edits, run_text
from uwaga.models.checkpoints import weight_files
from uwaga.models.tokenizers import tokenizer
from uwaga.ops import engine_profile
from uwaga.serve import app as serve_app
from uwaga.serve.requests import Limits
from uwaga.viewer import service, texts
from uwaga.viewer.server import app

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def _row(beginning: str) -> list[int]:
    """The numbers in the second column of the row that begins so."""
    (line,) = [line for line in TEXT.splitlines() if line.startswith(f"| {beginning}")]
    return [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\d|\d", line.split("|")[2])]


def test_the_limits_of_reading_are_those_of_the_code() -> None:
    assert _row("bytes of a JSON file") == [untrusted.JSON_BYTES]
    assert _row("objects and lists of a JSON text") == [untrusted.JSON_CONTAINERS, untrusted.JSON_DEPTH]
    assert _row("values and keys of a JSON text") == [untrusted.JSON_VALUES]
    sizes = [untrusted.TOKENIZER_BYTES, untrusted.TOKENIZER_CONTAINERS, untrusted.TOKENIZER_VALUES]
    assert _row("bytes, objects and lists, values and keys of `tokenizer.json`") == sizes
    assert _row("bytes of a configuration of training") == [untrusted.TOML_BYTES, untrusted.TOML_KEY_PARTS]
    assert _row("bytes of an engine profile") == [engine_profile.PROFILE_BYTES]
    assert _row("bytes of a line of text") == [untrusted.LINE_BYTES]
    assert _row("bytes that one byte of gzip") == [untrusted.DECOMPRESSION_RATIO]
    assert _row("times that the views") == [weight_files._MOST_VIEWS, weight_files._MOST_BESIDE]
    assert _row("times as long as a tokenizer") == [tokenizer._MAX_GROWTH]
    most = [tokenizer._MAX_STEPS, tokenizer._MAX_CHARACTERS, tokenizer._MAX_WORD]
    assert _row("steps of a tokenizer's part") == most


def test_the_limits_of_the_server_are_those_of_the_code() -> None:
    timeouts = connections.ConnectionTimeouts()
    assert _row("connections, and no more than half") == [connections.MAX_CONNECTIONS]
    crowded = f"connections that wait for their peer longer than {timeouts.crowded:g} seconds"
    assert _row(crowded) == [connections.MAX_WAITING]
    assert _row("bytes of replies that all connections") == [connections.MAX_UNSENT_BYTES]
    assert _row("bytes of a request's URL") == [app.MAX_HEADER_BYTES]
    assert _row("bytes of a request's body") == [app.MAX_BODY_BYTES]
    assert _row("depth of nesting in each field") == [untrusted.JSON_DEPTH]
    assert _row("changes of a model") == [edits.MAX_CHANGES, editing.MAX_MASK_BYTES]
    assert _row("characters and tokens of a text") == [
        service.MAX_CHARACTERS,
        texts.MAX_TOKENS,
        service.MAX_SECONDS,
    ]
    assert _row("tokens of a text from which") == [run_text.MAX_GENERATED_FROM]
    assert _row("seconds without") == [timeouts.idle, timeouts.stalled, timeouts.response]


def test_the_limits_of_serve_are_those_of_the_code() -> None:
    most = Limits()
    assert _row("bytes of a served request's URL") == [serve_app.MAX_HEADER_BYTES]
    assert _row("bytes of a served request's body") == [most.body_bytes, most.all_bodies_bytes]
    assert _row("texts and tokens of a served request") == [most.items, most.tokens]
    assert _row("requests, texts and tokens in the queue") == [most.queue_requests, most.queue_items, most.queue_tokens]
    assert _row("seconds until a served request's body") == [most.body_seconds, most.seconds]


def test_what_it_points_at_is_there() -> None:
    places = [place for place in re.findall(r"`([\w./]+)`", TEXT) if "/" in place]
    assert places
    assert [place for place in places if not (ROOT / place).exists()] == []
    targets = re.findall(r"`make ([\w-]+)`", TEXT)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []
