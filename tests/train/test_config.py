"""The training configuration: defaults, overrides, and the messages of its errors."""

from pathlib import Path

import pytest

from uwaga.train.config import Config
from uwaga.train.errors import ConfigError

_TEXT = """
objective = "language-model"

[model]
family = "gpt2"
num_layers = 2

[data]
train = ["a.txt"]

[schedule]
steps = 10

[run]
output_dir = "o"
"""
_PAIRS = (
    'objective="encoder-decoder"', 'model.family="transformer"', 'data.kind="pairs"', 'tokenizer.kind="characters"',
)  # fmt: skip


def _message(*overrides: str) -> str:
    with pytest.raises(ConfigError) as raised:
        Config.parse(_TEXT, overrides)
    return str(raised.value)


def test_missing_keys_have_defaults() -> None:
    config = Config.parse(_TEXT)
    assert (config.optimizer.lr, config.tokenizer.kind, config.batch.gradient_accumulation_steps) == (
        3e-4,
        "characters",
        1,
    )


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        (
            "run.sample_prompts=['ROMEO:', \"a\\tb\\u0007\"]",
            "optimizer.lr=1",
            "batch.tokens_per_step=16384",
            "run.threads=2",
        ),
        (*_PAIRS, "tokenizer.target={kind='words', shared=true}", "data.remove_characters='012'"),
        ("data.sources.x={sha256='" + 64 * "a" + "', url='https://example.org/x'}", "model.norm_eps=1e-6"),
    ],
)
def test_the_resolved_text_reads_back_equal(overrides: tuple[str, ...]) -> None:
    config = Config.parse(_TEXT, overrides)
    assert Config.parse(config.text()) == config


def test_overrides_are_toml_values_and_the_last_one_wins() -> None:
    config = Config.parse(
        _TEXT, ["optimizer.lr=3e-4", "optimizer.lr=1", "optimizer.betas=[0.9, 0.99]", "run.compile=true"]
    )
    assert config.optimizer.lr == 1.0
    assert isinstance(config.optimizer.lr, float)
    assert config.optimizer.betas == (0.9, 0.99)
    assert config.run.compile


@pytest.mark.parametrize("folder", ["runs/a", "2024-05-01", "a=b", "'quoted'"])
def test_a_word_without_quotes_is_a_string(folder: str) -> None:
    assert Config.parse(_TEXT, [f"run.output_dir={folder}"]).run.output_dir == folder.strip("'")


def test_an_override_can_create_a_table() -> None:
    config = Config.parse(_TEXT, [*_PAIRS, "tokenizer.target.shared=true"])
    assert config.tokenizer.target is not None
    assert config.tokenizer.target.kind == "words"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.learning_rate=3", "there is no key optimizer.learning_rate; the nearest is optimizer.lr"),
        ("learning_rate=3", "there is no key learning_rate; the nearest is optimizer.lr"),
        ("run.sed=3", "there is no key run.sed; the nearest is run.seed"),
        ("optimiser.lr=3", "there is no key optimiser; the nearest is optimizer"),
        ("model.layrs=3", "there is no key model.layrs; the nearest is model.num_layers"),
        ("data.sources.x.ulr=a", "there is no key data.sources.x.ulr; the nearest is data.sources.NAME.url"),
        ("tokenizer.target.knd=a", "there is no key tokenizer.target.knd; the nearest is tokenizer.target.kind"),
    ],
)
def test_an_unknown_key_names_the_nearest(override: str, message: str) -> None:
    assert _message(override) == message


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("objective=translate", "objective must be one of 'language-model', 'encoder-decoder', 'masked-language-model', not 'translate'"),
        ("optimizer.lr=fast", "optimizer.lr must be a number above 0, not 'fast'"),
        ("optimizer.lr=nan", "optimizer.lr must be a number above 0, not nan"),
        ("optimizer.lr=0", "optimizer.lr must be a number above 0, not 0"),
        ("optimizer.betas=[0.9]", "optimizer.betas must be a list of two numbers from 0 to less than 1, not [0.9]"),
        ("optimizer.max_grad_norm=-1", "optimizer.max_grad_norm must be a number of at least 0, not -1"),
        ("optimizer.dtype=float16", "optimizer.dtype must be one of 'float32', 'bfloat16', not 'float16'"),
        ("schedule.final_lr_ratio=1.5", "schedule.final_lr_ratio must be a number from 0 to 1, not 1.5"),
        ("schedule.steps=0", "schedule.steps must be a whole number of at least 1, not 0"),
        ("run.threads=4097", "run.threads must be a whole number from 1 to 4,096, not 4097"),
        ("tokenizer.vocab_size=4194305", "tokenizer.vocab_size must be a whole number from 1 to 4,194,304, not 4194305"),
        ("run.seed=true", "run.seed must be a whole number of at least 0, not True"),
        ("run.output_dir=7", "run.output_dir must be a string that is not empty and has no NUL character, not 7"),
        ("run.sample_prompts=[1]", "run.sample_prompts[0] must be a string that is not empty, not 1"),
        ("run.compile=1", "run.compile must be true or false, not 1"),
        ("data.validation_fraction=1", "data.validation_fraction must be a number from 0 to less than 1, not 1"),
        ("data.mlm_probability=0", "data.mlm_probability must be a number above 0 and up to 1, not 0"),
        ("data.remove_characters=1", "data.remove_characters must be a string, not 1"),
        ("data.sources=1", "data.sources must be a table of tables, not 1"),
        ("data.sources.x=1", "data.sources.x must be a table, not 1"),
        ("data.sources.x.url='a'", "data.sources.x.sha256 is missing: it must be 64 hexadecimal digits"),
        ("optimizer=1", "optimizer must be a table, not 1"),
        ("model=1", "model must be a table, not 1"),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_type_is_refused(override: str, message: str) -> None:
    assert _message(override) == message


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.family=gpt", "model.family must be one of 'bert', 'gpt2', 't5', 'transformer', not 'gpt'"),
        ("model.family=bert", "model.family 'bert' has no objective 'language-model'; these have: gpt2, transformer"),
        (
            "model.vocab_size=9",
            "model.vocab_size is not configurable: the tokenizer and the objective decide it",
        ),
        ("model.num_layers=0.5", "model: Config: num_layers must be a whole number from 1 to 65,536, not 0.5"),
        ("model.num_heads=5", "model: Config: d_model 768 is not a multiple of 5 heads"),
        ("model={family='transformer', num_layers=2}", "model.num_layers must be 0 for a language-model, not 2"),
    ],
)
def test_invalid_model_settings_are_refused(override: str, message: str) -> None:
    assert _message(override) == message


