"""How fast are passages ranked, compared with sentence-transformers' CrossEncoder?

One query and --passages paragraphs of the corpus, of at most 200 words. The model is a cross-encoder of the size of MiniLM-L6 with one label: the encoder of
--model with a random classifier, or a random model. Both sides read the same texts and use the same threads; CrossEncoder.predict sorts by length and pads in
batches of 32, its default. The sides take turns in one process, and a time is the median. Before timing, the benchmark compares the scores: the figure is the
largest difference of two scores before the sigmoid, in units of their standard deviation.

Without --model and --corpus (a .jsonl.gz with the field `text`), the benchmark uses random words; only the speed is meaningful then.
"""

import argparse
import itertools
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from encode import _WORDS, PROCESSOR_TIME, clock, documents
from harness import DTYPES, Report, options, parse
from timing import compare

from uwaga import Reranker
from uwaga.models import Transformer, config, save

HEADINGS = (
    "type",
    "passages",
    "tokens",
    "ratio",
    "uwaga ms",
    "CrossEncoder ms",
    "tokens/s",
    "CrossEncoder",
    "difference",
)
OURS, THEIRS = "uwaga", "CrossEncoder.predict"
_MOST_WORDS = 200
QUERY = "How does this change the way in which a decorator is evaluated?"


def passages(chosen: argparse.Namespace) -> list[str]:
    """Paragraphs with five words or more, cut at 200: every seventh, so that they are of several documents."""
    paragraphs = (part.split() for text in documents(chosen) for part in text.split("\n\n"))
    long = (" ".join(words[:_MOST_WORDS]) for words in paragraphs if len(words) >= 5)
    return list(itertools.islice(long, 0, None, 7 if chosen.corpus else 1))[: chosen.passages]


def write_cross_encoder(folder: Path, chosen: argparse.Namespace) -> None:
    torch.manual_seed(0)
    if chosen.model is not None:
        import transformers

        model = transformers.AutoModelForSequenceClassification.from_pretrained(chosen.model, num_labels=1)
        model.save_pretrained(folder)
        transformers.AutoTokenizer.from_pretrained(chosen.model).save_pretrained(folder)
        settings = json.loads((folder / "tokenizer_config.json").read_text()) | {"model_max_length": 512}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        return
    size = {"d_model": 384, "num_layers": 6, "num_heads": 12, "d_ff": 1536}
    size = {"d_model": 16, "num_layers": 2, "num_heads": 2, "d_ff": 32} if chosen.quick else size
    outputs = {"outputs": ("pooled", "sequence"), "labels": ("LABEL_0",)}
    save(Transformer(config("bert", vocab_size=len(_WORDS) + 4, **size, **outputs)), folder)
    _write_tokenizer(folder)


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    tokens = [*special.values(), *_WORDS]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(tokens)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special_ids = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=special_ids
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = special | {"model_max_length": 512, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def run(chosen: argparse.Namespace, report: Report, folder: Path, texts: Sequence[str]) -> None:
    from sentence_transformers import CrossEncoder

    pairs = [(QUERY, text) for text in texts]
    for dtype in chosen.dtype:
        ours = Reranker.load(folder, dtype=DTYPES[dtype])
        theirs = CrossEncoder(str(folder), device="cpu", model_kwargs={"dtype": DTYPES[dtype]})
        raw = theirs.predict(pairs, activation_fn=torch.nn.Identity(), show_progress_bar=False)
        logits = ours.logits(pairs, overflow="truncate")
        difference = float(np.abs(logits - raw).max() / raw.std())
        sides = {
            OURS: lambda ours=ours: ours.rank(QUERY, texts, overflow="truncate"),
            THEIRS: lambda theirs=theirs: theirs.predict(pairs, show_progress_bar=False),
        }
        measured = compare(sides, seconds=chosen.seconds, clock=clock(chosen))
        tokens = sum(min(len(row), ours.max_tokens) for row in ours.tokenize(pairs))
        seconds = [measured.seconds(side) for side in sides]
        report.row(
            dtype,
            f"{len(texts)}",
            f"{tokens:,}",
            f"{measured.ratio(THEIRS, to=OURS):.2f}",
            *(f"{second * 1e3:.1f}" for second in seconds),
            *(f"{tokens / second:,.0f}" for second in seconds),
            f"{difference:.1e}",
        )


def main() -> None:
    parser = options("How fast are passages ranked?", grid=False)
    parser.add_argument("--processor-time", action="store_true", help=PROCESSOR_TIME)
    parser.add_argument("--model", type=Path, help="the directory of an encoder of the BERT family")
    parser.add_argument("--corpus", type=Path, help="a .jsonl.gz with the field text")
    parser.add_argument("--documents", type=int, default=200, help="number of documents of the corpus")
    parser.add_argument("--passages", type=int, default=100, help="number of passages for one query")
    chosen = parse(parser)
    report = Report(chosen, "Passages ranked for one query", HEADINGS)
    with tempfile.TemporaryDirectory() as folder:
        write_cross_encoder(Path(folder), chosen)
        run(chosen, report, Path(folder), passages(chosen))
    report.say("\nHere the ratio is CrossEncoder.predict's time over uwaga's.\n")


if __name__ == "__main__":
    main()
