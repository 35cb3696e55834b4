"""A map that was copied or stored reads the same weights."""

import io
import pickle
from collections.abc import Callable
from copy import copy, deepcopy

import pytest
import torch
from torch import Tensor

from uwaga import AttentionMap, Causal, Ragged, attend
from uwaga.inspect import ScaledMap
from uwaga.maps import DifferenceMap, SubsetMap, WeightMap, WordMap


def _saved(x: object) -> object:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES: dict[str, Callable] = {
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "torch.save": _saved,
    "deepcopy": deepcopy,
    "copy": copy,
}
QUERY, KEY = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8)
BATCH = Ragged(torch.randn(5, 2, 8), torch.tensor([0, 2, 5]))


def _map() -> AttentionMap:
    return AttentionMap(QUERY, KEY, mask=Causal(), sinks=torch.ones(4))


MAPS: dict[str, Callable[[], WeightMap]] = {
    "dense": _map,
    "reference": lambda: AttentionMap(QUERY, KEY, impl="reference"),
    "ragged": lambda: AttentionMap(BATCH, BATCH, mask=Causal()),
    "scores": lambda: _map().scores,
    "kept": lambda: SubsetMap(_map(), [0, 2]),
    "words": lambda: WordMap(_map(), [0, 0, 1, 2, 2]),
    "difference": lambda: DifferenceMap(_map(), _map()),
    "scaled": lambda: ScaledMap(_map(), torch.ones(2, 4, 5)),
}


def _all(m: WeightMap) -> list[Tensor]:
    result = m.to_dense()
    return result if isinstance(result, list) else [result]


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("name", MAPS)
def test_a_copy_reads_the_same_weights(name: str, how: str) -> None:
    m = MAPS[name]()
    unread = COPIES[how](m)
    expected = _all(m)
    for copied in (unread, COPIES[how](m)):
        assert repr(copied) == repr(m)
        assert all(map(torch.equal, _all(copied), expected))


@pytest.mark.parametrize("how", COPIES)
def test_what_attend_gives_can_be_copied(how: str) -> None:
    whole = attend(QUERY, KEY, KEY, entropy=True)
    output, lse, m = COPIES[how](whole)
    assert torch.equal(output, whole.output)
    assert torch.equal(lse, whole.lse)
    assert torch.equal(m.entropy(), whole.map.entropy())


def test_a_map_goes_on_with_its_engine_or_with_one_that_there_is() -> None:
    m, file = AttentionMap(QUERY, KEY), io.BytesIO()
    assert pickle.loads(pickle.dumps(m)).explain() == m.explain()
    torch.save(m, file)
    file.seek(0)
    elsewhere = torch.load(file, weights_only=False, map_location="meta")  # where the native kernels are not
    assert elsewhere.explain().engine == "reference"
    assert elsewhere.entropy().shape == (2, 4, 5)
