"""Every model type of the tables against transformers, on small random directories, and back; and what their tables promise.

Letters: B batch, Q tokens, H heads.
"""

import dataclasses
import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import tiny_families
import tiny_models
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny_families import BASE, CASES, PADDING, THEIRS, WHERE, Twins, ids, named, read_config, theirs
from tolerance import once
from torch import Tensor

from uwaga import Ragged, watch
from uwaga._base.errors import CheckpointError
from uwaga.models import Transformer, config, generate, load, save
from uwaga.models.checkpoints.config_json import ONLY
from uwaga.models.checkpoints.load_save import of_transformers
from uwaga.models.families import family_of, model_types
from uwaga.models.families.family import File

transformers = pytest.importorskip("transformers", minversion="5")

LENGTHS, DECODER_LENGTHS = (13, 1, 6), (2, 7, 4)
# Fewer than four, not in fours, and more than a block of keys.
LONG, DECODER_LONG = (1, 2, 3, 5, 7, 9, 11, 31, 64, 1, 100, 4, 257), (3, 1, 2, 9, 5, 7, 1, 1, 10, 33, 6, 90, 2)
_OF_FIRST_TOKEN = ("pooled", "sequence")


in_gate = set(BASE.values()).__contains__
# Model types with other layers than the others, and settings that change layers.
_OTHER_LAYERS = {
    *(BASE[kind] for kind in ("albert", "bert", "gemma2", "gpt2", "gte", "llama", "modernbert", "mpnet", "qwen3", "uwaga-transformer")),
    "gemma3_text-both-ways", "marian-scaled", "qwen2-windows", "t5-1.1",
}  # fmt: skip
# Cases of one type have other settings, which the comparisons with transformers show; here the gate has one of each type.
one_of_each_type = pytest.mark.gate(only=lambda name: in_gate(name))
each_case = pytest.mark.parametrize("name", CASES)
of_transformers_too = pytest.mark.parametrize("name", [name for name in BASE.values() if name in THEIRS])


def _rows(twins: Twins, *, is_long: bool = False) -> list[list[Tensor]]:
    """Ids of rows, and those of a decoder's; a padding token among them, for which RoBERTa counts no position."""
    first = [ids(length, seed=length) for length in (LONG if is_long else LENGTHS)]
    max(first, key=len)[3] = twins.ours.config.pad_token_id or 0
    second = [ids(length, seed=length) for length in (DECODER_LONG if is_long else DECODER_LENGTHS)]
    return [first, second] if twins.ours.config.has_both else [first]


# Against transformers.


@torch.no_grad()
@pytest.mark.gate(only=lambda name: name in _OTHER_LAYERS or name == BASE["roberta"])
# In float64, padding of transformers' gemma2 that sees no token gets NaN, which spreads.
@pytest.mark.parametrize("name", [name for name in THEIRS if "gemma2" not in name])
def test_a_batch_padded_on_the_left_is_that_of_transformers(name: str, assert_as_exact: Callable) -> None:
    """Its hidden states alone: what transformers pools there is the state of the padding."""
    pair = tiny_families.twins(name)
    tokens, decoder = ids(5, 13), (ids(5, 7, seed=4),) if pair.ours.config.has_both else ()
    is_token = torch.arange(13) >= torch.tensor([0, 12, 3, 7, 5])[:, None]
    kinds = pair.ours.config.type_vocab_size
    types = torch.arange(13).expand(5, 13) // 3 % kinds if kinds > 1 else None
    inputs = {"attention_mask": is_token.long()} | ({} if types is None else {"token_type_ids": types})
    ours = named(pair.ours(tokens, *decoder, token_types=types, attention_mask=is_token, output_hidden_states=True))
    peer = theirs(pair, pair.peer, tokens, *decoder, **inputs)
    exact = once(lambda: theirs(pair, pair.exact, tokens, *decoder, **inputs))
    for name, value in peer.items():
        if name not in _OF_FIRST_TOKEN:
            where = is_token if value.shape[:2] == is_token.shape else slice(None)
            assert_as_exact(ours[name][where], value[where], lambda name=name, where=where: exact()[name][where])


