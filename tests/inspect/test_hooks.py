"""Where hooks act: in the thread that installed them and in tasks that begin in their block, until it ends."""

import asyncio
import contextvars
import copy
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import forked
import pytest
import torch
from small_models import IDS, Small
from tiny_transformer import made
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from waiting import HANG

import uwaga
from uwaga._base import threads
from uwaga.inspect import cache, cache_edit
from uwaga.nn import MultiHeadAttention
from uwaga.ops.attention.hooks import Asked, Proceed, hooked, looking
from uwaga.ops.ragged import Operand

EDIT = {"heads": {("decoder", 1, 0): 0.0}, "scores": {("decoder", 0, 1): uwaga.Links([3, 4], [1, 2])}}
OTHER = {"heads": {("decoder", 1, 1): -2.0}}


class Output(NamedTuple):
    logits: Tensor


class OneLayer(nn.Module):
    """Attention alone, which compiles in a third of a model's time."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.attention = nn.Embedding(40, 8), MultiHeadAttention(8, 2)

    def forward(self, ids: Tensor) -> Output:
        return Output(self.attention(self.tokens(ids)))


@pytest.fixture(params=["gpt2", "transformers llama"])
def model(request: pytest.FixtureRequest) -> nn.Module:
    if request.param == "one layer":
        return OneLayer().eval()
    small = Small.of(request.param)
    if not small.is_ours:
        small.module.set_attn_implementation("sdpa")
        small.module.config.use_cache = False
    return small.module


def run(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(IDS).logits


def edited(model: nn.Module, changes: dict = EDIT) -> Tensor:
    with uwaga.edit(model, **changes):
        return run(model)


def in_a_new_thread(compute: Callable[[], object]) -> object:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(compute).result(HANG)


def test_other_threads_compute_as_without_hooks(model: nn.Module) -> None:
    """A new thread, one of a pool that began before, and asyncio.to_thread, which copies the context and with it the ContextVar."""
    plain, right = run(model), edited(model)
    assert not torch.allclose(plain, right)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: None).result(HANG)

        def elsewhere() -> list[Tensor]:
            of_pool = pool.submit(run, model).result(HANG)
            return [of_pool, in_a_new_thread(lambda: run(model)), asyncio.run(asyncio.to_thread(run, model))]

        with uwaga.edit(model, **EDIT), uwaga.watch(model) as recording, uwaga.inspect.activations(model) as kept:
            assert all(torch.equal(result, plain) for result in elsewhere())
            assert not recording.maps
            assert not kept
            assert torch.equal(run(model), right)
        assert len(recording.maps) == len(kept) == 3
        with cache_edit(model, cache.window, 3):
            assert all(torch.equal(result, plain) for result in elsewhere())
            assert not torch.allclose(run(model), plain)
    assert torch.equal(run(model), plain)
    assert not threads.any_open


def test_tasks_compute_with_the_hooks_of_the_block_in_which_they_begin(model: nn.Module) -> None:
    plain, right, other = run(model), edited(model), edited(model, OTHER)

    async def main() -> list[Tensor]:
        begin = asyncio.Event()

        async def wait() -> Tensor:
            await begin.wait()
            return run(model)

        async def change() -> Tensor:
            with uwaga.edit(model, **OTHER):
                await begin.wait()
                return run(model)

        before, beside = asyncio.create_task(wait()), asyncio.create_task(change())
        await asyncio.sleep(0)
        with uwaga.edit(model, **EDIT):
            inside = asyncio.create_task(wait())
            begin.set()
            results = [await before, await beside, await inside]
            begin.clear()
            outlives = asyncio.create_task(wait())
            await asyncio.sleep(0)
        begin.set()
        return [*results, await outlives]

    results = asyncio.run(main())
    assert [torch.equal(*pair) for pair in zip(results, [plain, other, right, plain], strict=True)] == [True] * 4
    assert not threads.any_open


def test_two_threads_watch_and_edit_one_model_at_once(model: nn.Module) -> None:
    plain, results, maps = run(model), {}, {}
    right = {name: edited(model, changes) for name, changes in (("a", EDIT), ("b", OTHER))}
    both, left = threading.Barrier(3, timeout=HANG), threading.Event()

    def work(name: str, changes: dict) -> None:
        with uwaga.watch(model) as recording, uwaga.edit(model, **changes):
            both.wait()
            first = run(model)
            both.wait()
            if name == "a":
                assert left.wait(HANG)  # b has ended
            results[name] = [first, run(model)]
        maps[name] = recording.maps["decoder", 0].to_dense()[:, 1, 3, 1]
        left.set()

    workers = [threading.Thread(target=work, args=arguments) for arguments in (("a", EDIT), ("b", OTHER))]
    for worker in workers:
        worker.start()
    both.wait()
    assert torch.equal(run(model), plain)
    both.wait()
    for worker in workers:
        worker.join(HANG)
    assert all(torch.equal(result, right[name]) for name in right for result in results[name])
    assert not maps["a"].any()
    assert maps["b"].all()
    assert not threads.any_open


def test_a_block_may_end_in_another_context_than_it_began(model: nn.Module) -> None:
    """As that of a generator does, which somebody else closes."""
    plain, right, context = run(model), edited(model), contextvars.copy_context()
    stack = ExitStack()
    context.run(stack.enter_context, uwaga.edit(model, **EDIT))
    assert torch.equal(run(model), plain)
    assert torch.equal(context.run(run, model), right)
    stack.close()
    assert torch.equal(context.run(run, model), plain)
    assert not threads.any_open


def test_who_looks_sees_what_all_others_have_changed_whatever_the_order() -> None:
    layer, seen = made("gpt2").decoder.layers[0].attention, []

    def double(asked: Asked, _: object, proceed: Proceed) -> Operand:
        more = Asked(query=asked.query * 2, key=asked.key, value=asked.value, options=asked.options)
        again = Asked(query=asked.query, key=asked.key, value=asked.value, options=asked.options, is_repeat=True)
        return proceed(more) + proceed(again)

    x = torch.randn(1, 3, 8)
    query = layer.project(x, x, x).query
    for looks_first in (True, False):
        seen.clear()
        look = hooked({layer: looking(lambda asked, _: seen.append(asked.query))}, only_look=True)
        contexts = [look, hooked({layer: double})][:: 1 if looks_first else -1]
        with contexts[0], contexts[1], torch.no_grad():
            layer(x)
        (only,) = seen
        assert torch.equal(only, query * 2)


def gradients(model: nn.Module, backward: Callable[[Tensor], None], changes: dict | None = None) -> Tensor:
    model.zero_grad()
    with uwaga.edit(model, **EDIT if changes is None else changes):
        backward(model(IDS).logits.square().mean())
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


def in_another_thread(loss: Tensor) -> None:
    in_a_new_thread(loss.backward)


def checkpointed(model: nn.Module) -> None:
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable({"use_reentrant": False})
        model.train()
        return
    for layer in model.decoder.layers:
        forward = layer.forward
        layer.forward = lambda *x, forward=forward, **y: checkpoint(forward, *x, use_reentrant=False, **y)


def test_gradients_are_those_of_the_edit_wherever_the_backward_pass_runs(model: nn.Module) -> None:
    right = gradients(model, Tensor.backward)
    assert torch.equal(gradients(model, in_another_thread), right)
    with uwaga.inspect.activations(model, gradients=True) as kept:
        in_another_thread(model(IDS).logits.square().mean())
    assert kept["decoder", 0].gradient_map().to_dense().any()


def test_a_checkpointed_model_is_computed_again_in_the_block(model: nn.Module) -> None:
    right = gradients(model, Tensor.backward)
    checkpointed(model)
    assert torch.equal(gradients(model, Tensor.backward), right)
    losses: list[Tensor] = []
    with uwaga.edit(model, **EDIT):
        losses.append(model(IDS).logits.square().mean())
    with pytest.raises(torch.utils.checkpoint.CheckpointError):  # outside, other tensors are saved
        losses[0].backward()


_FORK = """
import os, sys, threading, torch, transformers

