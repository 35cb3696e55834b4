"""`uwaga generate`: the text that it shows, as it comes, and what it says of bad input."""

import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import commands
import pytest
import torch
from tiny_transformer import tiny

from uwaga.cli import app
from uwaga.models import Transformer, generate, load

# Letters of one, two, three and four bytes, each byte a token of its own.
STORY = " there was a snowman: ☃. Żółw 🐢 saw it"
END = "<|end|>"


def tokenizer():
    return commands.byte_tokenizer(END)


def write(folder: Path, model: torch.nn.Module) -> Path:
    return commands.save_byte_model(model, folder, END)


@pytest.fixture
def story_model(tmp_path: Path) -> Path:
    """A GPT-2 that reads nothing but where it stands: after a prompt of four tokens it tells a story, and ends."""
    return write(tmp_path / "story_model", model_of_text(STORY))


def model_of_text(story: str) -> Transformer:
    told = [0, 0, 0, *tokenizer().encode(story + END).ids]
    sizes = {"vocab_size": 257, "d_model": 80, "d_ff": 8, "max_position_embeddings": 80}
    model = tiny("gpt2", num_layers=1, num_heads=2, **sizes, tie_word_embeddings=False, eos_token_ids=(256,))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.decoder.norm.weight.fill_(1.0)
        model.embeddings.positions.weight.copy_(torch.eye(80))
        model.lm_head.decoder.weight[told, torch.arange(len(told))] = 1.0
        model.lm_head.decoder.weight[0, :3] = 0.0
    return model


@pytest.fixture
def writer(tmp_path: Path) -> Path:
    """A random GPT-2."""
    model = tiny("gpt2", seed=0, vocab_size=257, num_heads=2, max_position_embeddings=40, eos_token_ids=(256,))
    return write(tmp_path / "writer", model)


def run(model: Path, *arguments: object, **options) -> str:
    return commands.run("generate", "--model", model, *arguments, **options)


def test_the_text_is_shown_without_the_prompt_which_may_come_from_stdin(story_model: Path) -> None:
    assert run(story_model, "Once", "--max-new-tokens", 70) == STORY + "\n"
    assert run(story_model, "-", "--max-new-tokens", 6, input=b"Once") == STORY[:6] + "\n"


def test_complete_characters_are_printed_as_they_are_generated(story_model: Path) -> None:
    class Shown(io.BytesIO):
        def write(self, text: Any) -> int:
            pieces.append(bytes(text).decode())
            return len(text)

    pieces: list[str] = []
    with redirect_stdout(io.TextIOWrapper(Shown(), encoding="utf-8", write_through=True)):
        app(["generate", "--model", str(story_model), "Once", "--max-new-tokens", "70"], standalone_mode=False)
    assert [piece for piece in pieces if piece] == [*STORY, "\n"]


def test_an_incomplete_character_at_the_end_is_printed_as_the_replacement_character(story_model: Path) -> None:
    until = len(STORY[: STORY.index("☃")].encode()) + 2
    assert run(story_model, "Once", "--max-new-tokens", until) == STORY[: STORY.index("☃")] + "\ufffd\n"


def test_several_prompts_are_gone_on_with_at_once(writer: Path) -> None:
    prompts = ["Once", "a", "żółw"]
    backend, model = tokenizer(), load(writer)
    written = generate(model, [backend.encode(text).ids for text in prompts], max_new_tokens=6)
    expected = [backend.decode(ids) for ids in written]
    assert run(writer, *prompts, "--max-new-tokens", 6) == "".join(text + "\n" for text in expected)
    lines = run(writer, *prompts, "--max-new-tokens", 6, "--json").splitlines()
    assert [json.loads(line) for line in lines] == [
        {"prompt": prompt, "text": text, "tokens": ids}
        for prompt, text, ids in zip(prompts, expected, written, strict=True)
    ]
    # One by one they are streamed, and are the same.
    assert [run(writer, prompt, "--max-new-tokens", 6) for prompt in prompts] == [text + "\n" for text in expected]


@pytest.mark.parametrize(
    ("options", "same"),
    [
        (
            ["--do-sample", "--temperature", "0.9", "--top-k", "50", "--top-p", "0.9", "--seed", "3"],
            {"do_sample": True, "temperature": 0.9, "top_k": 50, "top_p": 0.9, "seed": 3},
        ),
        (["--num-beams", "3"], {"num_beams": 3}),
        (["--dtype", "bfloat16"], {}),
    ],
    ids=["drawn", "beams", "bfloat16"],
)
def test_options_reach_generate(writer: Path, options: list[str], same: dict) -> None:
    model = load(writer, dtype=torch.bfloat16 if "--dtype" in options else None)
    expected = generate(model, [tokenizer().encode("Once").ids], max_new_tokens=9, **same)
    result = run(writer, "Once", "--max-new-tokens", 9, "--json", *options)
    assert json.loads(result)["tokens"] == expected[0]


def test_an_encoder_and_a_decoder_answer(tmp_path: Path) -> None:
    model = tiny("t5", seed=0, vocab_size=257, num_layers=1, num_heads=2, d_k=8, eos_token_ids=(256,))
    folder = write(tmp_path / "t5", model)
    expected = generate(load(folder), [tokenizer().encode("Once").ids], max_new_tokens=5)[0]
    assert run(folder, "Once", "--max-new-tokens", 5) == tokenizer().decode(expected) + "\n"


def test_what_a_model_writes_cannot_control_a_terminal(tmp_path: Path) -> None:
    """Shown as it comes, and at the end; exact for programs."""
    hostile = "\x1b]0;owned\x07 \u202e [bold]"
    folder = write(tmp_path / "hostile", model_of_text(hostile))
    safe = "<U+001B>]0;owned<U+0007> <U+202E> [bold]\n"
    assert run(folder, "Once", "--max-new-tokens", 70) == safe
    assert run(folder, "Once", "Once", "--max-new-tokens", 70) == safe * 2
    assert json.loads(run(folder, "Once", "--max-new-tokens", 70, "--json"))["text"] == hostile


def test_a_message_of_a_library_cannot_control_a_terminal(story_model: Path) -> None:
    (story_model / "config.json").write_text('{"model_type": "gpt2", "\\u009b": NaN, "a": ')
    assert commands.refusal("generate", "--model", story_model, "Once").isprintable()
    assert commands.refusal("generate", "--model", story_model.parent / "\x1b[2J", "Once").startswith(
        f"{story_model.parent}/<U+001B>[2J is neither a directory"
    )