# Heads of other types are computed as these; they differ in the names of weights, which loading compares.
_OTHER_HEADS = ("bert", "distilbert", "electra", "roberta")


@pytest.mark.gate(
    only=lambda name: (
        in_gate(name) or THEIRS[name].model_type in _OTHER_HEADS or (THEIRS[name].more and not name.endswith("-untied"))
    )
)
@pytest.mark.parametrize("name", THEIRS)
@torch.no_grad()
def test_rows_are_those_that_transformers_computes_alone(name: str, assert_as_exact: Callable) -> None:
    """Without padding, and padded on the right by lengths and by a mask."""
    pair = tiny_families.twins(name)
    rows = _rows(pair)
    ragged = named(pair.ours(*map(Ragged.from_list, rows), output_hidden_states=True))
    padded = [torch.nn.utils.rnn.pad_sequence(row, batch_first=True, padding_value=PADDING) for row in rows]
    lengths = torch.tensor(LENGTHS)
    by_lengths = named(pair.ours(*padded, lengths=lengths, output_hidden_states=True))
    by_mask = named(pair.ours(*padded, attention_mask=torch.arange(13) < lengths[:, None], output_hidden_states=True))

    def alone(model: Any) -> dict[str, list[Tensor]]:
        outputs = [theirs(pair, model, *(sequence[None] for sequence in row)) for row in zip(*rows, strict=True)]
        return {name: [output[name][0] for output in outputs] for name in outputs[0]}

    peer, exact = alone(pair.peer), once(lambda: alone(pair.exact))
    assert set(peer) - {"pooled"} <= set(ragged)
    for name, values in peer.items():
        right = lambda name=name: _flat(exact()[name])  # noqa: E731
        if name in _OF_FIRST_TOKEN:
            found = [list(output[name]) for output in (ragged, by_lengths, by_mask)]
        else:
            found = [ragged[name].to_list()]
            found += [
                [row[: len(x)] for row, x in zip(output[name], values, strict=True)] for output in (by_lengths, by_mask)
            ]
        assert_as_exact(_flat(found[0]), _flat(values), right)
        assert_as_exact(_flat(found[1]), _flat(values), right)
        assert torch.equal(_flat(found[1]), _flat(found[2]))


def _flat(parts: Iterable[Tensor]) -> Tensor:
    return torch.cat([x.flatten() for x in parts])


@of_transformers_too
@torch.no_grad()
def test_attention_maps_are_those_of_transformers(name: str, assert_as_exact: Callable) -> None:
    pair = tiny_families.twins(name)
    tokens, decoder = ids(2, 9), (ids(2, 6, seed=4),) if pair.ours.config.has_both else ()
    # In float64, padding of transformers' models that sees no token of a window gets NaN, which spreads.
    is_token = torch.arange(9) < torch.tensor([9, 9 if any(pair.ours.config.windows) else 4])[:, None]
    with watch(pair.ours) as recording:
        pair.ours(tokens, *decoder, attention_mask=is_token)
    inputs = {"input_ids": tokens, "attention_mask": is_token.long(), "output_attentions": True}
    inputs |= {"decoder_input_ids": decoder[0]} if decoder else {}

    def weights(model: Any) -> Any:
        before = tiny_models.implementation_of(model)
        model.set_attn_implementation("eager")
        output = model(**inputs)
        model.set_attn_implementation(before)
        return output

    peer, exact = weights(pair.peer), once(lambda: weights(pair.exact))
    fields = {kind: f"{kind}_attentions" if decoder else "attentions" for kind, _ in recording.maps}
    assert len(recording.maps) == sum(len(peer[field]) for field in fields.values())
    for (kind, n), found in recording.maps.items():
        rows = torch.ones(2, 6).bool() if decoder and kind != "encoder" else is_token
        of = lambda output, n=n, kind=kind, rows=rows: output[fields[kind]][n].transpose(1, 2)[rows]  # noqa: E731
        assert_as_exact(found.to_dense().transpose(1, 2)[rows], of(peer), lambda of=of: of(exact()))


# Types that keep other keys and values, begin or end in another way, or write nothing.
_WRITERS = ("bert", "gemma2", "gpt2", "llama", "marian", "t5", "uwaga-gpt3", "uwaga-transformer")


