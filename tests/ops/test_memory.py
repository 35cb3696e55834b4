"""No call reads or writes memory that is not its own, whatever happened to its tensors since they were checked.

What goes wrong without a check shows under AddressSanitizer (`make sanitize`), and in results elsewhere.
"""

import random
import threading
from collections.abc import Callable

import pytest
import torch
from engines import needs_native
from torch import Tensor

from uwaga import AttentionMap, Causal, Documents, KeyLengths, Ragged, attend, attention


def _batch(offsets: list[int], dtype: torch.dtype = torch.float32, *, grad: bool = False) -> Ragged:
    torch.manual_seed(0)
    values = torch.randn(offsets[-1], 2, 8, dtype=dtype).requires_grad_(grad)
    return Ragged(values, torch.tensor(offsets))


# -- offsets --------------------------------------------------------------------------------------------------------------

CHANGES = {
    "added to": lambda batch: batch.offsets.add_(1),
    "written through NumPy": lambda batch: batch.offsets.numpy().__setitem__(slice(None), [0, 2, 2000]),
    "ends early": lambda batch: batch.offsets.numpy().__setitem__(slice(None), [0, 1, 2]),
    "replaced": lambda batch: setattr(batch, "offsets", torch.tensor([0, 2, 2000])),
    "replaced by fewer": lambda batch: setattr(batch, "offsets", torch.tensor([0, 2])),
    "storage gone": lambda batch: batch.offsets.untyped_storage().resize_(0),
    "storage shorter": lambda batch: batch.offsets.untyped_storage().resize_(8),
    "values gone": lambda batch: batch.values.untyped_storage().resize_(0),
    "values shorter": lambda batch: batch.values.untyped_storage().resize_(40),
    "a longest sequence that is no integer": lambda batch: setattr(batch, "max_length", "x"),
    "values replaced": lambda batch: setattr(batch, "values", batch.values[:2]),
}
USES = {
    "attention": lambda batch: attention(batch, batch, batch, mask=Causal()),
    "reference": lambda batch: attention(batch, batch, batch, impl="reference"),
    "linear": lambda batch: attention(batch, batch, batch, normalize=None),
    "attend": lambda batch: attend(batch, batch, batch, topk=2),
    "map": lambda batch: AttentionMap(batch, batch).entropy(),
    "documents": lambda batch: attention(batch, batch, batch, mask=Documents(torch.zeros(4, dtype=torch.int64))),
}
BY_PYTORCH = ("reference", "linear")


@needs_native
@pytest.mark.parametrize(
    ("use", "change"),
    # The engines made of PyTorch's own operations read a storage as those do.
    [
        (use, change)
        for use in USES
        for change in CHANGES
        if use not in BY_PYTORCH or not change.endswith(("gone", "shorter", "integer"))
    ],
)
def test_what_was_changed_since_it_was_checked(use: str, change: str) -> None:
    batch = _batch([0, 2, 4])
    USES[use](batch)
    CHANGES[change](batch)
    with pytest.raises((ValueError, RuntimeError, IndexError, TypeError)):
        USES[use](batch)


@needs_native
def test_offsets_written_between_the_passes() -> None:
    batch = _batch([0, 2, 4], grad=True)
    output = attention(batch, batch, batch).values.sum()
    batch.offsets.numpy()[:] = [0, 2, 2000]
    with pytest.raises(ValueError, match=r"uwaga native library: query offsets reach 2000, beyond the 4 packed rows"):
        output.backward()


@needs_native
def test_offsets_written_by_another_thread() -> None:
    """They are copied before they are checked."""
    batch, stop = _batch([0, 400, 800]), threading.Event()
    expected, numbers = attention(batch, batch, batch).values, batch.offsets.numpy()

    def write() -> None:
        while not stop.is_set():
            numbers[1:] = 10**12
            numbers[1:] = [400, 800]

    writer = threading.Thread(target=write)
    writer.start()
    refused = 0
    try:
        for _ in range(150):
            try:
                assert torch.equal(attention(batch, batch, batch).values, expected)
            except ValueError:
                refused += 1
    finally:
        stop.set()
        writer.join()
    assert refused < 150


