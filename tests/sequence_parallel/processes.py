"""Runs calls by 1, 2, 3 and 4 processes over gloo, and faults of processes. A separate program, since it forks: PyTorch is imported
once, and has started no threads before a fork.

    python tests/sequence_parallel/processes.py FOLDER JOB ...       # a JOB is a name of JOBS and a number of processes: "cases:3"

Each process writes what its job returned to FOLDER/JOB.RANK.pt.
"""

import ctypes
import datetime
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable
from functools import partial, wraps
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import forward_ad

sys.path.insert(1, str(Path(__file__).parents[1]))  # for `import tiny_models`, which ragged_cases has

import map_cases
import ragged_cases
from forked import exit_code, fork
from sequence_cases import CASES, CASES_OF_MAPS, GATE, GATE_OF_MAPS, attend, gradients_of
from sequence_cases import parts as cut

import uwaga
from uwaga.maps.engines import parts as map_parts
from uwaga.ops.attention import parts
from uwaga.sequence_parallel import exchange

# Seconds that a process waits for another: one that is stopped, and any other, which a busy machine may keep waiting.
TIMEOUT, PATIENCE = 5, 600


def _by_name(compute: Callable[..., Any]) -> Callable[..., Any]:
    return wraps(compute)(lambda names, rank, size: {name: compute(name, rank, size) for name in names})


@_by_name
def cases(name: str, rank: int, size: int) -> Any:
    whole = CASES[name]()
    queries = cut(whole.query.shape[-2], size, f"{name} queries")
    keys = cut(whole.key.shape[-2], size, f"{name} keys")
    with uwaga.sequence_parallel.sequence_parallel():
        return gradients_of(whole, attend, *queries[rank : rank + 2], *keys[rank : rank + 2])


@_by_name
def maps(name: str, rank: int, size: int) -> Any:
    """Statistics of maps: those of this process's queries, their largest weights, those of its keys, and those of the whole."""
    whole = CASES[name]()
    length, keys_length = whole.query.shape[-2], whole.key.shape[-2]
    first, last = cut(length, size, f"{name} queries")[rank : rank + 2]
    first_key, last_key = cut(keys_length, size, f"{name} keys")[rank : rank + 2]
    query, key = whole.query[..., first:last, :], whole.key[..., first_key:last_key, :]
    m = uwaga.sequence_parallel.attention_map(query, key, **whole.options)
    assert (m.first_query, m.first_key) == (first, first_key)
    assert m.shape == (*whole.query.shape[:-1], keys_length)
    return [
        map_cases.of_queries(m, keys_length),
        {"topk": [*m.topk(5)]},
        map_cases.of_keys(m, length, slice(first, last)),
        map_cases.of_all(m, length, keys_length),
    ]


@_by_name
def ragged_maps(name: str, rank: int, size: int) -> Any:
    """Statistics of maps of Ragged batches: those of this process's tokens, and of its key tokens."""
    call = ragged_cases.CASES[name]()
    (query, key, _), part = ragged_cases.parts_of(call, size, rank, name)
    m = uwaga.sequence_parallel.attention_map(query, key, **call.options)
    weights = query.with_values(ragged_cases.weights_of(call)[part])
    return [map_cases.of_tokens(m, ragged_cases.longest_keys(call)), map_cases.of_key_tokens(m, weights)]


@_by_name
def attended(name: Any, rank: int, size: int) -> Any:
    """Output, lse and statistics of `uwaga.attend` within sequence_parallel, of dense and Ragged calls."""
    if isinstance(name, str):
        call: Any = CASES[name]()
        queries = cut(call.query.shape[-2], size, f"{name} queries")[rank : rank + 2]
        keys = cut(call.key.shape[-2], size, f"{name} keys")[rank : rank + 2]
        operands = [x[..., slice(*at), :] for x, at in zip(call[:3], (queries, keys, keys), strict=True)]
    else:
        call = ragged_cases.CASES[name[1]]()
        operands, _ = ragged_cases.parts_of(call, size, rank, name[1])
    with uwaga.sequence_parallel.sequence_parallel():
        found = map_cases.of_attended(*operands, call.options)
    return [x.values if isinstance(x, uwaga.Ragged) else x for x in found]