@pytest.mark.gate(only=lambda name: in_gate(name) and CASES[name].model_type in _WRITERS)
@each_case
@torch.no_grad()
def test_greedy_texts_are_those_of_transformers(name: str) -> None:
    """Of uwaga's own models: those of reading everything again for each token. Without logits or a decoder there are none."""
    twins = tiny_families.twins(name)
    ours, settings = twins.ours, twins.ours.config
    prompts = [row.tolist() for row in _rows(twins)[0]]
    if ours.decoder is None or ours.lm_head is None:
        with pytest.raises(ValueError, match=r"does not continue texts|has no head for logits"):
            generate(ours, prompts)
        return
    written = generate(ours, prompts, max_new_tokens=8, eos_token_ids=())
    for prompt, row in zip(prompts, written, strict=True):
        if twins.peer is None:
            assert row == _read_again(ours, prompt)
        elif hasattr(twins.peer, "generate") and twins.peer.get_output_embeddings() is not None:
            options = {"do_sample": False, "max_new_tokens": 8, "eos_token_id": None, "pad_token_id": PADDING}
            if settings.never_generated:
                options["bad_words_ids"] = [[token_id] for token_id in settings.never_generated]
            tokens = torch.tensor([prompt])
            new = twins.peer.generate(tokens, attention_mask=torch.ones_like(tokens), **options)[0]
            assert row == new[1 if settings.has_both else len(prompt) :].tolist()
    ends = (6, 9, 17, 22, 31)
    stopped = [row[: next((n + 1 for n, token in enumerate(row) if token in ends), 8)] for row in written]
    assert generate(ours, prompts, max_new_tokens=8, eos_token_ids=ends) == stopped


def _read_again(model: Transformer, prompt: list[int]) -> list[int]:
    written: list[int] = []
    start = [model.config.decoder_start_token_id] if model.config.has_both else prompt
    for _ in range(8):
        rows = [[prompt], [start + written]] if model.config.has_both else [[start + written]]
        logits = model(*map(torch.tensor, rows)).logits[0, -1]
        logits[list(model.config.never_generated)] = -torch.inf
        written.append(int(logits.argmax()))
    return written


# Rows among others, in pieces, and of one token alone.


@pytest.mark.slow
@pytest.mark.gate(only=lambda name, threads: name in _OTHER_LAYERS and threads == 1)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@each_case
@torch.no_grad()
def test_a_row_has_the_bits_of_the_row_alone(name: str, dtype: torch.dtype, threads: int) -> None:
    """Two things are PyTorch's: float64, and "gelu_tanh" and "silu" in float32, which it computes in another way where a vector is not full. No
    vector is left unfilled where the hidden width is a multiple of 64, as in all published models, and one or two threads share the work."""
    torch.manual_seed(0)
    twins = tiny_families.twins(name)
    longest = None if twins.ours.config.max_position_embeddings is None else 300
    model = Transformer(dataclasses.replace(twins.ours.config, max_position_embeddings=longest)).to(dtype).eval()
    torch.set_num_threads(threads)  # put back by a fixture of all tests of models
    rows = _rows(twins, is_long=True)
    together = named(model(*map(Ragged.from_list, rows), output_hidden_states=True))
    for n, row in enumerate(zip(*rows, strict=True)):
        alone = named(model(*(Ragged.from_list([sequence]) for sequence in row), output_hidden_states=True))
        assert alone.keys() == together.keys()
        for name, value in alone.items():
            among = together[name].to_list()[n] if isinstance(value, Ragged) else together[name][n]
            assert torch.equal(among, value.values if isinstance(value, Ragged) else value[0]), name
    if not model.config.has_both:
        _check_one_token_of_each_row(model, Ragged.from_list(rows[0]))


def _check_one_token_of_each_row(model: Transformer, batch: Ragged) -> None:
    """It has the bits that it has among all, and the last layer computes no other."""
    stack, seen = model.decoder if model.encoder is None else model.encoder, list[int]()
    hook = stack.layers[-1].feed_forward.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0].values)))
    for only, at in (("first", batch.offsets[:-1]), ("last", batch.offsets[1:] - 1)):
        heads = () if only == "last" else [x for x in model.config.outputs if x in _OF_FIRST_TOKEN]
        alone, among = model(batch, outputs=heads, only=only), model(batch, outputs=heads)
        assert torch.equal(alone.last_hidden_state.values, among.last_hidden_state.values[at])
        assert all(torch.equal(getattr(alone, head), getattr(among, head)) for head in heads)
    hook.remove()
    assert seen == [len(batch), len(batch.values)] * 2