class _History:
    """Random changes and uses of a ragged batch. A use is served or raises; the next one has a new batch."""

    def __init__(self) -> None:
        self.random = random.Random(1)
        self.compiled = torch.compile(
            lambda values, offsets: USES["attention"](Ragged(values, offsets)).values, backend="eager", dynamic=True
        )
        self.construct()

    def construct(self) -> None:
        offsets = [0]
        for _ in range(self.random.randint(1, 4)):
            offsets.append(offsets[-1] + self.random.choice([0, 1, 3, 70]))
        dtype = self.random.choice([torch.float32, torch.bfloat16, torch.float16])
        self.batch = _batch(offsets, dtype, grad=self.random.random() < 0.5)

    def change_offsets(self) -> None:
        offsets = self.batch.offsets
        if offsets.untyped_storage().nbytes() == offsets.nbytes:  # else the test itself would write elsewhere
            at = self.random.randrange(len(offsets))
            offsets.numpy()[at] = self.random.choice([-(2**63), -1, 0, 1, 5, 71, 2000, 10**12, 2**63 - 1])

    def replace_offsets(self) -> None:
        self.batch.offsets = torch.tensor(
            sorted(self.random.choices([0, 1, 3, 70, 73, 500], k=self.random.randint(1, 5)))
        )

    def resize_offsets(self) -> None:
        self.batch.offsets.untyped_storage().resize_(self.random.choice([0, 8, 16]))

    @torch.no_grad()
    def resize_values(self) -> None:
        self.batch.values.untyped_storage().resize_(self.random.choice([0, 4, 100]))

    def use(self) -> None:
        self.random.choice([use for name, use in USES.items() if name not in BY_PYTORCH])(self.batch)

    def use_compiled(self) -> None:
        self.compiled(self.batch.values.detach(), self.batch.offsets)

    def differentiate(self) -> None:
        output = USES["attention"](self.batch).values
        if self.random.random() < 0.5:
            self.change_offsets()
        if output.requires_grad:
            output.float().sum().backward()


@pytest.mark.stress
@needs_native
@pytest.mark.filterwarnings("ignore:.*resize:UserWarning")
def test_random_histories() -> None:
    torch.compiler.reset()
    history, served, steps = _History(), 0, 1000
    uses = ("use", "use_compiled", "differentiate")
    changes = ("change_offsets", "replace_offsets", "resize_offsets", "resize_values", "construct")
    for _ in range(steps):
        name = history.random.choice((*changes, *uses * 3))
        try:
            getattr(history, name)()
        except (ValueError, RuntimeError, IndexError):
            history.construct()
        else:
            served += name in uses
    assert 0.1 * steps < served < 0.95 * steps


# -- storages -------------------------------------------------------------------------------------------------------------


def _dense(**changes: Tensor) -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {name: torch.randn(1, 2, 6, 8) for name in ("query", "key", "value")} | changes


def _other_values(x: Tensor, values: Tensor) -> None:
    x.data = values


STORAGES: dict[str, tuple[int, Tensor | None, Callable[[Tensor], dict[str, object]]]] = {
    **{name: (size, None, lambda x: {}) for name, size in (("query", 0), ("key", 4), ("value", 380))},
    "bias": (0, torch.zeros(1, 2, 6, 6), lambda x: {"bias": x}),
    "sinks": (0, torch.zeros(2), lambda x: {"sinks": x}),
    "mask": (0, torch.ones(6, 6, dtype=torch.bool), lambda x: {"mask": x}),
    "lengths": (0, torch.tensor([6]), lambda x: {"mask": KeyLengths(x)}),
    "ids": (0, torch.zeros(1, 6, dtype=torch.int64), lambda x: {"mask": Documents(x)}),
    "starts": (0, torch.tensor([0]), lambda x: {"mask": Causal(start=x)}),
}


@needs_native
@pytest.mark.parametrize("name", STORAGES)
def test_a_storage_that_was_resized(name: str) -> None:
    size, replacement, options_of = STORAGES[name]
    tensors = _dense()
    tensor = tensors[name] if replacement is None else replacement.clone()
    options = options_of(tensor)
    attention(**tensors, **options)  # its layout is remembered
    tensor.untyped_storage().resize_(size)
    with pytest.raises((ValueError, RuntimeError)):
        attention(**tensors, **options)