@_by_name
def ragged(name: str, rank: int, size: int) -> Any:
    call = ragged_cases.CASES[name]()
    operands, part = ragged_cases.parts_of(call, size, rank, name)
    with uwaga.sequence_parallel.sequence_parallel():
        return ragged_cases.gradients_of_ragged(operands, call, part)


def models(rank: int, size: int) -> Any:
    """Outputs of this process's tokens, and their gradients of the weights; those of transformers' models without."""
    results: dict[Any, Any] = {}
    for name in ragged_cases.MODELS:
        model, tokens, options = ragged_cases.model_and_inputs(name)
        torch.manual_seed(5)
        output = ragged_cases.output_of(uwaga.sequence_parallel.forward(model, tokens, **options))
        gradients = torch.autograd.grad(output.values.square().sum(), list(model.parameters()), allow_unused=True)
        results["own", name] = [output.values.detach(), gradients]
    for name in ragged_cases.OF_TRANSFORMERS:
        model, ids = ragged_cases.foreign_model_and_ids(name)
        with torch.no_grad():
            output = uwaga.sequence_parallel.forward(model, ids)
        assert output.get("pooler_output") is None
        results[name] = output.last_hidden_state
    for auto in ragged_cases.HEADS:
        model, ids = ragged_cases.foreign_model_and_ids("roberta", auto)
        with torch.no_grad():
            results[auto] = uwaga.sequence_parallel.forward(model, ids).logits
    results["first"] = _of_first_tokens()
    return results


def _of_first_tokens() -> Any:
    """Where no row lies with two processes."""
    model, tokens = ragged_cases.classifier_and_ids()
    output = uwaga.sequence_parallel.forward(model, tokens, only="first", outputs=("sequence",))
    return [output.last_hidden_state.values.detach(), output.sequence.detach()]


def refused_models(rank: int, size: int) -> Any:
    """What is refused before anything is sent."""
    forward, ids = uwaga.sequence_parallel.forward, torch.zeros(1, 8, dtype=torch.int64)
    model, _ = ragged_cases.foreign_model_and_ids("gpt2")
    other = ragged_cases.foreign_model_and_ids("gpt2")[0]
    other.set_attn_implementation("sdpa")
    ours, tokens, _ = ragged_cases.model_and_inputs("gpt2", (9,))
    part = uwaga.sequence_parallel.part(tokens).rows
    x = uwaga.Ragged(torch.randn(len(part.values), 2, 4), part.offsets, first=part.first)
    return {
        "Ragged": message(lambda: forward(model, tokens)),
        "implementation": message(lambda: forward(other, ids)),
        **{name: message(call) for name, call in _refused_calls_of_models(rank).items()},
        "mask": message(lambda: forward(model, ids, attention_mask=torch.ones(1, 8))),
        "tokens": message(lambda: forward(ours, ids[None])),
        "outside": message(lambda: uwaga.attention(x, x, x)) if rank else None,
        "map": message(lambda: uwaga.sequence_parallel.attention_map(x.values, x)),
        "other rows": message(
            lambda: uwaga.sequence_parallel.attention(x, x, uwaga.Ragged(x.values, x.offsets, first=7))
        ),
    }


