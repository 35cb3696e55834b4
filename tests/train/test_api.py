"""`uwaga.train.fit`: its result, resuming, and the errors that end a run."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import full_disk
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from uwaga._base.durable import file_lock
from uwaga._base.errors import CheckpointError
from uwaga.models import load, tokenizer
from uwaga.train import Config, ConfigError, Result, TrainingError, api, fit
from uwaga.train.corpus import Corpus
from uwaga.train.parallel import World
from uwaga.train.step import Objective

Make = Callable[..., Config]


@pytest.fixture
def train(make: Make) -> Callable[..., Result]:
    return lambda *overrides, **how: fit(make(*overrides), progress=False, **how)


def refused(train: Callable[..., Result], kind: type[Exception], *overrides: str, **how: bool) -> str:
    """The message of a training that raises."""
    with pytest.raises(kind) as caught:
        train(*overrides, **how)
    return str(caught.value)


@pytest.mark.slow
def test_fit_returns_losses_and_checkpoints(train: Callable[..., Result], make: Make, tmp_path: Path) -> None:
    before = torch.get_rng_state()
    result = train("optimizer.lr=1e-2")
    assert result.steps == 6
    assert list(result.losses) == [1, 2, 3, 4, 5, 6]
    assert list(result.validation_losses) == [2, 4, 6]
    assert result.checkpoint == tmp_path / "run" / "step-000006"
    assert result.best.name == f"step-{min(result.validation_losses, key=result.validation_losses.__getitem__):06d}"
    assert result.losses[6] < result.losses[1]
    assert torch.equal(before, torch.get_rng_state())
    names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "optimizer.safetensors"}
    assert {path.name for path in result.checkpoint.iterdir()} == names | {"training.json", "config.toml"}
    assert Config.read(result.checkpoint / "config.toml") == make("optimizer.lr=1e-2")


@pytest.mark.slow
@torch.no_grad()
def test_a_run_is_a_model_with_the_validation_loss_that_training_reported(ended: Result, make: Make) -> None:
    """Its folder is the model of its best checkpoint."""
    folder, model = ended.checkpoint.parent, load(ended.checkpoint)
    corpus = Corpus.prepare(make(), folder)
    total, count = 0.0, 0
    for batch in corpus.validation.evaluation_batches():
        logits = model(batch.ids).logits.values
        total += float(torch.nn.functional.cross_entropy(logits, batch.labels, reduction="sum"))
        count += len(batch.labels)
    assert total / count == pytest.approx(ended.validation_losses[6], rel=1e-5)
    ids = torch.tensor([[3, 4, 5]])
    assert torch.equal(load(folder)(ids).logits, load(ended.best)(ids).logits)
    assert tokenizer(folder).encode("so it goes").ids


@pytest.mark.slow
def test_training_starts_from_the_weights_of_a_model(
    train: Callable[..., Result], make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a learning rate too small to change anything, a run ends with the loss that the first one ended with."""
    first = train("optimizer.lr=1e-2")
    again = make(f"run.init_from={first.checkpoint}", f"run.output_dir={tmp_path}/again", "optimizer.lr=1e-12")
    assert fit(again).validation_losses[6] == pytest.approx(first.validation_losses[6], abs=1e-6)
    assert f"from the weights of {first.checkpoint}" in capsys.readouterr().err


