"""The table of files and keys is that of the installed sentence-transformers and of docs/reference/model-options.md, and each key is computed or refused."""

import inspect
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from uwaga import Reranker, TextEncoder
from uwaga.models import opening
from uwaga.models.checkpoints import sentence_files
from uwaga.models.checkpoints.sentence_files import FILES, Rule

transformers = pytest.importorskip("transformers", minversion="5")
peer = pytest.importorskip("sentence_transformers", minversion="6")
import random_directories  # noqa: E402
from sentence_models import assert_scores_are_theirs, random_pairs  # noqa: E402
from sentence_transformers.base import model as base_model  # noqa: E402
from sentence_transformers.base import modules as base_modules  # noqa: E402
from sentence_transformers.base.modules import transformer as transformer_module  # noqa: E402
from sentence_transformers.cross_encoder import modules as pair_modules  # noqa: E402
from sentence_transformers.multi_vector_encoder import modules as token_modules  # noqa: E402
from sentence_transformers.sentence_transformer import modules as text_modules  # noqa: E402

ROOT = Path(__file__).parents[2]
SOURCES = Path(peer.__file__).parent
MODEL, BERT = "config_sentence_transformers.json", "sentence_bert_config.json"
PAGE = ROOT / "docs" / "reference" / "model-options.md"


def test_every_argument_of_a_module_has_a_rule() -> None:
    for package in (text_modules, base_modules, token_modules, pair_modules):
        for name in FILES:
            if (maker := getattr(package, name, None)) is None:
                continue
            keys = {*inspect.signature(maker.__init__).parameters, *maker.config_keys, *maker.config_key_renames} - {
                "self"
            }
            if name == "Pooling":
                keys |= set(text_modules.pooling._LEGACY_POOLING_MODE_KWARGS)
            assert set(FILES[name]) == keys, name


def test_every_argument_of_the_transformer_has_a_rule() -> None:
    maker = base_modules.Transformer
    old = set(re.findall(r'"(\w+_args|cache_dir)"', (SOURCES / "util" / "decorators.py").read_text()))
    keys = {*inspect.signature(maker.__init__).parameters, *maker.config_keys} - {"self", "model_name_or_path"}
    assert set(FILES["sentence_bert_config.json"]) == keys | {
        "model_args",
        "tokenizer_args",
        "config_args",
        "cache_dir",
    }
    assert {"model_args", "tokenizer_args", "config_args", "cache_dir"} <= old
    source = Path(transformer_module.__file__).read_text()
    assert (
        tuple(dict.fromkeys(re.findall(r"sentence_[a-z-]+_config\.json", source))) == sentence_files.TRANSFORMER_FILES
    )
    assert set(sentence_files.OUTPUTS) <= set(transformer_module.TRANSFORMER_TASK_DEFAULTS)
    for task, (output, name) in sentence_files.OUTPUTS.items():
        expected = ({"text": {"method": "forward", "method_output_name": output}}, name)
        assert transformer_module.TRANSFORMER_TASK_DEFAULTS[task] == expected
    processors = {transformers.utils.FEATURE_EXTRACTOR_NAME, transformers.utils.PROCESSOR_NAME}
    assert {*sentence_files.PROCESSOR_FILES} == processors | {transformers.utils.VIDEO_PROCESSOR_NAME}


def test_every_key_that_a_model_reads_has_a_rule() -> None:
    source = "".join(path.read_text() for path in sorted(SOURCES.glob("*/model.py")))
    read = r'model_config\.get\(\s*"(\w+)"|"(\w+)" in model_config|model_config\["(\w+)"\]|in \(\("(\w+)", "\w+"\), \("(\w+)", "\w+"\)\)'
    keys = {name for found in re.findall(read, source) for name in found if name}
    tuples = re.findall(
        r"(?:_PYLATE_TRANSFORMER_KEYS: ClassVar\[tuple\[str, \.\.\.\]\] =|_PYLATE_TRANSFORMER_KEYS \+) \((.*?)\)",
        source,
        re.DOTALL,
    )
    assert len(tuples) == 2
    keys |= set(re.findall(r'"(\w+)"', "".join(tuples))) | {"model_type"}
    assert keys - set(FILES["config_sentence_transformers.json"]) == {"sentence_transformers"}  # of __version__
    module_keys = set(re.findall(r'\bmodule_config(?:\.get\(|\[)"(\w+)"', Path(base_model.__file__).read_text()))
    assert module_keys | {"idx"} == set(FILES["modules.json"])


