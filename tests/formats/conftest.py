import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for `import write_files`: the tests are no package