@pytest.mark.slow
def test_training_from_the_weights_of_another_model_is_refused(
    ended: Result, train: Callable[..., Result], tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        train(f"run.init_from={ended.checkpoint}", f"run.output_dir={tmp_path}/again", "model.d_ff=40")
    assert "absent/model.safetensors" in refused(
        train, CheckpointError, f"run.init_from={tmp_path}/absent", f"run.output_dir={tmp_path}/again", "run.seed=2"
    )


def test_a_run_folder_in_use_is_refused(train: Callable[..., Result], make: Make, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with file_lock(tmp_path / "run" / ".lock", wait=False), pytest.raises(TrainingError) as caught:
        train()
    assert "is in use by another" in str(caught.value)


@pytest.mark.slow
def test_a_run_that_ended_is_not_changed_by_resuming_it_and_not_overwritten(
    run_that_ended: Result, ended: Result, train: Callable[..., Result]
) -> None:
    before, folder = run_that_ended.checkpoint.parent, ended.checkpoint.parent
    moved = {name: folder / getattr(run_that_ended, name).name for name in ("checkpoint", "best")}
    assert train(resume=True) == ended == replace(run_that_ended, **moved)
    assert "holds a run already" in refused(train, TrainingError)
    for file in ("metrics.jsonl", "step-000006/model.safetensors", "step-000006/training.json"):
        assert (folder / file).read_bytes() == (before / file).read_bytes()


@pytest.mark.slow
def test_resume_with_other_settings_is_refused(ended: Result, train: Callable[..., Result]) -> None:
    model = "{{'family': 'gpt2', 'num_layers': 1, 'num_heads': 2, 'd_model': {}, 'd_ff': 32, 'max_position_embeddings': 64}}"
    for override, said in (
        ("schedule.steps=5", f"schedule.steps is 5, and {ended.checkpoint} is at step 6"),
        (
            "run.seed=1",
            f"{ended.checkpoint} was trained on other data, or in another order: data, tokenizer, batch and run.seed must be unchanged",
        ),
        (
            "model.d_model=32",
            f"{ended.checkpoint} was trained with model {model.format(16)}, and the configuration has {model.format(32)}",
        ),
    ):
        assert refused(train, ConfigError, override, resume=True) == said


# Errors that end a run.


TOO_FAST = "optimizer.lr=1e30"  # the weights after a step are too large for float32


@pytest.mark.slow
def test_an_infinite_loss_names_step_batch_and_checkpoint(
    train: Callable[..., Result], make: Make, tmp_path: Path
) -> None:
    how = ("batch.tokens_per_step=192", "schedule.kind=constant", "run.eval_every=3")
    train(*how, "schedule.steps=3")
    said = refused(train, TrainingError, *how, TOO_FAST, resume=True)
    micro_batches = Corpus.prepare(make(*how), tmp_path / "run").train.micro_batches(4)
    where = "; ".join(
        f"micro-batch {micro.number} (rows {', '.join(map(str, micro.rows))} of epoch {micro.epoch})"
        for micro in micro_batches
    )
    kept = f"the last good checkpoint is {tmp_path}/run/step-000003"
    assert re.sub("nan, of|inf, of", "NOT FINITE, of", said) == f"step 5: the loss is NOT FINITE, of {where}; {kept}"


@pytest.mark.slow
def test_a_nan_validation_loss_ends_the_run(train: Callable[..., Result], tmp_path: Path) -> None:
    how = ("schedule.kind=constant", "run.eval_every=1")
    said = refused(train, TrainingError, *how, TOO_FAST)
    assert re.fullmatch("step 1: the validation loss is (nan|inf); there is no checkpoint yet", said)
    assert train(*how, "schedule.steps=2", resume=True).steps == 2
    said = refused(train, TrainingError, *how, TOO_FAST, resume=True)
    assert said.startswith("step 3: the validation loss is ")
    assert said.endswith(f"; the last good checkpoint is {tmp_path}/run/step-000002")
    assert train(*how, resume=True).steps == 6


def test_a_full_disk_before_training_is_reported(train: Callable[..., Result]) -> None:
    with full_disk.room_for(100):
        assert "File too large; there is no checkpoint" in refused(train, TrainingError)


@pytest.mark.slow
def test_a_full_disk_leaves_the_last_good_checkpoint(train: Callable[..., Result], tmp_path: Path) -> None:
    out, how = tmp_path / "run", ("schedule.kind=constant", "run.keep_last=9")
    first = train(*how, "schedule.steps=2")
    with full_disk.room_for((first.checkpoint / "model.safetensors").stat().st_size - 1):
        said = refused(train, TrainingError, *how, resume=True)
    assert said.startswith(f"the checkpoint of step 4 cannot be written to {out}: ")
    assert "File too large" in said
    assert said.endswith(f"; the last good checkpoint is {out}/step-000002")
    assert sorted(path.name for path in out.glob("*step*")) == ["step-000002"]
    assert load(out / "step-000002") is not None
    assert train(*how, resume=True).steps == 6


# Corrupt or untrusted checkpoints.


def optimizer(last: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    result = load_file(last / "optimizer.safetensors")
    change(result)
    save_file(result, last / "optimizer.safetensors")


NORM = "exp_avg/decoder.norm.bias"
CHANGES: dict[str, Callable[[dict[str, Tensor]], object]] = {
    f"missing  {NORM} (16,)": lambda x: x.pop(NORM),
    "unexpected  '\\x1b[2J' (2,)": lambda x: x.update({"\x1b[2J": torch.zeros(2)}),
    f"wrong shape  {NORM} (17,) must be (16,)": lambda x: x.update({NORM: torch.zeros(17)}),
    f"not finite  {NORM} (16,) in float32": lambda x: x.update({NORM: torch.full((16,), torch.nan)}),
}


@pytest.mark.slow
def test_files_of_a_checkpoint_that_were_changed_are_named(ended: Result, train: Callable[..., Result]) -> None:
    last = ended.checkpoint
    kept = shutil.copytree(last, last.with_name("kept"))
    for said, change in CHANGES.items():
        optimizer(last, change)
        message = refused(train, CheckpointError, resume=True)
        assert message.startswith(f"{last}/optimizer.safetensors")
        assert message.endswith(said)
        shutil.copy(kept / "optimizer.safetensors", last)
    for file in ("model.safetensors", "optimizer.safetensors", "training.json", "config.toml"):
        for cut in (0, 5, (kept / file).stat().st_size // 2, None):
            (last / file).write_bytes((kept / file).read_bytes()[:cut])
            if cut is None:
                (last / file).unlink()
            with pytest.raises((CheckpointError, ConfigError)) as caught:
                train(resume=True)
            assert str(last) in str(caught.value)
        shutil.copy(kept / file, last)
    (last / "model.safetensors").unlink()  # a pickle in its place is not read
    torch.save(load_file(kept / "model.safetensors"), last / "pytorch_model.bin")
    assert refused(train, CheckpointError, resume=True) == f"there is no {last}/model.safetensors"


# bfloat16, torch.compile, TensorBoard.


@pytest.mark.slow
def test_bfloat16_has_float32_weights_and_resumes_bit_for_bit(train: Callable[..., Result], tmp_path: Path) -> None:
    """Resumed with more steps than it had at first."""
    how = ("optimizer.lr=1e-2", "batch.tokens_per_step=128", "schedule.kind=constant")
    bfloat16 = (*how, "optimizer.dtype=bfloat16")
    plain = train(*how, f"run.output_dir={tmp_path}/plain")
    alone = train(*bfloat16, f"run.output_dir={tmp_path}/alone")
    assert alone.losses != plain.losses
    assert alone.losses == pytest.approx(plain.losses, rel=0.02)
    train(*bfloat16, "schedule.steps=3")
    again = train(*bfloat16, resume=True)
    assert list(again.losses) == [1, 2, 3, 4, 5, 6]
    assert again.checkpoint.name == "step-000006"
    result, expected = (load_file(run.checkpoint / "model.safetensors") for run in (again, alone))
    assert all(torch.equal(result[name], expected[name]) for name in expected)
    assert {weight.dtype for weight in result.values()} == {torch.float32}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
# Dynamo reads every attribute of a tensor, .grad among them.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.stress
def test_compiled_training_agrees_with_eager_within_rounding(
    train: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # aot_eager runs the traced graph; generating kernels would take minutes.
    make = torch.nn.Module.compile
    monkeypatch.setattr(
        Objective, "compile", lambda self, **how: make(self, backend="aot_eager", fullgraph=True, **how)
    )
    torch.compiler.reset()
    how = ("model.dropout=0.0", "model.embedding_dropout=0.0", "model.attention_dropout=0.0", "optimizer.lr=1e-2")
    plain = train(*how, f"run.output_dir={tmp_path}/plain")
    compiled = train(*how, "run.compile=true")
    assert compiled.losses == pytest.approx(plain.losses, rel=1e-4)
    assert compiled.validation_losses == pytest.approx(plain.validation_losses, rel=1e-4)
    assert load(compiled.checkpoint) is not None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_has_the_values_of_metrics_jsonl(train: Callable[..., Result], tmp_path: Path) -> None:
    """Without those of a step that was repeated after resuming."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    how = ("run.tensorboard=true", "run.attention_every=3", "schedule.kind=constant")
    train(*how, "schedule.steps=3")
    (tmp_path / "run" / "last").write_text("step-000002\n")
    result = train(*how, resume=True)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    for name, losses in (("train/loss", result.losses), ("validation/loss", result.validation_losses)):
        found = events.Scalars(name)
        assert [event.step for event in found] == list(losses)
        assert [event.value for event in found] == pytest.approx(list(losses.values()))
    assert [event.step for event in events.Scalars("normalized_entropy/decoder 0.1")] == [3, 6]


@pytest.mark.parametrize(("count", "size", "context"), [(2, 4, 1), (4, 4, 1), (1, 4, 2)])
def test_idle_processes_are_reported(make: Make, count: int, size: int, context: int) -> None:
    world = World(rank=0, size=size, device=torch.device("cpu"), context=context)
    corpus = SimpleNamespace(train=SimpleNamespace(micro_batches_per_step=count))
    first, *others = api.start_lines(
        make("batch.tokens_per_batch=96"), corpus, torch.nn.Linear(2, 2), Path("run/last"), world
    )
    assert first == "6 weights, 6 steps, from run/last"
    idle = (
        f"a step has {count} micro-batches for {size // context} processes, and some processes are idle: "
        f"batch.tokens_per_step={96 * size // context} gives each of them one"
    )
    assert others == ([idle] if count * context < size else [])