sys.path.insert(0, sys.argv[1])
from tiny_transformer import made
import uwaga

model = made("gpt2")
EDIT, OTHER = ({"heads": {("decoder", 1, head): 0.0}} for head in (0, 1))

@torch.no_grad()
def run():
    return model(torch.arange(4, 11)[None]).logits

def edited(changes):
    with uwaga.edit(model, **changes):
        return run()

def fork(check):
    child = os.fork()
    if not child:
        os._exit(0 if check() else 1)
    return os.waitpid(child, 0)[1] == 0

torch.set_num_threads(1)
plain, right, other = run(), edited(EDIT), edited(OTHER)
with uwaga.edit(model, **EDIT):
    assert torch.equal(run(), right)
    assert fork(lambda: torch.equal(run(), right)), "the thread in its block"
    results = []
    thread = threading.Thread(target=lambda: results.append(
        fork(lambda: torch.equal(run(), plain) and torch.equal(edited(OTHER), other))))
    thread.start()
    thread.join()
    assert results == [True], "another thread"
assert torch.equal(run(), plain)
assert "transformers.modeling_utils" not in sys.modules, "seconds that a model of this package does not need"
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX")
def test_a_fork_goes_on_where_its_thread_was() -> None:
    forked.run(_FORK, Path(__file__).parents[1])


@pytest.mark.slow
@pytest.mark.gate(only=lambda model: model == "one layer")
@pytest.mark.parametrize("model", ["one layer", "gpt2", "transformers llama"], indirect=True)
def test_compiled_code_is_hooked_between_two_graphs_and_never_in_one(model: nn.Module) -> None:
    torch.compiler.reset()
    edit = {"heads": {("encoder" if isinstance(model, OneLayer) else "decoder", 0, 0): 0.0}}
    plain, right = run(model), edited(model, edit)
    whole, parts = (torch.compile(model, backend="eager", fullgraph=full) for full in (True, False))
    torch.testing.assert_close(run(whole), plain)
    other = torch.compile(copy.deepcopy(model), backend="eager", fullgraph=True)
    with uwaga.edit(model, **edit), uwaga.watch(model) as recording:
        torch.testing.assert_close(run(other), plain)
        with pytest.raises(RuntimeError):  # no result is better than one without the hooks
            run(whole)
        torch.testing.assert_close(run(parts), right)
        assert recording.maps
    torch.testing.assert_close(run(whole), plain)
    torch.testing.assert_close(run(parts), plain)
    torch.compiler.reset()
