"""Runs a module as it runs where it is installed: without what only the tests bring.

`python -m bench.installed MODULE ARGUMENTS...`. structlog loads rich where it finds it, some 5 MiB,
which comes with the test extra.
"""

from __future__ import annotations

import runpy
import sys

if __name__ == "__main__":
    sys.modules["rich"] = None  # type: ignore[assignment]  # what an import takes for not there
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