@pytest.mark.parametrize(
    ("pooling", "modes"),
    [
        (None, ()),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, ("cls", "mean")),
        ({"pooling_mode_cls_token": False}, ("mean",)),
        ({"pooling_mode": "lasttoken"}, ("lasttoken",)),
        ({"pooling_mode": ["max", "cls"]}, ("max", "cls")),
    ],
)
def test_modules_in_their_old_and_new_spelling(tmp_path: Path, pooling: dict | None, modes: tuple[str, ...]) -> None:
    assert sentence_files.modules(tmp_path) == sentence_files.SentenceModules(transformer=tmp_path, is_listed=False)
    kinds = {"": "models.Transformer", "1": "sentence_transformer.modules.pooling.Pooling", "2": "models.Dense"}
    modules = [
        {"path": path, "type": f"sentence_transformers.{kind}"}
        for path, kind in kinds.items()
        if pooling or path != "1"
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "config.json").write_text(json.dumps(pooling))
    others = (("Dense", tmp_path / "2"),)
    assert sentence_files.modules(tmp_path) == sentence_files.SentenceModules(
        transformer=tmp_path, pooling=modes, others=others
    )


def rendered(rule: Rule) -> str:
    return rule if isinstance(rule, str) else f"only {', '.join(f'`{json.dumps(value)}`' for value in rule)}"


OLDER_NAMES = {"model_args": "model_kwargs", "tokenizer_args": "processor_kwargs", "config_args": "config_kwargs"}


def tables() -> str:
    """The table of the page: a row for the keys of one rule. Keys without an effect and older names are not in it."""
    rows = ["| file or module | keys | what uwaga does |", "| --- | --- | --- |"]
    for name, rules in FILES.items():
        shown = {key: rendered(rule) for key, rule in rules.items() if rule != "no effect" and key not in OLDER_NAMES}
        ordered = sorted(shown, key=lambda key: (shown[key], key.rpartition(".")[0], key))
        for what, same in groupby(ordered, shown.__getitem__):
            keys = [f"`{key}`" for key in same]
            place = f"`{name}`" if name.endswith(".json") else name
            rows += [f"| {place} | {', '.join(keys[at : at + 12])} | {what} |" for at in range(0, len(keys), 12)]
    return "\n".join(rows)


def test_the_page_shows_the_rules() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert tables() in page, f"docs/reference/model-options.md must contain:\n\n{tables()}"
    files = {name for path in SOURCES.rglob("*.py") for name in re.findall(r'"([\w-]+\.json)"', path.read_text())}
    files |= {*sentence_files.PROCESSOR_FILES, sentence_files.ADAPTER_FILE}
    missing = {name for name in files if f"`{name}`" not in page}
    assert not missing


def test_random_directories_try_every_key() -> None:
    for name, rules in FILES.items():
        if name in random_directories.VALUES:
            assert set(rules) <= set(random_directories.VALUES[name]), name
    assert FILES.keys() - random_directories.VALUES.keys() == {"MultiVectorMask", "LogitScore"}


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bases")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of theirs, about old keys
@pytest.mark.gate(only=lambda seeds: len(seeds) == 16)
@pytest.mark.parametrize("seeds", [range(16), *(range(first, first + 100) for first in range(100, 700, 100))])
def test_settings_of_random_directories_are_computed_or_refused_by_name(seeds: range, bases: Path) -> None:
    counts, wrong = Counter[str](), []
    for seed in seeds:
        directory = random_directories.random_directory(seed, bases)
        result = random_directories.outcome(directory)
        counts[result.partition(":")[0]] += 1
        if result not in ("computed", "refused", "alone"):
            wrong.append(f"{directory.words}: {result}")
    said = f"{len(seeds)} directories: {dict(counts)}"
    assert not wrong, "\n".join([said, *wrong])
    assert min(counts["computed"], counts["refused"]) > len(seeds) // 4, said


def test_classes_of_tokenizers_that_give_types() -> None:
    from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

    typed = set()
    for name in dir(transformers):
        if name.endswith("Tokenizer"):
            try:
                names = getattr(tokenizer_class_from_name(name), "model_input_names", ())
            except ImportError:  # it needs a library that is not installed
                continue
            typed |= {name.removesuffix("Tokenizer")} if "token_type_ids" in names else set()
    typed |= {
        name
        for name in opening.TYPED_TOKENIZERS
        if "token_type_ids" in tokenizer_class_from_name(f"{name}Tokenizer").model_input_names
    }
    assert typed == opening.TYPED_TOKENIZERS


