"""Ragged batches: in and out, and offsets that do not fit."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from uwaga import Ragged, attention, linear
from uwaga.nn.operand import tokens_of_rows

VALUES = torch.arange(20.0).reshape(5, 2, 2)
OFFSETS = torch.tensor([0, 2, 2, 5])


def test_what_it_knows_and_its_other_forms() -> None:
    batch = Ragged(VALUES, OFFSETS)
    assert (len(batch), batch.lengths.tolist(), batch.max_length) == (3, [2, 0, 3], 3)
    assert repr(batch) == "Ragged(values (5, 2, 2) float32, lengths [2, 0, 3])"
    padded = batch.to_padded(fill=-1.0)
    assert padded.shape == (3, 3, 2, 2)
    assert (padded[1] == -1).all()
    assert (padded[0, 2:] == -1).all()
    assert batch.to_padded(length=4).shape == (3, 4, 2, 2)
    assert [len(row) for row in batch.to_list()] == [2, 0, 3]
    assert batch.to_nested().layout == torch.jagged
    none = Ragged(torch.zeros(0, 2, 2), torch.tensor([0]))
    assert (len(none), none.max_length, none.to_list(), none.to_padded().shape) == (0, 0, [], (0, 0, 2, 2))
    with FlopCounterMode(display=False), pytest.raises(ValueError, match="end at"):
        Ragged(VALUES, torch.tensor([0, 2, 10**9]))


ROUND_TRIPS = {
    "padded": lambda x: Ragged.from_padded(x.to_padded(fill=-1.0), x.lengths),
    "lists": lambda x: Ragged.from_list(x.to_list()),
    "nested": lambda x: Ragged.from_nested(x.to_nested()),
}


@pytest.mark.parametrize("way", ROUND_TRIPS)
def test_there_and_back(way: str) -> None:
    batch = Ragged(VALUES, OFFSETS)
    again = ROUND_TRIPS[way](batch)
    assert torch.equal(again.values, VALUES)
    assert torch.equal(again.offsets, OFFSETS)
    assert (again.values.data_ptr() == VALUES.data_ptr()) == (way == "nested")


@pytest.mark.slow
def test_padding_again_in_a_compiled_program() -> None:
    padded, lengths = torch.randn(2, 9, 3), torch.tensor([9, 3])

    def again(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        batch = Ragged.from_padded(x, n)
        return batch.to_padded(), batch.to_padded(length=9)

    torch.compiler.reset()
    for value, expected in zip(
        torch.compile(again, backend="aot_eager")(padded, lengths), again(padded, lengths), strict=True
    ):
        assert torch.equal(value, expected)


_WEIGHT = torch.eye(2).requires_grad_()
# The last ones leave two rows of values that belong to no sequence.
_BAD_OFFSETS = [
    [0, -1, 5],
    [0, 2, 2**62],
    [0, 2, 2005],
    [10**9, 10**9 + 2, 10**9 + 5],
    [0, 2, 6],
    [1, 2, 5],
    [0, 6, 5],
    [0, 2, 3],
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operation", "offsets"),
    [
        (lambda x: linear(x, _WEIGHT), _BAD_OFFSETS),
        (lambda x: attention(x, x, x), _BAD_OFFSETS),
        (lambda x: linear(Ragged(x.values, x.offsets, max_length=1), _WEIGHT), [[0, 2, 5]]),
    ],
    ids=["linear", "attention", "a row that is too long"],
)
def test_a_compiled_program_refuses_offsets_that_do_not_fit(operation, offsets: list[list[int]]) -> None:
    """As eager mode does: its own rows would be right, and gradients of weights NaN by what stands in the others."""

    def program(values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return operation(Ragged(values, offsets)).values

    torch.compiler.reset()
    values, compiled = torch.randn(5, 2, requires_grad=True), torch.compile(program, backend="aot_eager")
    for bad in offsets:
        with pytest.raises(RuntimeError, match="offsets must start at 0"):
            compiled(values, torch.tensor(bad))


@pytest.mark.slow
def test_a_compiled_program_refuses_the_first_token_of_an_empty_row() -> None:
    def program(values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        x = Ragged(values, offsets)
        return x.values[tokens_of_rows("Model", x, "first")]

    torch.compiler.reset()
    compiled = torch.compile(program, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(VALUES, torch.tensor([0, 2, 3, 5])), VALUES[[0, 2, 3]])
    with pytest.raises(RuntimeError, match=r"^Model: a row is empty: it has no first token$"):
        compiled(VALUES, OFFSETS)
