"""What the tests of the doors share."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # for `import tiny_models`: the tests are no package

collect_ignore = [
    "transformers_suite_cases.py"
]  # run by transformers_suite.py, which says where transformers' tests are


@pytest.fixture
def one_thread():
    """Models this small gain nothing by more, and these tests run beside others."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