@pytest.fixture
def base(bases: Path, tmp_path: Path) -> Callable[..., Path]:
    """Copies of directories that are made once."""
    return lambda kind, family="bert": shutil.copytree(
        random_directories.base(kind, family, bases), tmp_path / f"{kind} {family}"
    )


def put(path: Path, **settings: object) -> None:
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | settings))


PAIRS = [*random_pairs(40), *random_directories.PAIRS]


@pytest.mark.gate(only=lambda family: family in ("modernbert", "deberta-v2"))
@pytest.mark.parametrize("family", ["bert", "nomic_bert", "modernbert", "qwen3", "deberta-v2"])
def test_a_cross_encoder_that_pools_is_scored(base: Callable, family: str) -> None:
    """As ettin's rerankers: Transformer, Pooling, Dense, LayerNorm, Dense to "scores"."""
    folder = base("pooled", family)
    put(folder / MODEL, activation_fn="torch.nn.Identity", prompts={"x": "the cat : "}, default_prompt_name="x")
    reranker = assert_scores_are_theirs(folder, PAIRS)
    assert not reranker.has_sigmoid
    assert reranker.explain().engine.startswith("transformers" if family == "deberta-v2" else "uwaga")


@pytest.mark.parametrize(
    ("family", "file", "settings"),
    [
        ("deberta-v2", MODEL, {"prompts": {"x": "the cat : "}, "default_prompt_name": "x"}),
        ("bert", "tokenizer_config.json", {"model_input_names": ["input_ids", "attention_mask"]}),
        ("bert", "tokenizer_config.json", {"tokenizer_class": "DistilBertTokenizer"}),
        ("bert", "tokenizer_config.json", {"truncation_side": "left"}),
        ("bert", BERT, {"max_seq_length": 9, "do_lower_case": True}),
    ],
)
def test_settings_of_classifiers(base: Callable, family: str, file: str, settings: dict) -> None:
    folder = base("classifier", family)
    before = Reranker.load(folder).scores(random_directories.PAIRS, overflow="truncate")
    put(folder / file, **settings)
    reranker = assert_scores_are_theirs(folder, PAIRS)
    assert not np.array_equal(before, reranker.scores(random_directories.PAIRS, overflow="truncate"))


def test_a_text_that_loses_its_beginning(base: Callable) -> None:
    folder, (text,) = base("dense"), random_directories.TEXTS[2:]
    whole = TextEncoder.load(folder).encode([text], overflow="truncate")
    of_file = json.loads((folder / "tokenizer.json").read_text())["truncation"]
    truncation = {"truncation": of_file | {"direction": "Left"}}
    for name, settings in (("tokenizer.json", truncation), ("tokenizer_config.json", {"truncation_side": "left"})):
        put(folder / name, **settings)
        encoder = TextEncoder.load(folder)
        vector = encoder.encode([text], overflow="truncate")
        right = peer.SentenceTransformer(str(folder), device="cpu").encode([text])
        np.testing.assert_allclose(vector, right, atol=2e-6)
        assert not np.allclose(vector, whole, atol=1e-3)
        report = encoder.report
        assert (report.start[0] > 0, report.stop[0]) == (True, len(text))


@pytest.mark.parametrize(("is_causal", "pooling"), [(None, "lasttoken"), (True, "lasttoken"), (False, "mean")])
def test_a_plain_decoder_is_pooled_by_its_last_token(base: Callable, is_causal: bool | None, pooling: str) -> None:
    folder = base("dense", "qwen3")
    (folder / "modules.json").unlink()
    more = {} if is_causal is None else {"is_causal": is_causal}
    put(folder / "config.json", architectures=["Qwen3ForCausalLM"], **more)
    from uwaga.encode import sentence_config

    assert sentence_config.read(folder).pooling == (pooling,)
    model = peer.SentenceTransformer(str(folder), device="cpu")
    assert model[1].pooling_mode == pooling


def test_lower_case_is_added_to_no_tokenizer_that_has_it(base: Callable) -> None:
    """As sentence-transformers: what comes before it in the tokenizer sees capitals."""
    folder = base("dense")
    replaces = {"type": "Replace", "pattern": {"String": "C"}, "content": "d"}
    put(folder / "tokenizer.json", normalizer={"type": "Sequence", "normalizers": [replaces, {"type": "Lowercase"}]})
    put(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    put(folder / "sentence_bert_config.json", do_lower_case=True)
    (tokens,) = TextEncoder.load(folder).tokenizer.encode(["Cat THE"], with_offsets=False)
    assert tokens.ids == [1, 5]  # an unknown word, "the"
