"""Write the texts of all messages under their calls again, and the list of the command line's options:

python tests/messages/record.py
"""

import os
import sys
from pathlib import Path

import pytest

if __name__ == "__main__":
    os.environ["UWAGA_RECORD_MESSAGES"] = "1"
    tests = Path(__file__).parents[1]
    files = [
        "messages/test_messages.py",
        "sequence_parallel/test_ragged.py::test_what_two_processes_are_told",
        "contracts/test_names.py",
    ]
    sys.exit(pytest.main(["-q", "--timeout=600", *(str(tests / file) for file in files)]))
