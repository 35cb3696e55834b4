"""The programs in examples/: what they compute is what the package computes without them."""

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from tiny_transformer import tiny

from uwaga.models import generate

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [2], [3, 1, 4, 1, 5, 9, 2, 6, 8, 8, 8, 8, 8, 8, 8], [7, 7, 7]]


@pytest.fixture(scope="module")
def engine(program: Callable[[str], ModuleType]) -> ModuleType:
    return program("examples/paged_engine.py")


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def model(request: pytest.FixtureRequest) -> torch.nn.Module:
    grouped = {"llama": {"num_kv_heads": 2, "d_k": 8}}.get(request.param, {})
    made = tiny(request.param, seed=0, vocab_size=20, d_model=32, d_ff=48, max_position_embeddings=64, **grouped)
    for x in made.parameters():
        torch.nn.init.normal_(x, std=0.4)
    return made


@pytest.mark.parametrize(("block_size", "tokens_per_step", "blocks"), [(1, 4, 80), (4, 7, 20), (16, 128, 4)])
def test_the_engine_generates_what_generate_does(
    engine: ModuleType, model: torch.nn.Module, block_size: int, tokens_per_step: int, blocks: int
) -> None:
    served = engine.Engine(model, blocks=blocks, block_size=block_size, tokens_per_step=tokens_per_step)
    requests = [served.add(ids, max_new_tokens=5) for ids in PROMPTS]
    tokens = [sum(step.tokens for step in steps) for steps in served.run()]
    assert max(tokens) <= tokens_per_step
    expected = generate(model, PROMPTS, max_new_tokens=5, eos_token_ids=())
    assert [request.new for request in requests] == expected
    assert served.blocks.free == blocks


def test_it_runs_as_a_program(engine: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    engine.main()
    last = capsys.readouterr().out.splitlines()[-3:]
    assert last == [
        "' The red fox' -> ' sleeps in the'",
        "' A grey owl' -> ' lives in the tow'",
        "' The old cat' -> ' waits at the do'",
    ]
