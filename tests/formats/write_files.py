"""python tests/formats/write_files.py VERSION: writes tests/formats/VERSION, files of all formats of this version, for `test_kept.py`.

Run once for a version that changes a format; what is there is never written again, since its purpose is to be old.
"""

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file
from typer.testing import CliRunner

import uwaga
from uwaga import SoftDatabase
from uwaga.cli import app
from uwaga.encode import preprocessing
from uwaga.encode.vector_files import VectorFile
from uwaga.inspect.recordings.recording import TokenStrings
from uwaga.models import Transformer, config, generate, save
from uwaga.nn.attention_id import AttentionId
from uwaga.train import Config, fit

HERE = Path(__file__).parent

DOCUMENTS = [f"{a} {b} on the mat ." for a in ("the cat", "a dog", "it") for b in ("sat", "ran away", "then sat")]
SHARDS = {"max_documents": 3, "max_characters": 999}  # two small ones and the rest
IDS = [[3, 1, 4, 1, 5], [9, 2, 6]]
TRAINING = """
objective = "language-model"
model = {family = "gpt2", num_layers = 1, num_heads = 2, d_model = 16, d_ff = 32, max_position_embeddings = 32}
data = {kind = "text", train = ["text.txt"], document = "line", validation_fraction = 0.1, context_length = 16}
batch = {tokens_per_batch = 64}
schedule = {steps = 4}
run = {output_dir = "run", log_every = 1, eval_every = 2, device = "cpu", threads = 1}
"""


def models() -> dict[str, Transformer]:
    torch.manual_seed(0)
    small = {"vocab_size": 40, "d_model": 16, "num_heads": 2, "d_ff": 32}
    of_one, of_two = {"num_layers": 2, "max_position_embeddings": 16}, {"num_layers": 1, "num_decoder_layers": 1}
    configs = {
        "bert": config("bert", **small, **of_one, outputs=("pooled", "logits")),
        "gpt2": config("gpt2", **small, **of_one, eos_token_ids=(0,)),
        "t5": config("t5", **small, **of_two, d_k=8),
        "transformer": config("uwaga-transformer", **small, **of_two),
    }
    return {name: Transformer(settings) for name, settings in configs.items()}


def outputs(model: Transformer) -> torch.Tensor:
    """Logits of the texts IDS, one after another, (tokens, V)."""
    results = []
    with torch.no_grad():
        for ids in IDS:
            row = torch.tensor([ids])
            results.append(model.eval()(row, row if model.config.has_both else None).logits[0])
    return torch.cat(results)


def write_models(folder: Path) -> None:
    expected = {}
    for name, model in models().items():
        save(model, folder / name)
        expected[name] = outputs(model).numpy()
    save_file(expected, folder / "outputs.safetensors")


