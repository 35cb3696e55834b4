import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for `import sequence_cases`: the tests are no package
