"""How fast do texts become vectors, compared with sentence-transformers, ONNX Runtime and OpenVINO?

The corpora are documents cut at 256 tokens, whole documents by windows, and paragraphs. A corpus is read in parts, and every side reads each part in
turn. All sides read the same texts, use the same threads and sort by length. All except uwaga pad in batches of 32. The sides:

- sentence-transformers with its own model, and the same after unpad() and pack_linear();
- ONNX Runtime with the model that its own transformer optimiser fused, for BERT only;
- OpenVINO with the model that it converts from transformers, once with each INFERENCE_PRECISION_HINT.

A side is left out if its package is not installed. The cosine is the lowest between a vector of a side and sentence-transformers' in float32. uwaga
cuts the windows and the others read them as texts, so that a word cut in two by a window has other tokens there.

"of peak" is the speed in operations per second, divided by the measured float32 peak in the line above the table. Each token counts two operations for each
weight of the linear layers, and the operations of attention. Operations on padding and outside matrix products do not count, but their time does.

Without --model and --corpus (a .jsonl.gz with the field `text`), the benchmark uses a random model of the size of --shape and random words; the
speeds are meaningful then, and the vectors are not.
"""

import argparse
import gzip
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from harness import DTYPES, Report, options, parse, some_of
from timing import compare
from torch import nn

from uwaga import TextEncoder
from uwaga.nn import MultiHeadAttention

ROOM = 256  # tokens of a text, special ones included, where sentence-transformers cuts
BATCH = 32
CORPORA = ("cut", "paragraphs", "whole")
HEADINGS = ("corpus", "part", "texts", "tokens", "side", "ratio", "tokens/s", "seconds", "of peak", "cosine")
THEIRS = "sentence-transformers"

Encode = Callable[[Sequence[str]], np.ndarray]
PROCESSOR_TIME = "measure the processor's time of all threads, for a busy machine; with one thread its ratios are those of an idle one"


def sentence_transformers(folder: Path, *, by_uwaga: bool = False) -> Encode:
    """Return its encoder as it is, or with uwaga's attention and linear maps."""
    from sentence_transformers import SentenceTransformer

    from uwaga.integrations import pack_linear
    from uwaga.integrations.sentence_transformers import unpad

    model = SentenceTransformer(str(folder), device="cpu")
    model.max_seq_length = ROOM
    if by_uwaga:
        pack_linear(unpad(model))
    return lambda texts: model.encode(list(texts), batch_size=BATCH, show_progress_bar=False)


def onnx_runtime(folder: Path, threads: int) -> Encode:
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    # Its threads wait by spinning, also after a run, and would take the processor from the side whose turn is next.
    settings.add_session_config_entry("session.force_spinning_stop", "1")
    with tempfile.TemporaryDirectory() as place:
        session = onnxruntime.InferenceSession(str(_fused(folder, Path(place))), settings)
    return _padded(folder, lambda ids, mask: session.run(None, {"ids": ids, "mask": mask})[0])


