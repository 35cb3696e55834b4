"""GPT-2, T5 and Marian against transformers, on random checkpoints that it saved, and back.

Letters: B batch, Q tokens, H heads.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch
from tolerance import once
from torch import Tensor, nn

import uwaga
from uwaga.maps.map import AttentionMap, map_options
from uwaga.models import load, save
from uwaga.ops.attention.hooks import hooked, looking


def _whole(length: int) -> Tensor:
    return torch.ones(1, length).bool()


def _theirs(twins, ids: Tensor, decoder_ids: Tensor | None, mask: Tensor | None, **more) -> tuple[Any, Callable]:
    """What transformers gives, and what computes it in float64."""
    given = {"input_ids": ids, **more}
    if mask is not None:
        given["attention_mask"] = mask.long()
    if decoder_ids is not None:
        given["decoder_input_ids"] = decoder_ids
    return twins.peer(**given), once(lambda: twins.exact(**given))


def _compare(twins, result, theirs: tuple[Any, Callable], check: Callable, is_token: Tensor) -> None:
    """Every state and every logit, where there is a token."""
    peer, exact = theirs

    def same(ours: Tensor, part: Callable[[Any], Tensor], is_token: Tensor | None = None) -> None:
        where = slice(None) if is_token is None else is_token
        check(ours[where], part(peer)[where], lambda: part(exact())[where])

    def states(ours: tuple, last: Tensor, key: str, is_token: Tensor | None = None) -> None:
        assert len(ours) == len(peer[key])
        for n, state in enumerate((*ours[:-1], last)):
            same(state, lambda output, n=n: output[key][n], is_token)

    def logits(output: Any) -> Tensor:
        return output.logits

    if twins.ours.config.model_type == "gpt2":
        states(result.hidden_states, result.last_hidden_state, "hidden_states", is_token)
        # A bare checkpoint whose words are the head's has all that logits need: ours gives them.
        assert (result.logits is None) == (not twins.ours.config.has_lm_head)
        if "logits" in peer:
            same(result.logits, logits, is_token)
        return
    key = "encoder_hidden_states" if "encoder_hidden_states" in peer else "hidden_states"
    states(result.encoder_hidden_states, result.memory, key, is_token)
    if "decoder_hidden_states" in peer:
        states(result.hidden_states, result.last_hidden_state, "decoder_hidden_states")
    if "logits" in peer:
        same(result.logits, logits)


def _has_decoder_ids(twins) -> bool:
    return twins.ours.config.model_type != "gpt2" and twins.ours.decoder is not None


@torch.no_grad()
def test_states_and_logits_are_those_of_transformers(twins, draw_ids: Callable, assert_as_exact: Callable) -> None:
    ids, decoder_ids = draw_ids(2, 9), draw_ids(2, 6, seed=4) if _has_decoder_ids(twins) else None
    result = twins.ours(ids, *([] if decoder_ids is None else [decoder_ids]), output_hidden_states=True)
    theirs = _theirs(twins, ids, decoder_ids, None, output_hidden_states=True)
    _compare(twins, result, theirs, assert_as_exact, torch.ones(2, 9).bool())


@torch.no_grad()
def test_padded_rows_are_those_of_transformers(twins, draw_ids: Callable, assert_as_exact: Callable) -> None:
    lengths = torch.tensor([9, 1, 4])
    is_token = torch.arange(9) < lengths[:, None]
    ids, decoder_ids = draw_ids(3, 9), draw_ids(3, 6, seed=4) if _has_decoder_ids(twins) else None
    given = [ids] if decoder_ids is None else [ids, decoder_ids]
    theirs = _theirs(twins, ids, decoder_ids, is_token, output_hidden_states=True)
    by_lengths = twins.ours(*given, lengths=lengths, output_hidden_states=True)
    _compare(twins, by_lengths, theirs, assert_as_exact, is_token)
    by_mask = twins.ours(*given, attention_mask=is_token, output_hidden_states=True)
    last = "last_hidden_state" if by_mask.last_hidden_state is not None else "memory"
    select = is_token if decoder_ids is None else slice(None)
    assert torch.equal(getattr(by_mask, last)[select], getattr(by_lengths, last)[select])


@torch.no_grad()
def test_rows_padded_on_the_left_are_those_of_transformers(
    twins, draw_ids: Callable, assert_as_exact: Callable
) -> None:
    is_token = torch.arange(9) >= torch.tensor([0, 8, 5])[:, None]
    ids, decoder_ids = draw_ids(3, 9), draw_ids(3, 6, seed=4) if _has_decoder_ids(twins) else None
    given = [ids] if decoder_ids is None else [ids, decoder_ids]
    theirs = _theirs(twins, ids, decoder_ids, is_token, output_hidden_states=True)
    result = twins.ours(*given, attention_mask=is_token, output_hidden_states=True)
    _compare(twins, result, theirs, assert_as_exact, is_token)


@torch.no_grad()
def test_packed_rows_are_those_that_transformers_takes_alone(
    twins, draw_ids: Callable, assert_as_exact: Callable
) -> None:
    rows = [draw_ids(length, seed=length) for length in (6, 1, 9)]
    decoder_rows = [draw_ids(length, seed=length) for length in (2, 7, 1)] if _has_decoder_ids(twins) else None
    given = [rows] if decoder_rows is None else [rows, decoder_rows]
    result = twins.ours(*map(uwaga.Ragged.from_list, given), output_hidden_states=True)
    compared: list[list[tuple]] = []  # by row: found, peer, and what computes the exact, of every state and logit
    for row, ids in enumerate(rows):
        decoder_ids = None if decoder_rows is None else decoder_rows[row][None]
        theirs = _theirs(twins, ids[None], decoder_ids, None, output_hidden_states=True)
        compared.append([])
        alone = type(result)(*(_alone(x, row) for x in result))
        _compare(twins, alone, theirs, lambda *three: compared[-1].append(three), _whole(len(ids)))

    def flat(parts: Iterable[Tensor]) -> Tensor:
        return torch.cat([x.flatten() for x in parts])

    for of_rows in zip(*compared, strict=True):
        alone, peers, exacts = zip(*of_rows, strict=True)
        assert_as_exact(flat(alone), flat(peers), lambda exacts=exacts: flat(exact() for exact in exacts))


def _alone(field, row: int):
    """One row of an output's field, as a batch of one."""
    if isinstance(field, tuple):
        return tuple(_alone(each, row) for each in field)
    return None if field is None else field.to_list()[row][None]


