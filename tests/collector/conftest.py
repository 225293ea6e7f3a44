"""The collector's tests share the makers beside them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