def _refused_calls_of_models(rank: int) -> dict[str, Callable[[], Any]]:
    """Where one process alone would find the error, both say it."""
    forward = uwaga.sequence_parallel.forward
    of = ragged_cases.foreign_model_and_ids
    ids = of("gpt2")[1]
    classifier = of("roberta", "AutoModelForSequenceClassification")[0]
    training = of("gpt2", attn_pdrop=0.1)[0].train()
    gpt2, tokens, _ = ragged_cases.model_and_inputs("gpt2", (9,))
    t5, _, decoder = ragged_cases.model_and_inputs("t5", (9,))
    first, _ = ragged_cases.classifier_and_ids()
    plain = tokens.values
    two = torch.stack([plain, plain])

    def in_training(call: Callable[[], Any]) -> Any:
        t5.train()
        try:
            return call()
        finally:
            t5.eval()

    def with_seed(seed: int) -> Any:
        torch.manual_seed(seed)
        return forward(gpt2, plain)

    return {
        "classifier": lambda: forward(classifier, ids),
        "dropout of transformers": lambda: forward(training, ids),
        "more decoder rows": lambda: forward(t5, plain, decoder_ids=two),
        "other tokens": lambda: forward(gpt2, plain + rank),
        "other decoder": lambda: forward(t5, plain, decoder_ids=plain[: 6 - rank]),
        "other only": lambda: forward(first, two, outputs=(), only="last" if rank else "first"),
        "other seed": lambda: with_seed(rank),
        "dropout of a decoder": lambda: in_training(lambda: forward(t5, tokens, **decoder)),
        "last": lambda: forward(first, plain, only="last", outputs=()),
        "key lengths": lambda: forward(first, plain, key_lengths=torch.tensor([3])),
        "unknown id": lambda: forward(gpt2, torch.cat([plain, torch.tensor([30])])),
        "too long": lambda: forward(gpt2, torch.zeros(81, dtype=torch.int64)),
    }


def doctor(rank: int, size: int) -> Any:
    """What every process learns of all of them, the first one in inference mode, and its own id."""
    with torch.inference_mode(rank == 0):
        return [[tuple(x) for x in uwaga.sequence_parallel.doctor()], os.getpid()]


def levels(rank: int, size: int) -> Any:
    """The same where the last process has another instruction set."""
    if rank == size - 1:
        os.environ["UWAGA_LEVEL"] = "scalar"
    return doctor(rank, size)


