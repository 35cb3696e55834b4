"""What only a GPU can run, `make gpu`: copies on streams, whole training steps compiled, in half precision."""

from pathlib import Path

import pytest
import torch
from tiny_transformer import tiny

import uwaga
from uwaga.train import fit
from uwaga.train.config import Config

pytestmark = pytest.mark.slow


def test_what_is_recorded_is_kept_in_the_memory_of_the_host() -> None:
    model = tiny("gpt2", d_model=64, num_layers=3, max_position_embeddings=2048).to("cuda")
    ids = torch.randint(40, (2, 2048), device="cuda")
    recordings = []
    for device in (None, "cpu"):
        with uwaga.watch(model, device=device) as recording, torch.no_grad():
            for _ in range(3):
                model(ids)
        recordings.append(recording)
    for name, m in recordings[0].maps.items():
        there = recordings[1].maps[name]
        assert there.query.device.type == "cpu"
        assert torch.equal(there.query, m.query.cpu())
        assert torch.equal(there.key, m.key.cpu())
        torch.testing.assert_close(there.entropy(), m.entropy().cpu(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("how", ["", "compile = true", "dtype"], ids=["plain", "compiled", "bfloat16"])
def test_a_training_run_learns(how: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the cat sat on the mat and the dog ran away\n" * 200)
    run = "" if how == "dtype" else how
    config = Config.parse(
        f"""
        objective = "language-model"
        model = {{family="gpt2", num_layers=2, num_heads=4, d_model=64, d_ff=128, max_position_embeddings=64, dropout=0.1}}
        data = {{kind = "text", train = ["{tmp_path / "text.txt"}"], validation = ["{tmp_path / "text.txt"}"], context_length = 64}}
        batch = {{tokens_per_batch = 1024}}
        optimizer = {{{'dtype = "bfloat16", ' * (how == "dtype")}lr = 0.003}}
        schedule = {{steps = 60}}
        run = {{{", ".join(filter(None, [f'output_dir = "{tmp_path / "run"}"', 'device = "cuda"', run]))}}}
        """
    )
    losses = list(fit(config).losses.values())
    assert losses[-1] < 0.3 * losses[0]
