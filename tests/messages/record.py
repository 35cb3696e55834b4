"""Write the texts of all messages again, from the calls in the tables of this folder:

python tests/messages/record.py
"""

import os
import sys
from pathlib import Path

import pytest

if __name__ == "__main__":
    os.environ["UWAGA_RECORD_MESSAGES"] = "1"
    tests = Path(__file__).parents[1]
    files = [tests / "messages" / "test_messages.py", tests / "sequence_parallel" / "test_told.py"]
    sys.exit(pytest.main(["-q", "--timeout=600", *map(str, files)]))