def write_recordings(folder: Path) -> None:
    folder.mkdir()
    generator = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(2, n, 9, 8, generator=generator) for n in (4, 2, 2))
    recording = uwaga.Recording(strings=TokenStrings(None, {"encoder": [list("abcdefghi"), list("jklmnopqr")]}))
    of = {
        "masks": {"mask": (uwaga.Causal() & uwaga.Window(5, 0)) | uwaga.KeyLengths(torch.tensor([1, 2]))},
        "documents": {"mask": uwaga.Documents(torch.arange(9) // 4), "softcap": 2.5, "scale": 0.3},
        "dense": {
            "mask": torch.rand(2, 1, 9, 9, generator=generator) > 0.4,
            "sinks": torch.randn(4, generator=generator),
        },
        "alibi": {"bias": uwaga.AlibiBias(torch.rand(4, generator=generator))},
        "relative": {"bias": uwaga.RelativeBias(torch.randn(8, 4, generator=generator), max_distance=16)},
        "scores": {"bias": torch.randn(2, 4, 9, 9, generator=generator)},
    }
    for layer, options in enumerate(of.values()):
        where, arguments = (
            AttentionId("encoder", layer),
            dict.fromkeys(("mask", "bias", "scale", "softcap", "sinks")) | options,
        )
        recording.record(where, query, key, arguments, None)
        recording.store(where, query, key, arguments, value)
    recording.save(folder / "layers.safetensors")
    weights = {f"layers.{layer}": recording.maps["encoder", layer].to_dense().numpy() for layer in range(len(of))}

    model = models()["gpt2"].eval()
    with uwaga.watch(model) as recording:
        generate(model, [torch.tensor(ids) for ids in IDS], max_new_tokens=3)
    recording.save(folder / "generation.safetensors")
    for layer in range(2):
        for row, dense in enumerate(recording.maps["decoder", layer].to_dense()):
            weights[f"generation.{layer}.{row}"] = dense.numpy()
    save_file({name: np.ascontiguousarray(x) for name, x in weights.items()}, folder / "weights.safetensors")


def write_databases(folder: Path) -> None:
    folder.mkdir()
    generator = torch.Generator().manual_seed(2)
    with SoftDatabase.create(folder / "records", key_width=6, model="a model@0123") as db:
        records = [{"text": f"row {n}", "number": n, "share": n / 8} | ({"odd": 1} if n % 2 else {}) for n in range(12)]
        db.append(torch.randn(12, 6, generator=generator), records=records)
        db.delete([3, 7])
        db.compact()
        db.append(torch.randn(4, 6, generator=generator))
        db.delete([13])
    with SoftDatabase.create(folder / "heads", key_width=4, value_width=3, heads=2, dtype=torch.bfloat16) as db:
        db.append(torch.randn(5, 2, 4, generator=generator), torch.randn(5, 2, 3, generator=generator))
    rows = {}
    for name in ("records", "heads"):
        with SoftDatabase.open(folder / name) as db:
            stored = list(db)
            rows[f"{name}.ids"] = np.array([row.id for row in stored])
            rows[f"{name}.keys"] = torch.stack([row.key for row in stored]).float().numpy()
            rows[f"{name}.values"] = torch.stack([row.value for row in stored]).float().numpy()
    for left in [*folder.glob("*/catalog.sqlite-*"), *folder.glob("*/lock")]:  # of the readers: empty
        left.unlink()
    save_file(rows, folder / "rows.safetensors")


def write_vectors(folder: Path) -> None:
    """A finished file, and the folder of one that was interrupted after two of three shards."""
    sys.path.insert(0, str(HERE.parent))
    from tiny_tokenizer import SPECIAL, WORDS, write_tokenizer
    from tiny_transformer import tiny

    folder.mkdir()
    model = folder / "model"
    sizes = {"vocab_size": len(SPECIAL + WORDS), "num_layers": 1, "num_heads": 2, "max_position_embeddings": 12}
    save(tiny("bert", seed=0, **sizes, outputs=()), model)
    write_tokenizer(model)
    documents = folder / "documents.jsonl"
    documents.write_text("".join(json.dumps({"id": f"d{n}", "text": text}) + "\n" for n, text in enumerate(DOCUMENTS)))
    encode(folder, "finished.parquet")
    preprocessing.groups.__kwdefaults__ |= SHARDS
    finish = VectorFile.finish

    def interrupted(self: VectorFile) -> None:
        raise KeyboardInterrupt

    VectorFile.finish = interrupted
    encode(folder, "interrupted.parquet")
    VectorFile.finish = finish
    (folder / "interrupted.parquet.parts" / "00000002.arrow").unlink()


def encode(folder: Path, output: str) -> None:
    os.chdir(folder)  # paths in the files are relative to here
    CliRunner().invoke(app, ["encode", "documents.jsonl", "-o", output, "--model", "model"])
    os.chdir(HERE)


def write_training(folder: Path) -> None:
    """A run of four steps that was killed after two, and the losses of one that was not."""
    folder.mkdir()
    words = ["the", "cat", "sat", "on", "the", "mat", "and", "then", "it", "ran", "away", "from", "the", "house"]
    (folder / "text.txt").write_text("\n".join(" ".join(words[n % 13 :] + words[: n % 7]) for n in range(30)) + "\n")
    (folder / "config.toml").write_text(TRAINING)
    os.chdir(folder)
    result = fit(Config.read(Path("config.toml")), progress=False)
    os.chdir(HERE)
    (folder / "losses.json").write_text(json.dumps(result.losses, indent=2) + "\n")
    run = folder / "run"
    shutil.rmtree(run / "step-000004")
    for pointer in ("last", "best"):
        (run / pointer).write_text((run / pointer).read_text().replace("step-000004", "step-000002"))


def main(version: str) -> None:
    root = HERE / version
    root.mkdir()
    write_models(root / "checkpoints")
    write_recordings(root / "recordings")
    write_databases(root / "databases")
    write_vectors(root / "vectors")
    write_training(root / "training")


if __name__ == "__main__":
    main(sys.argv[1])