def message(call: Callable[[], Any]) -> str:
    try:
        call()
    except (ValueError, RuntimeError, IndexError, AttributeError, TypeError, OverflowError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def disagreements(rank: int, size: int) -> Any:
    """What each process is told where the second one's arguments are others than the first one's, or where a call is refused."""
    attention = uwaga.sequence_parallel.attention

    def x(heads: int = 2, width: int = 4, dtype: torch.dtype = torch.float32, batch: int = 1) -> Any:
        return torch.randn(batch, heads, 6, width, dtype=dtype)

    def is_second(one: Any, other: Any) -> Any:
        return other if rank == 1 else one

    other_dtype = x(dtype=is_second(torch.float32, torch.bfloat16))
    other_heads = x(heads=is_second(2, 4))
    key = x()
    wants = x().requires_grad_(rank == 1)
    bits = torch.ones(12, 12, dtype=torch.bool).tril()
    other_bits = bits.clone()
    ragged_part = uwaga.Ragged(torch.randn(6, 2, 4), torch.tensor([0, 6]), first=is_second(None, 6))
    uncut = uwaga.Ragged(torch.randn(6, 2, 4), torch.tensor([0, 2, 6]))
    other_bits[11, 0] = False  # of a row that the first process does not have
    calls = {
        "dtype": partial(attention, other_dtype, other_dtype, other_dtype),
        "heads": partial(attention, other_heads, key, key),
        "key width": partial(attention, x(), x(width=is_second(4, 8)), key),
        "mask": partial(attention, key, key, key, mask=is_second(uwaga.Causal(), uwaga.Window(3, 0))),
        "bits of other strides": partial(
            attention, key, key, key, mask=is_second(bits.expand(2, 12, 12), bits.T.clone().T.repeat(2, 1, 1))
        ),
        "records": partial(attention, wants, key, key),
        "kind of call": partial(_within, is_second(uwaga.attend, uwaga.attention), key),
        "entropy of attend": partial(_within, partial(uwaga.attend, entropy=is_second(False, True), topk=2), key),
        "normalize of attend of one": partial(
            _within, partial(uwaga.attend, normalize=is_second("softmax", None)), key
        ),
        "impl": partial(attention, key, key, key, impl="torch"),
        "twice": partial(_graded, key, {"create_graph": True}),
        "topk": partial(_of_map, key, lambda m: m.topk(0)),
        "select": partial(_of_map, key, lambda m: m.select(0)),
        "no such row": partial(_of_map, key, lambda m: m.row(12)),
        "row": partial(_of_map, key, lambda m: m.row(is_second(3, 4))),
        "topk of one": partial(_of_map, key, lambda m: m.topk(is_second(3, 0))),
        "mask of one": partial(_of_map, key, lambda m: m.mass(is_second(uwaga.Causal(), None))),
        "entries and none": partial(_of_map, key, lambda m: m[..., is_second([], [3])]),
        "weights": partial(_of_map, key, lambda m: m.received(weights=is_second(None, torch.ones(6)))),
        "another statistic": partial(_of_map, key, lambda m: is_second(m.entropy, m.diagonal_sums)()),
        "pool of Ragged": partial(_of_map, ragged_part, lambda m: m.pool(2, 2)),
        "tangent of the query": partial(_with_tangent, lambda x: attention(x, key, key), key),
        "tangent of Ragged": partial(_with_tangent, lambda x: attention(*[uncut.with_values(x)] * 3), uncut.values),
        "model of one": partial(
            uwaga.sequence_parallel.forward,
            is_second(ragged_cases.model_and_inputs("gpt2", (9,))[0], torch.nn.Linear(2, 2)),
            torch.arange(9),
        ),
        "batch of gradients": partial(
            _graded, key, {"grad_outputs": torch.ones(3, *key.shape), "is_grads_batched": True}
        ),
        # A second backward pass, for which one process has kept nothing.
        "freed of one": partial(_graded, key, *[{"retain_graph": rank != 1}] * 2),
        "iteration": partial(_of_map, key, list),
        "search": partial(_of_map, key, lambda m: 3 in m),
        "another call": partial(_another_call, rank, key),
    }
    return {name: message(call) for name, call in calls.items()}


def _graded(x: Any, *ways: dict[str, Any]) -> None:
    """Gradients of the queries in these ways, one after another."""
    query = x.clone().requires_grad_()
    output = uwaga.sequence_parallel.attention(query, x, x)
    for way in ways:
        torch.autograd.grad(output, query, **{"grad_outputs": torch.ones(()).expand(output.shape), **way})


def _with_tangent(call: Callable[[Any], object], x: Any) -> None:
    with forward_ad.dual_level():
        call(forward_ad.make_dual(x, torch.ones_like(x)))


def _within(call: Callable[..., object], x: Any) -> None:
    with uwaga.sequence_parallel.sequence_parallel():
        call(x, x, x)


def _of_map(x: Any, read: Callable[[Any], object]) -> None:
    read(uwaga.sequence_parallel.attention_map(x, x))


def _another_call(rank: int, x: Any) -> None:
    """The second process goes on to its next call where the first one is at the backward pass."""
    query = x.clone().requires_grad_()
    output = uwaga.sequence_parallel.attention(query, x, x)
    if rank == 1:
        uwaga.sequence_parallel.attention(query, x, x)
    output.sum().backward()


def memory(rank: int, size: int) -> Any:
    """By how many bytes a process grows in each function of a map that sees everything, and the bytes of its part of the keys."""
    query, key, small = (torch.randn(1, 1, n, 128) for n in (32768 // size, 32768 // size, 3000))
    grown = {}
    for name, statistic in map_cases.FUNCTIONS.items():
        statistic(
            uwaga.sequence_parallel.attention_map(small, small)
        )  # what is imported and allocated once is no question
        m = uwaga.sequence_parallel.attention_map(query, key)
        m.prepare(entropy=True, topk=1)
        dist.barrier()
        ctypes.CDLL(None).malloc_trim(0)  # what was freed is resident no more
        Path("/proc/self/clear_refs").write_text("5")
        before = _resident("VmRSS")
        statistic(m if name != "rows" else uwaga.sequence_parallel.attention_map(query, key))
        grown[name] = _resident("VmHWM") - before
    return grown, key.nbytes


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def _fault(fail: Callable[[], object], timeout: int, rank: int, size: int) -> Any:
    """What the others are told, and after how many seconds, where the last process fails between forward and backward."""
    x = torch.randn(1, 2, 500, 16, requires_grad=True)
    group = dist.new_group(timeout=datetime.timedelta(seconds=timeout))  # which all are there to make
    output = uwaga.sequence_parallel.attention(x, x, x, mask=uwaga.Causal(), group=group)
    if rank == size - 1:
        fail()
    began = time.monotonic()
    return [message(lambda: output.sum().backward()), time.monotonic() - began]


killed = partial(_fault, lambda: os.kill(os.getpid(), signal.SIGKILL), PATIENCE)
stopped = partial(_fault, lambda: os.kill(os.getpid(), signal.SIGSTOP), TIMEOUT)


def _read(x: Any, group: Any, statistic: Callable[[Any], object]) -> None:
    statistic(uwaga.sequence_parallel.attention_map(x, x, mask=uwaga.Causal(), group=group))


def _read_ragged(x: Any, group: Any) -> None:
    first = dist.get_rank(group) * x.shape[2]
    part = uwaga.Ragged(x[0].transpose(0, 1), torch.tensor([0, x.shape[2]]), first=first or None)
    _read(part, group, lambda m: m.entropy())


# The functions of maps: which one fails, and what calls it.
OF_MAPS: dict[str, Any] = {
    "rows": (map_parts, "rows", partial(_read, statistic=lambda m: m.topk(3))),
    "received": (map_parts, "received", partial(_read, statistic=lambda m: m.received(last=20_000))),
    "cells": (map_parts, "pool", partial(_read, statistic=lambda m: m.pool(4, 4))),
    "Ragged": (map_parts, "rows", _read_ragged),
}


def _fault_within(place: str, victim: int, fail: int, timeout: int, rank: int, size: int) -> Any:
    """What the others are told where one fails while blocks travel, the last of which it would have sent on: at the first part of the
    forward pass, of the gradients of the queries or of the keys, or of a function of a map."""
    x = torch.randn(1, 1, 9000, 8, requires_grad=place not in OF_MAPS)
    group = dist.new_group(timeout=datetime.timedelta(seconds=timeout))  # which all are there to make
    of_backward = ("queries", "keys")
    module, name, read = OF_MAPS.get(place, (parts, "backward" if place in of_backward else place, None))
    original = getattr(module, name)

    def failing(*arguments: Any) -> Any:
        if place not in of_backward or (arguments[2].query is None) == (place == "keys"):
            os.kill(os.getpid(), fail)
        return original(*arguments)

    if rank == victim:
        setattr(module, name, failing)
    if read is not None:
        return message(lambda: read(x, group))
    return message(
        lambda: uwaga.sequence_parallel.attention(x, x, x, mask=uwaga.Causal(), group=group).sum().backward()
    )


def _failing(place: str, rank: int, size: int) -> Any:
    """What each process is told where rank 1 alone has an error: of the model, before its second layer or after its last, within a pass of
    the forward or of the backward direction; and where it has it again in the group that it has left."""
    exchange.LATEST = (PATIENCE, PATIENCE)  # however busy the machine is, the group's store is read
    group = dist.new_group(timeout=datetime.timedelta(seconds=PATIENCE))
    model, tokens, _ = ragged_cases.model_and_inputs("gpt2", (70,))
    x = torch.randn(1, 1, 9000, 8, requires_grad=True)

    def fail(*_: Any) -> None:
        raise IndexError("index 80 is out of range")

    def attend() -> Any:
        return uwaga.sequence_parallel.attention(x, x, x, mask=uwaga.Causal(), group=group)

    def run_model() -> Any:
        return uwaga.sequence_parallel.forward(model, tokens, group=group)

    call: Callable[[], Any] = run_model
    if place == "model":
        if rank == 1:
            layers = next(x for x in model.modules() if isinstance(x, torch.nn.ModuleList))
            layers[1].register_forward_pre_hook(fail)
    elif place == "end":
        if rank == 1:
            model.register_forward_hook(fail)
        told = message(run_model)
        return [told, message(run_model)]
    else:
        call = attend if place == "forward" else lambda: attend().sum().backward()
        if rank == 1:
            setattr(parts, place, fail)
    return [message(call)]


JOBS = {
    "doctor": doctor, "levels": levels, "memory": memory, "models": models, "refused_models": refused_models,
    "disagreements": disagreements, "killed": killed, "stopped": stopped,
}  # fmt: skip
OF_CASES: Iterable[tuple[Any, Collection[Any], Collection[Any]]] = (
    (cases, CASES, GATE),
    (maps, CASES_OF_MAPS, GATE_OF_MAPS),
    (attended, map_cases.ATTENDED, map_cases.GATE_OF_ATTENDED),
    (ragged, ragged_cases.CASES, ragged_cases.GATE),
    (ragged_maps, ragged_cases.CASES_OF_MAPS, ragged_cases.GATE_OF_MAPS),
)
for run_cases, names, gate in OF_CASES:
    JOBS[run_cases.__name__] = partial(run_cases, [name for name in names if name in gate])
    JOBS[f"other {run_cases.__name__}"] = partial(run_cases, [name for name in names if name not in gate])
JOBS |= {f"fails in {place}": partial(_failing, place) for place in ("model", "end", "forward", "backward")}
VICTIMS = {"killed": -1, "stopped": -1}
for place in ("forward", "queries", "keys", *OF_MAPS):
    for victim in range(4):
        for fault, number, timeout in (("killed", signal.SIGKILL, PATIENCE), ("stopped", signal.SIGSTOP, TIMEOUT)):
            JOBS[f"{fault} {victim} in {place}"] = partial(_fault_within, place, victim, number, timeout)
            VICTIMS[f"{fault} {victim} in {place}"] = victim


def run(folder: Path, job: str) -> None:
    name, size = job.split(":")
    children = [fork(partial(run_one, folder, job, rank, int(size))) for rank in range(int(size))]
    victim = children[VICTIMS[name]] if name in VICTIMS else None
    codes = [exit_code(child) for child in children if child != victim]
    if victim is not None:
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
    if any(codes):
        sys.exit(f"{job}: {codes}")


def run_one(folder: Path, job: str, rank: int, size: int) -> None:
    timeout, name = datetime.timedelta(seconds=PATIENCE), job.split(":")[0]
    store = f"file://{folder / job}.store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size, timeout=timeout)
    torch.save(JOBS[name](rank, size), folder / f"{job}.{rank}.pt")
    if name not in VICTIMS:
        dist.barrier()  # none closes its connections while another still uses them


if __name__ == "__main__":
    torch.set_num_threads(1)
    uwaga.sequence_parallel.attention, uwaga.sequence_parallel.attention_map  # noqa: B018  # imports their modules before the forks
    # What jobs import takes seconds in every process.
    if {"doctor:2", "disagreements:2"}.intersection(sys.argv):
        import torch.fx.experimental.symbolic_shapes
    if any("models" in job for job in sys.argv[2:]):
        import torch._dynamo

        for name in ragged_cases.OF_TRANSFORMERS:
            ragged_cases.foreign_model_and_ids(name)
    gc.freeze()  # garbage collection in a child skips the objects of PyTorch's modules
    for job in sys.argv[2:]:
        run(Path(sys.argv[1]), job)