@pytest.mark.parametrize("family", ["t5", "transformer"])
@pytest.mark.parametrize("name", ["num_layers", "num_decoder_layers"])
def test_an_encoder_decoder_must_have_layers_on_both_sides(family: str, name: str) -> None:
    at_least_1 = {
        "t5": f"model: Config: {name} must be a whole number from 1 to 65,536, not 0",
        "transformer": f"model.{name} must be at least 1 for an encoder-decoder, not 0",
    }
    assert _message(*_PAIRS, f"model={{family='{family}', {name}=0}}") == at_least_1[family]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.train=[]"], "data.train names no file"),
        (["data.validation_fraction=0"], "data.validation names no file, and data.validation_fraction is 0: there would be nothing to validate on"),
        ([*_PAIRS, "data.windows=true"], "data.windows is for texts, and data.kind is 'pairs'"),
        ([*_PAIRS, "data.pair_format=parallel"], "data.target_files must name one file for each of data.train: 1, not 0"),
        (["data.target_files=['b']"], "data.target_files is for data.pair_format 'parallel'"),
        (["data.validation_target_files=['b']"], "data.validation_target_files is for data.pair_format 'parallel'"),
        (["data.kind=pairs"], "data.kind must not be 'pairs' for the objective 'language-model'"),
        ([*_PAIRS, "data.kind=text"], "data.kind must be 'pairs' for the objective 'encoder-decoder'"),
        (["data.remove_characters='a'"], "data.remove_characters is for pairs"),
        (["tokenizer.target.kind=words"], "tokenizer.target is for pairs"),
        (["objective=masked-language-model", "model.family=bert", "data.windows=true"],
         "data.windows is for a language-model, not for the objective 'masked-language-model'"),
        (["objective=masked-language-model", "model.family=bert", "data.context_length=2"],
         "data.context_length must be at least 3, for a token between [CLS] and [SEP], and is 2"),
        (["batch.tokens_per_batch=255"], "batch.tokens_per_batch must hold a row of data.context_length tokens, 256, and is 255"),
        ([*_PAIRS, "batch.tokens_per_batch=511"], "batch.tokens_per_batch must hold source and target of data.context_length tokens, 512, and is 511"),
        (["batch.tokens_per_step=5000"], "batch.tokens_per_step must be a multiple of batch.tokens_per_batch, 4096, not 5000"),
        (["data.context_length=2048"], "data.context_length is 2048, and the model has 1024 positions"),
        (["schedule.warmup_steps=11"], "schedule.warmup_steps must not be more than schedule.steps, 10, and is 11; "
            "for a short run, add schedule.warmup_steps=1"),
        (["parallel.context=2", "run.compile=true"],
         "parallel.context is 2, and run.compile is true: attention by several processes cannot be compiled"),
        (["parallel.context=2", "run.device=cuda"],
         "parallel.context is 2, and run.device is 'cuda': attention by several processes is computed on CPUs"),
        ([*_PAIRS, "parallel.context=3", "model.dropout=0.1"],
         "parallel.context is 3, and for an encoder-decoder model.dropout must then be 0"),
        (["parallel.context=2", "optimizer.dtype=bfloat16", "model.dropout=0.1", "model.embedding_dropout=0.1"],
         "parallel.context is 2, and with optimizer.dtype 'bfloat16' model.dropout and model.embedding_dropout must then be 0"),
        (["tokenizer.kind=byte-pair"], "tokenizer.vocab_size is needed where tokenizer.kind is 'byte-pair'"),
        (["tokenizer.kind=given"], "tokenizer.path is needed where tokenizer.kind is 'given'"),
        (["tokenizer.path=a"], "tokenizer.path is for tokenizer.kind 'given'"),
        (["tokenizer.kind=given", "tokenizer.path=a", "tokenizer.lowercase=true"],
         "tokenizer.vocab_size and tokenizer.lowercase are not for tokenizer.kind 'given'"),
        ([*_PAIRS, "tokenizer={kind='byte-pair', vocab_size=300, target={kind='words', shared=true}}"],
         "tokenizer.target.shared is for characters and words"),
        ([*_PAIRS, "tokenizer={kind='characters', target={kind='words', shared=true, vocab_size=9}}"],
         "tokenizer.target.vocab_size is not for a shared vocabulary: tokenizer.vocab_size limits both"),
        ([*_PAIRS, "model.family=t5", "tokenizer.target.kind=words"],
         "tokenizer.target is a second vocabulary, which the family 't5' does not support: "
         "set tokenizer.target.shared, or remove the table"),
    ],
)  # fmt: skip
def test_settings_that_exclude_each_other_are_refused(overrides: list[str], message: str) -> None:
    assert _message(*overrides) == message


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.lr", "'optimizer.lr' must be key.path=value, such as optimizer.lr=3e-4"),
        (".lr=1", "'.lr=1' must be key.path=value, such as optimizer.lr=3e-4"),
        ("objective.lr=1", "'objective.lr=1': objective is not a table"),
        ("run.sample_prompts=[1", "'[1' is not a TOML value: Unclosed array (at end of document)"),
        ("run.output_dir=caf\udce9", "'run.output_dir=caf\\udce9' is not valid UTF-8"),
    ],
)
def test_an_override_without_a_key_or_a_value_is_refused(override: str, message: str) -> None:
    assert _message(override) == message