@torch.no_grad()
def test_attention_maps_are_those_of_transformers(twins, draw_ids: Callable, assert_as_exact: Callable) -> None:
    lengths = torch.tensor([9, 4])
    is_token = torch.arange(9) < lengths[:, None]
    ids, decoder_ids = draw_ids(2, 9), draw_ids(2, 6, seed=4) if _has_decoder_ids(twins) else None
    layers = _attentions(twins.ours)
    seen: dict[str, list[AttentionMap]] = {field: [] for field in layers.values()}
    look = looking(lambda asked, layer: seen[layers[layer]].append(
        AttentionMap(asked.query, asked.key, **map_options(asked.options))))  # fmt: skip
    with hooked(dict.fromkeys(layers, look)):
        twins.ours(*([ids] if decoder_ids is None else [ids, decoder_ids]), lengths=lengths)
    for model in (twins.peer, twins.exact):
        model.set_attn_implementation("eager")
    peer, exact = _theirs(twins, ids, decoder_ids, is_token, output_attentions=True)
    for field, maps in seen.items():
        rows = is_token if field in ("attentions", "encoder_attentions") else torch.ones(2, 6).bool()
        key = field if field in peer else "attentions"

        def of_layer(output: Any, n: int, key: str = key, rows: Tensor = rows) -> Tensor:
            return output[key][n].transpose(1, 2)[rows]

        assert len(maps) == len(peer[key])
        for n, value in enumerate(maps):
            right = lambda n=n, of_layer=of_layer: of_layer(exact(), n)  # noqa: E731
            assert_as_exact(value.to_dense().transpose(1, 2)[rows], of_layer(peer, n), right)


def _attentions(model: nn.Module) -> dict[nn.Module, str]:
    """The attention layers, with the names that transformers has for the maps of their kind."""
    if model.config.model_type == "gpt2":
        return {layer.attention: "attentions" for layer in model.layers}
    layers = {layer.attention: "encoder_attentions" for layer in model.encoder.layers}
    for layer in () if model.decoder is None else model.decoder.layers:
        layers |= {layer.attention: "decoder_attentions", layer.cross_attention: "cross_attentions"}
    return layers


def test_what_is_saved_here_loads_there_with_nothing_missing(twins) -> None:
    save(twins.ours, twins.folder / "ours")
    # The class that reads it: a bare model is saved with the head that it is tied to.
    import transformers

    kind = getattr(transformers, transformers.AutoConfig.from_pretrained(twins.folder / "ours").architectures[0])
    back, info = kind.from_pretrained(twins.folder / "ours", output_loading_info=True)
    assert not any(info[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    there = back.state_dict()
    for name, weight in twins.peer.state_dict().items():
        name = name if name in there else f"transformer.{name}"
        assert torch.equal(there[name], weight), name
    # They complete what their own saved config left out; what both say must agree.
    ours, theirs = (_with_one_name(config.to_dict()) for config in (back.config, twins.peer.config))
    differ = {key for key in theirs if theirs[key] != ours.get(key)}
    assert differ <= {"_name_or_path", "dtype", "architectures", "tie_word_embeddings", "is_encoder_decoder"}


_SAME = {"swish": "silu", "gelu_pytorch_tanh": "gelu_new"}


def _with_one_name(config: dict) -> dict:
    """Two names of one activation are the same."""
    name = config.get("activation_function")
    return config if name is None else config | {"activation_function": _SAME.get(name, name)}


def test_what_is_saved_here_loads_here(twins) -> None:
    save(twins.ours, twins.folder / "ours")
    again = load(twins.folder / "ours")
    assert dataclasses.replace(again.config, kept={}) == dataclasses.replace(twins.ours.config, kept={})
    state = again.state_dict()
    for name, weight in twins.ours.state_dict().items():
        assert torch.equal(state[name], weight), name