# Gradients have the shapes of what is there in the backward pass, and the kernels would fill them as far as the call went.
BETWEEN = {
    **{f"another shape of {name}": (name, lambda x: _other_values(x, torch.randn(3, 2, 6, 8))) for name in ("query", "key", "value")},
    "another dtype": ("key", lambda x: _other_values(x, torch.randn(1, 2, 6, 8).bfloat16())),
    "a shorter storage": ("key", lambda x: x.untyped_storage().resize_(100)),
}  # fmt: skip


@needs_native
@pytest.mark.parametrize("mask", [None, KeyLengths(torch.tensor([6])), torch.ones(6, 6, dtype=torch.bool)])
@pytest.mark.parametrize("change", BETWEEN)
def test_what_was_changed_between_the_passes(change: str, mask: object) -> None:
    name, spoil = BETWEEN[change]
    tensors = {operand: x.requires_grad_() for operand, x in _dense().items()}
    output = attention(**tensors, mask=mask).sum()
    spoil(tensors[name])
    with pytest.raises((ValueError, RuntimeError), match=r"has 100|modified|dtype|shape|\(3, 2, 6, 8\)|float"):
        output.backward()


@needs_native
@pytest.mark.parametrize(
    ("unpack", "said"),
    [
        (
            lambda x: x.repeat(3, *(1,) * (x.dim() - 1)),
            r"query, key and value were .* when the call began, and are \(3, 2, 6, 8\)",
        ),
        (
            lambda x: x.double() if x.dim() == 3 else x,
            r"^attention: a number per row must be float32 here, not torch.float64$",
        ),
    ],
    ids=["another shape", "an lse of another dtype"],
)
def test_a_saved_tensor_hook_that_gives_something_else(unpack: Callable[[Tensor], Tensor], said: str) -> None:
    tensors = {operand: x.requires_grad_() for operand, x in _dense().items()}
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, unpack):
        output = attention(**tensors).sum()
    with pytest.raises(ValueError, match=said):
        output.backward()


@needs_native
def test_a_gradient_without_memory() -> None:
    output = attend(**{name: x.requires_grad_() for name, x in _dense().items()})

    def empty(gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        gradient.untyped_storage().resize_(0)
        return gradient

    output.lse.register_hook(empty)
    with pytest.raises((ValueError, RuntimeError), match=r"no memory|storage"):
        output.lse.sum().backward()


READINGS = {
    "entropy": lambda m: m.entropy(),
    "topk": lambda m: m.topk(2),
    "received": lambda m: m.received(),
    "entries": lambda m: m[0, 0, 1],
    "pool": lambda m: m.pool(2, 2),
}
# Which tensor of a map is changed, how, what the error says, and which readings there are: entropy is known already.
SPOILED_MAPS = {
    **{f"queries of {size}": ("query", lambda x, size=size: _other_values(x, torch.randn(size)), "", READINGS) for size in ((2, 2, 50, 8), (1, 2, 3, 8), (1, 2, 6, 4))},
    "keys are gone": ("key", lambda x: x.untyped_storage().resize_(0), "uwaga native library: key: missing", [*READINGS][1:]),
    "sinks are gone": ("sinks", lambda x: _other_values(x, torch.empty(0)), "the sizes of the operands changed after the call was made", ["topk"]),
}  # fmt: skip


@needs_native
@pytest.mark.parametrize("change", SPOILED_MAPS)
def test_a_map_whose_tensors_were_changed(change: str) -> None:
    name, spoil, said, readings = SPOILED_MAPS[change]
    tensors = {"query": _dense()["query"], "key": _dense()["key"], "sinks": torch.zeros(2)}
    if name != "sinks":
        del tensors["sinks"]
    result = AttentionMap(**tensors)
    if name == "key":
        result.entropy()
    spoil(tensors[name])
    for reading in readings:
        with pytest.raises((ValueError, RuntimeError), match=said or None):
            READINGS[reading](result)


def test_views_of_a_whole_storage_still_fit() -> None:
    whole = torch.randn(3, 50, 2, 16)
    query, key, value = (x[:, 7:29, :, 4:12].transpose(1, 2) for x in (whole, whole + 1, whole - 1))
    output = attention(query, key, value)
    expected = attention(query.contiguous(), key.contiguous(), value.contiguous())
    assert torch.equal(output, expected)
    last = torch.as_strided(whole, (1, 2, 3, 8), (0, 8, 16, 1), whole.numel() - 48)  # ends where the storage ends
    assert torch.equal(attention(last, last, last), attention(*[last.clone()] * 3))