def test_errors_of_a_file_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    with pytest.raises(ConfigError) as raised:
        Config.read(path)
    assert str(raised.value) == f"{path} cannot be read: No such file or directory"
    path.write_bytes(b"run = 1\n\xff")
    with pytest.raises(ConfigError) as raised:
        Config.read(path)
    assert str(raised.value) == f"{path} is not UTF-8: byte 0xff at byte 9"
    path.write_text("run = ")
    with pytest.raises(ConfigError) as raised:
        Config.read(path)
    assert str(raised.value) == f"{path}: is not TOML: Invalid value (at end of document)"
    path.write_text(_TEXT.replace("[run]", "[running]"))
    with pytest.raises(ConfigError) as raised:
        Config.read(path)
    assert str(raised.value) == f"{path}: there is no key running; the nearest is run"
    path.write_text(_TEXT.partition("[run]")[0])
    with pytest.raises(ConfigError) as raised:
        Config.read(path)
    assert str(raised.value) == f"{path}: run is missing: it must be a table"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            'run.output_dir="a\\u0000b"',
            "run.output_dir must be a string that is not empty and has no NUL character, not 'a\\x00b'",
        ),
        (
            'data.train=["a\\u0000b"]',
            "data.train[0] must be a string that is not empty and has no NUL character, not 'a\\x00b'",
        ),
        ("model.num_layers=10000", "model.num_layers must be at most 1000, not 10000"),
        (
            f"optimizer.eps=1{'0' * 400}",
            "optimizer.eps must be a number above 0, not an integer of more than 20 digits",
        ),
        ("optimizer.eps=1e400", "optimizer.eps must be a number above 0, not inf"),
    ],
)
def test_values_out_of_range_are_refused(override: str, message: str) -> None:
    assert _message(override) == message
