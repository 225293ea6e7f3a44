"""Runs a module as in an installation, without packages that only the tests install.

`python -m bench.without_extras MODULE ARGUMENTS...`. structlog imports rich if it is installed, some 5
MiB, and rich comes with the test extra.
"""

from __future__ import annotations

import runpy
import sys

if __name__ == "__main__":
    sys.modules["rich"] = None  # type: ignore[assignment]  # makes the import fail as if not installed
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
