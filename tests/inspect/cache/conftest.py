import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for `import brute_force`: the tests are no package
