"""Do attn_implementation="uwaga" and pack_linear pay on Hugging Face's BERT, at each share of padding?

The models have random weights in two sizes, all-MiniLM-L6-v2 and BERT-base, and read batches of 32 ragged paragraphs of a real corpus. Three sides take turns in
one process: attention and linear maps by uwaga, attention only, and attn_implementation="sdpa". Batches are chosen for their share of padding; lengths are
counted in words and signs, which most of BERT's tokens are.
"""

import gzip
import json
import random
import re
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import torch
from cases import OURS, THEIRS
from harness import DTYPES, Report, need_agreement, options, parse, some_of, summary
from timing import Side, compare
from torch import nn

CORPUS = Path(__file__).parents[2] / "shared" / "data" / "peps.jsonl.gz"
HEADINGS = (
    "model",
    "type",
    "padding",
    "texts",
    "N",
    "tokens",
    "ratio",
    "of attention alone",
    "uwaga ms",
    "sdpa ms",
    "uwaga tokens/s",
    "sdpa",
)
MODELS = {
    "MiniLM": {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6, "num_attention_heads": 12},
    "BERT-base": {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12},
}
TINY = {"tiny": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}}
ATTENTION = "attention"
PADDING = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75)
DRAWS = 3000


def paragraph_lengths(corpus: Path, longest: int) -> list[int]:
    """Return the lengths of all paragraphs that the model can take, in rising order."""
    with gzip.open(corpus, "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    lengths = [len(re.findall(r"\w+|[^\w\s]", paragraph)) for text in texts for paragraph in text.split("\n\n")]
    return sorted(length for length in lengths if 4 <= length <= longest)


def batch_of(lengths: list[int], texts: int, padding: float) -> list[int]:
    """The batch with the share of padding nearest to the one asked for, of many that are drawn from neighbours by length:
    as a batch is that sentence-transformers has sorted a little, much or not at all."""
    generator = random.Random(0)
    borders = [0, *(i for i, (a, b) in enumerate(pairwise(lengths), 1) if a != b), len(lengths)]
    runs = [lengths[a:b] for a, b in pairwise(borders) if b - a >= texts]
    if padding == 0.0:
        return runs[len(runs) // 2][:texts]

    def draw() -> list[int]:
        first, last = sorted(generator.sample(range(len(lengths)), 2))
        return generator.choices(lengths[first : last + 1], k=texts)

    return min((draw() for _ in range(DRAWS)), key=lambda batch: abs(wasted(batch) - padding))


def wasted(batch: list[int]) -> float:
    return 1 - sum(batch) / (len(batch) * max(batch))


def models(sizes: dict[str, int], dtype: torch.dtype) -> dict[str, nn.Module]:
    """Return one set of weights for both sides."""
    from transformers import BertConfig, BertModel

    from uwaga.integrations import pack_linear, register_with_transformers

    register_with_transformers()
    torch.manual_seed(0)
    made = {
        side: BertModel(BertConfig(vocab_size=1000, attn_implementation=name, **sizes)).eval().to(dtype)
        for side, name in ((OURS, "uwaga"), (ATTENTION, "uwaga"), (THEIRS, "sdpa"))
    }
    for side in (OURS, ATTENTION):
        made[side].load_state_dict(made[THEIRS].state_dict(), assign=True)
    pack_linear(made[OURS])
    return made


def sides(both: dict[str, nn.Module], batch: list[int]) -> dict[str, Side]:
    mask = (torch.arange(max(batch)) < torch.tensor(batch)[:, None]).long()
    ids = torch.randint(1, 1000, mask.shape)
    made = {name: lambda model=model: model(ids, attention_mask=mask).last_hidden_state for name, model in both.items()}
    need_agreement(*(made[name]()[mask.bool()] for name in (OURS, THEIRS)), roundings=32)  # a dozen layers
    return made


@torch.no_grad()
def main() -> None:
    parser = options(__doc__, grid=False)
    parser.add_argument("--texts", type=int, default=32, help="number of texts of a batch")
    parser.add_argument("--padding", type=_shares, default=list(PADDING), help="shares of the padded batch")
    parser.add_argument("--models", type=some_of(MODELS), default=list(MODELS), help="which models")
    parser.add_argument("--longest", type=int, default=256, help="paragraphs of more tokens are left out")
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="lines of JSON with a text each, gzipped")
    chosen = parse(parser)
    sizes = TINY if chosen.quick else {name: MODELS[name] for name in chosen.models}
    report = Report(
        chosen, f"BERT of Hugging Face at batches of {chosen.texts} paragraphs, uwaga against sdpa", HEADINGS
    )
    missing = "transformers is not installed" if find_spec("transformers") is None else None
    if not chosen.corpus.exists():
        missing = f"there is no {chosen.corpus.name}"
    if missing is not None:
        report.row(missing, *[""] * (len(HEADINGS) - 1))
        return
    lengths, ratios = paragraph_lengths(chosen.corpus, chosen.longest), []
    for dtype in chosen.dtype:
        for name, size in sizes.items():
            both = models(size, DTYPES[dtype])
            for padding in (0.0, 0.5) if chosen.quick else chosen.padding:
                batch = batch_of(lengths, chosen.texts, padding)
                measured = compare(sides(both, batch), seconds=chosen.seconds)
                seconds = [measured.seconds(side) for side in (OURS, THEIRS)]
                ratios.append(measured.ratio(THEIRS, to=OURS))
                report.row(
                    name, dtype, f"{wasted(batch):.0%}", str(len(batch)), str(max(batch)), str(sum(batch)),
                    f"{ratios[-1]:.2f}", f"{measured.ratio(THEIRS, to=ATTENTION):.2f}", *(f"{x * 1e3:.4g}" for x in seconds), *(f"{sum(batch) / x:.0f}" for x in seconds),
                )  # fmt: skip
    report.say(f"\n{summary(ratios)}.\n")


def _shares(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


if __name__ == "__main__":
    main()
