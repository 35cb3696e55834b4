"""How long does nanoGPT's whole run for a CPU take compared with the same in plain PyTorch, and what loss does each reach?

The run is src/uwaga/train/recipes/shakespeare-cpu.toml: 2,000 steps of 12 rows of 64 characters, and the loss on the last tenth of the text every 250 steps.
The other side is the model of training.py, initialised as nanoGPT does, with the same rates and nanoGPT's batches. Both run in one process, 50 steps of each
in turn, and the times of each are added up. UWAGA_DATA is the folder of tinyshakespeare.txt.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import torch
from harness import Report, options, parse
from torch import Tensor, nn
from training import PlainTraining, Size, text

from uwaga.train import Config, sources
from uwaga.train.corpus import Corpus, Split
from uwaga.train.model import model_config, new_model
from uwaga.train.parallel import World
from uwaga.train.step import TrainableModel, lr_ratio

RECIPE = Path(__file__).parents[1] / "src" / "uwaga" / "train" / "recipes" / "shakespeare-cpu.toml"
IN_A_ROW = 50
Step, Evaluate = Callable[[int], float], Callable[[], float]


def our_side(config: Config, corpus: Corpus) -> tuple[Step, Evaluate]:
    world = World(rank=0, size=1, device=torch.device("cpu"))
    model = new_model(model_config(config.model, config.objective, corpus.model_settings), config.run.seed)
    trainable = TrainableModel(model, config, world)
    trainable.model.train()

    def step(number: int) -> float:
        return trainable.step(number, corpus.train).loss.item()

    return step, lambda: trainable.validation_loss(corpus.validation)


def plain_side(config: Config, corpus: Corpus, ids: Tensor) -> tuple[Step, Evaluate]:
    context = config.data.context_length
    size = Size(
        rows=config.batch.tokens_per_batch // context, context=context, layers=config.model["num_layers"],
        heads=config.model["num_heads"], width=config.model["d_model"], in_a_row=IN_A_ROW,
    )  # fmt: skip
    run = PlainTraining(ids, corpus.tokenizer.vocab_size, size, "float32")
    added = 0.02 * (2 * config.model["num_layers"]) ** -0.5  # deviation of what is added to the residual stream
    for name, weight in run.model.named_parameters():
        if weight.dim() > 1:
            nn.init.normal_(weight, std=added if name.endswith(("mix.weight", "down.weight")) else 0.02)
        elif name.endswith("bias"):
            nn.init.zeros_(weight)

    def step(number: int) -> float:
        return run.step(config.optimizer.lr * lr_ratio(number, config.schedule))

    return step, lambda: loss_of(run.model, corpus.validation, context)


@torch.no_grad()
def loss_of(model: nn.Module, valid: Split, context: int) -> float:
    """Over the same windows; not over the last one, which is shorter."""
    total, count = 0.0, 0
    for batch in valid.evaluation_batches(None):
        rows = int((batch.ids.lengths == context).sum())
        if rows:
            ids, labels = (x[: rows * context].view(rows, context) for x in (batch.ids.values, batch.labels))
            total, count = total + model(ids, labels).item() * rows, count + rows
    return total / count


def seconds(side: tuple[Step, Evaluate], first: int, config: Config) -> tuple[float, float | None]:
    """Of some steps, with the evaluations that come between; and the last of these."""
    step, evaluate = side
    began, result = perf_counter(), None
    for number in range(first, min(first + IN_A_ROW, config.schedule.steps)):
        step(number)
        if (number + 1) % config.run.eval_every == 0:
            result = evaluate()
    return perf_counter() - began, result


if __name__ == "__main__":
    chosen = parse(options(__doc__, grid=False))
    headings = ["side", "steps", "seconds", "torch / this", "validation loss"]
    report = Report(chosen, "nanoGPT's run for a CPU, beside plain PyTorch", headings)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "text.txt").write_text(text(5_000))
        small = [f'data.train=["{folder}/text.txt"]', "schedule.steps=4", "schedule.warmup_steps=1", "run.eval_every=2"]
        config = Config.read(RECIPE, small if chosen.quick else [])
        corpus = Corpus.prepare(config, Path(folder))
        name = config.data.train[0]
        whole = (sources.find(name, config.data) if name in config.data.sources else Path(name)).read_text()
        ids = torch.from_numpy(
            corpus.tokenizer.encode([whole[: -int(len(whole) * config.data.validation_fraction)]])[0]
        )
        sides = {"uwaga": our_side(config, corpus), "torch": plain_side(config, corpus, ids)}
        spent, losses = dict.fromkeys(sides, 0.0), dict.fromkeys(sides, 0.0)
        for first in range(0, config.schedule.steps, IN_A_ROW):
            for name in sides if first // IN_A_ROW % 2 else reversed(sides):
                took, loss = seconds(sides[name], first, config)
                spent[name] += took
                losses[name] = losses[name] if loss is None else loss
        for name in sides:
            share = spent["torch"] / spent[name]
            report.row(name, str(config.schedule.steps), f"{spent[name]:.1f}", f"{share:.2f}", f"{losses[name]:.4f}")
