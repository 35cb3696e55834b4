"""How fast do texts become vectors, beside sentence-transformers and ONNX Runtime?

The corpora: documents cut at 256 tokens, whole documents by windows, and paragraphs. All sides read the same texts, use the
same threads, sort by length and, but for uwaga, pad in batches of 32; ONNX Runtime runs the model that its own transformer
optimiser fused. A corpus goes in parts, of which every side reads each in turn. The cosine is the lowest between a vector of
that side and sentence-transformers' in float32; windows are cut by uwaga and read by the others as texts, so
that a word that a window cuts in two has other tokens there.

Without --model and --corpus (a .jsonl.gz with the field `text`), a random model and random words serve, which tells about
speed and nothing about vectors.
"""

import argparse
import gzip
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from harness import DTYPES, Report, options, parse
from torch import nn

from uwaga import TextEncoder
from uwaga.cli.timing import compare

ROOM = 256  # tokens of a text, special ones included, where sentence-transformers cuts
BATCH = 32
HEADINGS = ("corpus", "part", "texts", "tokens", "side", "ratio", "tokens/s", "seconds", "cosine")
THEIRS = "sentence-transformers"

Encode = Callable[[Sequence[str]], np.ndarray]


def sentence_transformers(folder: Path) -> Encode:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    model.max_seq_length = ROOM
    return lambda texts: model.encode(list(texts), batch_size=BATCH, show_progress_bar=False)


def onnx_runtime(folder: Path, threads: int) -> Encode:
    """As sentence-transformers does it: the longest first, batches of 32, each padded to its longest; mean pooling."""
    import onnxruntime
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    # Its threads wait by spinning, also after a run, and would take the processor from the side whose turn is next.
    settings.add_session_config_entry("session.force_spinning_stop", "1")
    with tempfile.TemporaryDirectory() as place:
        session = onnxruntime.InferenceSession(str(_fused(folder, Path(place))), settings)

    def encode(texts: Sequence[str]) -> np.ndarray:
        order = np.argsort([-len(text) for text in texts], kind="stable")
        vectors = []
        for at in range(0, len(texts), BATCH):
            batch = [texts[number] for number in order[at : at + BATCH]]
            made = tokenizer(batch, padding=True, truncation=True, max_length=ROOM, return_tensors="np")
            mask = made["attention_mask"].astype(np.int64)
            (hidden,) = session.run(None, {"ids": made["input_ids"].astype(np.int64), "mask": mask})
            vectors.append((hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True))
        return np.concatenate(vectors)[np.argsort(order, kind="stable")]

    return encode


class _Traced(nn.Module):
    """What is exported: ids and mask to hidden states."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, attention_mask=mask, return_dict=False)[0]


def _fused(folder: Path, place: Path) -> Path:
    """The model by ONNX Runtime's own transformer optimiser."""
    import warnings

    from onnxruntime.transformers import optimizer
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    ids = torch.ones(2, 16, dtype=torch.int64)
    mask = ids.clone()
    mask[1, 10:] = 0
    sizes = {0: "batch", 1: "tokens"}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        # The newer exporter's graphs are not the ones in which the optimiser finds attention.
        torch.onnx.export(
            _Traced(model).eval(), (ids, mask), str(place / "plain.onnx"), dynamo=False, opset_version=17,
            input_names=["ids", "mask"], output_names=["hidden"], dynamic_axes={"ids": sizes, "mask": sizes},
        )  # fmt: skip
    config = model.config
    fused = optimizer.optimize_model(
        str(place / "plain.onnx"), "bert", num_heads=config.num_attention_heads, hidden_size=config.hidden_size
    )
    found = fused.get_fused_operator_statistics()
    if not found["Attention"]:
        raise RuntimeError(f"ONNX Runtime's optimiser fused no attention: {found}")
    fused.save_model_to_file(str(place / "fused.onnx"))
    return place / "fused.onnx"


class Part(NamedTuple):
    """What is read at once."""

    corpus: str
    number: int
    texts: list[str]
    long: str  # what uwaga does with texts longer than the model
    windows: list[str]  # the same as the others read it: a row each


