"""How long is one step of training beside the same in plain PyTorch?

nanoGPT's setting for a CPU: 4 layers, 4 heads, 128 wide, 12 rows of 64 tokens, 65 characters; a whole step: batch, forward,
backward, clipping, AdamW, and the loss read. The other split is the same model, weight for weight, in plain PyTorch
(nn.Linear, nn.LayerNorm, F.scaled_dot_product_attention, one map for query, key and value) with nanoGPT's loop.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from harness import Report, options, parse
from torch import Tensor, nn

from uwaga.cli.timing import compare
from uwaga.train import Config, families
from uwaga.train.data import Corpus
from uwaga.train.distributed import World
from uwaga.train.model import new_model
from uwaga.train.step import StepRunner, TrainableModel

LAYERS, HEADS, WIDTH = 4, 4, 128
IN_A_ROW = 20
CONFIG = """
objective = "language-model"
[model]
family = "gpt2"
num_layers = 4
num_heads = 4
d_model = 128
d_ff = 512
max_position_embeddings = {context}
activation = "gelu"
dropout = 0.0
embedding_dropout = 0.0
attention_dropout = 0.0
[data]
train = ["{folder}/text.txt"]
windows = true
context_length = {context}
[batch]
tokens_per_batch = {tokens}
[optimizer]
lr = 1e-3
betas = [0.9, 0.99]
weight_decay = 0.1
dtype = "{dtype}"
[schedule]
steps = 100000
warmup_steps = 100
[run]
output_dir = "{folder}/run"
"""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.mix = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        rows, tokens, _ = x.shape
        parts = self.qkv(self.first(x)).split(WIDTH, dim=2)
        query, key, value = (part.view(rows, tokens, HEADS, -1).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mix(mixed.transpose(1, 2).contiguous().view(rows, tokens, WIDTH))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Plain(nn.Module):
    """nanoGPT's model, with biases as GPT-2 has them."""

    def __init__(self, vocabulary: int, context: int) -> None:
        super().__init__()
        self.words, self.files = nn.Embedding(vocabulary, WIDTH), nn.Embedding(context, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.words(ids) + self.files(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


class PlainTraining:
    """nanoGPT's loop over a text of ids (N,): AdamW, clipping, windows drawn anywhere.

    Attributes:
        model: what it trains.
    """

    def __init__(self, text: Tensor, vocabulary: int, context: int, rows: int, dtype: str) -> None:
        self._text, self._context, self._rows, self._dtype = text, context, rows, dtype
        self.model = Plain(vocabulary, context)
        weights = list(self.model.parameters())
        matrices, others = ([w for w in weights if (w.dim() > 1) == wanted] for wanted in (True, False))
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        self._adam = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), fused=True)

    def step(self, rate: float = 1e-3) -> float:
        """The loss."""
        starts = torch.randint(len(self._text) - self._context, (self._rows,))
        ids = torch.stack([self._text[at : at + self._context] for at in starts])
        labels = torch.stack([self._text[at + 1 : at + 1 + self._context] for at in starts])
        for group in self._adam.param_groups:
            group["lr"] = rate
        with torch.autocast("cpu", torch.bfloat16, enabled=self._dtype == "bfloat16"):
            loss = self.model(ids, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)
        return loss.item()


def our_step(folder: Path, context: int, rows: int, dtype: str) -> tuple[Callable[[], float], Corpus]:
    text = CONFIG.format(folder=folder, context=context, tokens=rows * context, dtype=dtype)
    config = Config.parse(text)
    corpus, world = Corpus.prepare(config, folder), World(rank=0, size=1, device=torch.device("cpu"))
    model = new_model(families.model_config(config.model, config.objective, corpus.model_settings), config.run.seed)
    trainable = TrainableModel(model, config, world)
    trainable.module.train()
    steps, done = StepRunner(trainable.module, trainable.optimizer, corpus.train, config, world), iter(range(100000))

    def step() -> float:
        return steps.run(next(done)).loss.item()

    return step, corpus


def in_a_row(step: Callable[[], float]) -> None:
    """As a training takes them: a single step between two of the other split would find caches that are the other's."""
    for _ in range(IN_A_ROW):
        step()


def text(characters: int) -> str:
    """65 characters, as many as Shakespeare has."""
    drawn = torch.randint(65, (characters,), generator=torch.Generator().manual_seed(0))
    return "".join(chr(48 + number) for number in drawn.tolist())


if __name__ == "__main__":
    chosen = parse(options(__doc__, grid=False))
    report = Report(chosen, "A step of training", ["rows", "context", "type", "ratio", "uwaga ms", "torch ms"])
    sizes = [(2, 16)] if chosen.quick else [(12, 64), (4, 256)]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "text.txt").write_text(text(5_000 if chosen.quick else 200_000))
        for dtype in chosen.dtype:
            for rows, context in sizes:
                ours, corpus = our_step(Path(folder), context, rows, dtype)
                tokens = torch.from_numpy(corpus.tokenizer.encode([text(5_000)])[0])
                theirs = PlainTraining(tokens, corpus.tokenizer.vocab_size, context, rows, dtype).step
                sides = {"uwaga": partial(in_a_row, ours), "torch": partial(in_a_row, theirs)}
                found = compare(sides, seconds=chosen.seconds)
                milliseconds = (f"{found.seconds(side) / IN_A_ROW * 1e3:.4g}" for side in ("uwaga", "torch"))
                report.row(str(rows), str(context), dtype, f"{found.ratio('torch', to='uwaga'):.2f}", *milliseconds)
