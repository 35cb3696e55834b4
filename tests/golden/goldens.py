"""What must stay equal while the code moves: texts, files, and the bits of numbers. Removed when the move is finished.

    python tests/golden/goldens.py                        # compare with golden.json
    python tests/golden/goldens.py --write                # record golden.json
    python tests/golden/goldens.py --values DIR           # write each value to a file of DIR, to read a difference
    python tests/golden/goldens.py --only models,page     # some sections

golden.json has a digest for each value. Those of numbers hold on the processor named there alone: elsewhere, record first at the
commit that is compared with. Differences that were made on purpose are listed in deliberate.md.
"""

import argparse
import dataclasses
import hashlib
import importlib
import json
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ |= {
    "COLUMNS": "100",
    "TERM": "dumb",
    "NO_COLOR": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import numpy as np  # noqa: E402
import safetensors  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from directories import FOREIGN, NAMES, OURS, POOLING, VOCABULARY, new, write  # noqa: E402

import uwaga  # noqa: E402
from uwaga import models  # noqa: E402

Values = Iterator[tuple[str, Any]]
SECTIONS: dict[str, Callable[[], Values]] = {}
TEXTS = ["the cat sat on the mat .", "a dog ran away", "then it ran away from the house , unbelievable"]
IDS = [[2, 5, 7, 9, 10, 5, 11, 22, 3], [2, 6, 8, 3]]
PAIR_TYPES = ("t5", "mt5", "marian", "bart", "uwaga-transformer")
LANGUAGES = ("en", "ja", "pl", "pt", "zh")


def section(make: Callable[[], Values]) -> Callable[[], Values]:
    SECTIONS[make.__name__] = make
    return make


def digest(value: Any) -> str:
    """The first 16 digits of SHA-256 of bytes, text, an array with its type and shape, or JSON."""
    if isinstance(value, uwaga.Ragged):
        value = [value.values, value.lengths]
    if isinstance(value, torch.Tensor):
        value = value.detach().contiguous()
        value = value.view(torch.int16).numpy() if value.dtype == torch.bfloat16 else value.numpy()
    if isinstance(value, np.ndarray):
        value = f"{value.dtype}{value.shape}".encode() + np.ascontiguousarray(value).tobytes()
    elif isinstance(value, list | tuple):
        value = json.dumps([digest(each) for each in value])
    elif isinstance(value, dict):
        value = json.dumps({str(key): digest(each) for key, each in value.items()})
    if not isinstance(value, bytes):
        value = (value if isinstance(value, str) else repr(value)).encode(errors="backslashreplace")
    return hashlib.sha256(value).hexdigest()[:16]


def say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def outcome(call: Callable[[], Any]) -> Any:
    """The result, or the name of the error."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001  # what it raises is the value
        say(f"{type(error).__name__}: {str(error)[:160]!r}")
        return f"{type(error).__name__}"


@section
def names() -> Values:
    """The public names of all packages."""
    for package in ("", *sorted(path.parent.name for path in Path(uwaga.__file__).parent.glob("*/__init__.py"))):
        module = importlib.import_module(f"uwaga.{package}".rstrip("."))
        if hasattr(module, "__all__"):
            yield package or "uwaga", sorted(module.__all__)


@section
def commands() -> Values:
    """The help of every command."""
    import click
    from typer.main import get_command
    from typer.testing import CliRunner

    from uwaga.cli import app

    def walk(command: click.Command, path: list[str]) -> Iterator[list[str]]:
        yield path
        for name in getattr(command, "commands", {}):
            yield from walk(command.commands[name], [*path, name])

    for path in walk(get_command(app), []):
        yield " ".join(["uwaga", *path]), CliRunner().invoke(app, [*path, "--help"]).output


@section
def lessons() -> Values:
    """The JSON and the numbers of every step, in five languages, for five settings."""
    from uwaga.viewer.service import answer_lesson

    settings: list[dict[str, Any]] = [
        {},
        {"tokens": ["a", "pen", "."]},
        {"text": "the cat sat on the mat"},
        {"tokens": ["a", "b"], "settings": {"heads": 1}},
        {"tokens": ["a", "pen", "."], "settings": {"sentences": [["a", "pen"], ["yes"]]}},
    ]
    for language in LANGUAGES:
        for number, each in enumerate(settings):
            reply = answer_lesson({"request": "lesson", **each}, language)
            meta = json.loads(json.dumps(reply.meta))
            for step in meta["steps"]:
                yield (
                    f"{language} {number} {step['id'] if 'id' in step else step['head']}",
                    json.dumps(step, sort_keys=True),
                )
            yield f"{language} {number} matrices", json.dumps(meta["matrices"], sort_keys=True)
            yield (
                f"{language} {number} other",
                json.dumps({key: meta[key] for key in ("request", "limits")}, sort_keys=True),
            )
            if language == "en":
                yield f"{number} numbers", list(reply.arrays)


def _outputs(model: torch.nn.Module, name: str) -> dict[str, Any]:
    """States, logits and other outputs of a ragged and of a padded batch."""
    ragged = uwaga.Ragged.from_list([torch.tensor(ids) for ids in IDS])
    padded = torch.tensor([IDS[0], IDS[1] + [0] * (len(IDS[0]) - len(IDS[1]))])
    two = name.split()[0] in PAIR_TYPES and not name.endswith(("encoder", "decoder"))
    result = {}
    with torch.no_grad():
        for kind, ids in (("ragged", ragged), ("padded", padded), ("alone", torch.tensor(IDS[:1]))):
            output = model(*(ids, ids) if two else (ids,))
            for field in ("memory", "last_hidden_state", "masked_lm", "logits", "pooled", "sequence", "tokens"):
                if (value := getattr(output, field, None)) is not None:
                    # One name for what several classes called differently.
                    key = {"masked_lm": "logits"}.get(
                        field, "last_hidden_state" if field == "memory" and not two else field
                    )
                    result[f"{kind} {key}"] = value
    return result


@section
def model_types() -> Values:
    """Load, outputs, generation, and the files that saving writes, of every model type that is ours."""
    for name in NAMES:
        if name in FOREIGN:
            continue
        with tempfile.TemporaryDirectory() as folder:
            source = write(name, Path(folder, "model"))
            model = outcome(lambda f=source: models.load(f))
            if isinstance(model, str):
                yield f"{name}: load", model
                continue
            yield from ((f"{name}: {key}", value) for key, value in _outputs(model, name).items())
            yield (
                f"{name}: parameters",
                sorted((tuple(each.shape), str(each.dtype)) for each in model.parameters()),
            )
            for key, options in {
                "greedy": {},
                "beams": {"num_beams": 3},
                "sampled": {"do_sample": True, "seed": 5, "top_k": 9},
            }.items():
                yield (
                    f"{name}: {key}",
                    outcome(lambda m=model, o=options: models.generate(m, IDS, max_new_tokens=8, eos_token_ids=1, **o)),
                )
            models.save(model, Path(folder, "saved"))
            yield f"{name}: config.json", Path(folder, "saved/config.json").read_text()
            yield f"{name}: model.safetensors", Path(folder, "saved/model.safetensors").read_bytes()
            again = models.load(Path(folder, "saved"))
            yield f"{name}: again", _outputs(again, name)
            yield f"{name}: bfloat16", _outputs(models.load(Path(folder, "model"), dtype=torch.bfloat16), name)


@section
def openers() -> Values:
    """Which directory each way of opening accepts, and what it computes."""
    from uwaga.inspect import run_text

    for name in NAMES:
        with tempfile.TemporaryDirectory() as made:
            folder = write(name, Path(made, "model"))
            yield f"{name}: load", outcome(lambda f=folder: type(models.load(f)).__name__ and "loads")
            yield f"{name}: text encoder", outcome(lambda f=folder: uwaga.TextEncoder.load(f).encode(TEXTS))
            yield (
                f"{name}: reranker",
                outcome(lambda f=folder: uwaga.Reranker.load(f).scores([(TEXTS[0], text) for text in TEXTS[1:]])),
            )
            for row, recording in enumerate(_recordings(run_text, folder)):
                yield f"{name}: recorded {row}", recording


def _recordings(run_text: Any, folder: Path) -> Iterator[Any]:
    for text in TEXTS[:2]:

        def record(text: str = text) -> Any:
            recorded = run_text.record_text(models.open(folder, dtype="float32"), text)
            recording = recorded if hasattr(recorded, "maps") else recorded.recording
            return {str(where): each.to_dense() for where, each in recording.maps.items()}

        yield outcome(record)


@section
def encoders() -> Values:
    """Vectors by every verb, of the directories that sentence-transformers could read."""
    for name in POOLING:
        with tempfile.TemporaryDirectory() as made:
            encoder = uwaga.TextEncoder.load(write(name, Path(made, "model")))
            yield f"{name}: query", encoder.encode_query(TEXTS)
            yield f"{name}: document", encoder.encode_document(TEXTS)
            yield f"{name}: tokens", outcome(lambda e=encoder: e.encode(TEXTS, output="tokens"))
            yield f"{name}: spans", outcome(lambda e=encoder: e.encode([TEXTS[0]], spans=[[(0, 7), (8, 14)]]))
            yield f"{name}: stream", [each.vectors for each in encoder.stream(iter(TEXTS))]
            yield f"{name}: similarity", encoder.similarity(encoder.encode(TEXTS), encoder.encode(TEXTS))
    encoder = uwaga.TextEncoder.load("minilm")
    yield "minilm", encoder.encode(TEXTS)


@section
def bundled() -> Values:
    """What the bundled models generate and score."""
    yield "speller", models.generate(models.load("speller"), ["attention", "transformer", "cat"], max_new_tokens=20)
    yield (
        "speller, beams",
        models.generate(models.load("speller"), ["attention", "cat"], num_beams=4, max_new_tokens=20),
    )
    yield "bard", models.generate(models.load("bard"), ["To be, or"], max_new_tokens=30)
    yield "copyist", models.generate(models.load("copyist"), [list(range(70, 90)) * 2], max_new_tokens=10)


@section
def inspections() -> Values:
    """Watching, editing, attribution, patching and caches, of our models and of transformers' ones."""
    uwaga.integrations.register_with_transformers()
    for name in ("bert masked", "gpt2", "llama", "gemma2", "t5", "marian", "uwaga-transformer", "modernbert"):
        with tempfile.TemporaryDirectory() as made:
            folder = write(name, Path(made, "model"))
            yield from ((f"{name}: {key}", value) for key, value in _inspected(models.load(folder), name))
            if name in OURS:
                continue
            maker = transformers.AutoModelForSeq2SeqLM if name in PAIR_TYPES else transformers.AutoModelForMaskedLM if "masked" in name else (
                transformers.AutoModel if name == "modernbert" else transformers.AutoModelForCausalLM)  # fmt: skip
            peer = maker.from_pretrained(folder, attn_implementation="uwaga").eval()
            yield from ((f"{name} of transformers: {key}", value) for key, value in _inspected(peer, name, theirs=True))


def _first_field(output: Any) -> torch.Tensor:
    names = ("logits", "masked_lm", "last_hidden_state")
    return next(value for name in names if (value := getattr(output, name, None)) is not None)


def _fields(result: Any) -> list[Any]:
    return [getattr(result, each.name) for each in dataclasses.fields(result)]


def _inspected(model: torch.nn.Module, name: str, *, theirs: bool = False) -> Values:
    from uwaga import inspect
    from uwaga.inspect import Links
    from uwaga.inspect.cache import policies

    ids = torch.tensor(IDS[:1])
    two = name.split()[0] in PAIR_TYPES
    inputs: dict[str, Any] = {"input_ids": ids, "decoder_input_ids": ids} if two else {"input_ids": ids}
    kind = "encoder" if two or name in ("bert masked", "modernbert") else "decoder"

    def run() -> torch.Tensor:
        with torch.no_grad():
            output = model(**inputs) if theirs else model(*inputs.values())
        return _first_field(output)

    yield "plain", run()
    with uwaga.watch(model, values=True) as recording:
        run()
    for where, each in recording.maps.items():
        yield f"watch {where}", [each.to_dense(), each.entropy()]
    with tempfile.TemporaryDirectory() as folder:
        recording.save(Path(folder, "r.safetensors"))
        # The order of metadata in the file is by chance.
        with safetensors.safe_open(Path(folder, "r.safetensors"), "pt") as file:
            yield (
                "recording",
                [
                    json.dumps(file.metadata(), sort_keys=True).replace(
                        str(getattr(model, "name_or_path", "")) or "no folder", "folder"
                    ),
                    {key: file.get_tensor(key) for key in sorted(file.keys())},
                ],
            )
    edits: dict[str, dict[str, Any]] = {
        "zero": {"heads": {(kind, 0, 1): 0.0}},
        "mean": {"heads": {(kind, 1, None): "mean"}},
        "scores": {"scores": {(kind, 0, 0): Links(queries=[3, 4], keys=[1])}},
        "weights": {"weights": {(kind, 0, None): Links(queries=[5], keys=[2, 3], factor=0.5)}},
    }
    for key, options in edits.items():

        def edited(options: dict[str, Any] = options) -> Any:
            with uwaga.edit(model, **options):
                return run()

        yield f"edit {key}", outcome(edited)
    with inspect.activations(model) as kept:
        run()
    yield "activations", [[each.query, each.key, each.value, each.output] for each in kept.layers.values()]
    yield "labels", outcome(lambda: inspect.head_labels(recording).columns)
    yield "head table", outcome(lambda: inspect.head_table(recording).columns)
    arguments = tuple(inputs.values())
    yield "lens", outcome(lambda: _fields(inspect.logit_lens(model, *arguments)))
    yield "logit attribution", outcome(lambda: _fields(inspect.logit_attribution(model, *arguments, answer=5)))

    def score() -> Any:
        result = inspect.score_attribution(model, recording, 1, 0, i=4, j=2, kind=kind)
        return [
            result.scores,
            result.weights,
            [str(each) for each in result.query_parts],
            [list(map(str, each)) for each in result.top(9)],
        ]

    yield "score attribution", outcome(score)
    corrupted = dict(inputs) | {"input_ids": ids.flip(1)}

    def metric(output: Any) -> torch.Tensor:
        return _first_field(output)[0, -1, 5]

    def patching() -> Any:
        names = list(inputs) if theirs else ["ids", "decoder_ids"]
        clean, other = (dict(zip(names, given.values(), strict=False)) for given in (inputs, corrupted))
        if not theirs and not two:
            clean, other = ids, ids.flip(1)
        return inspect.activation_patching(model, clean, other, metric, kind=kind).values

    yield "patching", outcome(patching)
    if kind == "decoder":

        def cached() -> Any:
            with inspect.cache_edit(model, policies.h2o, 4):
                return run()

        yield "cache edit", outcome(cached)
        yield (
            "cache study",
            outcome(lambda: inspect.cache_study(recording, [policies.window, policies.h2o], budgets=[2, 4]).means),
        )


@section
def pages() -> Values:
    """200 replies of a page: of maps, of texts, and of a typed text."""

    def view(*shown: Any, **options: Any) -> Any:
        return uwaga.view(*shown, browser=False, block=False, **options)

    generator = torch.Generator().manual_seed(0)
    maps = [uwaga.AttentionMap(*torch.randn(2, 2, 300, 8, generator=generator), mask=uwaga.Causal()) for _ in range(2)]
    shown: dict[str, Callable[[], Any]] = {
        "maps": lambda: view(maps, title="maps"),
        "text": lambda: view(TEXTS[0], model="minilm"),
        "two texts": lambda: view(TEXTS[0], TEXTS[0].replace("cat", "dog"), model="minilm"),
        "speller": lambda: view("cat", model="speller"),
    }
    for name, make in shown.items():
        with make() as opened:
            for number, request in enumerate(_requests(opened.service)):
                reply = outcome(lambda s=opened.service, r=request: s.answer(r))
                if isinstance(reply, str):
                    yield f"{name}: {number} {request['request']}", reply
                    continue
                while reply.meta.get("complete", 1) != 1:
                    reply = opened.service.answer(request)
                yield (
                    f"{name}: {number} {request['request']} {request.get('kind', '')} {request.get('head', '')}",
                    [json.dumps(reply.meta, sort_keys=True), *reply.arrays],
                )
            if name == "text":
                edits = {"heads": [{"kind": "encoder", "layer": 0, "head": 1, "value": 0.0}]}
                run = opened.service.answer(
                    {"request": "run", "text": TEXTS[1], "second": None, "target": None, "edits": edits}
                ).meta["run"]
                yield (
                    f"{name}: typed",
                    json.dumps(opened.service.answer({"request": "about", "run": run}).meta, sort_keys=True),
                )


def _requests(service: Any) -> Iterator[dict[str, Any]]:
    about = service.answer({"request": "about"}).meta
    yield {"request": "about"}
    for side in about["sides"]:
        for stack in side["stacks"]:
            for merge, specials in (("tokens", "show"), ("words", "hide")):
                yield {
                    "request": "items",
                    "side": side["id"],
                    "stack": stack,
                    "merge": merge,
                    "specials": specials,
                    "first": 0,
                    "count": 100,
                }
        for each in side["maps"][:3]:
            where = {"side": side["id"], "kind": each["kind"], "layer": each["layer"]}
            for merge, specials in (("tokens", "show"), ("words", "hide")):
                merged = where | {"merge": merge, "specials": specials}
                yield {"request": "overview", **merged, "pooling": "sum"}
                head = merged | {"head": 1}
                yield {"request": "tile", **head, "pooling": "max", "level": 0, "row": 0, "column": 0}
                yield {"request": "row", **head, "query": 0}
                yield {"request": "column", **head, "key": 0}
                yield {"request": "entry", **head, "query": 0, "key": 0}
            yield {"request": "statistics", **where}
            yield {"request": "heads", **where, "axis": "row", "item": 0}
            if side["id"] != "difference":
                yield {"request": "labels", **where, "merge": "tokens", "specials": "show"}
            yield {
                "request": "weights",
                **where,
                "merge": "tokens",
                "specials": "show",
                "head": 0,
                "rows": [0, 1],
                "columns": [0, 2],
            }


@section
def files() -> Values:
    """What stores, vector files and trainings write."""
    from typer.testing import CliRunner

    from uwaga.cli import app

    def run(*arguments: object) -> str:
        result = CliRunner().invoke(app, [str(each) for each in arguments])
        return f"{result.exit_code} {result.output}"

    before = Path.cwd()
    with tempfile.TemporaryDirectory() as made:
        os.chdir(made)
        try:
            write("bert", Path("model"))
            Path("documents.jsonl").write_text(
                "".join(json.dumps({"id": f"d{n}", "text": TEXTS[n % 3], "n": n}) + "\n" for n in range(20))
            )
            Path("cats.txt").write_text("\n\n".join(TEXTS) + "\n")
            for name, more in {"plain": (), "numpy": (), "prefix": ("--dimensions", "12")}.items():
                output = f"{name}.npy" if name == "numpy" else f"{name}.parquet"
                yield (
                    f"encode {name}: exit",
                    run("encode", "documents.jsonl", "-o", output, "--model", "model", *more)[:2],
                )
                if Path(output).exists():
                    yield f"encode {name}", Path(output).read_bytes()
            yield "store add", run("store", "add", "db", "cats.txt", "--model", "model")[:2]
            yield "store ask", run("store", "ask", "db", "the cat", "--model", "model")
            with uwaga.SoftDatabase.open("db") as db:
                yield "store rows", [[row.id, row.key, row.value, json.dumps(row.record, sort_keys=True)] for row in db]
                found = db.search(next(iter(db)).key, k=3)
                yield "store search", repr(found)
            Path("text.txt").write_text("\n".join(" ".join(TEXTS[n % 3].split()[n % 5 :]) for n in range(60)) + "\n")
            for family, objective in {
                "gpt2": "language-model",
                "bert": "masked-language-model",
                "transformer": "language-model",
            }.items():
                yield from ((f"train {family}: {name}", value) for name, value in _trained(family, objective))
        finally:
            os.chdir(before)


def _trained(family: str, objective: str) -> Values:
    from uwaga.train import Config, fit

    more = {"transformer": "num_decoder_layers = 1, num_layers = 0"}.get(
        family, "num_layers = 1, max_position_embeddings = 32"
    )
    config = Config.parse(
        f"""
        objective = "{objective}"
        model = {{family = "{family}", num_heads = 2, d_model = 16, d_ff = 32, {more}}}
        data = {{kind = "text", train = ["text.txt"], document = "line", validation_fraction = 0.2, context_length = 16}}
        batch = {{tokens_per_batch = 64}}
        schedule = {{steps = 4}}
        run = {{output_dir = "run-{family}", log_every = 1, eval_every = 2, device = "cpu", threads = 1}}
        """,
        (),
    )
    result = fit(config, progress=False)
    last = Path(f"run-{family}", "step-000004")
    yield "losses", repr(result.losses)
    for path in sorted(last.iterdir()):
        if path.suffix in (".safetensors", ".json", ".toml") and path.name != "training.json":
            yield path.name, path.read_bytes()


@section
def seeds() -> Values:
    """Weights that a seed gives, of uwaga's own classes and of a training."""
    small = {"vocab_size": VOCABULARY, "d_model": 16, "num_layers": 2, "num_heads": 2, "d_ff": 24}
    cases = {
        "bert": small | {"max_position_embeddings": 16, "outputs": ("pooled", "logits")},
        "gpt2": small | {"max_position_embeddings": 16},
        "t5": small | {"d_k": 8, "num_decoder_layers": 1},
        "transformer": small | {"num_decoder_layers": 1},
    }
    from uwaga.train.model import new_model

    for family, settings in cases.items():
        model = new(family, settings)
        yield f"{family}: made", list(model.state_dict().values())
        trained = new_model(model.config, 3)
        yield f"{family}: to train", list(trained.state_dict().values())


def processor() -> str:
    from uwaga._base import native, processor

    return f"{processor.detect().name}, {native.supported_levels()[-1]}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


def record(chosen: list[str], values: Path | None) -> dict[str, str]:
    result: dict[str, str] = {}
    for name in chosen:
        try:
            for key, value in SECTIONS[name]():
                key = f"{name}/{key}"
                assert key not in result, key
                result[key] = digest(value)
                if values is not None:
                    file = values / (key.replace("/", "_").replace(" ", "_")[:150] + ".txt")
                    file.write_text(value if isinstance(value, str) else repr(value), errors="backslashreplace")
        except Exception:  # noqa: BLE001  # other sections are still compared
            traceback.print_exc()
            result[f"{name}/ended by an error"] = ""
        say(f"{name}: {sum(key.startswith(name + '/') for key in result)} values")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--values", type=Path)
    parser.add_argument("--only", default=",".join(SECTIONS))
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    if chosen.values:
        chosen.values.mkdir(parents=True, exist_ok=True)
    here, sections = processor(), chosen.only.split(",")
    now = record(sections, chosen.values)
    file = HERE / "golden.json"
    if chosen.write:
        kept = json.loads(file.read_text())["values"] if file.exists() else {}
        kept = {key: each for key, each in kept.items() if key.split("/")[0] not in sections}
        file.write_text(json.dumps({"processor": here, "values": kept | now}, indent=0) + "\n")
        return
    kept = json.loads(file.read_text())
    if kept["processor"] != here:
        say(f"recorded on {kept['processor']}; this is {here}: digests of numbers may differ")
    before = {key: each for key, each in kept["values"].items() if key.split("/")[0] in sections}
    different = [key for key in before | now if before.get(key) != now.get(key)]
    for key in different:
        say(f"{'gone' if key not in now else 'new' if key not in before else 'differs'} {key}")
    say(f"{len(before)} recorded, {len(different)} different")
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
