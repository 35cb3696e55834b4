"""The door of training: a configuration in, a trained model out; begun, or gone on with."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from uwaga._base import durable, renamed
from uwaga.train import families, guard, seeds
from uwaga.train.checkpoints import files, folders
from uwaga.train.checkpoints.state import State
from uwaga.train.config import Config
from uwaga.train.data.corpus import Corpus
from uwaga.train.distributed import World, joined
from uwaga.train.errors import ConfigError, TrainingError
from uwaga.train.learner import Learner
from uwaga.train.loop import Loop
from uwaga.train.metrics import journal
from uwaga.train.metrics.board import Board
from uwaga.train.metrics.errors import Questioner
from uwaga.train.metrics.journal import Journal
from uwaga.train.metrics.samples import Sampler
from uwaga.train.metrics.screen import Screen, Silent, shown
from uwaga.train.metrics.teller import Teller
from uwaga.train.model import new_model

_LOCK = ".lock"


@renamed.parameters(valid="validation_losses")
@dataclass(frozen=True, kw_only=True)
class Result:
    """A training that came to its end.

    Attributes:
        steps: that were taken.
        losses, validation_losses: by step, as far as they are in metrics.jsonl.
        checkpoint, best: folders of the last checkpoint and of the best one.
    """

    steps: int
    losses: dict[int, float]
    validation_losses: dict[int, float]
    checkpoint: Path
    best: Path


def fit(config: Config, *, resume: bool = False, fsdp: bool = False, progress: bool = True) -> Result:
    """Train a model. Under torchrun every process calls this, and each takes a part of every step.

    Args:
        config: what is trained.
        resume: go on from the last checkpoint in run.output_dir; from the start, where there is none yet. What comes out is bit for
            bit what an uninterrupted training gives on the same machine.
        fsdp: each process keeps its share of the weights (FSDP2), instead of all of them.
        progress: show a bar and lines on standard error.

    Raises:
        ConfigError, DataError: a configuration or data that cannot be used.
        CheckpointError: a checkpoint that cannot be read, or is of another configuration.
        TrainingError: run.output_dir holds a run already; the loss is no number; a checkpoint cannot be written.
    """
    with joined(config.run.device) as world, seeds.kept(world.device), _threads(config.run.threads):
        out = Path(config.run.output_dir)
        with _alone(out, world), _disk(out):
            checkpoint = world.first(lambda: _begin(out, resume))
            corpus = Corpus.prepare(config, out)
            state = _fit(config, corpus, world, checkpoint, fsdp=fsdp, progress=progress and world.is_first)
            result = _result(out, state)
    return result


@contextmanager
def _disk(out: Path) -> Iterator[None]:
    """A full disk, or a folder that is gone, is a TrainingError that names what there is to go on from."""
    try:
        yield
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise TrainingError(f"{where}{error.strerror or error}; {guard.last_good(out)}") from error


def _fit(config: Config, corpus: Corpus, world: World, checkpoint: Path | None, *, fsdp: bool, progress: bool) -> State:
    out = Path(config.run.output_dir)
    model = new_model(families.built(config.model, config.objective, corpus.model_settings), config.run.seed)
    state = State(step=0, tokens=0, seconds=0.0, best=None, metrics=0, seed=config.run.seed, data=corpus.digest)
    if checkpoint is not None:
        state = _state(checkpoint, config, corpus)
        files.read_model(checkpoint, model)
    learner = Learner(model, config, world, fsdp=fsdp)
    if checkpoint is not None:
        learner.go_on(checkpoint, state.step)
    with ExitStack() as stack:
        screen = stack.enter_context(shown(config.schedule.steps, state.step)) if progress else Silent()
        tellers: list[Teller] = []
        world.first(lambda: tellers.append(_teller(config, corpus, out, state, screen)))
        teller = tellers[0] if tellers else None
        if teller is not None:
            stack.callback(teller.close)
            _greet(screen, config, model, checkpoint, world)
        return Loop(config, corpus, world, learner, state, teller).run()


def _begin(out: Path, resume: bool) -> Path | None:
    """The checkpoint to go on from. Raises TrainingError: there is a run, and nobody asked to go on with it."""
    last = folders.pointed(out, folders.LAST)
    if not resume and (last is not None or folders.steps(out) or (out / journal.FILE).exists()):
        where = "no checkpoint yet" if last is None else f"its last checkpoint is {last.name}"
        raise TrainingError(
            f"{out} holds a run already ({where}): --resume goes on with it, run.output_dir=... begins another"
        )
    folders.named(out, folders.BEST)  # which is not ours to replace where it says something else
    folders.clear(out)
    return last


@contextmanager
def _alone(out: Path, world: World) -> Iterator[None]:
    """Nobody else trains into this folder. Raises TrainingError."""

    def lock() -> None:
        durable.make_folder(out)
        try:
            stack.enter_context(durable.file_lock(out / _LOCK, wait=False))
        except BlockingIOError as error:
            raise TrainingError(f"{out} is being trained into by another process") from error

    with ExitStack() as stack:
        try:
            world.first(lock)
        except OSError as error:
            raise TrainingError(f"{error.filename}: {error.strerror}") from error
        yield


@contextmanager
def _threads(threads: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _state(checkpoint: Path, config: Config, corpus: Corpus) -> State:
    """Of a checkpoint of this configuration. Raises CheckpointError, ConfigError."""
    state = State.read(checkpoint)
    before = Config.read(checkpoint / files.CONFIG)
    for name in ("objective", "model"):
        if getattr(before, name) != getattr(config, name):
            was, now = getattr(before, name), getattr(config, name)
            raise ConfigError(f"{checkpoint} was trained with {name} {was!r}, and the configuration has {now!r}")
    if (state.seed, state.data) != (config.run.seed, corpus.digest):
        raise ConfigError(
            f"{checkpoint} was trained on other data, or in another order: "
            "data, tokenizer, batch and run.seed must be as they were"
        )
    if state.step > config.schedule.steps:
        raise ConfigError(f"schedule.steps is {config.schedule.steps}, and {checkpoint} has taken {state.step}")
    return state


def _teller(config: Config, corpus: Corpus, out: Path, state: State, screen: Screen) -> Teller:
    sampler = Sampler(config, corpus)
    board = Board(out, state.step) if config.run.tensorboard else None
    questioner = Questioner(config, corpus) if config.objective == "encoder-decoder" else None
    return Teller(Journal(out, state.metrics), board, screen, sampler, questioner, next(corpus.validation.all()))


def _greet(screen: Screen, config: Config, model: nn.Module, checkpoint: Path | None, world: World) -> None:
    weights = sum(weight.numel() for weight in model.parameters())
    where = "from the start" if checkpoint is None else f"from {checkpoint}"
    screen.line(f"{weights:,} weights, {config.schedule.steps:,} steps, {where}")
    if config.batch.gradient_accumulation_steps < world.size:
        wanted = f"batch.tokens_per_step={world.size * config.batch.tokens_per_batch}"
        screen.line(
            f"a step has {config.batch.gradient_accumulation_steps} micro-batches for {world.size} processes, and some have nothing to do: "
            f"{wanted} gives each one"
        )


def _result(out: Path, state: State) -> Result:
    last, best = folders.pointed(out, folders.LAST), folders.pointed(out, folders.BEST)
    assert last is not None
    assert best is not None
    return Result(
        steps=state.step,
        losses=journal.curve(out, "train"),
        validation_losses=journal.curve(out, "validation"),
        checkpoint=last,
        best=best,
    )