def openvino(folder: Path, threads: int, precision: str) -> Encode:
    """The model of transformers, converted; `precision` is INFERENCE_PRECISION_HINT: "f32" or "bf16"."""
    import warnings

    import openvino
    from transformers import AutoModel

    made = AutoModel.from_pretrained(folder)  # with PyTorch's attention, where the family takes another than its own
    made.config.use_cache = False  # of a decoder, whose cache is no tensor that could be converted
    model = _Traced(made).eval()
    example = torch.ones(2, 16, dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what tracing says of the parts of transformers that it cannot follow
        converted = openvino.convert_model(model, example_input=(example, example))
    settings = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    compiled = openvino.Core().compile_model(converted, "CPU", settings)
    return _padded(folder, lambda ids, mask: compiled([ids, mask])[0])


def _padded(folder: Path, states: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Encode:
    """As sentence-transformers does it: the longest first, batches of 32, each padded to its longest; mean pooling.

    Args:
        folder: of the tokenizer.
        states: ids and mask (B, N) int64 to hidden states (B, N, M) float32.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)

    def encode(texts: Sequence[str]) -> np.ndarray:
        order = np.argsort([-len(text) for text in texts], kind="stable")
        vectors = []
        for at in range(0, len(texts), BATCH):
            batch = [texts[number] for number in order[at : at + BATCH]]
            made = tokenizer(batch, padding=True, truncation=True, max_length=ROOM, return_tensors="np")
            mask = made["attention_mask"].astype(np.int64)
            hidden = states(made["input_ids"].astype(np.int64), mask)
            vectors.append((hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True))
        return np.concatenate(vectors)[np.argsort(order, kind="stable")]

    return encode


class _Traced(nn.Module):
    """The exported module: ids and mask to hidden states."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, attention_mask=mask, return_dict=False)[0]


def _fused(folder: Path, place: Path) -> Path:
    """Fuse the model by ONNX Runtime's own transformer optimiser."""
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
    result = fused.get_fused_operator_statistics()
    if not result["Attention"]:
        raise RuntimeError(f"ONNX Runtime's optimiser fused no attention: {result}")
    fused.save_model_to_file(str(place / "fused.onnx"))
    return place / "fused.onnx"


class Part(NamedTuple):
    """Texts that are read at once."""

    corpus: str
    number: int
    texts: list[str]
    long: str  # what uwaga does with texts longer than the model
    windows: list[str]  # the same as the others read it: a row each


def parts(chosen: argparse.Namespace, encoder: TextEncoder) -> Iterator[Part]:
    corpus = documents(chosen)
    if "cut" in chosen.corpora:
        for number, some in enumerate(_shares(corpus, chosen.parts)):
            yield Part("documents cut", number, some, "truncate", some)
    if "paragraphs" in chosen.corpora:
        paragraphs = [part for text in corpus for part in text.split("\n\n") if len(part.split()) > 4]
        for number, some in enumerate(_shares(paragraphs[: chosen.paragraphs], chosen.parts)):
            yield Part("paragraphs", number, some, "truncate", some)
    if "whole" in chosen.corpora:
        whole = corpus[:: max(1, len(corpus) // chosen.whole)]
        for number, some in enumerate(_shares(whole, chosen.parts)):
            yield Part("documents whole", number, some, "windows", _windows(encoder, some))


def _shares(texts: list[str], count: int) -> list[list[str]]:
    size = max(1, -(-len(texts) // count))
    return [texts[at : at + size] for at in range(0, len(texts), size)]


def _windows(encoder: TextEncoder, texts: list[str]) -> list[str]:
    encoder.encode(texts, overflow="windows")
    report = encoder.report
    places = zip(report.document, report.start, report.stop, strict=True)
    return [texts[document][start:stop] for document, start, stop in places]


def documents(chosen: argparse.Namespace) -> list[str]:
    """Return documents of the corpus, or random ones."""
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
def model_folder(chosen: argparse.Namespace, shape: str = "minilm") -> Iterator[Path]:
    """Yield the folder of --model, or of a random model."""
    if chosen.model is not None:
        yield chosen.model
        return
    with tempfile.TemporaryDirectory() as made:
        _write_model(Path(made), _model(shape, tiny=chosen.quick))
        yield Path(made)


def _model(shape: str, *, tiny: bool) -> nn.Module:
    """Return a random model of published sizes, except for the vocabulary."""
    from uwaga.models import Transformer, config
    from uwaga.models.checkpoints.rope_parameters import Rope

    torch.manual_seed(0)
    shared = {"vocab_size": len(_WORDS) + 4, "max_position_embeddings": 514, "pad_token_id": 1}
    size = {"d_model": 16, "num_layers": 2, "num_heads": 2, "d_ff": 32} if tiny else _SIZES[shape]
    ropes = (Rope(1e6),) * size["num_layers"]
    more = {
        "mpnet": {"norm_eps": 1e-5},
        "qwen3": {"num_kv_heads": size["num_heads"] // 2, "d_k": 8 if tiny else 128, "ropes": ropes},
    }.get(shape, {})
    model_type = {"minilm": "bert"}.get(shape, shape)
    return Transformer(config(model_type, outputs=(), **shared, **size, **more)).eval()


_SIZES = {
    "minilm": {"d_model": 384, "num_layers": 6, "num_heads": 12, "d_ff": 1536},  # MiniLM-L6
    "mpnet": {"d_model": 768, "num_layers": 12, "num_heads": 12, "d_ff": 3072},  # MPNet-base
    "modernbert": {"d_model": 768, "num_layers": 22, "num_heads": 12, "d_ff": 1152},  # ModernBERT-base
    "qwen3": {"d_model": 1024, "num_layers": 28, "num_heads": 16, "d_ff": 3072},  # Qwen3-0.6B
}


def _write_model(folder: Path, model: nn.Module) -> None:
    import tokenizers
    from tokenizers import models, pre_tokenizers, processors

    from uwaga.models import save

    words = {word: number for number, word in enumerate(["[UNK]", "[PAD]", "[CLS]", "[SEP]", *_WORDS])}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", words["[CLS]"]), ("[SEP]", words["[SEP]"])]
    )
    save(model, folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {
        name: f"[{short}]"
        for name, short in (("pad_token", "PAD"), ("unk_token", "UNK"), ("cls_token", "CLS"), ("sep_token", "SEP"))
    }
    (folder / "tokenizer_config.json").write_text(
        json.dumps(special | {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": ROOM})
    )


Make = Callable[[], Encode]


def contestants(chosen: argparse.Namespace, folder: Path) -> dict[str, Make]:
    """Return how to make each of the other sides that are installed."""
    results: dict[str, Make] = {}
    if _installed("sentence_transformers"):
        results[THEIRS] = partial(sentence_transformers, folder)
        if chosen.shape != "mpnet":  # which computes attention by itself there, so that unpad refuses it
            results[f"{THEIRS}, unpad and pack_linear"] = partial(sentence_transformers, folder, by_uwaga=True)
    if chosen.shape == "minilm" and _installed("onnxruntime", "transformers", "onnx"):
        results["onnxruntime"] = partial(onnx_runtime, folder, chosen.threads)
    if _installed("openvino", "transformers"):
        for dtype in chosen.dtype:
            if dtype in _PRECISIONS:
                results[f"openvino {dtype}"] = partial(openvino, folder, chosen.threads, _PRECISIONS[dtype])
    return results


_PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}


def _installed(*packages: str) -> bool:
    return all(find_spec(package) is not None for package in packages)


def run(chosen: argparse.Namespace, report: Report, folder: Path) -> None:
    encoders = {f"uwaga {name}": TextEncoder.load(folder, dtype=DTYPES[name]) for name in chosen.dtype}
    others = {name: make() for name, make in contestants(chosen, folder).items()}
    flops = partial(flops_of, next(iter(encoders.values())).model)
    for part in parts(chosen, next(iter(encoders.values()))):
        sides = {name: partial(encoder.encode, part.texts, overflow=part.long) for name, encoder in encoders.items()}
        sides |= {name: partial(encode, part.windows) for name, encode in others.items()}
        _measure(chosen, report, part, next(iter(encoders.values())), sides, flops)


def flops_of(model: nn.Module, lengths: Sequence[int]) -> int:
    """Of the matrix products of a model's layers over texts of so many tokens: its linear maps, scores and weighted values.

    >>> from uwaga.nn import EncoderLayer, LayerSpec
    >>> flops_of(EncoderLayer(LayerSpec(d_model=2, num_heads=1, d_ff=8)), [1, 3])
    464
    """
    maps = sum(2 * layer.weight.numel() for layer in model.modules() if isinstance(layer, nn.Linear))
    layers = [layer for layer in model.modules() if isinstance(layer, MultiHeadAttention)]
    config = getattr(model, "config", None)
    windows = getattr(config, "windows", ()) or (None,) * len(layers)
    is_causal = bool(getattr(config, "is_causal", False))
    scores = sum(
        2
        * layer.num_heads
        * (layer.d_k + layer.d_v)
        * sum(_pairs(length, window, is_causal=is_causal) for length in lengths)
        for layer, window in zip(layers, windows, strict=True)
    )
    return sum(lengths) * maps + scores


def _pairs(length: int, window: int | None, *, is_causal: bool) -> int:
    """Of a query and a key that it sees; window: as in `Config.windows`."""
    before = length if window is None else window - 1 if is_causal else window
    return sum(min(at, before) + 1 + (0 if is_causal else min(length - 1 - at, before)) for at in range(length))


def _measure(
    chosen: argparse.Namespace,
    report: Report,
    part: Part,
    encoder: TextEncoder,
    sides: Mapping[str, Callable[[], np.ndarray]],
    flops: Callable[[Sequence[int]], int],
) -> None:
    vectors = {name: side() for name, side in sides.items()}
    lengths = encoder.report.tokens.tolist()
    measured = compare(sides, seconds=chosen.seconds, clock=clock(chosen))
    base = THEIRS if THEIRS in sides else next(iter(sides))
    for name in sides:
        seconds = measured.seconds(name)
        report.row(
            part.corpus, str(part.number), str(len(part.windows)), str(sum(lengths)), name,
            f"{measured.ratio(base, to=name):.2f}", f"{sum(lengths) / seconds:.0f}", f"{seconds:.3g}",
            report.share_of_peak(flops(lengths) / seconds / 1e9), f"{_cosine(vectors[name], vectors[base]):.7f}",
        )  # fmt: skip


def _cosine(result: np.ndarray, expected: np.ndarray) -> float:
    """Return the lowest cosine of any pair of rows."""
    lengths = np.linalg.norm(result, axis=1) * np.linalg.norm(expected, axis=1)
    return float(((result * expected).sum(1) / lengths).min())


def corpus_options(question: str) -> argparse.ArgumentParser:
    parser = options(question, grid=False)
    parser.add_argument("--model", type=Path, help="a sentence-transformers directory; unset: a random model")
    parser.add_argument("--shape", choices=tuple(_SIZES), default="minilm", help="the size of that random model")
    parser.add_argument("--corpus", type=Path, help="a .jsonl.gz of documents; unset: random words")
    parser.add_argument("--documents", type=int, default=703, help="number of documents to read")
    parser.add_argument("--whole", type=int, default=40, help="number of documents to read whole, by windows")
    parser.add_argument("--paragraphs", type=int, default=5000, help="number of paragraphs to read")
    parser.add_argument("--parts", type=int, default=5, help="number of parts to read each corpus in")
    parser.add_argument("--corpora", type=some_of(CORPORA), default=list(CORPORA), help="which corpora")
    return parser


def clock(chosen: argparse.Namespace) -> Callable[[], float]:
    return time.process_time if chosen.processor_time else time.perf_counter


def parse_corpus(parser: argparse.ArgumentParser) -> argparse.Namespace:
    chosen = parse(parser)
    if chosen.quick:
        chosen.parts, chosen.paragraphs, chosen.documents = 1, 3, 4
    return chosen


def main() -> None:
    parser = corpus_options("How fast do texts become vectors?")
    parser.add_argument("--processor-time", action="store_true", help=PROCESSOR_TIME)
    chosen = parse_corpus(parser)
    report = Report(chosen, "Texts to vectors", HEADINGS)
    with model_folder(chosen, chosen.shape) as folder:
        run(chosen, report, folder)
    report.say("\nHere the ratio is sentence-transformers' time over that of the side.\n")


if __name__ == "__main__":
    main()
