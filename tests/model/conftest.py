"""The model's files are scripts that import each other by name; this lets pytest do the same."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
