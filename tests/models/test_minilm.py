"""all-MiniLM-L6-v2, with its published weights, on real text, against transformers.

Letters: M model width.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tolerance import once
from torch import Tensor

import uwaga
from uwaga.encode import sentence_config
from uwaga.models import load
from uwaga.models.checkpoints import sentence_files

_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


@pytest.fixture(scope="module")
def model(minilm: Path):
    assert hashlib.sha256((minilm / "model.safetensors").read_bytes()).hexdigest() == _SHA256
    return load(minilm)


@pytest.fixture(scope="module")
def documents(minilm: Path, request: pytest.FixtureRequest) -> list[Tensor]:
    """Lines of the documents in four languages and three scripts, in tokens; from 3 to more than 100."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(minilm / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    paragraphs = []
    for page in ("concepts/attention.md", "pl/concepts.md", "ja/concepts.md", "zh/concepts.md"):
        lines = (request.config.rootpath / "docs" / page).read_text(encoding="utf-8").splitlines()
        paragraphs += [line for line in lines if line.strip()][4::32]
    return [torch.tensor(tokenizer.encode(paragraph).ids) for paragraph in paragraphs]


def test_its_directory_tells_how_states_become_vectors(minilm: Path) -> None:
    modules = sentence_files.modules(minilm)
    normalize = sentence_files.SentenceModule("Normalize", minilm / "2_Normalize")
    assert modules == sentence_files.SentenceModules(transformer=minilm, pooling=("mean",), others=(normalize,))
    assert sentence_config.read(minilm).transformer.max_tokens == 256


@pytest.mark.slow
@torch.no_grad()
def test_every_state_of_real_text_is_that_of_transformers(
    model, documents: list[Tensor], minilm: Path, transformers, assert_as_exact: Callable
) -> None:
    peer = transformers.BertModel.from_pretrained(minilm).eval()
    exact = transformers.BertModel.from_pretrained(minilm, dtype=torch.float64).eval()
    output = model(uwaga.Ragged.from_list(documents), output_hidden_states=True)
    assert len(documents) > 5

    def theirs(model: torch.nn.Module) -> dict[int | str, Tensor]:
        """The states of each layer, and the pooled."""
        results = [model(ids[None], output_hidden_states=True) for ids in documents]
        layers = range(len(results[0].hidden_states))
        states = {layer: torch.cat([one.hidden_states[layer][0] for one in results]) for layer in layers}
        return states | {"pooled": torch.cat([one.pooler_output for one in results])}

    expected, right = theirs(peer), once(lambda: theirs(exact))
    ours = {**dict(enumerate(x.values for x in output.hidden_states)), "pooled": output.pooled}
    assert ours.keys() == expected.keys()
    for part, values in ours.items():
        assert_as_exact(values, expected[part], lambda part=part: right()[part])
