"""The command line's surface is a list: a verb or an option that comes or goes is a decision, and shows up here."""

from typing import Any

from typer.main import get_command

from uwaga.cli import app

SURFACE = {
    "bench": {"--save", "--seconds", "--tiny"},
    "doctor": {"--distributed", "--json", "--model"},
    "generate": {
        "prompts", "--model", "--max-new-tokens", "--do-sample", "--temperature", "--top-k", "--top-p", "--num-beams",
        "--length-penalty", "--seed", "--dtype", "--json",
    },
    "encode": {
        "documents", "--output", "-o", "--model", "--overflow", "--overlap", "--dtype", "--tokens-per-batch", "--normalize", "--prompt",
        "--prompt-name", "--truncate-dim", "--spans",
        "--text", "--id", "--skip-invalid", "--limit", "--numpy", "--update", "--processes", "--ray", "--timeout",
    },
    "lesson": {
        "sentence", "--plain", "--all", "--query", "--heads", "--unscaled", "--save", "--worksheet", "--language", "--no-model", "--port", "--no-browser",
    },
    "serve": {
        "model", "--host", "--port", "--name", "--keys", "--reranker", "--dtype", "--truncate", "--processes", "--step-tokens", "--max-items", "--max-tokens",
        "--max-body", "--max-queue", "--timeout", "--access-log", "--ignore-key",
    },
    "store": {
        "add": {"database", "files", "--model", "--by", "--dtype", "--late-chunking", "--text", "--skip-invalid"},
        "ask": {"database", "question", "--top", "--scale", "--where", "--model", "--json"},
        "check": {"database", "--json"},
        "stats": {"database", "--json"},
        "compact": {"database"},
        "export": {"database", "file"},
    },
    "train": {"config", "overrides", "--resume", "--print-config", "--compile", "--fsdp"},
    "view": {
        "text", "--model", "--resolution", "--ask", "--second", "--second-model", "--target", "--max-new-tokens", "--truncate", "--layers", "--dtype",
        "--head", "--pick", "--save", "--exact", "--seconds", "--language", "--port", "--no-browser",
    },
}  # fmt: skip


def options(verb: Any) -> Any:
    """The names of a command's options, or of those of its own commands."""
    if commands := getattr(verb, "commands", None):
        return {name: options(command) for name, command in commands.items()}
    return {option for parameter in verb.params for option in parameter.opts}


def test_verbs_and_options_are_these() -> None:
    assert options(get_command(app)) == SURFACE
