"""Commands of `uwaga` in this process: what they say; and models whose tokens are bytes."""

from pathlib import Path
from typing import Any

from tiny_tokenizer import read_as_it_is
from typer.testing import CliRunner

from uwaga.cli import app


def run(verb: str, *arguments: object, **options: Any) -> str:
    """What a command that succeeds says."""
    result = CliRunner().invoke(app, [verb, *map(str, arguments)], **options)
    assert result.exit_code == 0, result.output
    return result.stdout


def refusal(verb: str, *arguments: object, **options: Any) -> str:
    """What a command that fails says, except for the bar."""
    result = CliRunner().invoke(app, [verb, *map(str, arguments)], **options)
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    return result.stderr.partition(f"uwaga {verb}: ")[2].removesuffix("\n")


def store(*arguments: object, code: int = 0) -> str:
    """What `uwaga store` says, with its exit code."""
    result = CliRunner().invoke(app, ["store", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.stderr.split("uwaga store ")[-1].strip() if code else result.stdout


def byte_tokenizer(*special: str) -> Any:
    """Each byte is a token, and so are these texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens(list(special))
    return made


def save_byte_model(model: Any, folder: Path, *special: str) -> Path:
    from uwaga.models import save

    save(model, folder)
    byte_tokenizer(*special).save(str(folder / "tokenizer.json"))
    read_as_it_is(folder)
    return folder