@one_of_each_type
@each_case
@torch.no_grad()
def test_rows_read_in_pieces_with_a_cache_are_the_whole(name: str) -> None:
    twins = tiny_families.twins(name)
    if twins.ours.decoder is None:
        with pytest.raises(ValueError, match="has only an encoder"):
            twins.ours.new_cache()
        return
    model = load(twins.folder, dtype=torch.float64)
    *prompts, rows = _rows(twins)
    rows = [torch.cat((row, row[:1])) for row in rows]
    memory, cache = model(Ragged.from_list(prompts[0])).memory if prompts else None, model.new_cache()
    pieces: list[list[Tensor]] = [[] for _ in rows]
    for a, b in ((0, 1), (1, 2), (2, 5), (5, 14)):
        part = Ragged.from_list([row[a:b] for row in rows])
        for kept, piece in zip(pieces, model.decode(part, memory, cache=cache).to_list(), strict=True):
            kept.append(piece)
    whole = model.decode(Ragged.from_list(rows), memory).to_list()
    for kept, row in zip(pieces, whole, strict=True):
        torch.testing.assert_close(torch.cat(kept), row, rtol=0, atol=1e-12)


# Saved, loaded, made.


# The names of heads are those by which they are loaded: here, those of BERT stand for all.
@pytest.mark.gate(only=lambda name: in_gate(name) or CASES[name].more or CASES[name].model_type == "bert")
@each_case
def test_what_is_saved_is_loaded_here(name: str, tmp_path: Path) -> None:
    twins = tiny_families.twins(name)
    save(twins.ours, tmp_path / "one")
    again = load(tmp_path / "one")
    assert dataclasses.replace(again.config, kept={}) == dataclasses.replace(twins.ours.config, kept={})
    state = again.state_dict()
    assert state.keys() == twins.ours.state_dict().keys()
    assert [key for key, weight in twins.ours.state_dict().items() if not torch.equal(state[key], weight)] == []
    save(again, tmp_path / "two")
    for file in ("config.json", "model.safetensors"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    if name in THEIRS:  # they complete what their own saved config left out; what both say must agree
        configs = (transformers.AutoConfig.from_pretrained(folder) for folder in (tmp_path / "one", twins.folder))
        ours, peers = (_with_one_name(peer_config.to_dict()) for peer_config in configs)
        assert {key for key in peers if peers[key] != ours.get(key)} <= _OLD


@pytest.mark.gate(only=lambda name: in_gate(name))
@pytest.mark.parametrize("name", THEIRS)
@torch.no_grad()
def test_what_is_saved_is_loaded_by_transformers(name: str, tmp_path: Path) -> None:
    pair = tiny_families.twins(name)
    save(pair.ours, tmp_path)
    # The class that reads it: of a bare model whose embedding is tied, that with a head; of a head that is not computed, that without.
    there = getattr(transformers, transformers.AutoConfig.from_pretrained(tmp_path).architectures[0])
    back, info = there.from_pretrained(tmp_path, output_loading_info=True)
    family = family_of(pair.case.model_type, "")
    unread = set(family.table(pair.ours.config, pair.ours.state_dict()).unread)
    # Of ForPreTraining, saved as ForMaskedLM, which has none.
    assert all("pooler" in name for name in info["unexpected_keys"])
    assert not info["mismatched_keys"]
    assert set(info["missing_keys"]) <= unread
    ours, peers = ({family.bare(name): x for name, x in model.state_dict().items()} for model in (back, pair.peer))
    heads = ("pooler", "lm_head", "cls.seq_relationship", "sop_classifier", "discriminator_predictions")
    assert all(name.startswith(heads) for name in ours.keys() ^ peers.keys())
    for name in (ours.keys() & peers.keys()) - unread:
        assert torch.equal(ours[name], peers[name]), name
    tokens, decoder = ids(2, 13), (ids(2, 7),) if pair.ours.config.has_both else ()
    ours, peers = theirs(pair, back.eval(), tokens, *decoder), theirs(pair, pair.peer, tokens, *decoder)
    assert all(torch.equal(ours[name], peers[name]) for name in peers if name.rstrip("0123456789").endswith("states "))


# They complete them, layer_types says them, and an encoder has no decoder.
_OLD = {
    "_name_or_path", "architectures", "classifier_dropout", "dtype", "global_attn_every_n_layers", "is_encoder_decoder", "max_window_layers",
    "num_decoder_layers", "tie_word_embeddings",
}  # fmt: skip
_SAME = {"swish": "silu", "gelu_pytorch_tanh": "gelu_new"}


def _with_one_name(described: dict) -> dict:
    """Two names of one activation are the same."""
    name = described.get("activation_function")
    return described if name is None else described | {"activation_function": _SAME.get(name, name)}


@of_transformers_too
def test_a_model_of_transformers_is_read_without_a_copy(name: str) -> None:
    pair = tiny_families.twins(name)
    addresses = {x.untyped_storage().data_ptr() for x in pair.peer.state_dict().values()}
    kind = pair.case.model_type
    if kind in ("gte", "jina_embeddings_v3", "nomic_bert"):  # weights have other names there than in files
        with pytest.raises(CheckpointError, match=f"{pair.case.of_class} has no weight .*, which a {kind} model"):
            of_transformers(pair.peer)
        return
    made = of_transformers(pair.peer)
    assert made is not None
    state = made.state_dict()
    for ours, weight in pair.ours.state_dict().items():
        assert torch.equal(state[ours], weight), ours
        assert state[ours].untyped_storage().data_ptr() in addresses, ours


def _rewritten(twins: Twins, folder: Path, weights: dict[str, Tensor]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_bytes((twins.folder / "config.json").read_bytes())
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _tied(twins: Twins, stored: Iterable[str]) -> dict[str, str]:
    """Second names of weights, by the table and by transformers -> the name in the file."""
    family, same = family_of(twins.case.model_type, ""), defaultdict(list)
    by_name = {family.bare(name): name for name in stored}
    table = family.table(twins.ours.config, twins.ours.state_dict()).tied
    # Of T5's three, an encoder has two.
    tied = {
        x: by_name[first] for x, first in table.items() if twins.ours.config.has_both or not x.startswith("decoder.")
    }
    for name, x in ({} if twins.peer is None else twins.peer.state_dict()).items():
        same[x.data_ptr()].append(name)
    firsts = {name: first for names in same.values() for first in names if first in stored for name in names}
    return tied | {name: first for name, first in firsts.items() if name != first}


# Types with tables of tied weights unlike the others'.
@pytest.mark.gate(
    only=lambda name: in_gate(name) and CASES[name].model_type in ("bert", "gpt2", "marian", "modernbert", "t5")
)
@each_case
def test_a_tied_weight_may_have_any_one_of_its_names(name: str, tmp_path: Path) -> None:
    twins = tiny_families.twins(name)
    ours, stored = twins.ours.state_dict(), load_file(twins.folder / "model.safetensors")
    for second, first in _tied(twins, stored).items():
        rest, tied = {name: x for name, x in stored.items() if name != first}, stored[first]
        for tied_weights in ({second: tied}, {second: tied.clone(), first: tied}):
            folder = _rewritten(twins, tmp_path, rest | tied_weights)
            again = load(folder).state_dict()
            # A T5 whose file has a head and an embedding may have both: they are equal.
            assert again.keys() - ours.keys() <= {"lm_head.decoder.weight"}
            assert all(torch.equal(x, ours.get(name, tied)) for name, x in again.items())
            if len(tied_weights) == 1 and twins.peer is not None and hasattr(twins.peer, "get_output_embeddings"):
                _, told = type(twins.peer).from_pretrained(folder, output_loading_info=True)
                assert not told["missing_keys"] or twins.peer.get_output_embeddings() is None
        # Of a T5 it is then a head of its own.
        if second != "lm_head.weight" or twins.case.model_type not in ("t5", "mt5"):
            _rewritten(twins, tmp_path, stored | {second: tied + 1})
            with pytest.raises(CheckpointError) as caught:
                load(tmp_path)
            differs = f"  not tied  {second} {tuple(tied.shape)} differs from {first}"
            assert str(caught.value).splitlines()[1:] == [differs]


# config.json.


@pytest.fixture(params=model_types())
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def test_a_key_of_a_wrong_type_is_refused_by_name(kind: str) -> None:
    for key in family_of(kind, WHERE).keys:
        with pytest.raises(CheckpointError) as caught:
            read_config(kind, {key: {"x": 1}})
        assert str(caught.value).startswith(f"{WHERE}: {key} must be "), key


def test_any_value_of_any_key_is_read_or_refused(kind: str) -> None:
    def outcome(changes: dict[str, object]) -> str:
        try:
            return f"{WHERE}: {type(read_config(kind, changes))}"
        except CheckpointError as error:
            return str(error)

    values = (None, True, False, -1, 0, 1, 2.5, 1e400, 10**12, "8", "gelu", [], [0, 5], [None], {})
    for key in (*family_of(kind, WHERE).keys, "architectures"):
        for value in values:
            assert outcome({key: value}).startswith(f"{WHERE}: "), (key, value)


def test_a_value_that_is_not_computed_is_refused(kind: str) -> None:
    family = family_of(kind, WHERE)
    for key, values in (ONLY | family.only).items():
        other = next(value for value in (True, False, 7, "relative_key") if value not in values)
        with pytest.raises(CheckpointError) as caught:
            read_config(kind, {key: other})
        if key not in family.keys:
            allowed = " or ".join(map(repr, values))
            assert str(caught.value) == f"{WHERE}: {key} is {other!r}; only {allowed} is supported"
        assert str(caught.value).startswith(f"{WHERE}: {key} ")


def test_unknown_keys_are_warned_of_and_kept(kind: str) -> None:
    with pytest.warns(UserWarning, match="unknown keys") as caught:
        config = read_config(kind, {"new_trick": 7, "_name_or_path": "x"})
    assert [str(warned.message) for warned in caught] == [f"{WHERE} has unknown keys, which have no effect: new_trick"]
    written = family_of(kind, WHERE).written(config)
    assert (written["new_trick"], written["_name_or_path"]) == (7, "x")


@pytest.mark.parametrize("name", THEIRS)
def test_keys_as_somebody_writes_them_mean_what_transformers_saves_for_them(name: str) -> None:
    pair, kind = tiny_families.twins(name), THEIRS[name].model_type
    with safe_open(pair.folder / "model.safetensors", "pt") as weights:
        names = frozenset(weights.keys())
    written = json.loads(json.dumps(tiny_families.described(pair.case) | {"architectures": [pair.case.of_class]}))
    read = family_of(kind, WHERE).read(kind, File(written, WHERE, names), {})
    assert dataclasses.replace(read, kept={}) == dataclasses.replace(pair.ours.config, kept={})


# "as hidden_dropout_prob"; of GTE, Jina v3 and NomicBERT a model's own default.
_OWN_DEFAULTS = {"classifier_dropout", "head_dim"}


@pytest.mark.parametrize("kind", [kind for kind in model_types() if not kind.startswith("uwaga-")])
def test_what_is_absent_is_what_transformers_takes(kind: str) -> None:
    """So that a short config.json means the same here and there; also in a model that is made without a file."""
    there, family = transformers.CONFIG_MAPPING[kind]().to_dict(), family_of(kind, WHERE)
    read = family.read(kind, File({"model_type": kind}, WHERE, frozenset()), {})
    for ours in (family.written(read), family.written(config(kind))):
        for key in family.keys:
            if key in there and key in ours and not (there[key] is None and key in _OWN_DEFAULTS):
                assert ours[key] == there[key], key
    if rope := there.get("rope_parameters"):
        bases = {kind["rope_theta"] for kind in ([rope] if "rope_theta" in rope else rope.values())}
        assert {rope.base for rope in read.ropes} == bases
    if "layer_types" in there:
        is_local = [kind == "sliding_attention" for kind in there["layer_types"]]
        assert [width is not None for width in read.windows] == is_local
