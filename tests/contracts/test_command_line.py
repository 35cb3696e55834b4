"""The command line's surface is a list: a verb or an option that comes or goes is a decision, and shows up here."""

from typer.main import get_command

from uwaga.cli import app

SURFACE = {
    "bench": {"--save", "--seconds", "--tiny"},
    "demo": {"--seconds"},
    "doctor": {"--json"},
    "generate": {
        "prompts", "--model", "--max-new-tokens", "--do-sample", "--temperature", "--top-k", "--top-p", "--num-beams",
        "--length-penalty", "--seed", "--dtype", "--json",
    },
    "encode": {
        "documents", "--output", "-o", "--model", "--overflow", "--overlap", "--dtype", "--tokens-per-batch", "--normalize", "--prompt",
        "--text", "--id",
    },
    "lesson": {
        "sentence", "--plain", "--all", "--query", "--heads", "--unscaled", "--no-model", "--port", "--no-browser",
    },
    "train": {"config", "overrides", "--resume", "--print-config", "--compile", "--fsdp"},
    "view": {
        "text", "--model", "--second", "--second-model", "--target", "--max-new-tokens", "--truncate", "--layers", "--dtype",
        "--save", "--exact", "--port", "--no-browser",
    },
}  # fmt: skip


def test_verbs_and_options_are_these() -> None:
    found = {
        name: {option for parameter in verb.params for option in parameter.opts}
        for name, verb in get_command(app).commands.items()
    }
    assert found == SURFACE
