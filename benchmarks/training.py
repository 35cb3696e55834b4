"""How long does one step of training take compared with the same in plain PyTorch?

The sizes are nanoGPT's setting for a CPU (4 layers, 4 heads, 128 wide, 12 rows of 64 tokens, 65 characters), the same with longer rows, and its setting for
Shakespeare's characters on a GPU (6 layers, 6 heads, 384 wide) at 8 rows. A step is batch, forward, backward, clipping, AdamW, and the loss read. The other side
is the same model, weight for weight, in plain PyTorch (nn.Linear, nn.LayerNorm, F.scaled_dot_product_attention, one map for query, key and value) with nanoGPT's
loop.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from harness import Report, options, parse, some_of
from timing import compare
from torch import Tensor, nn

from uwaga.train import Config
from uwaga.train.corpus import Corpus
from uwaga.train.model import model_config, new_model
from uwaga.train.parallel import World
from uwaga.train.step import TrainableModel


class Size(NamedTuple):
    """A model and the batches that it is trained on."""

    rows: int
    context: int  # tokens of a row
    layers: int
    heads: int
    width: int
    in_a_row: int  # steps of a sample, about a second


SIZES = {
    "12x64": Size(rows=12, context=64, layers=4, heads=4, width=128, in_a_row=20),
    "4x256": Size(rows=4, context=256, layers=4, heads=4, width=128, in_a_row=20),
    "8x256": Size(rows=8, context=256, layers=6, heads=6, width=384, in_a_row=2),
}
TINY = {"2x16": Size(rows=2, context=16, layers=2, heads=2, width=32, in_a_row=2)}
CONFIG = """
objective = "language-model"
[model]
family = "gpt2"
num_layers = {layers}
num_heads = {heads}
d_model = {width}
d_ff = {inner}
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
    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, tokens, width = x.shape
        parts = self.qkv(self.first(x)).split(width, dim=2)
        query, key, value = (part.view(rows, tokens, self.heads, -1).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mix(mixed.transpose(1, 2).contiguous().view(rows, tokens, width))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Plain(nn.Module):
    """nanoGPT's model, with biases as GPT-2 has them."""

    def __init__(self, vocabulary: int, size: Size) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, size.width), nn.Embedding(size.context, size.width)
        self.blocks = nn.ModuleList(Block(size.heads, size.width) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, vocabulary, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


class PlainTraining:
    """nanoGPT's loop over a text of ids (N,): AdamW, clipping, windows drawn anywhere.

    Attributes:
        model: what it trains.
    """

    def __init__(self, text: Tensor, vocabulary: int, size: Size, dtype: str) -> None:
        self._text, self._context, self._rows, self._dtype = text, size.context, size.rows, dtype
        self.model = Plain(vocabulary, size)
        weights = list(self.model.parameters())
        matrices, others = ([w for w in weights if (w.dim() > 1) == is_matrix] for is_matrix in (True, False))
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


def our_step(folder: Path, size: Size, dtype: str) -> tuple[Callable[[], float], Corpus]:
    text = CONFIG.format(
        folder=folder, dtype=dtype, tokens=size.rows * size.context, inner=4 * size.width, **size._asdict()
    )
    config = Config.parse(text)
    corpus, world = Corpus.prepare(config, folder), World(rank=0, size=1, device=torch.device("cpu"))
    model = new_model(model_config(config.model, config.objective, corpus.model_settings), config.run.seed)
    trainable = TrainableModel(model, config, world)
    trainable.objective.train()
    done = iter(range(100000))

    def step() -> float:
        return trainable.step(next(done), corpus.train).loss.item()

    return step, corpus


def in_a_row(step: Callable[[], float], steps: int) -> None:
    """As a training takes them: a single step between two of the other side would find caches that are the other's."""
    for _ in range(steps):
        step()


def text(characters: int) -> str:
    """65 characters, as many as Shakespeare has."""
    drawn = torch.randint(65, (characters,), generator=torch.Generator().manual_seed(0))
    return "".join(chr(48 + number) for number in drawn.tolist())


def main() -> None:
    parser = options(__doc__, grid=False)
    parser.add_argument("--sizes", type=some_of(SIZES), default=list(SIZES), help="rows x context")
    chosen = parse(parser)
    headings = ["rows", "context", "layers", "width", "type", "ratio", "uwaga ms", "torch ms"]
    report = Report(chosen, "A step of training", headings)
    sizes = TINY.values() if chosen.quick else [SIZES[name] for name in chosen.sizes]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "text.txt").write_text(text(5_000 if chosen.quick else 200_000))
        for dtype in chosen.dtype:
            for size in sizes:
                ours, corpus = our_step(Path(folder), size, dtype)
                tokens = torch.from_numpy(corpus.tokenizer.encode([text(5_000)])[0])
                theirs = PlainTraining(tokens, corpus.tokenizer.vocab_size, size, dtype).step
                sides = {
                    "uwaga": partial(in_a_row, ours, size.in_a_row),
                    "torch": partial(in_a_row, theirs, size.in_a_row),
                }
                result = compare(sides, seconds=chosen.seconds)
                milliseconds = (f"{result.seconds(side) / size.in_a_row * 1e3:.4g}" for side in ("uwaga", "torch"))
                report.row(
                    str(size.rows), str(size.context), str(size.layers), str(size.width), dtype,
                    f"{result.ratio('torch', to='uwaga'):.2f}", *milliseconds,
                )  # fmt: skip


if __name__ == "__main__":
    main()
