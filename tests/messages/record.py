"""Write the texts of all messages again, from the calls in the tables of this folder:

python tests/messages/record.py
"""

import os
import sys
from pathlib import Path

import pytest

if __name__ == "__main__":
    os.environ["UWAGA_RECORD_MESSAGES"] = "1"
    sys.exit(pytest.main(["-q", "--timeout=300", str(Path(__file__).with_name("test_messages.py"))]))
