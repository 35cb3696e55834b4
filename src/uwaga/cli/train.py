"""`uwaga train`: from a configuration to a model, by one process or, under torchrun, by many. A killed training can be resumed."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from uwaga._base.errors import CheckpointError
from uwaga.cli.terminal import echo, fail

if TYPE_CHECKING:
    from uwaga.train.api import Result


def train(
    config: Annotated[Path, typer.Argument(help="A TOML file; see recipes/ and docs/train.md.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key.path=value, such as optimizer.lr=1e-3.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume from the last checkpoint in run.output_dir.")
    ] = False,
    print_config: Annotated[bool, typer.Option("--print-config", help="Show what would be trained, and end.")] = False,
    compile: Annotated[bool, typer.Option("--compile", help="Through torch.compile; as run.compile=true.")] = False,
    fsdp: Annotated[
        bool, typer.Option("--fsdp", help="Under torchrun: each process keeps a share of the weights.")
    ] = False,
) -> None:
    """Train a model. If it is killed, the same command with --resume continues it, to the same weights bit for bit."""
    from uwaga.train.api import fit
    from uwaga.train.config import Config
    from uwaga.train.errors import ConfigError, DataError, TrainingError

    try:
        read = Config.read(config, [*(overrides or ()), *(["run.compile=true"] if compile else [])])
        if print_config:
            echo(read.text(), nl=False)
            return
        result = fit(read, resume=resume, fsdp=fsdp)
    except (ConfigError, DataError, CheckpointError, TrainingError) as error:
        _fail(str(error))
    except KeyboardInterrupt:
        if _is_first():
            echo("uwaga train: stopped; the same command with --resume continues", err=True)
        raise typer.Exit(130) from None
    if _is_first():
        echo(_said(result))


def _said(result: "Result") -> str:
    step, loss = min(result.validation_losses.items(), key=lambda each: each[1])
    return f"{result.best}: validation loss {loss:.4f} at step {step:,} of {result.steps:,}"


def _fail(message: str) -> NoReturn:
    # Under torchrun every process fails with the same message; the first prints it.
    if _is_first():
        fail("train", message)
    raise typer.Exit(1)


def _is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"
