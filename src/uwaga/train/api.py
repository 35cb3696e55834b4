"""`uwaga.train.fit`: a configuration in, a trained model out; from the start or resumed."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from uwaga._base import durable
from uwaga.models.checkpoints.directories import BEST, LAST, checkpoint_of_run, read_pointer, read_pointer_name
from uwaga.train import checkpoint as checkpoint_files
from uwaga.train import seeds
from uwaga.train.checkpoint import TrainingState, last_checkpoint_text
from uwaga.train.config import Config
from uwaga.train.corpus import Corpus
from uwaga.train.errors import ConfigError, LostProcessError, TrainingError
from uwaga.train.logger import METRICS_FILE, Display, MetricsLogger, progress_display, read_losses
from uwaga.train.loop import Loop
from uwaga.train.model import model_config, new_model
from uwaga.train.parallel import World, process_group
from uwaga.train.step import TrainableModel

_LOCK = ".lock"


@dataclass(frozen=True, kw_only=True)
class Result:
    """A finished training run.

    Attributes:
        steps: the number of optimizer steps.
        losses, validation_losses: by step, as logged in metrics.jsonl.
        checkpoint, best: the folders of the last checkpoint and of the one with the lowest validation loss.
    """

    steps: int
    losses: dict[int, float]
    validation_losses: dict[int, float]
    checkpoint: Path
    best: Path


def fit(config: Config, *, resume: bool = False, fsdp: bool = False, progress: bool = True) -> Result:
    """Train a model. Under torchrun every process calls this, and each computes a part of every step.

    Args:
        config: the model, the data and the run.
        resume: continue from the last checkpoint in run.output_dir, or start where there is none. The result is bit for bit
            that of an uninterrupted run on the same machine.
        fsdp: each process keeps a shard of the weights (FSDP2), instead of all of them.
        progress: show a progress bar and messages on standard error.

    Raises:
        ConfigError, DataError: a configuration or data that cannot be used.
        CheckpointError: a checkpoint that cannot be read, or is of another configuration.
        TrainingError: run.output_dir holds a run already; a loss or gradient is NaN or infinite; a checkpoint cannot be
            written; another process ended or did not answer within parallel.timeout (LostProcessError, with its rank).
        TrainingInterrupted: a KeyboardInterrupt. The first Ctrl-C lets the step end and writes a checkpoint, the second one stops
            at once; so in the main thread of a single process. Otherwise the first one stops at once.
    """
    with (
        process_group(config.run.device, config.parallel) as world,
        seeds.fork_rng(world.device),
        _num_threads(config.run.threads),
    ):
        out = Path(config.run.output_dir)
        with _errors_named(out, world), _locked(out, world):
            checkpoint = world.on_first(lambda: _begin(out, resume))
            corpus = Corpus.prepare(config, out)
            state = _fit(config, corpus, world, checkpoint, fsdp=fsdp, progress=progress and world.is_first)
            result = _result(out, state)
    return result


@contextmanager
def _errors_named(out: Path, world: World) -> Iterator[None]:
    """Raises an OSError, such as that of a full disk, and that another process is lost, as a TrainingError that names the last good
    checkpoint. The other processes are told of an error of this one alone."""
    try:
        yield
    except TrainingError:
        raise
    except RuntimeError as error:
        if (lost := world.lost_peer(error)) is None:
            world.leave(error)
            raise
        raise LostProcessError(f"{lost}; {last_checkpoint_text(out)}") from error
    except OSError as error:
        world.leave(error)
        where = f"{error.filename}: " if error.filename else ""
        raise TrainingError(f"{where}{error.strerror or error}; {last_checkpoint_text(out)}") from error
    except Exception as error:
        world.leave(error)
        raise


def _fit(
    config: Config, corpus: Corpus, world: World, checkpoint: Path | None, *, fsdp: bool, progress: bool
) -> TrainingState:
    out = Path(config.run.output_dir)
    model = new_model(model_config(config.model, config.objective, corpus.model_settings), config.run.seed)
    state = TrainingState(step=0, tokens=0, seconds=0.0, best=None, metrics=0, seed=config.run.seed, data=corpus.digest)
    if checkpoint is not None:
        state = _resumed_state(checkpoint, config, corpus)
        checkpoint_files.read_model(checkpoint, model)
    elif config.run.init_from is not None:
        checkpoint_files.read_model(checkpoint_of_run(Path(config.run.init_from)), model)
    trainable = TrainableModel(model, config, world, fsdp=fsdp)
    if checkpoint is not None:
        trainable.load_optimizer(checkpoint, state.step)
    with ExitStack() as stack:
        display = stack.enter_context(progress_display(config.schedule.steps, state.step, shown=progress))
        loggers: list[MetricsLogger] = []
        world.on_first(lambda: loggers.append(MetricsLogger(config, corpus, out, state, display)))
        logger = loggers[0] if loggers else None
        if logger is not None:
            stack.callback(logger.close)
            _show_start(display, config, model, checkpoint, world)
        return Loop(config, corpus, world, trainable, state, logger).run()


def _begin(out: Path, resume: bool) -> Path | None:
    """The checkpoint to resume from. Raises TrainingError: the folder holds a run, and `resume` is False."""
    last = read_pointer(out, LAST)
    if not resume and (last is not None or checkpoint_files.checkpoint_steps(out) or (out / METRICS_FILE).exists()):
        where = "no checkpoint yet" if last is None else f"its last checkpoint is {last.name}"
        raise TrainingError(
            f"{out} holds a run already ({where}): resume=True continues it, run.output_dir=... starts another"
        )
    read_pointer_name(out, BEST)  # a file with other text is not ours: this raises before it is replaced
    checkpoint_files.remove_leftovers(out)
    return last


@contextmanager
def _locked(out: Path, world: World) -> Iterator[None]:
    """Holds the lock of a run's folder. Raises TrainingError: another process trains into it."""

    def lock() -> None:
        durable.make_folder(out)
        try:
            stack.enter_context(durable.file_lock(out / _LOCK, wait=False))
        except BlockingIOError as error:
            raise TrainingError(f"{out} is in use by another training process") from error

    with ExitStack() as stack:
        try:
            world.on_first(lock)
        except OSError as error:
            raise TrainingError(f"{error.filename}: {error.strerror}") from error
        yield


