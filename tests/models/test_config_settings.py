"""Settings of config.json that transformers reads from two places, against transformers: rotary positions, and second names of keys.

A setting gives the hidden states of transformers, or is refused. What transformers refuses is refused too.
"""

import json
import random
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_families import BASE, twins
from torch import Tensor

from uwaga._base.errors import CheckpointError
from uwaga.models import load
from uwaga.models.families import family_of, model_types

transformers = pytest.importorskip("transformers", minversion="5")

_ROTARY = [kind for kind in model_types() if "ropes" in family_of(kind, "").settings]
_BY_LAYER_TYPE = ("gemma3_text", "modernbert")
_KINDS = ("sliding_attention", "full_attention")
_IDS = torch.randint(5, 40, (1, 40), generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a random model in float64, without rope_parameters."""
    made: dict[str, Path] = {}

    def folder(kind: str) -> Path:
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp(kind)
            twins(BASE[kind]).exact.save_pretrained(made[kind])
            described = json.loads((made[kind] / "config.json").read_text())
            described.pop("rope_parameters", None)
            (made[kind] / "original.json").write_text(json.dumps(described))
        return made[kind]

    return folder


@torch.no_grad()
def compared(kind: str, folder: Path, changes: dict[str, Any]) -> tuple[str, str]:
    """What comes of a config.json with these changes, and what uwaga says of it."""
    described = json.loads((folder / "original.json").read_text())
    (folder / "config.json").write_text(json.dumps(described | changes))
    theirs, said = _theirs(kind, folder), ""
    try:
        ours = load(folder)(_IDS).last_hidden_state
    except CheckpointError as error:
        return "refused", str(error)
    if theirs is None:
        return "computed by uwaga alone", said
    # transformers computes frequencies in float32.
    return ("computed" if ours.shape == theirs.shape and (ours - theirs).abs().max() < 1e-3 else "different"), said


def _theirs(kind: str, folder: Path) -> Tensor | None:
    try:
        model, info = type(twins(BASE[kind]).exact).from_pretrained(
            folder, dtype=torch.float64, attn_implementation="eager", output_loading_info=True
        )
        if info["missing_keys"] or info["mismatched_keys"]:
            return None
        return model.eval()(input_ids=_IDS, output_hidden_states=True).hidden_states[-1]
    except Exception:  # noqa: BLE001  # whatever it raises of a setting that it does not take
        return None


_LINEAR, _LINEAR_4 = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6}, {"rope_type": "linear", "factor": 4.0}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
_LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_PLAIN = {"rope_type": "default", "rope_theta": 1e6}
FLAT = {
    "both": {"rope_parameters": _LINEAR, "rope_scaling": _LINEAR_4},
    "both and a base": {"rope_parameters": _LINEAR, "rope_scaling": _LINEAR_4, "rope_theta": 300.0},
    "yarn beside none": {"rope_parameters": _PLAIN, "rope_scaling": _YARN},
    "an old type": {"rope_parameters": _PLAIN, "rope_scaling": {"type": "linear", "factor": 4.0}},
    "an empty one": {"rope_parameters": _LINEAR, "rope_scaling": {}},
    "null": {"rope_parameters": _LINEAR, "rope_scaling": None},
    "alone": {"rope_scaling": _LLAMA3, "rope_theta": 500.0},
    "a length beside it": {"rope_scaling": _YARN, "original_max_position_embeddings": 32},
    "a base alone": {"rope_theta": 300.0},
}
BY_LAYER_TYPE = {
    "both": {"rope_parameters": dict.fromkeys(set(_KINDS), _LINEAR), "rope_scaling": _LINEAR_4},
    "another for each": {
        "rope_parameters": {"full_attention": _YARN, "sliding_attention": _PLAIN},
        "rope_scaling": {"factor": 8.0, "rope_type": "linear", "original_max_position_embeddings": 16},
    },
    "yarn beside none": {"rope_parameters": dict.fromkeys(set(_KINDS), _PLAIN), "rope_scaling": _YARN},
    "bases": {"rope_theta": 300.0, "rope_local_base_freq": 70.0, "global_rope_theta": 700.0, "local_rope_theta": 90.0},
    "scaling alone": {"rope_scaling": _LINEAR_4, "rope_theta": 300.0, "global_rope_theta": 700.0},
}


# All types have the same reader of rope_scaling, each with a base of its own.
_OF_ROPE = [*product(["llama"], FLAT), *product(sorted({*_ROTARY} - {"llama", *_BY_LAYER_TYPE}), ["alone"])]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *[pytest.param(name, FLAT[case], id=f"{name}-{case}") for name, case in _OF_ROPE],
        ("distilbert", {"num_hidden_layers": 3, "hidden_size": 24}),
        ("modernbert", {"sliding_window": 2}),
        ("gemma3_text", {"layer_types": None, "_sliding_window_pattern": 2}),
        ("gemma3_text", {"layer_types": None, "sliding_window_pattern": 2}),
        ("gemma3_text", {"hidden_act": "relu"}),
    ],
)
def test_of_two_keys_the_one_that_transformers_reads_counts(name: str, changes: dict, make: Callable) -> None:
    assert compared(name, make(name), changes) == ("computed", "")


@pytest.mark.filterwarnings("ignore:.*unknown keys, which have no effect")
@pytest.mark.parametrize("case", BY_LAYER_TYPE)
@pytest.mark.parametrize("name", _BY_LAYER_TYPE)
def test_rope_scaling_changes_rope_parameters_of_layer_types(name: str, case: str, make: Callable) -> None:
    outcome, said = compared(name, make(name), BY_LAYER_TYPE[case])
    if case == "another for each":  # linear has no original length; ModernBERT's local layers would have it too
        assert (outcome, said.partition(": ")[2]) == (
            "refused",
            "rope_parameters.full_attention with rope_scaling of the type 'linear' cannot have original_max_position_embeddings",
        )
    else:
        assert (outcome, said) == ("computed", "")


def _flat(draw: random.Random) -> dict[str, Any]:
    kind = draw.choice(
        ["default", "linear", "linear", "yarn", "yarn", "llama3", "dynamic", "longrope", "proportional", None]
    )
    settings: dict[str, Any] = {}
    likely = {draw.choice(["rope_type", "rope_type", "type"]): (0.9, [kind])}
    if kind != "default":
        likely["factor"] = (0.85, [2.0, 4, 8.0, 0.5, None])
    likely["rope_theta"] = (0.5, [1e6, 500.0, 10000, 70.0, None])
    if kind in ("llama3", "yarn", "longrope"):
        likely["original_max_position_embeddings"] = (0.6, [8, 16, 32, None])
    if kind == "llama3":
        likely |= {"low_freq_factor": (0.95, [1.0]), "high_freq_factor": (0.95, [4.0])}
    if kind == "yarn":
        likely |= {"beta_fast": (0.25, [3.0, 16, 0, None]), "beta_slow": (0.25, [0.5, 2, None])}
        likely |= {"mscale": (0.25, [0.7, None]), "mscale_all_dim": (0.25, [0.3, None])}
        likely |= {"attention_factor": (0.25, [1.3, 0.7, None]), "truncate": (0.25, [True, False, None])}
    if kind == "longrope":
        likely |= {"short_factor": (1.0, [[1.0] * 8]), "long_factor": (1.0, [[2.0] * 8])}
    likely |= {"type": (0.15, ["linear", "default", "yarn"]), "partial_rotary_factor": (0.08, [0.5, 1.0, None])}
    likely["strange"] = (0.05, [1])
    for key, (chance, values) in likely.items():
        if draw.random() < chance:
            settings[key] = draw.choice(values)
    return settings


def _nested(draw: random.Random) -> dict[str, Any]:
    kinds = [kind for kind in ("full_attention", "sliding_attention") if draw.random() < 0.85]
    nested: dict[str, Any] = {kind: _flat(draw) if draw.random() < 0.8 else None for kind in kinds}
    return nested | (_flat(draw) if draw.random() < 0.1 else {})


def random_settings(name: str, draw: random.Random) -> dict[str, Any]:
    """Of rotary positions, wherever transformers looks for them in one family or another."""
    settings: dict[str, Any] = {}
    if draw.random() < 0.7:
        is_nested = draw.random() < (0.75 if name in _BY_LAYER_TYPE else 0.15)
        settings["rope_parameters"] = _nested(draw) if is_nested else _flat(draw) if draw.random() < 0.9 else None
    if draw.random() < 0.6:
        settings["rope_scaling"] = draw.choice([*(_flat(draw) for _ in range(4)), None, {}])
    others = {
        "rope_theta": [300.0, 1e6, None],
        "rope_local_base_freq": [70.0, None],
        "global_rope_theta": [700.0],
        "local_rope_theta": [90.0, None],
        "partial_rotary_factor": [0.5, 1.0, None],
        "original_max_position_embeddings": [16, None],
        "rotary_emb_base": [500.0],
    }
    return settings | {key: draw.choice(values) for key, values in others.items() if draw.random() < 0.15}


@pytest.mark.filterwarnings("ignore:.*unknown keys, which have no effect")
@pytest.mark.parametrize("times", [pytest.param(1, marks=pytest.mark.slow), pytest.param(40, marks=pytest.mark.stress)])
def test_random_settings_of_rotary_positions(times: int, make: Callable) -> None:
    """Computed or refused by a message that names the file."""
    draw, counts = random.Random(times), Counter[str]()
    for name in _ROTARY * times:
        settings, folder = random_settings(name, draw), make(name)
        outcome, said = compared(name, folder, settings)
        assert outcome in ("computed", "refused"), (name, settings, outcome)
        assert outcome == "computed" or said.startswith(f"{folder / 'config.json'}: "), (name, settings, said)
        counts[outcome] += 1
    assert min(counts["computed"], counts["refused"]) >= len(_ROTARY) * times // 10


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_decoder_may_say_that_it_is_one(name: str, make: Callable) -> None:
    assert compared(name, make(name), {"is_decoder": True}) == ("computed", "")


def test_second_names_are_those_of_transformers() -> None:
    """Every one of a family that uwaga has, and that changes what is computed."""
    for model_type in sorted({*transformers.CONFIG_MAPPING} & {*model_types()}):
        here = family_of(model_type, "").second_names
        assert here == transformers.CONFIG_MAPPING[model_type].attribute_map, model_type