def parts(chosen: argparse.Namespace, encoder: TextEncoder) -> Iterator[Part]:
    documents = _documents(chosen)
    paragraphs = [part for text in documents for part in text.split("\n\n") if len(part.split()) > 4]
    for corpus, texts in (("documents cut", documents), ("paragraphs", paragraphs[: chosen.paragraphs])):
        for number, some in enumerate(_shares(texts, chosen.parts)):
            yield Part(corpus, number, some, "truncate", some)
    whole = documents[:: max(1, len(documents) // chosen.whole)]
    for number, some in enumerate(_shares(whole, chosen.parts)):
        yield Part("documents whole", number, some, "windows", _windows(encoder, some))


def _shares(texts: list[str], count: int) -> list[list[str]]:
    each = max(1, -(-len(texts) // count))
    return [texts[at : at + each] for at in range(0, len(texts), each)]


def _windows(encoder: TextEncoder, texts: list[str]) -> list[str]:
    encoder.encode(texts, overflow="windows")
    report = encoder.report
    places = zip(report.document, report.start, report.stop, strict=True)
    return [texts[document][start:stop] for document, start, stop in places]


def _documents(chosen: argparse.Namespace) -> list[str]:
    if chosen.corpus is not None:
        with gzip.open(chosen.corpus, "rt", encoding="utf-8") as lines:
            return [json.loads(line)["text"] for line in lines][: chosen.documents]
    generator = np.random.default_rng(0)
    lengths = generator.lognormal(2.0 if chosen.quick else 6.0, 0.8, 4 if chosen.quick else chosen.documents)
    return ["\n\n".join(_words(generator, int(length) + 5) for _ in range(2)) for length in lengths]


def _words(generator: np.random.Generator, count: int) -> str:
    return " ".join(_WORDS[number] for number in generator.integers(0, len(_WORDS), count))


_WORDS = [f"{a}{b}" for a in "abcdefghij" for b in ("an", "el", "in", "or", "us")]


@contextmanager
def model_folder(chosen: argparse.Namespace) -> Iterator[Path]:
    """The model's, or that of a random one of MiniLM's shape."""
    if chosen.model is not None:
        yield chosen.model
        return
    with tempfile.TemporaryDirectory() as made:
        _write_model(Path(made), tiny=chosen.quick)
        yield Path(made)


def _write_model(folder: Path, *, tiny: bool) -> None:
    import tokenizers
    from tokenizers import models, pre_tokenizers, processors

    from uwaga.models import BertConfig, save
    from uwaga.models.bert.model import BertModel

    words = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *_WORDS])}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", words["[CLS]"]), ("[SEP]", words["[SEP]"])]
    )
    size = (
        {"d_model": 16, "num_layers": 2, "num_heads": 2, "d_ff": 32}
        if tiny
        else {"d_model": 384, "num_layers": 6, "num_heads": 12, "d_ff": 1536}
    )
    save(BertModel(BertConfig(vocab_size=len(words), max_position_embeddings=512, outputs=(), **size)).eval(), folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {
        name: f"[{short}]"
        for name, short in (("pad_token", "PAD"), ("unk_token", "UNK"), ("cls_token", "CLS"), ("sep_token", "SEP"))
    }
    (folder / "tokenizer_config.json").write_text(
        json.dumps(special | {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": ROOM})
    )


def contestants(chosen: argparse.Namespace, folder: Path) -> dict[str, Encode]:
    """The others, as far as they are installed."""
    found: dict[str, Encode] = {}
    if find_spec("sentence_transformers") is not None:
        found[THEIRS] = sentence_transformers(folder)
    if find_spec("onnxruntime") is not None and find_spec("transformers") is not None and find_spec("onnx") is not None:
        found["onnxruntime"] = onnx_runtime(folder, chosen.threads)
    return found


def run(chosen: argparse.Namespace, report: Report, folder: Path) -> None:
    encoders = {f"uwaga {name}": TextEncoder.load(folder, dtype=DTYPES[name]) for name in chosen.dtype}
    others = contestants(chosen, folder)
    for part in parts(chosen, next(iter(encoders.values()))):
        sides = {name: partial(encoder.encode, part.texts, overflow=part.long) for name, encoder in encoders.items()}
        sides |= {name: partial(encode, part.windows) for name, encode in others.items()}
        _measure(chosen, report, part, next(iter(encoders.values())), sides)


def _measure(
    chosen: argparse.Namespace,
    report: Report,
    part: Part,
    encoder: TextEncoder,
    sides: Mapping[str, Callable[[], np.ndarray]],
) -> None:
    vectors = {name: side() for name, side in sides.items()}
    tokens = int(encoder.report.tokens.sum())
    measured = compare(sides, seconds=chosen.seconds)
    base = THEIRS if THEIRS in sides else next(iter(sides))
    for name in sides:
        seconds = measured.seconds(name)
        report.row(
            part.corpus, str(part.number), str(len(part.windows)), str(tokens), name,
            f"{measured.ratio(base, to=name):.2f}", f"{tokens / seconds:.0f}", f"{seconds:.3g}",
            f"{_cosine(vectors[name], vectors[base]):.7f}",
        )  # fmt: skip


def _cosine(found: np.ndarray, expected: np.ndarray) -> float:
    """The lowest of any pair of rows."""
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    return float(((found * expected).sum(1) / lengths).min())


def main() -> None:
    parser = options("How fast do texts become vectors?", grid=False)
    parser.add_argument("--model", type=Path, help="a sentence-transformers directory; unset: a random model")
    parser.add_argument("--corpus", type=Path, help="a .jsonl.gz of documents; unset: random words")
    parser.add_argument("--documents", type=int, default=703, help="how many of it")
    parser.add_argument("--whole", type=int, default=40, help="how many of these to read whole, by windows")
    parser.add_argument("--paragraphs", type=int, default=5000, help="how many paragraphs")
    parser.add_argument("--parts", type=int, default=5, help="that each corpus is read in")
    chosen = parse(parser)
    if chosen.quick:
        chosen.parts, chosen.paragraphs, chosen.documents = 1, 3, 4
    report = Report(chosen, "Texts to vectors", HEADINGS)
    with model_folder(chosen) as folder:
        run(chosen, report, folder)
    report.say("\nHere the ratio is sentence-transformers' time over that of the side.\n")


if __name__ == "__main__":
    main()
