"""How far does a reader walk through the package to follow one call, from where a user comes in to where it is computed?

Nine walks. A reader reads each function once, in the order in which the call first enters them: a stay is a run of functions in
one module, a room is a module, and a return is a stay in a room that was left before. Fewer stays and rooms are easier to follow.

    python benchmarks/walks.py [--verbose]       # --verbose: the modules of each walk, in order
"""

import json
import sys
import tempfile
import threading
from collections.abc import Callable
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from harness import Report, options, parse

import uwaga

PACKAGE = Path(uwaga.__file__).parent
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "sat", "on", "mat", ".")


class Walk:
    """Notes the functions of the package that are entered within it, in all threads, each once."""

    def __enter__(self) -> "Walk":
        self.functions: dict[tuple[str, str, int], None] = {}
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(str(PACKAGE)):
            self.functions.setdefault((code.co_filename, code.co_qualname, code.co_firstlineno))

    @property
    def stays(self) -> list[str]:
        return [str(Path(path).relative_to(PACKAGE)) for path, _ in groupby(self.functions, key=lambda code: code[0])]


def operands() -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(1, 4, 64, 64) for _ in range(3))


def attention_cold(folder: Path) -> Walk:
    with Walk() as walk:
        uwaga.attention(*operands(), mask=uwaga.Causal())
    return walk


def attention_warm(folder: Path) -> Walk:
    query, key, value = operands()
    mask = uwaga.Causal()
    uwaga.attention(query, key, value, mask=mask)
    with Walk() as walk:
        uwaga.attention(query, key, value, mask=mask)
    return walk


def attend_to_topk(folder: Path) -> Walk:
    with Walk() as walk:
        uwaga.attend(*operands(), mask=uwaga.Causal(), topk=4).map.topk(4)
    return walk


def typed_text_to_tile(folder: Path) -> Walk:
    from uwaga.models.opening import open as open_model
    from uwaga.viewer.service import ViewService
    from uwaga.viewer.shown import Text, View
    from uwaga.viewer.texts import TextRunner

    service = ViewService(View(), runner=TextRunner(Text("", model=open_model("bard", dtype="float32"))))
    with Walk() as walk:
        run = service.answer({"request": "run", "text": "To be", "second": None, "target": None, "edits": None})
        tile = {"side": "0", "kind": "decoder", "layer": 0, "head": 0, "merge": "tokens", "specials": "show"}
        service.answer(
            {"request": "tile", "run": run.meta["run"], **tile, "pooling": "sum", "level": 0, "row": 0, "column": 0}
        )
    return walk


def store_ask(folder: Path) -> Walk:
    from typer.testing import CliRunner

    from uwaga.cli import app

    (folder / "cats.txt").write_text("the cat sat on the mat.\n\nthe mat.\n")
    database, model = str(folder / "db"), str(write_model(folder / "model"))
    assert (
        CliRunner().invoke(app, ["store", "add", database, str(folder / "cats.txt"), "--model", model]).exit_code == 0
    )
    with Walk() as walk:
        assert CliRunner().invoke(app, ["store", "ask", database, "the cat", "--model", model]).exit_code == 0
    return walk


def encode(folder: Path) -> Walk:
    encoder = uwaga.TextEncoder.load(write_model(folder / "model"))
    with Walk() as walk:
        encoder.encode(["the cat sat", "on the mat."])
    return walk


def sequence_parallel(folder: Path) -> Walk:
    import torch.multiprocessing as processes

    processes.spawn(_rank, args=(2, str(folder)), nprocs=2)
    walk = Walk()
    walk.functions = {tuple(load): None for load in json.loads((folder / "rank0.json").read_text())}
    return walk


def _rank(rank: int, size: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/group", timedelta(minutes=5), size, rank)
    query, key, value = operands()
    with Walk() as walk, uwaga.sequence_parallel.sequence_parallel():
        uwaga.attention(query, key, value, mask=uwaga.Causal())
    dist.barrier()
    dist.destroy_process_group()
    Path(folder, f"rank{rank}.json").write_text(json.dumps(list(walk.functions)))


def train(folder: Path) -> Walk:
    from uwaga.train import Config, fit

    (folder / "text.txt").write_text("".join(f"The cat sat on mat {number}.\n" for number in range(100)))
    config = Config.parse(
        f"""
        objective = "language-model"
        model = {{family = "gpt2", d_model = 16, num_layers = 1, num_heads = 2, d_ff = 32, max_position_embeddings = 64}}
        data = {{kind = "text", train = ["{folder / "text.txt"}"], context_length = 16, document = "line"}}
        batch = {{tokens_per_batch = 64}}
        schedule = {{steps = 2}}
        run = {{output_dir = "{folder / "run"}"}}
        """,
        (),
    )
    with Walk() as walk:
        fit(config)
    return walk


def attribution(folder: Path) -> Walk:
    from uwaga.inspect import logit_attribution, score_attribution

    model = uwaga.models.load("copyist")
    ids = torch.arange(60, 100).repeat(1, 2)
    with Walk() as walk:
        with uwaga.watch(model, values=True) as recording:
            model(ids)
        score_attribution(model, recording, layer=1, head=2, i=60, j=21).top(3)
        logit_attribution(model, ids, answer=81).total()
    return walk


def write_model(folder: Path) -> Path:
    """A random BERT of width 16 with its tokenizer."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    from uwaga.models import Transformer, config, save

    sizes = {"d_model": 16, "num_layers": 2, "num_heads": 2, "d_ff": 32, "max_position_embeddings": 16}
    save(Transformer(config("bert", vocab_size=len(WORDS), outputs=(), **sizes)), folder)
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = [("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=special)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"unk_token": "[UNK]", "pad_token": "[PAD]"}))
    return folder


WALKS: dict[str, Callable[[Path], Walk]] = {
    "attention, cold": attention_cold,
    "attention, warm": attention_warm,
    "attend -> topk": attend_to_topk,
    "typed text -> tile": typed_text_to_tile,
    "store ask": store_ask,
    "encode": encode,
    "attention over 2 processes": sequence_parallel,
    "train": train,
    "attribution": attribution,
}


def main() -> None:
    parser = options(__doc__, grid=False)
    parser.add_argument("--verbose", action="store_true")
    chosen: Any = parse(parser)
    torch.set_num_threads(1)
    report = Report(chosen, "Walks through the package", ("walk", "functions", "stays", "rooms", "returns"))
    for name, walk in WALKS.items():
        with tempfile.TemporaryDirectory() as folder:
            stays = (walked := walk(Path(folder))).stays
        rooms = len(set(stays))
        report.row(name, *map(str, (len(walked.functions), len(stays), rooms, len(stays) - rooms)))
        if chosen.verbose:
            report.say("\n".join(stays))


if __name__ == "__main__":
    main()