@contextmanager
def _num_threads(threads: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _resumed_state(checkpoint: Path, config: Config, corpus: Corpus) -> TrainingState:
    """The state of a checkpoint of this configuration. Raises CheckpointError, ConfigError."""
    state = TrainingState.read(checkpoint)
    before = Config.read(checkpoint / checkpoint_files.CONFIG)
    for name in ("objective", "model"):
        if getattr(before, name) != getattr(config, name):
            was, now = getattr(before, name), getattr(config, name)
            raise ConfigError(f"{checkpoint} was trained with {name} {was!r}, and the configuration has {now!r}")
    if (state.seed, state.data) != (config.run.seed, corpus.digest):
        raise ConfigError(
            f"{checkpoint} was trained on other data, or in another order: "
            "data, tokenizer, batch and run.seed must be unchanged"
        )
    if state.step > config.schedule.steps:
        raise ConfigError(f"schedule.steps is {config.schedule.steps}, and {checkpoint} is at step {state.step}")
    return state


def _show_start(display: Display, config: Config, model: nn.Module, checkpoint: Path | None, world: World) -> None:
    weights = sum(weight.numel() for weight in model.parameters())
    begun = "from the start" if config.run.init_from is None else f"from the weights of {config.run.init_from}"
    where = begun if checkpoint is None else f"from {checkpoint}"
    display.message(f"{weights:,} weights, {config.schedule.steps:,} steps, {where}")
    count = config.batch.gradient_accumulation_steps
    if count < world.data_size:
        wanted = f"batch.tokens_per_step={world.data_size * config.batch.tokens_per_batch}"
        display.message(
            f"a step has {count} micro-batches for {world.data_size} processes, and some processes are idle: "
            f"{wanted} gives each of them one"
        )


def _result(out: Path, state: TrainingState) -> Result:
    last, best = read_pointer(out, LAST), read_pointer(out, BEST)
    assert last is not None
    assert best is not None
    return Result(
        steps=state.step,
        losses=read_losses(out, "train"),
        validation_losses=read_losses(out, "validation"),
        checkpoint=last,
        best=best,
    )
