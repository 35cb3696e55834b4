"""`uwaga train`: from a configuration to a model, by one process or, under torchrun, by many. A killed training can be resumed."""

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from uwaga._base.errors import CheckpointError
from uwaga.cli.terminal import echo, fail, in_option_names

if TYPE_CHECKING:
    from uwaga.train.config import Config

RECIPES = {path.stem: path for path in sorted((Path(__file__).parents[1] / "train" / "recipes").glob("*.toml"))}
_OPTIONS = ("resume",)  # parameters of `fit` that messages name


def train(
    config: Annotated[str, typer.Argument(help=f"A TOML file, or a recipe: {', '.join(RECIPES)}.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key.path=value, such as optimizer.lr=1e-3.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume from the last checkpoint in run.output_dir.")
    ] = False,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print the configuration and exit.")] = False,
) -> None:
    """Train a model. Ctrl-C writes a checkpoint. Stopped or killed, the same command with --resume continues it, to the same
    weights bit for bit."""
    from uwaga.train.config import Config
    from uwaga.train.errors import ConfigError, DataError, LostProcessError, TrainingError

    try:
        read = Config.read(RECIPES.get(config, Path(config)), overrides or ())
        if print_config:
            echo(read.text(), nl=False)
            return
        from uwaga.train.api import fit  # imports PyTorch, which takes seconds

        result = fit(read, resume=resume)
    except LostProcessError as error:
        # The one that is lost may be the first, and each knows only of whom it waited for.
        fail("train", in_option_names(str(error), _OPTIONS))
    except (ConfigError, DataError, CheckpointError, TrainingError) as error:
        # Under torchrun every process fails with the same message; the first prints it.
        if _is_first():
            fail("train", in_option_names(str(error), _OPTIONS))
        raise typer.Exit(1) from None
    except KeyboardInterrupt as error:
        if _is_first():
            message = str(error) or "stopped before the first step; resume=True starts again"
            echo(f"uwaga train: {in_option_names(message, _OPTIONS)}", err=True)
        raise typer.Exit(130) from None
    if _is_first():
        step, loss = min(result.validation_losses.items(), key=lambda item: item[1])
        echo(f"{result.best}: validation loss {loss:.4f} at step {step:,} of {result.steps:,}")
        echo(_next_commands(read))


def _next_commands(config: "Config") -> str:
    """Return commands for the model: the folder of the run is the name of its best checkpoint."""
    run = shlex.quote(config.run.output_dir)
    text = shlex.quote(config.run.sample_prompts[0] if config.run.sample_prompts else "a text")
    commands = [f"uwaga view {text} --model {run}"]
    if config.objective != "masked-language-model":
        commands.insert(0, f"uwaga generate {text} --model {run}")
    return "Next:\n" + "\n".join(f"  {command}" for command in commands)


def _is_first() -> bool:
    """Return whether this process prints: alone, or the first that torchrun started."""
    return os.environ.get("RANK", "0") == "0"
